"""Node lifecycle, disruption budgets, endpoints and quantities."""

from typing import Any

import pytest

from remuda.api.codec import from_wire
from remuda.api.kubernetes.core_v1 import Lease, Node, Pod
from remuda.api.kubernetes.policy_v1 import PodDisruptionBudget, Service
from remuda.api.kubernetes.quantity import canonical_quantity
from remuda.api.meta import JsonObject
from remuda.embedded.builtin.planners.disruption_budgets import plan_disruption_budget
from remuda.embedded.builtin.planners.endpoints import plan_endpoint_slice
from remuda.embedded.builtin.planners.node_lifecycle import (
    NOT_READY,
    UNREACHABLE,
    NodeLifecycleObserved,
    plan_node_lifecycle,
)
from tests.unit.embedded.builtin.planners.objects import NOW, a_pod, stamp


def a_node(ready: str = "True", taints: list[JsonObject] | None = None, **spec: Any) -> Node:
    conditions = [{"type": "Ready", "status": ready, "reason": "x"}]
    body = {
        "metadata": {"name": "node"},
        "spec": {"taints": taints or [], **spec},
        "status": {"conditions": conditions},
    }
    return from_wire(Node, body)


def a_lease(ago: float, seconds: int = 8) -> Lease:
    spec = {"renewTime": stamp(NOW - ago), "leaseDurationSeconds": seconds}
    return from_wire(Lease, {"metadata": {"name": "node", "namespace": "kube-node-lease"}, "spec": spec})


def tolerating(name: str, seconds: int | None, **more: Any) -> Pod:
    toleration: JsonObject = {"key": UNREACHABLE, "operator": "Exists", "effect": "NoExecute"}
    if seconds is not None:
        toleration["tolerationSeconds"] = seconds
    return a_pod(name, tolerations=[toleration], **more)


def taint(key: str, effect: str = "NoExecute", ago: float = 0) -> JsonObject:
    return {"key": key, "effect": effect, "timeAdded": stamp(NOW - ago)}


def test_a_fresh_lease_changes_nothing_until_it_would_run_out() -> None:
    plan = plan_node_lifecycle(NodeLifecycleObserved(a_node(), a_lease(3)), NOW)
    assert (plan.conditions, plan.taints) == (None, None)
    assert plan.look_again_s == pytest.approx(5.01)


def test_an_expired_lease_makes_the_node_unreachable() -> None:
    plan = plan_node_lifecycle(NodeLifecycleObserved(a_node(), a_lease(9)), NOW)
    assert plan.conditions is not None
    assert [(c.type, c.status, c.reason) for c in plan.conditions] == [("Ready", "Unknown", "NodeStatusUnknown")]
    assert plan.taints is not None
    assert [(t.key, t.effect) for t in plan.taints] == [(UNREACHABLE, "NoSchedule"), (UNREACHABLE, "NoExecute")]


def test_taints_go_when_the_node_is_back_and_those_of_others_stay() -> None:
    own = {"key": "dedicated", "effect": "NoSchedule"}
    plan = plan_node_lifecycle(
        NodeLifecycleObserved(a_node(taints=[own, taint(UNREACHABLE), taint(NOT_READY)]), a_lease(1)), NOW
    )
    assert plan.taints is not None
    assert [t.key for t in plan.taints] == ["dedicated"]


def test_a_node_that_is_not_ready_is_tainted_so() -> None:
    plan = plan_node_lifecycle(NodeLifecycleObserved(a_node("False"), a_lease(1)), NOW)
    assert plan.taints is not None
    assert {t.key for t in plan.taints} == {NOT_READY}


