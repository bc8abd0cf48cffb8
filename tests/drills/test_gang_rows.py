"""Rows 62, 70, 71, 73 to 76: a gang loses a member, its place or its time, and what becomes of the whole."""

from __future__ import annotations

import asyncio

import pytest

from remuda.api.codec import to_wire
from remuda.api.conditions import find_condition
from remuda.api.drills import DrillKind
from remuda.api.errors import TooManyRequests
from remuda.api.kubernetes.core_v1 import Node, Pod
from remuda.api.meta import Condition, to_seconds, to_time
from remuda.api.names import LABEL_GANG
from remuda.api.remedies import Soak
from remuda.api.training import Cause, Remedy, TrainingJob
from remuda.cli.jobs.recovery_screen import render_recoveries
from remuda.embedded.node.training_model import SimulatedBehaviour
from tests.builders.evidence import note
from tests.builders.world import NAMESPACE, Gang, Seat, World, in_world
from tests.component.world_rig import (
    drain_at_once,
    events,
    fail,
    free_on,
    gpus,
    is_up,
    node_object,
    protect,
    scheduled,
    set_policy,
    the_pod,
    until_done,
)
from tests.unit.cli.scenes import text_of

STEP_S = 0.5
SELDOM = SimulatedBehaviour(step_s=STEP_S, checkpoint_every=1000)
PULL_S = 40.0


def printed(world: World, job: str = "job") -> str:
    """The recoveries as `remuda job` shows them, on one line."""
    parts = render_recoveries(world.job(job).status.recoveries, 200)
    return " ".join(" ".join(text_of(part, 200) for part in parts).split())


def uids(world: World, job: str = "job") -> set[str]:
    return {seat.uid for seat in world.gang(job).values()}


# --- 62 ---------------------------------------------------------------------------------------------------------------


@in_world(nodes=8, racks=1, pull_s=PULL_S)
async def test_row_62_a_replacement_goes_back_to_the_node_that_has_its_image(world: World) -> None:
    await world.submit("job", replicas=3)
    await world.running("job", within=120.0)
    await world.step("job", 12)
    before, began = world.gang(), world.now
    await world.delete_pod(before[1].pod)
    await world.running("job", attempt=2, within=120.0)
    took = world.now - began
    world.assert_kept(before, but=[1])
    after = world.gang()[1]
    assert (after.node, after.devices) == (before[1].node, before[1].devices), "five other nodes were free"
    assert took < PULL_S, "the image was there"
    why = f"{after.pod} is back on {after.node}, where its image and caches are."
    assert why in printed(world)

    # A node whose device is not well is not gone back to, whatever is cached there.
    await world.sleep(30.0)
    await world.fail_device(rank=1)
    await world.running("job", attempt=3, within=120.0)
    assert world.gang()[1].node != after.node
    assert "again" not in world.recovery().message
    note(f"pod deleted: {why} {took:.0f} s instead of a pull of {PULL_S:g} s; with a bad device it goes elsewhere")


# --- 70 ---------------------------------------------------------------------------------------------------------------


@in_world(nodes=4, behaviour=SimulatedBehaviour(step_s=STEP_S, checkpoint_every=20, jitter=0.1))
async def test_row_70_a_rank_without_progress_for_k_median_steps_has_failed(world: World) -> None:
    await world.submit(replicas=4, gpus=1, rack=False, hang_after_steps=20.0)
    await world.running()
    await world.sleep(20.0)
    before, hung = world.gang(), world.member("job", 1)
    began = world.now
    await world.hang_process("job", 1)
    await world.sleep(20 * STEP_S * 0.8)
    pod = world.pod(hung.pod)
    assert world.job().status.attempt == 1, "not before its time"
    assert pod is not None
    assert pod.status.phase == "Running", "nothing else tells that it is hung"
    await world.running(attempt=2)
    took = world.now - began
    assert 20 * STEP_S * 0.8 < took < 20 * STEP_S * 1.2 + 5.0
    recovery = world.recovery()
    assert (recovery.cause, recovery.reason, recovery.members) == (Cause.HANG, "NoProgress", [hung.pod])
    assert world.job().status.used == {"hang": 1}
    world.assert_kept(before)
    note(f"k = 20 steps of {STEP_S} s: {recovery.reason} of {hung.pod}, training again {took:.1f} s after it hung")


# --- 71 ---------------------------------------------------------------------------------------------------------------


def complete(world: World) -> Condition:
    found = find_condition(world.job().status.conditions, "GangComplete")
    assert found is not None
    return found


