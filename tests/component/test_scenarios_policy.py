"""What the job itself asks for, on a whole cluster in virtual time: rules, suspension, deadlines, order of roles."""

from __future__ import annotations

from typing import Any

import msgspec

from remuda.api.errors import NotFound
from remuda.api.training import (
    DeviceFailedPolicy,
    FailureRule,
    Remedy,
    Role,
    RoleAfter,
    RuleAction,
    SuccessPolicy,
    TrainingJob,
)
from remuda.embedded.node.training_model import SimulatedBehaviour
from tests.builders.world import NAMESPACE, World, in_world, training_job


async def submit(world: World, *, spec: dict[str, Any] | None = None, **options: Any) -> None:
    job = training_job("job", **options)
    job = msgspec.structs.replace(job, spec=msgspec.structs.replace(job.spec, **(spec or {})))
    await world.cluster.api.create(TrainingJob, job)


async def set_suspend(world: World, suspend: bool) -> None:
    await world.cluster.api.patch(TrainingJob, "job", {"spec": {"suspend": suspend}}, NAMESPACE)


async def phase(world: World, name: str, within: float = 120.0) -> None:
    await world.until(lambda: world.job().status.phase == name, within, f"the job is {name}")


async def fail_rank(world: World, rank: int, code: int, message: str) -> None:
    child = world.child("job", rank)
    assert child is not None
    child.fail(code, message)


# --- rules ------------------------------------------------------------------------------------------------------------


@in_world()
async def test_an_exit_code_with_a_rule_ends_the_job(world: World) -> None:
    rule = FailureRule(RuleAction.FAIL, name="no-data", exit_codes=[42])
    await submit(world, replicas=4, spares=1, rules=[rule])
    await world.running()
    await fail_rank(world, 2, 42, "exit code 42: the dataset is gone")
    await phase(world, "Failed")
    status = world.job().status
    assert status.reason == "RuleFail"
    assert "Rule `no-data`" in status.message
    assert "exit code 42" in status.message
    ranks = {member.pod for member in status.members}
    await world.until(lambda: {p.name for p in world.pods()} == ranks, 30.0, "its ranks stay, its spare goes")
    await world.until(lambda: all(p.is_terminal for p in world.pods()), 30.0, "none of them runs on")
    held = [node for node in world.cluster.machines.agents if world.devices(node).observed.holdings]
    assert not held, "a pod that has ended holds no device"
    await world.cluster.api.delete(TrainingJob, "job", NAMESPACE)
    await world.until(lambda: not world.pods(), 30.0, "its pods go with the job")


@in_world()
async def test_ignored_crashes_go_on_without_a_charge_and_ever_more_slowly(world: World) -> None:
    rule = FailureRule(RuleAction.IGNORE, exit_codes=[9])
    await submit(world, replicas=2, rules=[rule], backoff_max_seconds=8.0, same_step_limit=0)
    await world.running()
    began = world.now
    for attempt in range(2, 8):
        await fail_rank(world, 0, 9, "exit code 9")
        await world.until(lambda n=attempt: world.is_running("job", n), 60.0, f"attempt {attempt}")  # type: ignore[misc]
    assert world.job().status.used == {}
    assert world.job().status.interruptions == 6
    assert world.now - began > 1 + 2 + 4 + 8, "no hot loop"


@in_world()
async def test_a_device_policy_is_obeyed(world: World) -> None:
    await submit(world, replicas=2, spares=1, device_failed=DeviceFailedPolicy.REPLACE_GANG)
    await world.running()
    await world.parked()
    before = world.gang()
    await world.fail_device(rank=1)
    await world.running(attempt=2)
    assert world.recovery().remedy is Remedy.REPLACE_GANG
    assert not {seat.uid for seat in before.values()} & {seat.uid for seat in world.gang().values()}


# --- suspend and resume -----------------------------------------------------------------------------------------------


