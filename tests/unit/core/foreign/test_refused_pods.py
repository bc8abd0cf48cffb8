"""Refused pods: which they are, how long to wait, how many are kept, and when a node is a black hole for a resource."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from remuda.api.devices import (
    DeviceOrder,
    DeviceState,
    NodeDevices,
    Observed,
    ObservedDevice,
    OrderAnswer,
    PluginReport,
    QuarantineOrder,
    Verdict,
)
from remuda.api.errors import Refusal
from remuda.api.kubernetes.core_v1 import Node, NodeStatus, Pod
from remuda.api.meta import JsonObject, ObjectMeta, to_time
from remuda.api.names import ANNOTATION_REJECTIONS, RESOURCE_GPU
from remuda.core.foreign.refused_pods import (
    ADMISSION_REJECTED,
    FORGIVEN_S,
    KEPT_PODS,
    LONGEST_RETRY_S,
    foreign_retry_pod_body,
    is_pod_refused_by_node,
    number_foreign_pod_refusals,
    pod_refused_at,
    refused_pod_retry_s,
    refused_pods_hold_until,
    refused_pods_to_prune,
)
from remuda.core.foreign.withheld_resources import (
    FIRST_PROBE_S,
    MOST_REFUSALS,
    WITHHELD_BY,
    note_refused_foreign_pods,
    plan_withheld_resources,
    release_withheld_resource,
    resource_of_refused_pod,
    resources_to_withhold,
)
from tests.builders.pods import a_pod

NOW = 1_000_000.0
WORDS = f"Allocate failed due to requested number of devices unavailable for {RESOURCE_GPU}. Requested: 1, Available: 0"


def refused(
    name: str = "p",
    *,
    at: float = NOW,
    reason: str = "UnexpectedAdmissionError",
    message: str = WORDS,
    owner: str = "own",
    told: bool = False,
    count: int = 0,
    **more: Any,
) -> Pod:
    ref = {"apiVersion": "v1", "kind": "ReplicaSet", "name": owner, "uid": f"uid-{owner}", "controller": True}
    conditions = [{"type": "Ready", "status": "False", "lastTransitionTime": to_time(at)}]
    if told:
        conditions.append({"type": ADMISSION_REJECTED, "status": "True", "lastTransitionTime": to_time(at)})
    status: JsonObject = {"phase": "Failed", "reason": reason, "message": message, "conditions": conditions}
    marks = {ANNOTATION_REJECTIONS: str(count)} if count else {}
    meta = {"ownerReferences": [ref]} if owner else {}
    more.setdefault("limits", {RESOURCE_GPU: 1})
    return a_pod(
        name, uid=f"uid-{name}", status={**status, **more.pop("status", {})}, annotations=marks, meta=meta, **more
    )


@pytest.mark.parametrize(
    ("pod", "is_one"),
    [
        (refused(), True),
        (refused(reason=f"OutOf{RESOURCE_GPU}"), True),
        (refused(reason="OutOfcpu"), True),
        (refused(reason="NodeAffinity"), True),
        (refused(reason="Evicted"), False),
        (refused(reason=""), False),
        (refused(status={"phase": "Pending"}), False),
        (  # it ran before its node rebooted
            refused(status={"containerStatuses": [{"name": "main", "state": {"terminated": {"exitCode": 137}}}]}),
            True,
        ),
    ],
)
def test_what_is_a_rejection(pod: Pod, is_one: bool) -> None:
    assert is_pod_refused_by_node(pod) is is_one


@pytest.mark.parametrize(
    ("pod", "resource"),
    [
        (refused(), RESOURCE_GPU),
        (refused(reason=f"OutOf{RESOURCE_GPU}", message=""), RESOURCE_GPU),
        (refused(reason="OutOfcpu"), ""),
        (refused(reason="NodeAffinity"), ""),
        (refused(message="rpc error"), RESOURCE_GPU),
        (refused(message="rpc error", limits={RESOURCE_GPU: 1, "other.dev/nic": 1}), ""),
        (refused(message="none for other.dev/nic", limits={RESOURCE_GPU: 1, "other.dev/nic": 1}), "other.dev/nic"),
        (refused(message="rpc error", limits={}), ""),
    ],
)
def test_which_resource_it_was_for(pod: Pod, resource: str) -> None:
    assert resource_of_refused_pod(pod) == resource


@given(st.integers(0, 10_000))
def test_the_wait_doubles_to_a_limit(n: int) -> None:
    assert refused_pod_retry_s(n) <= refused_pod_retry_s(n + 1) <= LONGEST_RETRY_S
    assert refused_pod_retry_s(n + 1) in (2 * refused_pod_retry_s(n), LONGEST_RETRY_S, 1.0)


def test_an_owner_is_held_back_and_forgiven() -> None:
    row = [refused("a", at=NOW - 9, count=3, told=True), refused("b", at=NOW, count=4, told=True)]
    assert refused_pods_hold_until(row, NOW) == NOW + 8
    assert refused_pods_hold_until(row, NOW + FORGIVEN_S) == 0
    assert refused_pods_hold_until([], NOW) == 0


def test_the_count_goes_on_where_the_kept_ones_left_it() -> None:
    kept = [refused("old", at=NOW - 30, count=17, told=True)]
    new = [refused("x", at=NOW), refused("y", at=NOW + 1), refused("z", at=NOW, owner="else")]
    found = number_foreign_pod_refusals(new, lambda owner: kept if owner == "uid-own" else [], NOW)
    assert [(p.name, n) for p, n in found] == [("x", 18), ("z", 1), ("y", 19)]


@given(st.lists(st.integers(0, 100), max_size=40))
def test_the_newest_few_of_each_owner_are_kept(times: list[int]) -> None:
    pods = [refused(f"p{ix}", at=NOW + at, owner=f"own-{ix % 2}", told=True) for ix, at in enumerate(times)]
    gone = {p.name for p in refused_pods_to_prune(pods)}
    for owner in ("own-0", "own-1"):
        mine = [p for p in pods if p.metadata.owner_references[0].name == owner]
        kept = [p for p in mine if p.name not in gone]
        assert len(kept) == min(KEPT_PODS, len(mine))
        newest = sorted((pod_refused_at(p) for p in mine), reverse=True)[:KEPT_PODS]
        assert sorted((pod_refused_at(p) for p in kept), reverse=True) == newest


def test_what_is_not_on_record_or_is_bare_is_kept() -> None:
    assert refused_pods_to_prune([refused(f"p{n}") for n in range(9)]) == []
    assert refused_pods_to_prune([refused(f"p{n}", owner="", told=True) for n in range(9)]) == []


def test_a_pod_is_made_again_whole_and_free_of_its_node() -> None:
    body: JsonObject = {
        "metadata": {"name": "solo", "namespace": "n", "uid": "u", "labels": {"a": "b"}, "annotations": {"k": "v"}},
        "spec": {"nodeName": "node-01", "containers": [{"name": "main"}], "hostname": "kept"},
    }
    first = foreign_retry_pod_body(body, 1)
    assert first["metadata"]["name"] == "solo-retry1"
    assert (first["metadata"]["labels"], first["metadata"]["annotations"]["k"]) == ({"a": "b"}, "v")
    assert first["spec"] == {"containers": [{"name": "main"}], "hostname": "kept"}
    assert foreign_retry_pod_body(first, 2)["metadata"]["name"] == "solo-retry2"


# --- black holes ------------------------------------------------------------------------------------------------------


def node(**more: Any) -> NodeDevices:
    plugin = PluginReport(RESOURCE_GPU, "Registered", started_at=to_time(NOW - 10_000))
    rows = [ObservedDevice(f"gpu-{n}", "H100") for n in range(2)]
    observed = Observed(devices=rows, plugins=more.pop("plugins", [plugin]), answers=more.pop("answers", []))
    verdicts = [Verdict("gpu-0"), Verdict("gpu-1", more.pop("second", DeviceState.HEALTHY))]
    return NodeDevices(metadata=ObjectMeta(name="node-01"), observed=observed, verdicts=verdicts, **more)


def noted(*pods: Pod, **more: Any) -> NodeDevices:
    there = node(**more)
    notes = note_refused_foreign_pods(there, pods, NOW)
    return node(**more, rejections={**there.rejections, **notes})


def test_enough_rejections_in_the_window_make_a_black_hole_with_evidence() -> None:
    pods = [refused(f"p{n}", at=NOW - 100 * n) for n in range(5)]
    assert resources_to_withhold(noted(*pods[:4]), {}, NOW) == {}
    order = resources_to_withhold(noted(*pods), {}, NOW)[RESOURCE_GPU]
    assert order.reason == "BlackHole"
    assert all(f"default/p{n}" in order.message for n in range(5))


def test_old_ones_do_not_count() -> None:
    pods = [refused(f"p{n}", at=NOW - (700 if n else 0)) for n in range(5)]
    assert resources_to_withhold(noted(*pods), {}, NOW) == {}


def test_those_of_before_the_plugin_started_do_not_count_nor_any_while_it_is_away() -> None:
    pods = [refused(f"p{n}", at=NOW - 50) for n in range(8)]
    for state, started in (("Registered", NOW - 10), ("Lost", NOW - 1000)):
        plugins = [PluginReport(RESOURCE_GPU, state, started_at=to_time(started))]
        assert resources_to_withhold(noted(*pods, plugins=plugins), {}, NOW) == {}


def test_a_pod_is_noted_once_and_the_notes_are_bounded() -> None:
    pods = [refused(f"p{n}", at=NOW - n) for n in range(50)]
    there = noted(*pods)
    assert len(there.rejections[RESOURCE_GPU]) == MOST_REFUSALS
    assert note_refused_foreign_pods(there, [refused("p0")], NOW) == {}
    assert note_refused_foreign_pods(node(), [refused("p", told=True)], NOW) == {}


# --- and back ---------------------------------------------------------------------------------------------------------


def withheld(**more: Any) -> NodeDevices:
    order = QuarantineOrder("BlackHole", by=more.pop("by", WITHHELD_BY), since=to_time(NOW))
    return node(withheld={RESOURCE_GPU: order}, **more)


def offering(count: int = 2) -> Node:
    return Node(metadata=ObjectMeta(name="node-01"), status=NodeStatus(allocatable={RESOURCE_GPU: count}))


def due(now: float, **more: Any) -> dict[str, DeviceOrder]:
    found = plan_withheld_resources(withheld(**more), (), offering(), now).orders
    return {id: order for id, order in found.items() if order is not None}


def test_a_probe_is_ordered_in_time_and_ever_more_seldom() -> None:
    assert due(NOW + FIRST_PROBE_S - 1) == {}
    first = due(NOW + FIRST_PROBE_S + 1)
    assert sorted(o.device for o in first.values()) == ["gpu-0", "gpu-1"]
    failed = [OrderAnswer(id, "probe", "Failed") for id in first]
    assert due(NOW + 1.9 * FIRST_PROBE_S, answers=failed) == {}
    assert due(NOW + 2.1 * FIRST_PROBE_S, answers=failed).keys().isdisjoint(first)
    assert due(NOW + 3.9 * FIRST_PROBE_S).keys() == due(NOW + 2.1 * FIRST_PROBE_S).keys()


@given(st.floats(1.0, 1e9))
def test_there_is_always_a_next_look(passed: float) -> None:
    again = plan_withheld_resources(withheld(), (), offering(), NOW + passed).look_again_s
    assert again is not None
    assert 0 < again <= 2 * 86_400


@pytest.mark.parametrize(
    ("outcomes", "offered", "state", "is_lifted"),
    [
        (("Succeeded", "Succeeded"), 2, "Registered", True),
        (("Succeeded", "Failed"), 2, "Registered", False),
        (("Succeeded", "Running"), 2, "Registered", False),
        (("Succeeded", "Succeeded"), 0, "Registered", False),
        (("Succeeded", "Succeeded"), 2, "Lost", False),
    ],
)
def test_it_is_lifted_by_a_passed_probe_alone(
    outcomes: tuple[str, str], offered: int, state: str, is_lifted: bool
) -> None:
    at = NOW + FIRST_PROBE_S + 1
    answers = [OrderAnswer(id, "probe", word) for id, word in zip(due(at), outcomes, strict=True)]
    there = withheld(answers=answers, plugins=[PluginReport(RESOURCE_GPU, state)])
    assert bool(plan_withheld_resources(there, (), offering(offered), at).lift) is is_lifted


def test_what_an_operator_withheld_is_not_probed() -> None:
    assert due(NOW + 1e6, by="anna") == {}


def test_release_takes_the_evidence_with_it() -> None:
    assert release_withheld_resource(withheld(), RESOURCE_GPU) == {
        "withheld": {RESOURCE_GPU: None},
        "rejections": {RESOURCE_GPU: None},
    }
    with pytest.raises(Refusal, match="NotWithheld"):
        release_withheld_resource(withheld(), "other.dev/nic")