@in_world(nodes=4, racks=1)
async def test_row_71_a_gang_below_its_minimum_says_so_while_it_is(world: World) -> None:
    await set_policy(world, soak=Soak(seconds=60.0))
    await world.submit("job", replicas=4)
    await world.running("job")
    assert (complete(world).status, complete(world).reason) == ("True", "AllRanksThere")
    lost = world.member("job", 1)
    await world.fail_device(rank=1, code="xid-48")
    await world.until(lambda: "3 of 4" in complete(world).message, 10.0, "one is missing")
    below = complete(world)
    assert (below.status, below.reason) == ("False", "BelowMinimum")
    assert below.message == "3 of 4 ranks are there; training needs 4."
    assert below.last_transition_time is not None
    await world.sleep(30.0)
    assert complete(world) == below, "for as long as it is so"
    await world.running("job", attempt=2, within=120.0)
    whole = complete(world)
    assert (whole.status, whole.reason) == ("True", "AllRanksThere")
    assert whole.last_transition_time is not None
    lasted = to_seconds(whole.last_transition_time) - to_seconds(below.last_transition_time)
    assert lasted > 60.0
    assert world.member("job", 1).node == lost.node
    note(f"GangComplete False, {below.reason}: {below.message} True again after {lasted:.0f} s, with the device cured")


# --- 73 ---------------------------------------------------------------------------------------------------------------


async def two_gangs(world: World) -> None:
    """Of a node each: `job`, which will lose its own, and `other`."""
    for name in ("job", "other"):
        await world.submit(name, replicas=1)
        await world.running(name)


@in_world(nodes=2, racks=1)
async def test_row_73_a_cured_device_goes_first_to_the_gang_that_lost_it(world: World) -> None:
    """Others have waited for longer: one for a whole node, two for a single device, of which seven lie idle meanwhile."""
    await set_policy(world, soak=Soak(seconds=60.0))
    await two_gangs(world)
    await world.submit("newcomer", replicas=1)
    await world.submit("small", replicas=1, gpus=1)
    await world.cluster.api.create(Pod, gpus("tiny", 1))
    await world.until(lambda: world.job("small").status.reason == "InsufficientDevices")
    lost = world.member("job", 0)
    await world.step("job", 12)
    await world.fail_device(rank=0, code="xid-48")
    await world.until(lambda: world.job().status.reason == "DomainFull")
    await world.sleep(40.0)
    kept = "kept for default/job, which ran there before"
    for waits in ("newcomer", "small"):
        assert world.job(waits).status.phase == "Pending"
        assert kept in world.job(waits).status.message
    assert kept in scheduled(the_pod(world, "tiny"))[1]
    began = world.now
    await world.running("job", attempt=2, within=120.0)
    after = world.member("job", 0)
    assert (after.node, after.devices) == (lost.node, lost.devices)
    assert [world.job(name).status.phase for name in ("newcomer", "small")] == ["Pending", "Pending"]
    note(
        f"{lost.devices[0]} reset, soaked and back in the gang that lost it after {40 + world.now - began:.0f} s, "
        f"before two jobs and a pod that had waited longer: 1 node {kept}"
    )


@in_world(nodes=2, racks=1)
async def test_row_73_room_is_not_kept_for_ever(world: World) -> None:
    """A device that no remedy cures: after half an hour the rest of the node is there for others."""
    await set_policy(world, soak=Soak(seconds=60.0))
    await two_gangs(world)
    await world.cluster.api.create(Pod, gpus("tiny", 1))
    lost = world.member("job", 0)
    await fail(world, node=lost.node, device=lost.devices[0], heals="never")
    await world.until(lambda: world.job().status.reason == "DomainFull")
    await world.sleep(1200.0)
    assert not is_up(world, "tiny")
    began = world.now
    await world.until(lambda: is_up(world, "tiny"), 700.0)
    note(f"not cured: kept for {(1200 + world.now - began) / 60:.0f} min, then the node's other devices serve others")


@in_world(nodes=2, racks=1)
async def test_row_73_a_node_that_others_give_up_goes_to_the_gang_that_lost_its_own(world: World) -> None:
    await two_gangs(world)
    await world.submit("newcomer", replicas=1)
    await world.until(lambda: world.job("newcomer").status.reason == "InsufficientDevices")
    await world.fail_device(rank=0)
    await world.until(lambda: world.job().status.phase == "Recovering")
    await world.sleep(5.0)
    await world.cluster.api.delete(TrainingJob, "other", NAMESPACE)
    await world.running("job", attempt=2)
    assert world.job("newcomer").status.phase == "Pending"


