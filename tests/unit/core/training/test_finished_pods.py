"""The pods of a job that failed stay, ended, until the job goes; nothing runs on for the sake of its log."""

from __future__ import annotations

from remuda.core.training.finished_pods import ENDS_WITHIN_S
from tests.builders.gang_model import GangModel, a_gang
from tests.builders.gangs import JobBuilder, a_job, racks

JOB = a_job().replicas(2).gpus(8).spares(1).budgets(code=0)


def failed(job: JobBuilder = JOB) -> GangModel:
    gang = a_gang(job, racks(3)).start()
    gang.crash(gang.member(1).uid, 7, "exit code 7")
    while not gang.job.is_finished:
        gang.round(0.1)
    return gang


def test_every_rank_of_a_failed_job_stays_and_its_spare_goes() -> None:
    gang = failed().settle(5)
    assert gang.status.phase == "Failed"
    assert gang.kept == {member.pod for member in gang.status.members}
    assert [pod.name for pod in gang.gang if pod.name not in gang.kept] == []


def test_nothing_is_done_to_them_any_more() -> None:
    gang = failed().settle(5)
    gang.advance(10_000.0)
    plan = gang.plan()
    assert (plan.delete, plan.look_again_s, plan.is_over) == ((), None, False)


def test_they_go_with_the_job_when_its_time_is_over() -> None:
    gang = failed(JOB.spec(ttl_seconds_after_finished=600.0)).settle(5)
    assert gang.kept
    gang.advance(600.0)
    assert gang.plan().is_over


def test_one_that_does_not_end_is_deleted() -> None:
    gang = a_gang(JOB, racks(3)).start()
    stuck = gang.member(0)
    gang.launchers[stuck.uid].cannot_stop = True
    gang.crash(gang.member(1).uid, 7, "exit code 7")
    gang.settle(5)
    assert [pod.name for pod in gang.live] == [stuck.pod]
    wait = gang.plan().look_again_s
    assert wait is not None
    assert wait <= ENDS_WITHIN_S + gang.job.spec.failure.stop_grace_seconds
    gang.advance(wait)
    assert [deletion.name for deletion in gang.plan().delete] == [stuck.pod]


def test_a_job_that_succeeded_keeps_none() -> None:
    gang = a_gang(JOB, racks(3)).start()
    for member in gang.status.members:
        gang.crash(member.uid, 0)
    gang.settle(5)
    assert (gang.status.phase, gang.gang) == ("Succeeded", [])


def test_a_pod_on_a_node_that_is_lost_goes() -> None:
    gang = failed().settle(5)
    lost = gang.member(0)
    gang.lose_node(0)
    gang.settle(200, seconds=1.0)
    assert gang.kept == {member.pod for member in gang.status.members} - {lost.pod}
