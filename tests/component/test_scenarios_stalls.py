"""Our own stalls and the API's outages cost nobody anything: no node is called lost, no pod replaced, no rank started anew.

With the guard switched off (`guards_stalls=False`) the same stories end in NodeLost: the tests can fail.
"""

from __future__ import annotations

import pytest

from remuda.api.conditions import is_condition_true
from remuda.api.devices import NodeDevices
from remuda.api.kubernetes.core_v1 import Node
from remuda.core.health.mass_silence import MassSilenceRule
from tests.builders.led_cluster import API_PROCESS, MANAGER_PROCESSES
from tests.builders.stalled_world import StalledWorld
from tests.builders.world import World, in_world, play
from tests.component.world_rig import gang_at_work

STOPS = [5.0, 12.0, 30.0, 120.0]


async def undisturbed_by_a_stop(world: World, seconds: float) -> None:
    await gang_at_work(world)
    before = world.gang()
    await world.stop_everything(seconds)
    await world.sleep(40.0)
    assert_undisturbed(world, before)


def assert_undisturbed(world: World, before: object) -> None:
    job = world.job()
    assert (job.status.attempt, job.status.recoveries) == (1, []), world.describe()
    assert world.gang() == before
    assert all(is_condition_true(n.status.conditions, "Ready") for n in world._read_all(Node))
    assert world.is_running("job")


@pytest.mark.parametrize("seconds", STOPS)
@in_world()
async def test_a_process_that_was_stopped_begins_every_countdown_anew(world: World, seconds: float) -> None:
    await undisturbed_by_a_stop(world, seconds)


def test_without_the_guard_a_stop_costs_healthy_pods() -> None:
    with pytest.raises(AssertionError, match="NodeLost"):
        play(
            lambda world: undisturbed_by_a_stop(world, 12.0),
            guards_stalls=False,
            mass_silence=MassSilenceRule(is_on=False),
        )


@pytest.mark.parametrize("seconds", [10.0, 30.0, 300.0])
@in_world()
async def test_an_api_that_was_away_makes_nobody_lost(world: World, seconds: float) -> None:
    await gang_at_work(world)
    before = world.gang()
    await world.api_away(seconds)
    await world.sleep(40.0)
    assert_undisturbed(world, before)


@pytest.mark.parametrize("seconds", [-3600.0, -20.0, 20.0, 3600.0])
@in_world()
async def test_a_clock_that_jumps_makes_nobody_lost(world: World, seconds: float) -> None:
    await world.submit("job", replicas=4)
    await world.running("job")
    before = world.gang()
    world.clock_ahead_s += seconds
    await world.sleep(40.0)
    assert_undisturbed(world, before)


@in_world()
async def test_a_node_that_dies_while_we_are_stopped_is_found_afterwards(world: World) -> None:
    await gang_at_work(world)
    lost = world.member("job", 2).node
    await world.lose_node(lost)
    await world.stop_everything(12.0)
    await world.running("job", attempt=2)
    assert world.recovery().reason == "NodeLost"
    assert lost not in {seat.node for seat in world.gang().values()}


@in_world()
async def test_a_node_that_was_lost_before_a_stop_stays_lost(world: World) -> None:
    await gang_at_work(world)
    lost = world.member("job", 2).node
    await world.lose_node(lost)
    await world.running("job", attempt=2)
    view = world.cluster.control.view
    assert lost in view.dead_nodes(world.clock())
    await world.stop_everything(30.0)
    assert lost in view.dead_nodes(world.clock())
    await world.sleep(1.0)
    assert view.dead_nodes(world.clock()) == {lost}


@pytest.mark.parametrize("process", [API_PROCESS, MANAGER_PROCESSES[0]])
@pytest.mark.parametrize("seconds", [12.0, 120.0])
@in_world(kind=StalledWorld)
async def test_a_process_that_is_stopped_alone_costs_nobody_anything(
    world: StalledWorld, seconds: float, process: str
) -> None:
    await world.submit("job", replicas=4, spares=1)
    await world.running("job")
    await world.parked("job")
    before = world.gang()
    async with world.stopped(process):
        await world.sleep(seconds)
    await world.sleep(40.0)
    assert_undisturbed(world, before)


@pytest.mark.parametrize("reason", ["StorageFull", "StorageReadOnly"])
@in_world(kind=StalledWorld)
async def test_a_device_that_fails_while_the_disk_refuses_writes_is_seen_to_afterwards(
    world: StalledWorld, reason: str
) -> None:
    await world.submit("job", replicas=4, spares=1, rack=False)
    await world.submit("neighbour", replicas=2, rack=False)
    for job in ("job", "neighbour"):
        await world.running(job)
    await world.parked("job")
    before, beside = world.gang(), world.gang("neighbour")
    async with world.disk_refuses(reason):
        await world.sleep(5.0)
        world.break_device(before[2].node, before[2].devices[0], "xid-79")
        await world.sleep(60.0)
        assert world.job().status.attempt == 1, "nothing can be written down, so nothing is begun"
    await world.running("job", attempt=2)
    world.assert_kept(before, but=[2])
    assert (world.gang("neighbour"), world.job("neighbour").status.attempt) == (beside, 1)


async def killed_process(world: StalledWorld) -> None:
    """A gang is told to stop, and its ranks are about to say that they have."""
    await gang_at_work(world)
    await world.kill_process("job", 0)
    await world.until(lambda: world.job().status.attempt == 2, 5.0, "it is told to stop")


@pytest.mark.parametrize("way", ["nodes_without_api", "cut_off"])
@pytest.mark.parametrize("lease_s", [5.0, 20.0])
def test_nobody_is_late_whose_report_cannot_get_through(lease_s: float, way: str) -> None:
    """The stop takes 10 s at most, the outage 60. Who was not heard to stop has its devices quarantined."""

    async def story(world: StalledWorld) -> None:
        await killed_process(world)
        before, pods = world.gang(), {pod.uid for pod in world.pods()}
        async with getattr(world, way)(world.rack_of):
            await world.sleep(60.0)
            assert {pod.uid for pod in world.pods()} == pods, world.describe()
        await world.running("job", attempt=2)
        world.assert_kept(before)
        assert {pod.uid for pod in world.pods()} == pods, world.describe()
        assert not any(node.quarantine for node in world._read_all(NodeDevices))

    play(story, kind=StalledWorld, lease_s=lease_s)


@in_world(kind=StalledWorld)
async def test_a_gang_goes_on_without_a_member_that_is_alone_in_not_being_heard(world: StalledWorld) -> None:
    await killed_process(world)
    before = world.gang()
    async with world.nodes_without_api([before[2].node]):
        await world.running("job", attempt=3)
        world.assert_kept(before, but=[2])
        assert world.recovery().reason == "MemberNotStopped"