# --- 74 ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("losses", [1, 2], ids=["one-node", "two-nodes-together"])
@in_world(nodes=10, racks=2)
async def test_row_74_replacements_stay_in_the_gangs_rack(world: World, losses: int) -> None:
    await world.submit("job", replicas=3)
    await world.running("job")
    await world.step("job", 12)
    before = world.gang()
    gone = list(range(losses))
    began = world.now
    await asyncio.gather(*(world.lose_node(before[rank].node) for rank in gone))
    lost = {before[rank].uid for rank in gone}
    await world.until(lambda: world.is_running("job", 2) and not lost & uids(world), 120.0)
    world.assert_kept(before, but=gone)
    world.assert_racks(world.rack_of[before[2].node])
    recovery = world.recovery()
    assert recovery.remedy is Remedy.REPLACE_POD
    assert recovery.resume_step == 10
    assert world.job().status.used == {"infra": 1}
    note(f"{losses} of 3 nodes lost, room in the rack: {recovery.remedy} in it, {world.now - began:.0f} s, one charge")


@pytest.mark.parametrize("losses", [1, 2], ids=["one-node", "two-nodes-together"])
@in_world(nodes=6, racks=2)
async def test_row_74_a_full_rack_is_left_by_the_whole_gang(world: World, losses: int) -> None:
    await world.submit("job", replicas=3)
    await world.running("job")
    await world.step("job", 12)
    before = world.gang()
    home = world.rack_of[before[0].node]
    await asyncio.gather(*(world.lose_node(before[rank].node) for rank in range(losses)))
    await world.until(lambda: world.is_running("job", 2) and not {s.uid for s in before.values()} & uids(world), 120.0)
    recovery = world.recovery()
    assert recovery.remedy is Remedy.REPLACE_GANG
    assert any(text.startswith("ReplacePod: ") for text in recovery.why_not)
    assert recovery.resume_step == 10
    away = world.job().status.placement.domain
    assert away != home
    world.assert_racks(away)
    note(f"{losses} of 3 nodes lost, no room in {home}: {recovery.remedy} to {away}")


# --- 75 ---------------------------------------------------------------------------------------------------------------


async def protected_gang(world: World, replicas: int, gpus: int = 8) -> Gang:
    """It trains, under a budget over all of it that allows nothing."""
    await world.submit("job", replicas=replicas, gpus=gpus)
    await world.running("job")
    await world.sleep(10.0)
    await protect(world, {LABEL_GANG: "job"}, replicas)
    return world.gang()


async def fail_beside(world: World, seat: Seat) -> None:
    """A device that the member does not hold; its cure is a reboot of the member's node."""
    await fail(world, "xid-79", seat.node, free_on(world, seat.node, seat.devices))


async def is_refused(world: World, pod: str) -> bool:
    """An eviction, as `kubectl drain` asks for it."""
    try:
        await world.cluster.api.evict(pod, NAMESPACE)
    except TooManyRequests:
        return True
    return False


def left_on(world: World, node: str) -> list[str]:
    return [pod.name for pod in world.pods("job") if pod.spec.node_name == node]


@in_world(nodes=6, racks=1, behaviour=SELDOM)
async def test_row_75_a_remedys_drain_of_a_protected_gang_completes(world: World) -> None:
    await drain_at_once(world, 60.0, 600.0)
    before = await protected_gang(world, 4, gpus=7)
    node = before[0].node
    assert await is_refused(world, before[0].pod)
    began = world.now
    await fail_beside(world, before[0])
    await until_done(world, "probe-reboot-1", 300.0)
    took = world.now - began
    await world.running("job", attempt=2, within=60.0)
    world.assert_kept(before, but=[0])
    assert world.gang()[0].node != node
    record = world.recovery()
    assert (record.cause, record.reason) == (Cause.MAINTENANCE, "DrainRequested")
    assert record.step_at_fault - record.resume_step <= 2
    assert not node_object(world, node).spec.unschedulable, "and given back"
    note(f"remedy drains a node of a gang whose budget allows 0: the gang moved, node rebooted after {took:.0f} s")


