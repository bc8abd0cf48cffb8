"""Two faults: at the same moment, and the second in each phase of the recovery from the first."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from remuda.api.training import Cause, Remedy
from remuda.embedded.node.training_model import SimulatedBehaviour
from tests.builders.world import World, in_world
from tests.component.world_rig import gang_at_work

pytestmark = pytest.mark.slow  # `make test` runs it; `make check` has its two minutes

# Slow enough that every phase of a recovery can be hit: half a second to stop, one to start.
SLOW = SimulatedBehaviour(step_s=0.5, checkpoint_every=10, stop_s=0.5, child_start_s=1.0)


# --- at the same moment -----------------------------------------------------------------------------------------------


@in_world(nodes=16)
async def test_two_devices_at_once_take_two_spares(world: World) -> None:
    await gang_at_work(world, spares=2)
    before, spares = world.gang(), world.parked_spares()
    await asyncio.gather(world.fail_device(rank=0), world.fail_device(rank=3))
    await world.until(lambda: world.is_running("job", 2) and not {before[0].uid, before[3].uid} & _uids(world))
    world.assert_kept(before, but=[0, 3])
    assert sorted(world.gang()[rank].pod for rank in (0, 3)) == sorted(spares)
    assert world.recovery().resume_step == 20
    assert world.job().status.used["device"] in (1, 2), "seen in one look they are one interruption"
    assert set(world.job().status.used) == {"device"}
    await world.parked("job", 2)


@in_world(nodes=16)
async def test_two_devices_of_one_pod_are_one_fault(world: World) -> None:
    await gang_at_work(world, spares=2)
    before = world.gang()
    await asyncio.gather(world.fail_device(rank=1, index=0), world.fail_device(rank=1, index=5))
    await world.running("job", attempt=2)
    await world.sleep(5.0)
    assert world.job().status.attempt == 2
    assert world.job().status.used == {"device": 1}
    world.assert_kept(before, but=[1])


@in_world(nodes=16)
async def test_device_and_process_at_once(world: World) -> None:
    await gang_at_work(world, spares=2)
    before = world.gang()
    await asyncio.gather(world.kill_process(rank=2), world.fail_device(rank=0))
    await world.until(lambda: world.is_running("job", 2) and before[0].uid not in _uids(world))
    world.assert_kept(before, but=[0])
    used = world.job().status.used
    assert used["device"] == 1
    assert used.get("code", 0) <= 1
    assert set(used) <= {"device", "code"}


@in_world(nodes=16)
async def test_crash_and_then_its_own_device(world: World) -> None:
    """The process dies of the broken device before anyone has reported the device: the code is not to blame."""
    await gang_at_work(world, spares=1)
    before = world.gang()
    await world.kill_process(rank=2)
    await world.running("job", attempt=2)
    assert world.job().status.used == {"code": 1}
    await world.fail_device(rank=2)
    await world.running("job", attempt=3)
    assert world.job().status.used == {"device": 1}
    world.assert_kept(before, but=[2])


@in_world(nodes=16)
async def test_device_long_after_a_crash_does_not_excuse_it(world: World) -> None:
    await gang_at_work(world, spares=1)
    await world.kill_process(rank=2)
    await world.running("job", attempt=2)
    await world.sleep(30.0)
    await world.fail_device(rank=2)
    await world.running("job", attempt=3)
    assert world.job().status.used == {"code": 1, "device": 1}


@in_world(nodes=16)
async def test_two_nodes_at_once(world: World) -> None:
    await gang_at_work(world, spares=2)
    before = world.gang()
    await asyncio.gather(world.lose_node(before[1].node), world.lose_node(before[2].node))
    await world.until(lambda: world.is_running("job", 2) and not {before[1].uid, before[2].uid} & _uids(world))
    world.assert_kept(before, but=[1, 2])
    assert world.recovery().resume_step == 20
    assert world.job().status.used["infra"] in (1, 2)


@in_world(nodes=16)
async def test_member_and_spare_at_once(world: World) -> None:
    """The spare is promoted only while it is good; the one that failed with the member is not."""
    await gang_at_work(world, spares=1)
    before, (spare,) = world.gang(), world.parked_spares()
    await asyncio.gather(world.fail_device_of(spare), world.fail_device(rank=1))
    await world.until(lambda: world.is_running("job", 2) and before[1].uid not in _uids(world))
    world.assert_kept(before, but=[1])
    assert world.gang()[1].pod != spare
    await world.parked("job", 1)


@in_world(nodes=16)
async def test_every_process_at_once_is_one_interruption(world: World) -> None:
    await gang_at_work(world, spares=1)
    before = world.gang()
    await asyncio.gather(*(world.kill_process(rank=rank) for rank in range(4)))
    await world.running("job", attempt=2)
    await world.sleep(3.0)
    assert world.job().status.attempt == 2
    assert world.job().status.used == {"code": 1}
    world.assert_kept(before)


# --- during the recovery ----------------------------------------------------------------------------------------------

Fault = Callable[[World, int], Awaitable[None]]


async def _device(world: World, rank: int) -> None:
    await world.fail_device(rank=rank)


async def _pod(world: World, rank: int) -> None:
    await world.delete_pod(world.member("job", rank).pod)


async def _launcher(world: World, rank: int) -> None:
    await world.kill_launcher(rank=rank)


async def _node(world: World, rank: int) -> None:
    await world.lose_node(world.member("job", rank).node)


FAULTS: dict[str, Fault] = {"device": _device, "pod": _pod, "launcher": _launcher, "node": _node}
REPLACES = {"device", "pod", "node"}


async def _stopping(world: World) -> None:
    """Everyone was told to stop; nobody has yet."""
    await world.until(lambda: world.job().status.attempt == 2)
    assert len(world.children()) >= 3


async def _waiting(world: World) -> None:
    """The survivors have stopped and wait at the closed barrier for the one that is slow."""
    await world.until(lambda: world.job().status.attempt == 2 and not world.children())
    assert world.job().status.barrier == "Closed"


async def _opened(world: World) -> None:
    """The barrier has just opened; nobody has made a step."""
    await world.until(lambda: (world.job().status.attempt, world.job().status.barrier) == (2, "Open"))
    assert not any(child.step > child.resumed_at for _, child in world.children())


PHASES = {"stopping": _stopping, "waiting": _waiting, "opened": _opened}


@pytest.mark.parametrize("second", FAULTS)
@pytest.mark.parametrize("phase", PHASES)
@pytest.mark.parametrize("first", ["device", "pod"])
@in_world(nodes=16, behaviour=SLOW)
async def test_second_fault_during_recovery(world: World, first: str, phase: str, second: str) -> None:
    # Something must keep the barrier closed while the survivors wait: a pod that has yet to be made, and is slow.
    spares = 0 if phase == "waiting" else 2
    world.behaviours["job-worker-4"] = SimulatedBehaviour(step_s=0.5, checkpoint_every=10, start_s=3.0)
    await gang_at_work(world, spares=spares)
    before = world.gang()
    await FAULTS[first](world, 1)
    await PHASES[phase](world)
    await FAULTS[second](world, 3)
    gone = [1, 3] if second in REPLACES else [1]
    await world.until(lambda: _settled(world, before[3].uid, second), 90.0)
    world.assert_kept(before, but=gone)
    assert world.recovery().resume_step == 20, "nobody made a checkpoint between the two"
    assert world.job().status.attempt <= 4
    used = world.job().status.used
    assert sum(used.values()) <= 2
    assert used.get("code", 0) == used.get("hang", 0) == 0
    await world.parked("job", spares)
    await world.step("job", 31)


def _settled(world: World, uid: str, second: str) -> bool:
    return world.is_running("job", 2) and (second not in REPLACES or uid not in _uids(world))


@in_world(nodes=16, behaviour=SLOW)
async def test_process_killed_just_after_opening(world: World) -> None:
    await gang_at_work(world, spares=1)
    before = world.gang()
    await world.fail_device(rank=1)
    await _opened(world)
    await world.until(lambda: len(world.children()) == 4)
    await world.kill_process(rank=0)
    await world.running("job", attempt=3)
    world.assert_kept(before, but=[1])
    assert world.job().status.used == {"device": 1, "code": 1}
    assert [r.cause for r in world.job().status.recoveries] == [Cause.DEVICE, Cause.CODE]


@in_world(nodes=16, behaviour=SLOW)
async def test_promoted_spare_fails_at_once(world: World) -> None:
    await gang_at_work(world, spares=2)
    before = world.gang()
    await world.fail_device(rank=1)
    await world.until(lambda: world.job().status.attempt == 2 and len(world.gang()) == 4)
    promoted = world.gang()[1].pod
    await world.fail_device_of(promoted)
    await world.until(lambda: world.is_running("job", 2) and world.gang()[1].pod != promoted)
    world.assert_kept(before, but=[1])
    assert world.job().status.used["device"] <= 2
    assert world.recovery().remedy is Remedy.PROMOTE_SPARE


@in_world(nodes=16, behaviour=SLOW)
async def test_device_of_a_member_that_is_being_replaced_changes_nothing(world: World) -> None:
    await gang_at_work(world, spares=1)
    before = world.gang()
    await world.delete_pod(before[1].pod)
    await _stopping(world)
    await world.fail_device_of(before[1].pod)
    await world.running("job", attempt=2)
    await world.sleep(5.0)
    assert world.job().status.attempt == 2
    assert world.job().status.used == {"infra": 1}
    world.assert_kept(before, but=[1])


def _uids(world: World) -> set[str]:
    return {seat.uid for seat in world.gang().values()}
