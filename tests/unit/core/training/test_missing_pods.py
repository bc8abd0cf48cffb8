"""Where a replacement goes: back to the same node when that is well, and room that a gang lost is the gang's first."""

from __future__ import annotations

import pytest

from remuda.api.training import Remedy
from remuda.core.scheduling.gang_placement import plan_placement
from tests.builders.gang_model import GangModel, a_gang
from tests.builders.gangs import JobBuilder, NodeBuilder, a_gang_ask, a_job, a_snapshot, racks

JOB = a_job().replicas(3).gpus(8).in_one_rack()


def running(job: JobBuilder = JOB, nodes: list[NodeBuilder] | None = None) -> GangModel:
    return a_gang(job, nodes or racks(6, 6)).start()


def test_row_62_a_deleted_pod_is_replaced_on_the_same_node_and_says_so() -> None:
    gang = running()
    victim = gang.member(1)
    gang.lagging = {victim.uid}  # it takes its grace, while other nodes are free
    gang.delete_pod(victim.uid)
    gang.settle(5)
    gang.lagging.clear()
    gang.settle()
    assert gang.is_running
    after = gang.member(1)
    assert (after.node, after.devices) == (victim.node, victim.devices)
    assert after.pod != victim.pod
    assert f"{after.pod} is back on {victim.node}, " in gang.recovery.message


def test_a_spare_that_was_on_that_node_all_along_is_not_said_to_be_back() -> None:
    gang = running(a_job().replicas(1).gpus(4).spares(1), racks(1))
    victim, spare = gang.member(0), gang.status.spares[0]
    assert spare.node == victim.node
    gang.delete_pod(victim.uid)
    gang.settle()
    assert gang.is_running
    assert gang.member(0).pod == spare.pod
    assert gang.recovery.remedy is Remedy.PROMOTE_SPARE
    assert "is back on" not in gang.recovery.message


def test_it_does_not_go_back_to_a_node_that_is_not_well() -> None:
    gang = running()
    victim = gang.member(1)
    gang.announce(victim.node, "MaintenancePlanned", None)
    gang.delete_pod(victim.uid)
    gang.settle()
    assert gang.is_running
    assert gang.member(1).node != victim.node


def test_it_does_not_wait_for_a_pod_that_never_goes() -> None:
    gang = running()
    victim = gang.member(1)
    gang.kill_launcher(victim.uid)
    gang.lagging = {victim.uid}
    gang.delete_pod(victim.uid)
    gang.settle(5)
    gang.advance(20.0)
    gang.settle()
    assert gang.is_running
    assert gang.member(1).node != victim.node


def test_a_broken_device_is_not_gone_back_to() -> None:
    gang = running(JOB.gpus(4))
    victim = gang.member(1)
    gang.fail_device(victim.node, victim.devices[0])
    gang.settle()
    assert gang.is_running
    assert "again" not in gang.recovery.message


@pytest.mark.parametrize("losses", [(0,), (0, 1)], ids=["one node", "two nodes together"])
def test_row_74_replacements_stay_in_the_rack_or_all_go(losses: tuple[int, ...]) -> None:
    gang = running(nodes=racks(5, 5))
    for rank in losses:
        node = gang.member(rank).node
        gang.power_off(node)
        gang.expire(node)
    gang.settle()
    assert gang.is_running
    assert gang.recovery.remedy is Remedy.REPLACE_POD
    assert gang.status.placement.domain == "rack-1"
    tight = running(nodes=racks(3, 3))
    for rank in losses:
        node = tight.member(rank).node
        tight.power_off(node)
        tight.expire(node)
    tight.settle()
    assert tight.is_running
    assert tight.recovery.remedy is Remedy.REPLACE_GANG
    assert tight.status.placement.domain == "rack-2"


def test_row_73_freed_room_goes_to_the_gang_that_lost_it_also_when_it_moves_whole() -> None:
    snapshot = a_snapshot(racks(2))
    fresh = a_gang_ask(2, key="default/a-new-one")
    moved = a_gang_ask(2, key="default/z-moved")
    moved = type(moved)(key=moved.key, members=moved.members, topology=moved.topology, has_run=True)
    plan = plan_placement(snapshot, [fresh, moved])
    assert {a.pod.name.rsplit("-", 1)[0] for a in plan.assignments} == {"z-moved"}


def test_pods_of_a_gang_that_has_run_say_so() -> None:
    gang = running(nodes=racks(3, 3))
    assert not any(p.annotations.get("remuda.dev/has-run") for p in gang.gang)
    gang.power_off("node-01")
    gang.expire("node-01")
    gang.settle()
    assert gang.recovery.remedy is Remedy.REPLACE_GANG
    assert all(p.annotations.get("remuda.dev/has-run") == "true" for p in gang.gang)