@in_world(nodes=6, racks=1, behaviour=SELDOM)
async def test_row_75_an_operators_drain_of_a_protected_gang_completes(world: World) -> None:
    """The eviction is refused for as long as the gang is there. It leaves by itself, behind a checkpoint, so that ends."""
    before = await protected_gang(world, 4)
    node = before[3].node
    await world.cluster.api.patch(Node, node, {"spec": {"unschedulable": True}})
    assert await is_refused(world, before[3].pod)
    said = [c for c in node_object(world, node).status.conditions if c.type != "DrainInProgress"]
    draining = Condition(
        "DrainInProgress", "True", "KubectlDrain", "The node is being drained.", to_time(world.loop.clock())
    )
    await world.cluster.api.patch(
        Node, node, {"status": {"conditions": [to_wire(c) for c in (*said, draining)]}}, subresource="status"
    )
    refused, began = 0, world.now
    while left_on(world, node):
        for pod in left_on(world, node):
            refused += await is_refused(world, pod)
        await world.sleep(1.0)
        assert world.now - began < 120.0, world.describe()
    took = world.now - began
    await world.running("job", attempt=2)
    world.assert_kept(before, but=[3])
    record = world.recovery()
    assert (record.cause, record.reason) == (Cause.MAINTENANCE, "DrainInProgress")
    assert record.step_at_fault - record.resume_step <= 2
    assert refused > 0
    note(
        f"operator's drain: {refused} evictions refused by the budget, then the gang had left; empty after {took:.0f} s"
    )


@in_world(nodes=2, racks=1, behaviour=SELDOM)
async def test_row_75_a_protected_gang_with_nowhere_to_go_holds_a_drain_up_until_its_deadline(world: World) -> None:
    await drain_at_once(world, 20.0, 120.0)
    before = await protected_gang(world, 2, gpus=7)
    began = world.now
    await fail_beside(world, before[0])
    await world.sleep(90.0)
    world.assert_kept(before)
    assert world.job().status.attempt == 1, "the budget is honoured until the deadline"
    await until_done(world, "probe-reboot-1", 300.0)
    await world.running("job", attempt=2, within=120.0)
    world.assert_kept(before, but=[0])
    record = world.recovery()
    assert record.resume_step > 0, "it was asked for a checkpoint before"
    note(
        f"no room elsewhere: drained at the deadline of 120 s, rebooted, training again after {world.now - began:.0f} s"
    )


# --- 76 ---------------------------------------------------------------------------------------------------------------


@in_world(nodes=8, racks=1, behaviour=SELDOM)
async def test_row_76_a_planned_maintenance_finds_the_gang_gone(world: World) -> None:
    await world.submit("job", replicas=4, spares=1)
    await world.running("job")
    await world.parked("job")
    await world.sleep(20.0)
    before, node = world.gang("job"), world.member("job", 2).node
    window = world.now + 120.0
    await world.drill(DrillKind.MAINTENANCE_NOTICE, node=node, seconds=120.0)
    told = world.now
    condition = find_condition(node_object(world, node).status.conditions, "MaintenancePlanned")
    assert condition is not None
    assert condition.status == "True"
    await world.until(lambda: world.job().status.checkpoint_request is not None, 5.0, "a checkpoint is asked for")
    assert world.job().status.attempt == 1, "it is asked for before anybody is moved"
    await world.running("job", attempt=2, within=60.0)
    moved = world.now
    assert moved < window - 60.0
    record = world.recovery("job")
    assert (record.cause, record.reason, record.remedy) == (
        Cause.MAINTENANCE,
        "MaintenancePlanned",
        Remedy.PROMOTE_SPARE,
    )
    request = world.job("job").status.checkpoint_request
    assert request is not None
    assert request.answered_at is not None
    assert "MaintenancePlanned" in request.why
    assert record.resume_step >= request.step > 30
    assert record.step_at_fault - record.resume_step <= 2
    world.assert_kept(before, but=[2])
    assert node not in {s.node for s in world.gang().values()}
    await world.parked("job")
    assert node not in {s.node for s in world.job().status.spares}, "nor is anything new placed there"
    assert "MaintenancePlanned" in printed(world)
    await world.sleep(window + 20.0 - world.now)
    status = world.job("job").status
    assert (status.attempt, status.used) == (2, {"maintenance": 1}), "the reboot itself met nobody"
    reported = [message for _, reason, message in events(world, "job") if reason == "AttemptRaised"]
    assert any("MaintenancePlanned" in message for message in reported), events(world, "job")
    note(
        f"told 120 s ahead; checkpoint of step {record.resume_step} asked for and made, rank 2 moved and training after "
        f"{moved - told:.0f} s, {record.step_at_fault - record.resume_step} steps lost; the reboot met nobody"
    )
