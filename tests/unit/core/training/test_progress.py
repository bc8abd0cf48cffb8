"""The estimate, the retry of refused pods, and what is told of planned stops."""

from __future__ import annotations

import pytest

from remuda.api.meta import to_seconds, to_time
from remuda.api.training import TrainingJobStatus
from remuda.core.gang.pod_view import MemberProgress
from remuda.core.training.backoff import (
    PodCreateBackoff,
    is_new_training_pod_refusal,
    next_training_pod_backoff,
    pod_create_wait_s,
)
from remuda.core.training.progress import training_job_eta, training_step_pace_s
from remuda.core.training.status_events import training_job_status_events
from tests.builders.gang_model import a_gang
from tests.builders.gangs import a_job, racks

NOW = 1_000.0


def beat(step: int, time: float, first: float = 0.0) -> MemberProgress:
    return MemberProgress(attempt=1, step=step, time=time, first_step_time=first)


def test_the_pace_is_that_of_the_attempt_checkpoints_included() -> None:
    assert training_step_pace_s([beat(21, 40.0), beat(23, 41.0)], 0, 1.0) == 2.0
    assert training_step_pace_s([beat(5, 40.0)], 0, 1.0) == 1.0, "too few steps to say"
    assert training_step_pace_s([beat(121, 40.0)], 100, 1.0) == 2.0, "counted from where it resumed"


@pytest.mark.parametrize(
    ("step", "total", "pace", "ettr", "left"),
    [(10, 110, 2.0, 1.0, 200.0), (10, 110, 2.0, 0.5, 400.0), (120, 110, 2.0, 1.0, 0.0), (10, 110, 1.0, 0.0, 2000.0)],
)
def test_the_estimate(step: int, total: int, pace: float, ettr: float, left: float) -> None:
    assert training_job_eta(step, total, pace, ettr, NOW) == NOW + left


def test_no_estimate_without_a_total_or_a_pace() -> None:
    assert training_job_eta(10, 0, 1.0, 1.0, NOW) is None
    assert training_job_eta(10, 100, 0.0, 1.0, NOW) is None


def test_a_gang_says_when_it_will_be_done() -> None:
    gang = a_gang(a_job().spec(total_steps=100), racks(2)).settle()
    gang.train(20)
    gang.settle(2)
    progress = gang.status.progress
    assert progress.total_steps == 100
    assert progress.eta is not None
    assert abs(to_seconds(progress.eta) - (gang.now + 80.0)) < 3.0


# --- refused pods -----------------------------------------------------------------------------------------------------


def test_refused_pods_are_tried_again_ever_more_rarely() -> None:
    waits = []
    refused: PodCreateBackoff | None = None
    for _ in range(8):
        refused = next_training_pod_backoff(refused, "quota", NOW)
        waits.append(refused.until - NOW)
    assert waits == [1.0, 2.0, 4.0, 8.0, 15.0, 15.0, 15.0, 15.0]
    assert pod_create_wait_s(refused, NOW + 14.0) == 1.0
    assert pod_create_wait_s(refused, NOW + 15.0) is None
    assert pod_create_wait_s(None, NOW) is None


def test_the_same_refusal_is_told_once() -> None:
    first = next_training_pod_backoff(None, "quota", NOW)
    assert is_new_training_pod_refusal(None, first)
    assert not is_new_training_pod_refusal(first, next_training_pod_backoff(first, "quota", NOW))
    assert is_new_training_pod_refusal(first, next_training_pod_backoff(first, "policy", NOW))


# --- what is told -----------------------------------------------------------------------------------------------------


def reasons(before: TrainingJobStatus, after: TrainingJobStatus) -> list[str]:
    return [news.reason for news in training_job_status_events(before, after)]


def test_a_suspension_is_told_as_what_it_is() -> None:
    running = TrainingJobStatus(phase="Running", attempt=1, barrier="Open")
    stopped = TrainingJobStatus(phase="Suspended", reason="Suspended", attempt=2, suspended_at=to_time(NOW))
    assert reasons(running, stopped) == ["Suspended"]
    assert reasons(stopped, TrainingJobStatus(phase="Starting", attempt=2)) == ["ResumeAsked"]


def test_a_stage_that_ends_is_no_failure() -> None:
    before = TrainingJobStatus(phase="Running", attempt=1, barrier="Open")
    assert reasons(before, TrainingJobStatus(phase="Starting", attempt=2, done_roles=["prepare"])) == ["RoleSucceeded"]
