"""Checkpoints in doubt: what cannot be read or is not there any more keeps the gang waiting, and nothing intact is lost."""

from __future__ import annotations

from typing import Any

import pytest

from remuda.api.conditions import find_condition
from remuda.api.meta import Condition
from remuda.api.training import TrainingJob
from remuda.core.training.kept_checkpoints import MISSING, UNREADABLE
from remuda.embedded.node.training_model import SimulatedBehaviour
from tests.builders.world import NAMESPACE, World, in_world
from tests.component.world_rig import change_job, gang_at_work, suspend_job

JOB = (NAMESPACE, "job")
LOOP = "/ckpt/rank-1: Too many levels of symbolic links"
RARE = SimulatedBehaviour(step_s=0.5, checkpoint_every=0)


def condition(world: World, kind: str) -> Condition | None:
    return find_condition(world.job().status.conditions, kind)


def is_held(world: World, kind: str) -> bool:
    found = condition(world, kind)
    return world.job().status.reason == kind and found is not None and found.status == "True"


async def consent(world: World, step: int) -> None:
    attempt = world.job().status.attempt
    await change_job(world, {"suspend": False, "checkpoint": {"resumeFrom": {"step": step, "attempt": attempt}}})


async def gang_held_by_what_cannot_be_read(world: World) -> None:
    await gang_at_work(world)
    world.checkpoints.make_unreadable(JOB, 1, LOOP)
    await world.kill_process(rank=2)
    await world.until(lambda: is_held(world, UNREADABLE))


def usable(world: World, rank: int) -> tuple[int, ...]:
    return world.checkpoints.usable(JOB, rank)


@in_world()
async def test_a_directory_that_cannot_be_read_holds_the_barrier_until_it_can(world: World) -> None:
    await gang_at_work(world)
    before, had = world.gang(), {rank: usable(world, rank) for rank in range(4)}
    world.checkpoints.make_unreadable(JOB, 1, LOOP)
    await world.kill_process(rank=2)
    await world.until(lambda: is_held(world, UNREADABLE))
    said = condition(world, UNREADABLE)
    assert said is not None
    member = world.member("job", 1)
    assert f"rank 1 ({member.pod} on {member.node}): {LOOP}" in said.message
    assert "remuda resume job --from-step N" in said.message
    await world.sleep(300.0)
    assert is_held(world, UNREADABLE), "for as long as it takes"
    assert {rank: usable(world, rank) for rank in range(4)} == had
    world.checkpoints.make_readable(JOB, 1)
    await world.running("job", attempt=2)
    assert world.recovery().resume_step == 20
    assert {rank: usable(world, rank)[-2:] for rank in range(4)} == dict.fromkeys(range(4), (20, 10))
    world.assert_kept(before)
    after = condition(world, UNREADABLE)
    assert after is not None
    assert after.status == "False"


@in_world()
async def test_a_long_wait_costs_few_looks_and_no_writes(world: World) -> None:
    await gang_held_by_what_cannot_be_read(world)
    version, looks = world.job().metadata.resource_version, 0
    controller: Any = world.cluster.control.training
    inner = controller.plan

    def plan(observed: Any, now: float) -> Any:
        nonlocal looks
        looks += 1
        return inner(observed, now)

    controller.plan = plan
    await world.sleep(600.0)
    assert world.job().metadata.resource_version == version
    assert looks < 200, "one in a few seconds at most"


@in_world()
async def test_a_first_start_waits_for_a_directory_that_cannot_be_read_too(world: World) -> None:
    world.checkpoints.make_unreadable(JOB, 0, LOOP)
    await world.submit()
    await world.until(lambda: is_held(world, UNREADABLE))
    assert world.job().status.phase == "Starting"
    world.checkpoints.make_readable(JOB, 0)
    await world.running()


@in_world()
async def test_a_held_job_can_be_suspended_and_deleted(world: World) -> None:
    await gang_held_by_what_cannot_be_read(world)
    await suspend_job(world)
    await change_job(world, {"suspend": False})
    await world.until(lambda: is_held(world, UNREADABLE))
    await world.cluster.api.delete(TrainingJob, "job", NAMESPACE)
    await world.until(lambda: not world.pods())


@in_world()
@pytest.mark.parametrize("step", [0, 10])
async def test_consent_goes_on_without_what_cannot_be_read(world: World, step: int) -> None:
    await gang_held_by_what_cannot_be_read(world)
    await consent(world, step)
    if step:  # rank 1 says nothing of step 10 either
        await world.until(lambda: is_held(world, MISSING))
        assert "Step 10 was asked for" in world.job().status.message
        world.checkpoints.make_readable(JOB, 1)
    await world.running("job", attempt=2)
    assert world.recovery().resume_step == step
    assert 20 not in usable(world, 0), "given up"
    assert 20 in world.checkpoints.look(JOB, 0)[2], "and still whole"


