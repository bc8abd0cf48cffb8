"""What a look says: phases, conditions, the end, and when to look again."""

from __future__ import annotations

import msgspec
import pytest

from remuda.api.conditions import find_condition, is_condition_true
from remuda.api.meta import to_time
from tests.builders.gang_model import GangModel, a_gang
from tests.builders.gangs import a_job, racks

JOB = a_job().replicas(2).gpus(8).spares(1).in_one_rack()


def running() -> GangModel:
    gang = a_gang(JOB, racks(4)).settle()
    assert gang.is_running
    return gang


def test_phases_of_a_start() -> None:
    gang = a_gang(JOB, racks(4))
    seen: list[tuple[str, str]] = []
    for _ in range(8):
        gang.round()
        if (gang.status.phase, gang.status.reason) not in seen:
            seen.append((gang.status.phase, gang.status.reason))
    assert seen == [("Pending", "WaitingForPlacement"), ("Starting", "WaitingAtBarrier"), ("Running", "BarrierOpen")]
    assert is_condition_true(gang.status.conditions, "Running")


def test_a_refused_gang_says_why_in_the_schedulers_words() -> None:
    gang = a_gang(JOB.replicas(9), racks(4)).settle(5)
    assert (gang.status.phase, gang.status.reason) == ("Pending", "InsufficientDevices")
    assert gang.status.message.startswith("Needs 9 pods of 8 GPUs in one rack; rack rack-1 has room for 4.")
    condition = find_condition(gang.status.conditions, "Running")
    assert condition is not None
    assert (condition.status, condition.reason) == ("False", "InsufficientDevices")


def test_a_pod_that_waits_for_a_rank_is_not_shown_as_a_spare() -> None:
    gang = a_gang(JOB, racks(4))
    gang.look()
    gang.deliver()
    gang.look()
    assert [(s.pod, s.parked) for s in gang.status.spares] == [("job-worker-2", False)]


@pytest.mark.parametrize(
    ("code", "message", "reason"),
    [
        (127, "command not found: trian", "CommandNotFound"),
        (73, "CheckpointPathNotWritable: /data", "CheckpointPathNotWritable"),
    ],
)
def test_a_failure_that_no_restart_cures_is_final_and_complete(code: int, message: str, reason: str) -> None:
    gang = running()
    gang.crash(gang.member(1).uid, code, message)
    gang.settle(3)
    status = gang.status
    assert (status.phase, status.reason, status.message) == ("Failed", reason, message)
    assert (status.used, status.barrier, status.spares) == ({}, "Closed", [])
    assert status.finished_at is not None
    assert is_condition_true(status.conditions, "Failed")
    assert not is_condition_true(status.conditions, "Running")
    gang.settle(2)
    assert (gang.live, gang.kept) == ([], {m.pod for m in status.members})


def test_success_is_final_and_complete() -> None:
    gang = running()
    for member in gang.status.members:
        gang.crash(member.uid, 0)
    gang.settle(3)
    assert (gang.status.phase, gang.status.reason) == ("Succeeded", "AllRanksDone")
    assert is_condition_true(gang.status.conditions, "Complete")
    assert gang.gang == []
    plan = gang.plan()
    assert (plan.status, plan.create, plan.look_again_s) == (gang.status, (), None)


def test_one_rank_that_is_done_waits_for_the_others() -> None:
    gang = running()
    gang.crash(gang.member(0).uid, 0)
    gang.settle(3)
    assert (gang.status.phase, gang.status.attempt) == ("Running", 1)


def test_what_breaks_after_the_last_step_breaks_nothing() -> None:
    gang = running()
    for member in gang.status.members:
        gang.crash(member.uid, 0)
    gang.fail_device(gang.member(0).node, gang.member(0).devices[0])
    gang.power_off(gang.member(1).node)
    gang.expire(gang.member(1).node)
    gang.judge()
    gang.deliver()
    gang.look()
    assert gang.status.phase == "Succeeded"


def test_the_end_of_a_budget_names_cause_count_and_limit() -> None:
    gang = a_gang(JOB.budgets(hang=0), racks(4)).settle()
    gang.hang(gang.member(0).uid)
    gang.settle(3)
    assert (gang.status.phase, gang.status.reason) == ("Failed", "HangBudgetExhausted")
    assert "Failed 1 time because of hangs (limit 0)." in gang.status.message
    assert gang.recovery.remedy == "Fail"


def test_a_job_being_deleted_is_left_to_its_owner_references() -> None:
    gang = running()
    meta = msgspec.structs.replace(gang.job.metadata, deletion_timestamp=to_time(gang.now))
    gang.job = msgspec.structs.replace(gang.job, metadata=meta)
    gang.crash(gang.member(0).uid)
    gang.deliver()
    plan = gang.plan()
    assert (plan.status, plan.delete, plan.create) == (gang.status, (), ())


def test_progress_is_written_at_most_once_a_second() -> None:
    gang = running()
    gang.train(1)
    gang.look()
    written = gang.status.progress
    assert written.step == 1
    for uid, beat in gang.beats.items():
        gang.beats[uid] = msgspec.structs.replace(beat, step=2, time=beat.time + 0.1)
    gang.advance(0.1)
    plan = gang.look()
    assert gang.status.progress == written
    assert plan.look_again_s == pytest.approx(1.0)
    gang.advance(1.0)
    gang.look()
    assert gang.status.progress.step == 2


def test_the_slowest_rank_is_how_far_the_gang_is() -> None:
    gang = running()
    gang.train(3)
    slow = gang.member(1).uid
    gang.beats[slow] = msgspec.structs.replace(gang.beats[slow], step=2)
    gang.advance(1.0)
    gang.look()
    assert gang.status.progress.step == 2


def test_nothing_to_wait_for_is_not_looked_at() -> None:
    assert running().plan().look_again_s is None


def test_a_closed_barrier_is_looked_at_when_a_deadline_passes() -> None:
    gang = running()
    gang.crash(gang.member(0).uid)
    gang.deliver()
    plan = gang.look()
    assert plan.look_again_s == pytest.approx(10.0, abs=0.1)


def test_progress_far_enough_refills_the_budgets() -> None:
    gang = a_gang(JOB.budgets(code=1, refill_after_steps=10), racks(4)).settle()
    for _ in range(3):
        gang.crash(gang.member(0).uid)
        gang.settle()
        assert gang.status.used == {"code": 1}
        gang.train(20)
        gang.settle(2)
        assert gang.status.used == {}
    assert gang.is_running
