"""Rows 77, 78, 80: a device that works but not as it should, a gang that is slow as a whole, and what a job makes of it."""

from __future__ import annotations

import asyncio

from remuda.api.conditions import find_condition
from remuda.api.devices import DeviceState, Signal
from remuda.api.drills import DrillKind
from remuda.api.incidents import Incident
from remuda.api.meta import Condition, to_seconds
from remuda.api.training import Cause, DegradedPolicy, Member, Remedy, Straggler
from remuda.core.health.gang_pace import UNIFORM
from remuda.core.health.slow_ranks import SLOW_RANK, SOURCE
from remuda.embedded.node.training_model import SimulatedBehaviour
from tests.builders.evidence import note
from tests.builders.world import Gang, World, in_world
from tests.component.world_rig import undo_drill, verdict

FACTOR = 1.6
EVERY = 100
NOISY = SimulatedBehaviour(step_s=0.5, checkpoint_every=20, jitter=0.1)
SELDOM = SimulatedBehaviour(step_s=0.5, checkpoint_every=EVERY, jitter=0.05)


async def started(world: World, policy: DegradedPolicy, *, spares: int = 0, gpus: int = 1) -> None:
    straggler = Straggler(factor=1.5, policy=policy)
    await world.submit("job", replicas=4, gpus=gpus, spares=spares, rack=False, straggler=straggler)
    await world.running("job")
    await world.parked("job", spares)


async def slow(world: World, member: Member, factor: float = FACTOR) -> None:
    await world.drill(DrillKind.DEVICE_SLOW, node=member.node, device=member.devices[0], factor=factor)


def blamed(world: World) -> dict[tuple[str, str], list[Signal]]:
    """Every finding in the cluster, by node and device."""
    return {(node, device): s for node in world.rack_of for device, s in world.devices(node).findings.items()}


def not_healthy(world: World) -> list[tuple[str, str]]:
    found = ((node, v) for node in world.rack_of for v in world.devices(node).verdicts)
    return [(node, v.device) for node, v in found if v.state is not DeviceState.HEALTHY]


def gang_slow(world: World) -> Condition | None:
    return find_condition(world.job().status.conditions, "GangSlow")


def says_slow(world: World, status: str) -> bool:
    found = gang_slow(world)
    return found is not None and found.status == status


@in_world(nodes=4, behaviour=NOISY)
async def test_row_77_a_rank_that_stays_slow_is_named_down_to_its_device(world: World) -> None:
    await started(world, DegradedPolicy.CARRY_ON)
    await world.sleep(30.0)
    member = world.member("job", 2)
    device = member.devices[0]

    # A few slow steps are nobody's fault.
    await slow(world, member, 3.0)
    await world.sleep(3.0)
    await undo_drill(world)
    await world.sleep(60.0)
    assert blamed(world) == {}

    before, began = world.gang(), world.now
    await slow(world, member)
    await world.until(lambda: blamed(world), 180.0, "the slow device is found")
    assert set(blamed(world)) == {(member.node, device)}
    [signal] = blamed(world)[(member.node, device)]
    assert (signal.source, signal.code) == (SOURCE, "straggler")
    for word in ("Rank 2", member.pod, member.node, device):
        assert word in signal.message
    await world.until(lambda: verdict(world, device, member.node).state is DeviceState.DEGRADED, 10.0, "it is Degraded")
    took = world.now - began
    found = verdict(world, device, member.node)
    assert found.reason == SLOW_RANK
    assert not_healthy(world) == [(member.node, device)]
    await world.sleep(120.0)
    world.assert_kept(before)
    assert world.job().status.attempt == 1, "Degraded, not failed: it serves"
    await undo_drill(world)
    await world.until(lambda: not not_healthy(world), 180.0, "it is Healthy again")
    note(f"{FACTOR:g} x slower, found after {took:.0f} s: {found.state} {found.reason}: {signal.message}")


async def is_slow_as_a_whole(world: World, before: Gang) -> Condition:
    """The gang says that it is slow, and for minutes nobody is blamed or moved."""
    await world.until(lambda: says_slow(world, "True"), 120.0, "the gang is slow")
    condition = gang_slow(world)
    assert condition is not None
    assert condition.reason == UNIFORM
    await world.sleep(300.0)
    assert blamed(world) == {}
    world.assert_kept(before)
    assert world.job().status.attempt == 1
    return condition


