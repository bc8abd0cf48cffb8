"""A slow device on a whole cluster in virtual time: found by its rank's speed, named, and cleared when it is normal again."""

from __future__ import annotations

from msgspec.structs import replace

from remuda.api.conditions import find_condition
from remuda.api.devices import DeviceState, Signal, Verdict
from remuda.api.drills import Drill, DrillKind
from remuda.api.meta import Condition
from remuda.api.training import Cause, DegradedPolicy, Member, Straggler
from remuda.core.failure.pace import UNIFORM
from remuda.core.failure.slow_ranks import SOURCE
from remuda.node.training import Behaviour
from tests.builders.world import World, in_world, training_job

NOISY = Behaviour(step_s=0.5, checkpoint_every=20, jitter=0.1)


async def started(
    world: World, replicas: int = 4, gpus: int = 1, policy: DegradedPolicy = DegradedPolicy.CARRY_ON
) -> None:
    job = training_job("job", replicas=replicas, gpus=gpus, rack=False)
    failure = replace(job.spec.failure, straggler=Straggler(policy=policy))
    await world.cluster.api.create(type(job), replace(job, spec=replace(job.spec, failure=failure)))
    await world.running()


def findings(world: World, member: Member) -> dict[str, list[Signal]]:
    return world.devices(member.node).findings


def verdict(world: World, member: Member, device: str) -> Verdict:
    return next(v for v in world.devices(member.node).verdicts if v.device == device)


def all_findings(world: World) -> dict[tuple[str, str], list[Signal]]:
    nodes = {m.node for m in world.job().status.members}
    return {(n, d): s for n in nodes for d, s in world.devices(n).findings.items()}


async def slow(world: World, member: Member, factor: float = 2.0) -> None:
    await world.drill(DrillKind.DEVICE_SLOW, node=member.node, device=member.devices[0], factor=factor)


async def undo(world: World) -> None:
    await world.cluster.api.patch(Drill, f"drill-{world._drills:03d}", {"spec": {"undo": True}})


def gang_slow(world: World) -> Condition | None:
    return find_condition(world.job().status.conditions, "GangSlow")


@in_world(nodes=4, behaviour=NOISY)
async def test_a_slow_device_is_named_with_rank_pod_and_node_and_cleared_when_it_is_normal(world: World) -> None:
    await started(world)
    await world.sleep(30.0)
    assert all_findings(world) == {}
    member = world.member("job", 2)
    await slow(world, member)
    device = member.devices[0]
    await world.until(lambda: findings(world, member), 120.0, "the slow device is found")
    [signal] = findings(world, member)[device]
    assert (signal.source, signal.code) == (SOURCE, "straggler")
    for word in ("Rank 2", member.pod, member.node, device, "steps"):
        assert word in signal.message
    await world.until(lambda: verdict(world, member, device).state is DeviceState.DEGRADED, 10.0, "it is Degraded")
    assert verdict(world, member, device).reason == "SlowRank"
    assert set(all_findings(world)) == {(member.node, device)}
    await undo(world)
    await world.until(lambda: not findings(world, member), 120.0, "the finding is taken back")
    await world.until(lambda: verdict(world, member, device).state is DeviceState.HEALTHY, 10.0, "it is Healthy")


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
async def test_a_power_cap_on_all_blames_nobody_and_says_that_the_gang_is_slow(world: World) -> None:
    await started(world)
    await world.sleep(30.0)
    [node] = {m.node for m in world.job().status.members}
    await world.drill(DrillKind.POWER_CAP, node=node, factor=2.0)
    await world.until(lambda: (c := gang_slow(world)) is not None and c.status == "True", 120.0, "the gang is slow")
    condition = gang_slow(world)
    assert condition is not None
    assert condition.reason == UNIFORM
    assert all_findings(world) == {}
    await undo(world)
    await world.until(lambda: (c := gang_slow(world)) is not None and c.status == "False", 120.0, "it is not any more")
    assert all_findings(world) == {}


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
    await undo(world)
    await world.until(lambda: not findings(world, member), 120.0, "the finding is taken back")


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
async def test_a_hung_rank_is_found_by_the_gangs_own_pace(world: World) -> None:
    await world.submit(replicas=4, gpus=1, rack=False, hang_after_steps=20.0)
    await world.running()
    await world.sleep(20.0)
    hung = world.member("job", 1)
    began = world.now
    await world.hang_process("job", 1)
    await world.running(attempt=2)
    assert world.now - began < 20 * 0.6 + 5.0
    assert (world.recovery().cause, world.recovery().reason) == (Cause.HANG, "NoProgress")
    assert world.recovery().members == [hung.pod]


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


@in_world(nodes=4, behaviour=Behaviour(step_s=0.5, checkpoint_every=20, child_start_s=40.0))
async def test_a_long_start_is_no_hang(world: World) -> None:
    await world.submit(replicas=4, gpus=1, rack=False, hang_after_steps=5.0)
    await world.running(within=200.0)
    await world.sleep(60.0)
    assert world.job().status.attempt == 1