@pytest.mark.parametrize(
    ("pod", "evicted", "wait"),
    [
        pytest.param(a_pod("a"), True, None, id="no toleration"),
        pytest.param(tolerating("a", 60), False, 40.0, id="not yet"),
        pytest.param(tolerating("a", 20), True, None, id="its time is over"),
        pytest.param(tolerating("a", None), False, None, id="for ever"),
        pytest.param(tolerating("a", 0, deleting=True), False, None, id="goes already"),
        pytest.param(a_pod("a", ("TrainingJob", "job")), False, None, id="a TrainingJob looks after its own"),
        pytest.param(a_pod("a", phase="Failed"), False, None, id="finished"),
    ],
)
def test_who_is_evicted_when(pod: Pod, evicted: bool, wait: float | None) -> None:
    node = a_node("Unknown", [taint(UNREACHABLE, "NoSchedule", 20), taint(UNREACHABLE, "NoExecute", 20)])
    plan = plan_node_lifecycle(NodeLifecycleObserved(node, a_lease(30), (pod,)), NOW)
    assert plan.evict == ((pod,) if evicted else ())
    assert plan.look_again_s == wait


@pytest.mark.parametrize(
    ("spec", "healthy", "broken", "allowed", "desired"),
    [
        ({"minAvailable": 2}, 3, 0, 1, 2),
        ({"minAvailable": 2}, 2, 1, 0, 2),
        ({"minAvailable": "50%"}, 4, 0, 2, 2),
        ({"maxUnavailable": 1}, 4, 0, 1, 3),
        ({"maxUnavailable": 1}, 3, 1, 0, 3),
        ({"maxUnavailable": "25%"}, 4, 0, 1, 3),
        ({}, 1, 0, 0, 1),
    ],
)
def test_how_many_may_be_disrupted(spec: JsonObject, healthy: int, broken: int, allowed: int, desired: int) -> None:
    budget = from_wire(PodDisruptionBudget, {"metadata": {"name": "b"}, "spec": {**spec, "selector": {}}})
    pods = [a_pod(f"h{n}") for n in range(healthy)] + [a_pod(f"b{n}", ready=None) for n in range(broken)]
    status = plan_disruption_budget(budget, tuple(pods), healthy + broken, NOW)
    assert (status.disruptions_allowed, status.desired_healthy, status.current_healthy) == (allowed, desired, healthy)
    reason = "SufficientPods" if allowed else "InsufficientPods"
    assert [(c.type, c.reason) for c in status.conditions] == [("DisruptionAllowed", reason)]


def test_a_slice_lists_addresses_with_their_state() -> None:
    spec = {"selector": {"a": "b"}, "ports": [{"port": 80, "targetPort": 8080}]}
    service = from_wire(Service, {"metadata": {"name": "web", "namespace": "n", "uid": "s"}, "spec": spec})
    pods = tuple(
        from_wire(Pod, {"metadata": {"name": name, "namespace": "n"}, "status": {"podIP": ip, "phase": phase}})
        for name, ip, phase in (("b", "10.0.0.2", "Running"), ("a", "10.0.0.1", "Failed"), ("c", "", "Pending"))
    )
    body = plan_endpoint_slice(service, pods)
    assert [(e["addresses"], e["conditions"]["ready"]) for e in body["endpoints"]] == [(["10.0.0.2"], False)]
    assert body["ports"] == [{"name": "", "protocol": "TCP", "port": 8080}]
    assert body["metadata"]["labels"]["kubernetes.io/service-name"] == "web"


@pytest.mark.parametrize(
    ("written", "stored"),
    [
        ("0.5", "500m"),
        ("1.5Gi", "1536Mi"),
        ("1024Mi", "1Gi"),
        ("1000m", "1"),
        (2, "2"),
        ("2500", "2500"),
        ("1000", "1k"),
        ("0", "0"),
        ("0.1Gi", "107374182400m"),
        ("512Ki", "512Ki"),
        ("1e3", "1e3"),
        ("100n", "100n"),
        ("nonsense", "nonsense"),
    ],
)
def test_quantities_have_one_spelling(written: int | str, stored: str) -> None:
    assert canonical_quantity(written) == stored