@in_world(nodes=4, behaviour=NOISY)
async def test_row_78_a_slow_down_of_everybody_blames_nobody(world: World) -> None:
    """Longer batches, a slow input: every rank takes twice as long, and no device says anything."""
    await started(world, DegradedPolicy.SWAP_NOW)
    await world.sleep(30.0)
    before = world.gang()
    await asyncio.gather(*(slow(world, world.member("job", rank), 2.0) for rank in range(4)))
    condition = await is_slow_as_a_whole(world, before)
    assert not_healthy(world) == []
    assert world._read_all(Incident) == []
    note(f"all 4 ranks 2 x slower: GangSlow, {condition.reason}: {condition.message} 0 devices blamed, nobody moved")


@in_world(nodes=4, behaviour=NOISY)
async def test_row_78_a_power_cap_on_all_moves_nobody(world: World) -> None:
    """Here the devices say themselves that they are held down, all alike: none is worse than its peers."""
    await started(world, DegradedPolicy.SWAP_NOW)
    await world.sleep(30.0)
    before = world.gang()
    [node] = {m.node for m in world.job().status.members}
    await world.drill(DrillKind.POWER_CAP, node=node, factor=2.0)
    condition = await is_slow_as_a_whole(world, before)
    reasons = {verdict(world, device, where).reason for where, device in not_healthy(world)}
    assert reasons == {"PowerCap"}
    await undo_drill(world)
    await world.until(lambda: says_slow(world, "False"), 120.0, "it is not any more")
    await world.until(lambda: not not_healthy(world), 60.0, "the cap is over")
    note(f"power cap on all 4: {condition.reason}, nobody moved although the job would swap at once")


# --- 80 ---------------------------------------------------------------------------------------------------------------


async def slowed(world: World, policy: DegradedPolicy) -> Member:
    """A gang whose rank 1 has just been found slow, well behind its last checkpoint. Returns where that rank sits."""
    await started(world, policy, spares=1, gpus=8)
    await world.step("job", EVERY + 5)
    member = world.member("job", 1)
    await slow(world, member)
    await world.until(lambda: blamed(world), 180.0, "the slow device is found")
    return member


@in_world(nodes=6, racks=1, behaviour=SELDOM)
async def test_row_80_carry_on_changes_nothing(world: World) -> None:
    member = await slowed(world, DegradedPolicy.CARRY_ON)
    before = world.gang()
    await world.sleep(600.0)
    world.assert_kept(before)
    status = world.job().status
    assert (status.attempt, status.recoveries, status.checkpoint_request) == (1, [], None)
    assert verdict(world, member.devices[0], member.node).state is DeviceState.DEGRADED
    note("CarryOn: Degraded for 600 s, same pods, attempt 1")


@in_world(nodes=6, racks=1, behaviour=SELDOM)
async def test_row_80_a_swap_at_the_next_checkpoint_loses_nothing(world: World) -> None:
    member = await slowed(world, DegradedPolicy.SWAP_AT_CHECKPOINT)
    before, (spare,) = world.gang(), world.parked_spares()
    await world.running("job", attempt=2, within=180.0)
    record = world.recovery()
    assert (record.cause, record.reason, record.remedy) == (Cause.DEVICE, SLOW_RANK, Remedy.PROMOTE_SPARE)
    assert record.step_at_fault - record.resume_step <= 2
    assert record.resume_step > EVERY
    world.assert_kept(before, but=[1])
    assert world.gang()[1].pod == spare
    for word in ("Rank 1", member.pod, member.node, "times slower"):
        assert word in record.message
    lost = record.step_at_fault - record.resume_step
    note(f"SwapAtCheckpoint: {record.remedy} behind the checkpoint of step {record.resume_step}, {lost} steps lost")


@in_world(nodes=6, racks=1, behaviour=SELDOM)
async def test_row_80_a_swap_now_does_not_wait_for_a_checkpoint(world: World) -> None:
    await slowed(world, DegradedPolicy.SWAP_NOW)
    before = world.gang()
    await world.running("job", attempt=2, within=30.0)
    record = world.recovery()
    assert (record.cause, record.reason, record.remedy) == (Cause.DEVICE, SLOW_RANK, Remedy.PROMOTE_SPARE)
    assert world.job().status.checkpoint_request is None
    assert record.resume_step == EVERY
    lost = record.step_at_fault - record.resume_step
    assert lost > 2
    world.assert_kept(before, but=[1])
    assert record.signal_at is not None
    assert record.first_step_at is not None
    took = to_seconds(record.first_step_at) - to_seconds(record.signal_at)
    note(f"SwapNow: {record.remedy} at once, training {took:.1f} s later from step {EVERY}, {lost} steps lost")
