"""Required node affinity, by Kubernetes' rules."""

from __future__ import annotations

import pytest

from remuda.api.codec import from_wire
from remuda.api.kubernetes.core_v1 import Pod
from remuda.api.meta import JsonObject
from remuda.core.scheduling.node_affinity import is_node_in_terms, required_node_terms

LABELS = {"zone": "a", "cores": "64"}


def expression(key: str, operator: str, *values: str) -> JsonObject:
    return {"matchExpressions": [{"key": key, "operator": operator, "values": list(values)}]}


def field(operator: str, *values: str, key: str = "metadata.name") -> JsonObject:
    return {"matchFields": [{"key": key, "operator": operator, "values": list(values)}]}


def may_go(terms: list[JsonObject]) -> bool:
    required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}
    pod = from_wire(Pod, {"metadata": {}, "spec": {"affinity": {"nodeAffinity": required}}})
    return is_node_in_terms(required_node_terms(pod.spec), "n1", LABELS)


@pytest.mark.parametrize(
    ("terms", "fits"),
    [
        ([expression("zone", "In", "a", "b")], True),
        ([expression("zone", "In", "b")], False),
        ([expression("other", "In", "a")], False),
        ([expression("zone", "NotIn", "b")], True),
        ([expression("zone", "NotIn", "a")], False),
        ([expression("other", "NotIn", "a")], True),
        ([expression("zone", "Exists")], True),
        ([expression("other", "Exists")], False),
        ([expression("other", "DoesNotExist")], True),
        ([expression("zone", "DoesNotExist")], False),
        ([expression("cores", "Gt", "32")], True),
        ([expression("cores", "Gt", "64")], False),
        ([expression("cores", "Lt", "65")], True),
        ([expression("zone", "Lt", "65")], False),
        ([field("In", "n1")], True),
        ([field("NotIn", "n1")], False),
        ([{**expression("zone", "In", "a"), **field("In", "n2")}], False),
        ([expression("zone", "In", "b"), field("In", "n1")], True),
        ([{}], False),
        ([{}, expression("zone", "Exists")], True),
        ([], False),
        ([expression("zone", "Like", "a")], False),
        ([expression("zone", "In")], False),
        ([expression("cores", "Gt", "many")], False),
        ([expression("cores", "Gt", "9" * 5000)], False),
        ([field("In", "n1", key="metadata.uid")], False),
    ],
    ids=str,
)
def test_where_a_pod_may_go(terms: list[JsonObject], fits: bool) -> None:
    assert may_go(terms) is fits


@pytest.mark.parametrize(
    "spec", [{}, {"affinity": {}}, {"affinity": {"nodeAffinity": {}}}, {"affinity": {"podAffinity": {"a": 1}}}], ids=str
)
def test_a_pod_without_it_may_go_anywhere(spec: JsonObject) -> None:
    pod = from_wire(Pod, {"metadata": {}, "spec": spec})
    assert is_node_in_terms(required_node_terms(pod.spec), "n1", {})