@in_world()
async def test_checkpoints_that_are_gone_hold_the_barrier_until_they_are_back(world: World) -> None:
    await gang_at_work(world)
    taken = world.checkpoints.lose(JOB, 3)
    await world.kill_process(rank=2)
    await world.until(lambda: is_held(world, MISSING))
    message = world.job().status.message
    assert "The checkpoint of step 20 is not there any more: rank 3 (" in message
    assert "remuda resume job --from-step 0" in message
    await world.sleep(120.0)
    assert is_held(world, MISSING)
    world.checkpoints.restore(JOB, 3, taken)
    await world.running("job", attempt=2)
    assert world.recovery().resume_step == 20


@in_world()
async def test_ranks_that_lost_theirs_do_not_make_the_last_one_a_writer_for_all(world: World) -> None:
    await gang_at_work(world)
    for rank in (1, 2, 3):
        world.checkpoints.lose(JOB, rank)
    await world.kill_process(rank=2)
    await world.until(lambda: is_held(world, MISSING))


@in_world()
async def test_the_newest_alone_gone_without_a_trace_is_missing_too(world: World) -> None:
    await gang_at_work(world)
    taken = world.checkpoints.lose(JOB, 3)
    world.checkpoints.restore(JOB, 3, [step for step in taken if step < 20])
    await world.kill_process(rank=2)
    await world.until(lambda: is_held(world, MISSING))
    assert "--from-step 10`" in world.job().status.message
    await consent(world, 10)
    await world.running("job", attempt=2)
    assert world.recovery().resume_step == 10


@in_world()
async def test_a_job_may_allow_to_fall_back(world: World) -> None:
    await gang_at_work(world)
    world.checkpoints.lose(JOB, 3)
    await world.kill_process(rank=2)
    await world.until(lambda: is_held(world, MISSING))
    await change_job(world, {"checkpoint": {"fallBack": "Allowed"}})
    await world.running("job", attempt=2)
    assert world.recovery().resume_step == 0
    assert world.checkpoints.look(JOB, 0)[2] == (20, 10), "whole, and offered to whoever asks for them"


@in_world()
async def test_a_corrupt_newest_checkpoint_still_costs_one_step_back(world: World) -> None:
    await gang_at_work(world)
    assert world.corrupt_newest("job", 1) == 20
    await world.kill_process(rank=2)
    await world.running("job", attempt=2)
    assert world.recovery().resume_step == 10
    assert condition(world, MISSING) is None
    await world.kill_process(rank=2)  # before another checkpoint: the one given up is not missed
    await world.running("job", attempt=3)
    assert world.recovery().resume_step == 10


@in_world()
async def test_a_corrupt_newest_does_not_excuse_that_the_others_are_gone(world: World) -> None:
    await gang_at_work(world)
    world.corrupt_newest("job", 1)
    world.checkpoints.lose(JOB, 1)
    await world.kill_process(rank=2)
    await world.until(lambda: is_held(world, MISSING))
    assert "The checkpoint of step 10 is not there any more" in world.job().status.message


@in_world()
async def test_what_was_given_up_can_be_asked_for_again(world: World) -> None:
    await gang_at_work(world)
    await suspend_job(world)
    saved = world.common_checkpoint()
    await consent(world, 10)
    await world.running("job", attempt=2)
    assert {world.child("job", rank).resumed_at for rank in range(4)} == {10}  # type: ignore[union-attr]
    await suspend_job(world)
    assert saved in world.checkpoints.look(JOB, 0)[2]
    await consent(world, saved)
    await world.running("job", attempt=3)
    assert {world.child("job", rank).resumed_at for rank in range(4)} == {saved}  # type: ignore[union-attr]


@in_world()
async def test_consent_counts_for_one_start(world: World) -> None:
    await gang_at_work(world)
    await suspend_job(world)
    await consent(world, 10)
    await world.running("job", attempt=2)
    await world.step("job", 31)
    await world.kill_process(rank=0)
    await world.running("job", attempt=3)
    assert world.recovery().resume_step == 30


@in_world(behaviour=RARE)
async def test_a_job_without_checkpoints_starts_from_the_beginning_as_ever(world: World) -> None:
    await gang_at_work(world)
    await world.kill_process(rank=2)
    await world.running("job", attempt=2)
    assert world.recovery().resume_step == 0
    assert condition(world, MISSING) is None


@in_world(behaviour=RARE)
async def test_one_rank_that_writes_for_all_is_guarded_and_not_held_up(world: World) -> None:
    world.behaviours["job-worker-0"] = SimulatedBehaviour(step_s=0.5, checkpoint_every=10)
    await gang_at_work(world)
    writer = next(rank for rank in range(4) if usable(world, rank))
    assert [k.ranks for k in world.job().status.progress.kept] == [1, 1]
    await world.kill_process(rank=2)
    await world.running("job", attempt=2)
    assert world.recovery().resume_step == 20
    taken = world.checkpoints.lose(JOB, writer)
    await world.kill_process(rank=2)
    await world.until(lambda: is_held(world, MISSING))
    world.checkpoints.restore(JOB, writer, taken)
    await world.running("job", attempt=3)
    assert world.recovery().resume_step >= 20
