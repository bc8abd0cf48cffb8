"""What is left of a gang's place is kept for it while it fits nowhere."""

from __future__ import annotations

import msgspec

from remuda.api.codec import from_wire
from remuda.api.kubernetes.core_v1 import Pod
from remuda.api.meta import to_time
from remuda.api.names import ANNOTATION_LOST_NODE, LABEL_GANG
from remuda.core.scheduling.gang_placement import PlacementPlan, plan_placement
from remuda.core.scheduling.placement_request import GangAsk
from remuda.core.scheduling.waiting_gangs import gather_waiting_gangs
from remuda.core.state.reservations import KEEP_S
from tests.builders.gangs import a_gang_ask, a_held_pod, a_snapshot, racks

ALL = [f"gpu-{i}" for i in range(8)]
LOST = msgspec.structs.replace(a_gang_ask(1, key="default/z-lost", pinned="rack-1"), keeps=("node-01",))


def plan(*asks: GangAsk) -> PlacementPlan:
    """node-01 has seven devices left, node-02 none."""
    held = [a_held_pod("bad", "node-01", ALL[:1]), a_held_pod("other", "node-02", ALL)]
    return plan_placement(a_snapshot(racks(2), held), asks)


def test_a_newcomer_does_not_settle_on_what_a_gang_lost() -> None:
    found = plan(a_gang_ask(1, 1, key="default/a-small"), LOST)
    assert found.assignments == ()
    why = {pod.name: refusal.message for pod, refusal in found.refused}
    assert "1 node kept for default/z-lost, which ran there before" in why["a-small-0"]
    assert "kept" not in why["z-lost-0"]


def test_nor_does_a_spare() -> None:
    spare = msgspec.structs.replace(a_gang_ask(0, 1, key="default/a-small", spares=1), pinned="rack-1")
    assert plan(LOST).assignments == plan(LOST, spare).assignments == ()
    assert len(plan(spare).assignments) == 1


def test_a_gang_that_has_run_is_not_kept_off() -> None:
    small = msgspec.structs.replace(a_gang_ask(1, 1, key="default/a-small"), has_run=True)
    assert [a.pod.name for a in plan(LOST, small).assignments] == ["a-small-0"]


def test_a_gang_that_has_found_its_place_keeps_nothing() -> None:
    mine = msgspec.structs.replace(a_gang_ask(1, 4, key="default/z-lost", pinned="rack-1"), keeps=("node-01",))
    small = a_gang_ask(1, 1, key="default/a-small")
    assert sorted(a.pod.name for a in plan(mine, small).assignments) == ["a-small-0", "z-lost-0"]


def test_a_node_that_is_gone_is_nobodys() -> None:
    gone = msgspec.structs.replace(LOST, keeps=("node-09",))
    assert [a.pod.name for a in plan(a_gang_ask(1, 1, key="default/a-small"), gone).assignments] == ["a-small-0"]


def test_a_pod_keeps_a_place_for_a_while() -> None:
    meta = {
        "name": "job-worker-4",
        "namespace": "default",
        "uid": "u",
        "labels": {LABEL_GANG: "job"},
        "annotations": {ANNOTATION_LOST_NODE: "node-01"},
        "creationTimestamp": to_time(1000.0).isoformat(),
    }
    pod = from_wire(Pod, {"metadata": meta, "spec": {"containers": []}})
    [young] = gather_waiting_gangs([pod], lambda p: [], lambda node, key: None, 1000.0 + KEEP_S - 1)
    [old] = gather_waiting_gangs([pod], lambda p: [], lambda node, key: None, 1000.0 + KEEP_S)
    assert (young.keeps, old.keeps) == (("node-01",), ())
