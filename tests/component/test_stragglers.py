"""A slow device, or a hung rank, on a whole cluster in virtual time. The plain stories are drills (tests/drills)."""

from __future__ import annotations

import asyncio

from msgspec.structs import replace

from remuda.api.conditions import find_condition
from remuda.api.devices import Signal
from remuda.api.drills import Drill, DrillKind
from remuda.api.training import Cause, DegradedPolicy, Member, Straggler
from remuda.embedded.node.training_model import SimulatedBehaviour
from tests.builders.world import World, in_world, play, training_job
from tests.component.world_rig import undo_drill

NOISY = SimulatedBehaviour(step_s=0.5, checkpoint_every=20, jitter=0.1)


async def started(
    world: World, replicas: int = 4, gpus: int = 1, policy: DegradedPolicy = DegradedPolicy.CARRY_ON
) -> None:
    job = training_job("job", replicas=replicas, gpus=gpus, rack=False)
    failure = replace(job.spec.failure, straggler=Straggler(policy=policy))
    await world.cluster.api.create(type(job), replace(job, spec=replace(job.spec, failure=failure)))
    await world.running()


def findings(world: World, member: Member) -> dict[str, list[Signal]]:
    return world.devices(member.node).findings


def all_findings(world: World) -> dict[tuple[str, str], list[Signal]]:
    nodes = {m.node for m in world.job().status.members}
    return {(n, d): s for n in nodes for d, s in world.devices(n).findings.items()}


async def slow(world: World, member: Member, factor: float = 2.0) -> None:
    await world.drill(DrillKind.DEVICE_SLOW, node=member.node, device=member.devices[0], factor=factor)


@in_world(nodes=4, behaviour=NOISY)
async def test_a_rank_of_several_devices_names_them_all_as_suspects(world: World) -> None:
    await started(world, gpus=2)
    member = world.member("job", 1)
    await slow(world, member)
    await world.until(lambda: findings(world, member), 120.0, "the slow rank is found")
    assert set(findings(world, member)) == set(member.devices)
    for [signal] in findings(world, member).values():
        assert all(device in signal.message for device in member.devices)


@in_world(nodes=4, behaviour=NOISY)
async def test_of_several_devices_one_with_a_reason_of_its_own_is_named_alone(world: World) -> None:
    await started(world, gpus=2)
    member = world.member("job", 1)
    await world.drill(DrillKind.DEVICE_FAIL, node=member.node, device=member.devices[1], code="pcie-degraded")
    await slow(world, member)
    await world.until(lambda: findings(world, member), 120.0, "the slow rank is found")
    assert set(findings(world, member)) == {member.devices[1]}
    assert "PcieDegraded" in findings(world, member)[member.devices[1]][0].message


@in_world(nodes=4, behaviour=NOISY)
async def test_what_was_found_outlasts_the_manager_and_is_cleared_by_the_next(world: World) -> None:
    await started(world)
    member = world.member("job", 2)
    await slow(world, member)
    await world.until(lambda: findings(world, member), 120.0, "the slow device is found")
    before = findings(world, member)
    await world.restart_control_plane()
    await world.sleep(60.0)
    assert findings(world, member) == before
    await undo_drill(world)
    await world.until(lambda: not findings(world, member), 120.0, "the finding is taken back")


def test_a_manager_that_ends_halfway_costs_no_step_of_what_was_measured() -> None:
    """The same story with and without a new manager shortly before the verdict: the same device, at the same time."""

    def told(dies_after_s: float | None) -> tuple[float, str, str]:
        async def story(world: World) -> tuple[float, str, str]:
            await started(world)
            await world.sleep(60.0)
            member = world.member("job", 2)
            await slow(world, member, 1.5)
            began = world.now
            if dies_after_s is not None:
                await world.sleep(dies_after_s)
                assert not findings(world, member), "the story wants a manager that has not found it yet"
                await world.restart_control_plane()
            await world.until(lambda: findings(world, member), 120.0, "the slow device is found")
            [(device, [signal])] = findings(world, member).items()
            return world.now - began, device, signal.message

        return play(story, nodes=4, behaviour=NOISY)

    took, device, words = told(None)
    assert took > 10.0, "there must be a middle to end in"
    again = told(took - 2.0)
    assert again[1] == device
    assert "over 12 steps" in words or "over 16 steps" in words, words
    assert abs(again[0] - took) <= 2.0, f"{again[0]:.1f} s with a new manager, {took:.1f} s without"


@in_world(nodes=4, behaviour=NOISY)
async def test_a_gang_that_is_slow_as_a_whole_stays_so_for_the_next_manager(world: World) -> None:
    def said() -> tuple[str, str, str]:
        found = find_condition(world.job().status.conditions, "GangSlow")
        return (found.status, found.reason, found.message) if found is not None else ("", "", "")

    await started(world)
    await world.sleep(30.0)
    await asyncio.gather(*(slow(world, world.member("job", rank)) for rank in range(4)))
    drills = range(world._drills - 3, world._drills + 1)
    await world.until(lambda: said()[0] == "True", 120.0, "the gang is slow")
    await world.sleep(200.0)  # no agent remembers a better time
    before = said()
    await world.restart_control_plane()
    await world.sleep(200.0)
    assert said() == before
    for number in drills:
        await world.cluster.api.patch(Drill, f"drill-{number:03d}", {"spec": {"undo": True}})
    await world.until(lambda: said()[:2] == ("False", "PaceNormal"), 120.0, "it is as fast as it was")
    assert world.job().status.best_step_seconds == 0.0


@in_world(nodes=4, behaviour=NOISY)
async def test_a_probe_that_passed_clears_the_finding(world: World) -> None:
    await started(world)
    member = world.member("job", 2)
    await slow(world, member)
    await world.until(lambda: findings(world, member), 120.0, "the slow device is found")
    await world.cluster.api.delete(type(world.job()), "job", "default")
    await world.sleep(20.0)
    assert findings(world, member)
    await world.drill(DrillKind.DEVICE_FAIL, node=member.node, device=member.devices[0], code="probe-passed")
    await world.until(lambda: not findings(world, member), 20.0, "the finding is taken back")


@in_world(nodes=4, behaviour=NOISY)
async def test_a_job_may_have_the_watch_turned_off(world: World) -> None:
    job = training_job("job", replicas=4, gpus=1, rack=False)
    failure = replace(job.spec.failure, straggler=Straggler(factor=0.0))
    await world.cluster.api.create(type(job), replace(job, spec=replace(job.spec, failure=failure)))
    await world.running()
    await slow(world, world.member("job", 2), factor=4.0)
    await world.sleep(120.0)
    assert all_findings(world) == {}


# --- hangs ----------------------------------------------------------------------------------------------------------------


@in_world(nodes=4, behaviour=NOISY)
async def test_a_hang_is_found_although_the_manager_was_new(world: World) -> None:
    await world.submit(replicas=4, gpus=1, rack=False, hang_after_steps=20.0)
    await world.running()
    await world.sleep(20.0)
    for rank in range(4):
        await world.hang_process("job", rank)
    await world.restart_control_plane()
    await world.running(attempt=2)
    assert world.recovery().cause is Cause.HANG


@in_world(nodes=4, behaviour=SimulatedBehaviour(step_s=0.5, checkpoint_every=20, child_start_s=40.0))
async def test_a_long_start_is_no_hang(world: World) -> None:
    await world.submit(replicas=4, gpus=1, rack=False, hang_after_steps=5.0)
    await world.running(within=200.0)
    await world.sleep(60.0)
    assert world.job().status.attempt == 1