@in_world()
async def test_a_suspended_job_gives_all_back_and_resumes_where_it_stopped(world: World) -> None:
    await submit(world, replicas=4, spares=1)
    await world.running()
    await world.step("job", 23)
    await set_suspend(world, True)
    await phase(world, "Suspended")
    await world.until(lambda: not world.pods() and not world.holders(), 30.0, "everything is given back")
    saved = world.job().status.progress.checkpoint_step
    assert saved >= 23, "it was asked for a checkpoint"
    await world.submit("other", replicas=4, spares=1)
    await world.running("other")
    await world.sleep(300.0)
    await set_suspend(world, False)
    await world.running(attempt=2)
    status = world.job().status
    assert status.resume_step == saved
    assert (status.used, status.interruptions, status.recoveries) == ({}, 0, [])
    assert status.goodput.ettr == 1.0
    assert status.suspended_seconds >= 300.0


@in_world()
async def test_a_control_plane_that_dies_while_it_suspends_finishes_that(world: World) -> None:
    await submit(world, replicas=4, spares=1)
    await world.running()
    await world.step("job", 12)
    await set_suspend(world, True)
    for _ in range(4):
        await world.kill_control_plane(within=5.0)
    await phase(world, "Suspended")
    await world.until(lambda: not world.pods(), 30.0, "everything is given back")
    await set_suspend(world, False)
    await world.kill_control_plane(within=5.0)
    await world.running(attempt=2)
    assert world.job().status.used == {}


# --- how long ---------------------------------------------------------------------------------------------------------


@in_world()
async def test_a_job_past_its_deadline_fails_and_is_deleted_after_its_ttl(world: World) -> None:
    await submit(world, spec={"active_deadline_seconds": 30.0, "ttl_seconds_after_finished": 60.0}, replicas=2)
    await world.running()
    await phase(world, "Failed", within=40.0)
    assert world.job().status.reason == "DeadlineExceeded"
    await world.sleep(50.0)
    assert world.job().status.phase == "Failed"
    await world.sleep(20.0)
    assert await is_gone(world)
    assert not world.pods()


async def is_gone(world: World) -> bool:
    try:
        await world.cluster.api.get(TrainingJob, "job", NAMESPACE)
    except NotFound:
        return True
    return False


# --- roles ------------------------------------------------------------------------------------------------------------


def roles(is_: str) -> list[Role]:
    first = training_job("job").spec.roles[0]
    lead = msgspec.structs.replace(first, name="lead", replicas=1)
    return [lead, msgspec.structs.replace(first, name="crew", replicas=2, after=[RoleAfter("lead", is_)])]


@in_world(behaviour=SimulatedBehaviour(step_s=0.5, checkpoint_every=10, steps=20))
async def test_a_role_follows_another_one_that_has_ended(world: World) -> None:
    await submit(world, spec={"roles": roles("Succeeded")})
    await world.running()
    assert [m.role for m in world.job().status.members] == ["lead"]
    await world.running(attempt=2)
    assert [(m.rank, m.role) for m in world.job().status.members] == [(0, "crew"), (1, "crew")]
    assert world.job().status.resume_step is None
    await phase(world, "Succeeded")
    assert world.job().status.used == {}


@in_world()
async def test_a_role_joins_another_one_that_runs(world: World) -> None:
    await submit(world, spec={"roles": roles("Running"), "success": SuccessPolicy(role="lead")})
    await world.until(lambda: len(world.job().status.members) == 3, 60.0, "the crew joins")
    await world.running()
    lead = world.gang()[0]
    assert world.job().status.attempt == 1
    await world.kill_process(rank=2)
    await world.running(attempt=2)
    assert world.gang()[0] == lead
    child = world.child("job", 0)
    assert child is not None
    child.fail(0, "")
    await phase(world, "Succeeded")
    await world.until(lambda: not world.pods(), 30.0, "the crew is gone")
