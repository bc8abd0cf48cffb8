"""A container's own rules and policy come before the pod's."""

from __future__ import annotations

import pytest

from remuda.api.codec import from_wire
from remuda.api.kubernetes.core_v1 import Container, Pod
from remuda.api.meta import JsonObject
from remuda.embedded.node.restart_rules import container_comes_back, restart_rule_for
from tests.builders.pods import a_pod


def container(**fields: object) -> Container:
    return from_wire(Pod, {"metadata": {}, "spec": {"containers": [{"name": "main", **fields}]}}).spec.containers[0]


def rule(action: str, operator: str, *codes: int) -> JsonObject:
    return {"action": action, "exitCodes": {"operator": operator, "values": list(codes)}}


@pytest.mark.parametrize(
    ("pod_policy", "own", "rules", "code", "again"),
    [
        ("Always", "", [], 0, True),
        ("OnFailure", "", [], 0, False),
        ("Never", "", [], 1, False),
        ("Never", "Always", [], 1, True),
        ("Always", "Never", [], 1, False),
        ("Never", "Never", [rule("Restart", "In", 42)], 42, True),
        ("Never", "Never", [rule("Restart", "In", 42)], 1, False),
        ("Never", "Never", [rule("Restart", "NotIn", 1)], 42, True),
    ],
)
def test_a_containers_own_rules_come_first(
    pod_policy: str, own: str, rules: list[JsonObject], code: int, again: bool
) -> None:
    pod = a_pod(policy=pod_policy)
    assert container_comes_back(pod, container(restartPolicy=own, restartPolicyRules=rules), code) is again


def test_the_first_rule_that_matches_decides() -> None:
    rules = [rule("Restart", "In", 1), rule("RestartAllContainers", "In", 1, 2)]
    spec = container(restartPolicyRules=rules)
    assert [restart_rule_for(spec, code) for code in (1, 2, 3)] == ["Restart", "RestartAllContainers", ""]
