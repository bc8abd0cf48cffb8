"""ReplicaSets and Deployments: what one look decides."""

from typing import Any

import pytest
from msgspec.structs import replace

from remuda.api.conditions import find_condition
from remuda.api.kubernetes.apps_v1 import REVISION, ReplicaSet
from remuda.api.meta import JsonObject
from remuda.embedded.builtin.planners.deployments import (
    DeploymentObserved,
    new_replica_set,
    plan_deployment,
    template_hash,
)
from remuda.embedded.builtin.planners.pod_state import count_or_percentage_of
from remuda.embedded.builtin.planners.replicasets import ReplicaSetObserved, plan_replica_set
from tests.unit.embedded.builtin.planners.objects import NOW, a_deployment, a_pod, a_set, full, stamp


@pytest.mark.parametrize(
    ("pods", "created", "deleted"),
    [
        pytest.param([], 3, [], id="none yet"),
        pytest.param([a_pod("a"), a_pod("b")], 1, [], id="one missing"),
        pytest.param([a_pod("a"), a_pod("b"), a_pod("c", phase="Failed")], 1, [], id="a failed one does not count"),
        pytest.param([a_pod("a"), a_pod("b"), a_pod("c", deleting=True)], 1, [], id="one that goes does not count"),
        pytest.param([a_pod(n) for n in "abc"], 0, [], id="as many as wanted"),
        pytest.param([*(a_pod(n) for n in "abc"), a_pod("z", node="")], 0, ["z"], id="the unscheduled one goes first"),
        pytest.param([*(a_pod(n) for n in "abc"), a_pod("z", ready=None)], 0, ["z"], id="then the one not ready"),
        pytest.param([*(a_pod(n) for n in "abc"), a_pod("z", ready=NOW - 1)], 0, ["z"], id="then the youngest"),
        pytest.param([a_pod(n, ("ReplicaSet", "other")) for n in "abc"], 3, [], id="pods of others are not ours"),
    ],
)
def test_a_replica_set_keeps_its_number(pods: list[Any], created: int, deleted: list[str]) -> None:
    plan = plan_replica_set(ReplicaSetObserved(a_set(), tuple(pods)), NOW)
    assert (len(plan.create), [p.name for p in plan.delete]) == (created, deleted)


@pytest.mark.parametrize(("waiting", "created"), [(0, 500), (900, 100), (1000, 0)])
def test_a_huge_replica_set_is_made_in_batches_and_never_has_a_crowd_without_a_node(waiting: int, created: int) -> None:
    own = a_set()
    own = replace(own, spec=replace(own.spec, replicas=2**31 - 1))
    pods = [a_pod(f"w{n}", node="") for n in range(waiting)]
    assert len(plan_replica_set(ReplicaSetObserved(own, tuple(pods)), NOW).create) == created


@pytest.mark.parametrize("cost", ["--5", "\u00b2", "9" * 5000, "x"])
def test_a_deletion_cost_that_is_no_number_costs_nothing(cost: str) -> None:
    own = a_set()
    own = replace(own, spec=replace(own.spec, replicas=0))
    odd = a_pod("odd")
    marks = {"controller.kubernetes.io/pod-deletion-cost": cost}
    odd = replace(odd, metadata=replace(odd.metadata, annotations=marks))
    assert len(plan_replica_set(ReplicaSetObserved(own, (odd, a_pod("b"))), NOW).delete) == 2


def test_orphans_that_match_are_adopted() -> None:
    stray, other = a_pod("stray", None), a_pod("other", None, labels={"a": "c"})
    plan = plan_replica_set(ReplicaSetObserved(a_set(), (stray, other, a_pod("mine"))), NOW)
    assert plan.adopt == (stray,)
    assert len(plan.create) == 1


def test_a_pod_is_available_only_after_the_time_it_must_stay_ready() -> None:
    own = a_set()
    own = replace(own, spec=replace(own.spec, min_ready_seconds=30))
    plan = plan_replica_set(ReplicaSetObserved(own, (a_pod("a", ready=NOW - 50), a_pod("b", ready=NOW - 10))), NOW)
    assert (plan.status.ready_replicas, plan.status.available_replicas) == (2, 1)
    assert plan.look_again_s == 20


def test_made_pods_carry_template_and_owner() -> None:
    (body, *_) = plan_replica_set(ReplicaSetObserved(a_set(), ()), NOW).create
    assert body["metadata"]["generateName"] == "set-"
    assert body["metadata"]["labels"] == {"a": "b"}
    assert body["metadata"]["ownerReferences"][0]["uid"] == "set"
    assert body["spec"]["containers"][0]["image"] == "x:1"


ROLLING = {"rollingUpdate": {"maxSurge": 1, "maxUnavailable": 1}}
SURGE_ONLY = {"rollingUpdate": {"maxSurge": 2, "maxUnavailable": 0}}
RECREATE = {"type": "Recreate"}


def scaled(plan: Any) -> dict[str, int]:
    return {s.replica_set.name: s.replicas for s in plan.scale}


