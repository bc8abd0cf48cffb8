"""Failed devices under workloads that are not ours: conditions, who goes, and whose gang is whose."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from remuda.api.codec import from_wire, to_wire
from remuda.api.conditions import find_condition
from remuda.api.devices import DeviceState, Holding, NodeDevices, Observed, ObservedDevice, Verdict
from remuda.api.kubernetes.core_v1 import Pod
from remuda.api.meta import JsonObject, ObjectMeta
from remuda.api.names import ANNOTATION_DEVICE_FAILED, RESOURCE_GPU
from remuda.core.foreign.device_failures import (
    DEVICE_FAILED,
    DISRUPTION_TARGET,
    EVICT_FOR_S,
    GANG_DEVICE_FAILED,
    RESTART_FOR_S,
    DeviceFailureReaction,
    ForeignPodMark,
    ForeignPodsPlan,
    device_failure_reaction,
    plan_foreign_pods,
)
from remuda.core.foreign.gangs import foreign_gang_of
from remuda.core.foreign.unreachable import NODE_UNREACHABLE, fail_unreachable_pods
from tests.builders.pods import a_pod

NOW = 1_000_000.0
NODE = "node-01"


def owned(kind: str, **more: Any) -> JsonObject:
    owner = {"apiVersion": "v1", "kind": kind, "name": "own", "uid": "own-uid", "controller": True}
    return {"ownerReferences": [owner], **more}


def pod(name: str = "p", kind: str = "ReplicaSet", word: str = "", *, restart: str = "Always", **more: Any) -> Pod:
    marks = {ANNOTATION_DEVICE_FAILED: word} if word else {}
    meta = {**(owned(kind) if kind else {}), **more.pop("meta", {})}
    return a_pod(name, uid=f"uid-{name}", policy=restart, annotations=marks, meta=meta, **more)


def node(state: DeviceState = DeviceState.UNHEALTHY, *holders: Pod) -> NodeDevices:
    """gpu-0 in that state, gpu-1 well; the first holder has gpu-0, the others gpu-1."""
    holdings = [
        Holding(f"{p.namespace}/{p.name}", "main", RESOURCE_GPU, [f"gpu-{min(ix, 1)}"], p.uid)
        for ix, p in enumerate(holders)
    ]
    return NodeDevices(
        metadata=ObjectMeta(name=NODE),
        observed=Observed(devices=[ObservedDevice(f"gpu-{n}", "H100") for n in range(2)], holdings=holdings),
        verdicts=[
            Verdict("gpu-0", state, "Xid79", "fell off the bus", "kmsg/xid-79"),
            Verdict("gpu-1", DeviceState.HEALTHY),
        ],
    )


def plan(*pods: Pod, state: DeviceState = DeviceState.UNHEALTHY, now: float = NOW, **options: Any) -> ForeignPodsPlan:
    everybody = options.pop("everybody", pods)
    members = lambda gang: [p for p in everybody if foreign_gang_of(p) == gang]  # noqa: E731
    return plan_foreign_pods(node(state, *pods), pods, members, now, **options)


def marked(found: Pod, mark: ForeignPodMark) -> Pod:
    """The pod after that mark was written."""
    body = to_wire(found)
    body["status"] = {**body.get("status", {}), "conditions": [to_wire(c) for c in mark.conditions]}
    return from_wire(Pod, body)


def names(found: ForeignPodsPlan) -> list[str]:
    return sorted(r.pod.name for r in found.removals)


@pytest.mark.parametrize("state", [DeviceState.UNHEALTHY, DeviceState.QUARANTINED])
def test_the_holder_is_marked_and_goes_and_its_neighbour_stays(state: DeviceState) -> None:
    found = plan(pod("a"), pod("b"), state=state)
    assert [m.pod.name for m in found.marks] == ["a"]
    said = find_condition(found.marks[0].conditions, DEVICE_FAILED)
    assert said is not None
    assert (said.status, said.reason) == ("True", "Xid79")
    assert all(word in said.message for word in (NODE, "gpu-0", "kmsg/xid-79", "fell off the bus"))
    assert names(found) == ["a"]
    assert found.removals[0].evict


@pytest.mark.parametrize("state", [DeviceState.DEGRADED, DeviceState.UNKNOWN, DeviceState.HEALTHY])
def test_other_states_touch_nobody(state: DeviceState) -> None:
    assert plan(pod("a"), state=state) == ForeignPodsPlan()


@pytest.mark.parametrize(
    ("kind", "reaction"),
    [
        ("ReplicaSet", DeviceFailureReaction.DELETE),
        ("Job", DeviceFailureReaction.DELETE),
        ("StatefulSet", DeviceFailureReaction.DELETE),
        ("DaemonSet", DeviceFailureReaction.IGNORE),
        ("Node", DeviceFailureReaction.IGNORE),
        ("", DeviceFailureReaction.IGNORE),
    ],
)
def test_what_is_done_without_a_policy(kind: str, reaction: DeviceFailureReaction) -> None:
    assert device_failure_reaction(pod(kind=kind)) is reaction


def test_a_trainingjobs_pods_are_none_of_its_business() -> None:
    assert plan(pod("a", "TrainingJob")) == ForeignPodsPlan()


def test_a_word_nobody_knows_is_told_and_counts_as_none() -> None:
    found = plan(pod("a", word="obliterate"))
    assert [word for _, word in found.unknown] == ["obliterate"]
    assert names(found) == ["a"]


def test_a_budget_is_asked_only_until_the_deadline() -> None:
    first = pod("a")
    told = marked(first, plan(first).marks[0])
    assert plan(told, now=NOW + EVICT_FOR_S - 1).removals[0].evict
    assert not plan(told, now=NOW + EVICT_FOR_S + 1).removals[0].evict


def test_restart_waits_and_then_deletes() -> None:
    first = pod("a", word="restart")
    found = plan(first)
    assert (names(found), found.look_again_s) == ([], RESTART_FOR_S)
    told = marked(first, found.marks[0])
    assert names(plan(told, now=NOW + RESTART_FOR_S - 1)) == []
    assert names(plan(told, now=NOW + RESTART_FOR_S + 1)) == ["a"]
    assert names(plan(pod("b", "Job", "restart", restart="Never"))) == ["b"]


def test_fail_ends_the_pod_and_names_its_job() -> None:
    found = plan(pod("a", "Job", "fail", restart="Never"))
    assert [(m.phase, m.reason) for m in found.marks] == [("Failed", DEVICE_FAILED)]
    assert [job.name for _, job, _ in found.jobs] == ["own"]
    assert found.removals == ()


def test_the_condition_is_taken_back_when_the_device_is_well() -> None:
    first = pod("a", word="ignore")
    told = marked(first, plan(first).marks[0])
    assert plan(told).marks == ()
    back = plan(told, state=DeviceState.HEALTHY).marks
    assert [c.status for m in back for c in m.conditions if c.type == DEVICE_FAILED] == ["False"]


def test_where_a_policy_only_observes_nobody_goes() -> None:
    found = plan(pod("a"), pod("b", word="gang"), acts=False)
    assert [m.pod.name for m in found.marks] == ["a"]
    assert found.removals == ()


def gang(name: str, word: str = "gang", on: str = NODE) -> Pod:
    found = pod(name, word=word, node=on, meta={"labels": {"jobset.sigs.k8s.io/jobset-name": "ring"}})
    return found


def test_a_gang_goes_whole_the_failed_one_last() -> None:
    members = [gang("a"), gang("b", on="node-02"), gang("c", on="node-03")]
    found = plan(members[0], everybody=members)
    assert sorted(m.pod.name for m in found.marks) == ["a", "b", "c"]
    reasons = {m.pod.name: c.reason for m in found.marks for c in m.conditions if c.type == DISRUPTION_TARGET}
    assert reasons == dict.fromkeys("abc", GANG_DEVICE_FAILED)
    assert [r.pod.name for r in found.removals] == ["b", "c", "a"]


def test_without_the_word_a_gang_loses_only_the_one() -> None:
    members = [gang("a", ""), gang("b", "", on="node-02")]
    assert names(plan(members[0], everybody=members)) == ["a"]


def test_who_was_marked_with_its_gang_goes_even_when_the_failed_one_is_gone() -> None:
    members = [gang("a"), gang("b", on="node-02")]
    mark = next(m for m in plan(members[0], everybody=members).marks if m.pod.name == "b")
    left = marked(members[1], mark)
    found = plan_foreign_pods(NodeDevices(metadata=ObjectMeta(name="node-02")), [left], lambda gang: [left], NOW)
    assert names(found) == ["b"]


@given(st.lists(st.sampled_from(["", "ignore", "delete", "restart", "gang", "fail", "junk"]), min_size=1, max_size=5))
def test_nobody_goes_without_a_condition_and_a_second_look_writes_nothing_new(words: list[str]) -> None:
    members = [
        pod(f"p{ix}", "Job" if ix % 2 else "ReplicaSet", word, meta={"labels": {"scheduling.x-k8s.io/pod-group": "g"}})
        for ix, word in enumerate(words)
    ]
    first = plan(*members)
    marks = {m.pod.uid: m for m in first.marks}
    assert {r.pod.uid for r in first.removals} <= marks.keys()
    after = [marked(p, marks[p.uid]) if p.uid in marks else p for p in members]
    again = plan(*after)
    assert [m for m in again.marks if not m.phase] == []
    assert names(again) == names(first)


@pytest.mark.parametrize(
    "meta",
    [
        {"annotations": {"remuda.dev/gang": "g"}},
        {"annotations": {"scheduling.k8s.io/group-name": "g"}},
        {"annotations": {"pod-group-name": "g"}},
        {"labels": {"scheduling.x-k8s.io/pod-group": "g"}},
        {"labels": {"jobset.sigs.k8s.io/jobset-name": "g"}},
        {"labels": {"kueue.x-k8s.io/pod-group-name": "g"}},
        {
            "labels": {
                "batch.kubernetes.io/job-completion-index": "3",
                "batch.kubernetes.io/controller-uid": "job-uid",
            }
        },
    ],
)
def test_pods_of_one_group_are_one_gang(meta: JsonObject) -> None:
    one, two = a_pod("one", meta=meta), a_pod("two", meta=meta)
    assert foreign_gang_of(one) == foreign_gang_of(two) != ""
    assert foreign_gang_of(a_pod("other", meta={**meta, "namespace": "elsewhere"})) != foreign_gang_of(one)


def test_a_plain_pod_is_in_no_gang() -> None:
    assert foreign_gang_of(pod()) == ""


# --- nodes that do not answer -----------------------------------------------------------------------------------------


def leaving(name: str = "a", **more: Any) -> Pod:
    return pod(name, "Job", meta={"deletionTimestamp": "1970-01-12T13:46:40Z"}, **more)  # NOW


@pytest.mark.parametrize(("after", "is_over"), [(59.0, False), (61.0, True)])
def test_a_pod_that_was_to_go_counts_as_ended_in_time(after: float, is_over: bool) -> None:
    marks, wait = fail_unreachable_pods(NODE, [leaving()], NOW - 300, NOW + after, 60.0)
    assert [(m.phase, m.reason) for m in marks] == ([("Failed", NODE_UNREACHABLE)] if is_over else [])
    assert (wait is None) == is_over


def test_one_that_was_not_told_to_go_or_whose_node_answers_is_left_alone() -> None:
    assert fail_unreachable_pods(NODE, [pod("a")], NOW - 3000, NOW, 60.0) == ([], None)
    assert fail_unreachable_pods(NODE, [leaving()], NOW + 5000, NOW + 1000, 60.0) == ([], None)
    assert fail_unreachable_pods(NODE, [leaving()], NOW - 3000, NOW + 1000, None) == ([], None)
