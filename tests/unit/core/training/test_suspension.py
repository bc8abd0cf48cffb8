"""Suspend and resume, deadlines and the end of a record, in time that is an argument."""

from __future__ import annotations

import pytest

from remuda.api.conditions import find_condition
from remuda.api.meta import to_seconds
from tests.builders.gang_model import GangModel, a_gang
from tests.builders.gangs import JobBuilder, a_job, racks

JOB = a_job().replicas(3).gpus(8).spares(1).in_one_rack()


def running(job: JobBuilder = JOB, steps: int = 7) -> GangModel:
    return a_gang(job, racks(6, 6)).start(steps)


def suspended(gang: GangModel) -> GangModel:
    gang.edit(suspend=True)
    for _ in range(20):
        gang.round()
        gang.train(1)
    gang.settle(5)
    assert gang.status.phase == "Suspended", gang.status
    return gang


def test_a_suspended_gang_saves_gives_everything_back_and_keeps_its_record() -> None:
    gang = suspended(running(steps=8))
    status = gang.status
    assert (status.reason, status.attempt, status.barrier) == ("Suspended", 2, "Closed")
    assert not gang.gang
    assert (status.members, status.spares, status.retired) == ([], [], [])
    assert status.used == {}
    assert status.recoveries == []
    assert status.progress.checkpoint_step == status.progress.step > 8, "it was asked for a checkpoint first"
    condition = find_condition(status.conditions, "Suspended")
    assert condition is not None
    assert condition.status == "True"
    assert gang.plan().look_again_s is None


def test_a_resumed_gang_goes_on_from_its_checkpoint_and_pays_nothing() -> None:
    gang = suspended(running(steps=8))
    saved = gang.status.progress.checkpoint_step
    gang.advance(1000.0)
    gang.edit(suspend=False)
    gang.settle()
    assert gang.is_running, gang.status
    assert (gang.status.attempt, gang.status.resume_step) == (2, saved)
    assert (gang.status.used, gang.status.interruptions) == ({}, 0)
    assert 999.0 < gang.status.suspended_seconds < 1010.0
    gang.train(5)
    gang.settle(2)
    assert gang.status.goodput.ettr == 1.0, "nobody wanted it to run meanwhile"
    condition = find_condition(gang.status.conditions, "Suspended")
    assert condition is not None
    assert condition.status == "False"


def test_a_job_made_suspended_waits_without_pods() -> None:
    gang = a_gang(JOB.spec(suspend=True), racks(6)).settle(5)
    assert gang.status.phase == "Suspended"
    assert not gang.gang
    gang.edit(suspend=False)
    gang.settle()
    assert (gang.is_running, gang.status.attempt) == (True, 1)


def test_who_does_not_answer_is_stopped_all_the_same() -> None:
    gang = running(steps=8)
    gang.answers_requests = False
    gang.edit(suspend=True)
    gang.settle(5)
    assert gang.is_running, "it is waited for"
    gang.advance(61.0)
    gang.settle(5)
    assert gang.status.phase == "Suspended"


def test_a_fault_while_it_is_asked_is_a_fault_and_then_it_stands_still() -> None:
    gang = running(steps=8)
    gang.edit(suspend=True)
    gang.round()
    gang.crash(gang.member(0).uid)
    gang.settle(10)
    assert (gang.status.phase, gang.status.used) == ("Suspended", {"code": 1})
    assert gang.recovery.first_step_at is not None, "the interruption ended with the suspension"
    gang.advance(500.0)
    gang.edit(suspend=False)
    gang.settle(5)
    gang.train(5)
    gang.settle(2)
    assert gang.status.goodput.lost_seconds < 30.0


def test_a_pod_that_does_not_stop_keeps_the_barrier_shut_after_a_quick_resume() -> None:
    gang = running(steps=10)
    stuck = gang.launcher(0)
    stuck.cannot_stop = True
    gang.edit(suspend=True)
    gang.settle(3)
    gang.edit(suspend=False)
    gang.settle(20)
    assert gang.status.barrier == "Closed"
    gang.advance(12.0)
    gang.settle()
    assert gang.is_running
    assert stuck.uid not in {m.uid for m in gang.status.members}


# --- deadlines --------------------------------------------------------------------------------------------------------


def test_a_job_past_its_deadline_fails_by_name() -> None:
    gang = running(JOB.spec(active_deadline_seconds=100.0))
    assert gang.status.started_at is not None
    left = gang.plan().look_again_s
    assert left is not None
    assert left <= to_seconds(gang.status.started_at) + 100.1 - gang.now
    gang.advance(80.0)
    gang.settle(2)
    assert gang.is_running
    gang.advance(20.0)
    gang.settle(3)
    assert (gang.status.phase, gang.status.reason) == ("Failed", "DeadlineExceeded")
    gang.settle(2)
    assert not gang.live


def test_suspended_time_does_not_count_for_the_deadline() -> None:
    gang = suspended(running(JOB.spec(active_deadline_seconds=200.0), steps=8))
    gang.advance(1000.0)
    gang.settle(2)
    assert gang.status.phase == "Suspended"
    gang.edit(suspend=False)
    gang.settle()
    assert gang.is_running
    gang.advance(200.0)
    gang.settle(2)
    assert gang.status.reason == "DeadlineExceeded"


@pytest.mark.parametrize(("ttl", "is_over"), [(None, False), (0.0, True), (60.0, False)])
def test_a_finished_job_is_kept_for_its_ttl(ttl: float | None, is_over: bool) -> None:
    gang = running(JOB.spec(ttl_seconds_after_finished=ttl))
    for member in gang.status.members:
        gang.crash(member.uid, 0)
    gang.settle(5)
    assert gang.status.phase == "Succeeded"
    plan = gang.plan()
    assert plan.is_over is is_over
    if ttl == 60.0:
        assert plan.look_again_s is not None
        gang.advance(plan.look_again_s)
        assert gang.plan().is_over