@pytest.mark.parametrize(
    ("strategy", "sets", "created", "scale"),
    [
        pytest.param(ROLLING, [], 4, {}, id="first"),
        pytest.param(ROLLING, [full("old", 4, "x:1")], 1, {}, id="a new template begins with the surge"),
        pytest.param(
            ROLLING, [full("old", 4, "x:1"), full("new", 1, "x:2")], None, {"old": 2}, id="the new one lets old ones go"
        ),
        pytest.param(
            ROLLING,
            [full("old", 4, "x:1"), full("new", 1, "x:2", available=0)],
            None,
            {"old": 3},
            id="while the new one is not available, one may be missing",
        ),
        pytest.param(
            ROLLING, [full("old", 2, "x:1"), full("new", 1, "x:2")], None, {"new": 3}, id="room is filled with new ones"
        ),
        pytest.param(
            SURGE_ONLY,
            [full("old", 4, "x:1"), full("new", 2, "x:2", available=1)],
            None,
            {"old": 3},
            id="never fewer than wanted",
        ),
        pytest.param(
            SURGE_ONLY,
            [full("old", 4, "x:1"), full("new", 2, "x:2", available=0)],
            None,
            {},
            id="nothing is ready: wait",
        ),
        pytest.param(
            ROLLING,
            [full("old", 4, "x:1", available=1), full("new", 1, "x:2", available=0)],
            None,
            {"old": 3},
            id="broken old pods go first",
        ),
        pytest.param(RECREATE, [full("old", 4, "x:1")], None, {"old": 0}, id="recreate: first all old ones go"),
        pytest.param(RECREATE, [a_set("old", 0)], 4, {}, id="recreate: then the new ones come"),
    ],
)
def test_a_roll_out_one_look_at_a_time(
    strategy: JsonObject, sets: list[ReplicaSet], created: int | None, scale: dict[str, int]
) -> None:
    plan = plan_deployment(DeploymentObserved(a_deployment(strategy=strategy), tuple(sets)), NOW)
    assert (plan.create["spec"]["replicas"] if plan.create else None) == created
    assert scaled(plan) == scale


def test_recreate_waits_for_pods_that_are_still_going() -> None:
    observed = DeploymentObserved(a_deployment(strategy=RECREATE), (a_set("old", 0),), old_pods=1)
    assert plan_deployment(observed, NOW).create is None


def test_a_paused_deployment_is_scaled_but_not_rolled() -> None:
    own = a_deployment(5, image="x:1", paused=True)
    assert scaled(plan_deployment(DeploymentObserved(own, (full("set", 4, "x:1"),)), NOW)) == {"set": 5}
    other = a_deployment(5, image="x:2", paused=True)
    plan = plan_deployment(DeploymentObserved(other, (full("set", 4, "x:1"),)), NOW)
    assert (plan.create, plan.scale) == (None, ())


def test_revisions_count_up_and_going_back_takes_the_next() -> None:
    sets = (
        full("first", 0, "x:2", annotations={REVISION: "1"}),
        full("second", 4, "x:3", annotations={REVISION: "2"}),
    )
    plan = plan_deployment(DeploymentObserved(a_deployment(image="x:2"), sets), NOW)
    assert plan.new is not None
    assert (plan.new.name, plan.revision) == ("first", 3)


def test_history_is_kept_to_its_limit() -> None:
    old = [full(f"old{n}", 0, f"o:{n}", annotations={REVISION: str(n)}) for n in range(5)]
    own = a_deployment(image="x:2", revisionHistoryLimit=2)
    plan = plan_deployment(DeploymentObserved(own, (*old, full("new", 4, "x:2", annotations={REVISION: "9"}))), NOW)
    assert [s.name for s in plan.delete] == ["old0", "old1", "old2"]


def test_the_sets_of_two_templates_have_different_names() -> None:
    one, other = new_replica_set(a_deployment(image="x:1"), 1, 1), new_replica_set(a_deployment(image="x:2"), 1, 1)
    assert one["metadata"]["name"] != other["metadata"]["name"]
    digest = one["metadata"]["labels"]["pod-template-hash"]
    assert one["spec"]["selector"]["matchLabels"] == {"a": "b", "pod-template-hash": digest}
    assert one["spec"]["template"]["metadata"]["labels"]["pod-template-hash"] == digest
    assert template_hash({"a": 1}, 0) != template_hash({"a": 1}, 1)


def test_a_roll_out_that_makes_no_progress_is_told() -> None:
    sets = (full("old", 3, "x:1"), full("new", 2, "x:2", available=0))
    own = a_deployment(strategy=ROLLING, progressDeadlineSeconds=60)
    first = plan_deployment(DeploymentObserved(own, sets), NOW)
    condition = find_condition(first.status.conditions, "Progressing")
    assert condition is not None
    assert (condition.status, first.look_again_s) == ("True", 60.0)
    conditions = [
        {"type": c.type, "status": c.status, "reason": c.reason, "message": c.message} for c in first.status.conditions
    ]
    stuck = a_deployment(
        strategy=ROLLING,
        progressDeadlineSeconds=60,
        status={"conditions": [{**c, "lastTransitionTime": stamp(NOW)} for c in conditions]},
    )
    late = plan_deployment(DeploymentObserved(stuck, sets), NOW + 61)
    condition = find_condition(late.status.conditions, "Progressing")
    assert condition is not None
    assert (condition.status, condition.reason) == ("False", "ProgressDeadlineExceeded")


@pytest.mark.parametrize(("value", "up", "down"), [("25%", 2, 1), ("50%", 3, 2), (3, 3, 3), ("0%", 0, 0)])
def test_shares_are_rounded_up_or_down(value: int | str, up: int, down: int) -> None:
    assert (count_or_percentage_of(value, 5, up=True), count_or_percentage_of(value, 5, up=False)) == (up, down)
