"""What an interruption costs: every lost second once, charged to its cause."""

from __future__ import annotations

from typing import Any

import pytest

from remuda.api.meta import to_time
from remuda.api.training import Cause, Goodput, Recovery, Remedy, TrainingJobStatus
from remuda.core.training.goodput import book_recovery_loss, goodput_at, move_recovery_loss, seconds_lost_to_recovery

START = to_time(1000.0)


def a_recovery(signal: float = 1100.0, first_step: float | None = None, **fields: Any) -> Recovery:
    return Recovery(
        attempt=2,
        cause=Cause.CODE,
        remedy=Remedy.RESTART_IN_PLACE,
        reason="ProcessExited",
        signal_at=to_time(signal),
        detected_at=to_time(signal + 1),
        first_step_at=None if first_step is None else to_time(first_step),
        **fields,
    )


@pytest.mark.parametrize(
    ("recovery", "started", "until", "seconds"),
    [
        (a_recovery(), START, 1107.0, 7.0),  # still under way: what it has cost so far
        (a_recovery(first_step=1105.0), START, 1200.0, 5.0),
        (a_recovery(first_step=1105.0, step_at_fault=100, resume_step=90), START, 1200.0, 5.0 + 10 * 2.0),
        # Opened, but overtaken before its first step: the steps are done again by the one that overtook it.
        (a_recovery(opened_at=to_time(1103.0), step_at_fault=100, resume_step=90), START, 1104.0, 4.0),
        (a_recovery(first_step=1105.0, step_at_fault=90, resume_step=100), START, 1200.0, 5.0),
        (a_recovery(), None, 1107.0, 0.0),  # never started: the clock does not run
        (a_recovery(signal=900.0), START, 1107.0, 0.0),  # before the first start
        (a_recovery(signal=999.5), START, 1001.0, 1.0),  # detected after it: counted from the start
    ],
)
def test_what_it_cost(recovery: Recovery, started: Any, until: float, seconds: float) -> None:
    assert seconds_lost_to_recovery(recovery, started, until, step_seconds=2.0) == pytest.approx(seconds)


def test_a_loss_is_booked_in_gpu_seconds_of_the_whole_gang() -> None:
    status = TrainingJobStatus(started_at=START, goodput=Goodput(lost_seconds=10.0, lost_gpu_seconds={"code": 80.0}))
    goodput, booked = book_recovery_loss(status, a_recovery(first_step=1105.0), 1200.0, 1.0, gpus=8)
    assert booked.lost_gpu_seconds == 40.0
    assert goodput.lost_gpu_seconds == {"code": 120.0}
    assert goodput.lost_seconds == 15.0


def test_a_loss_moves_with_its_explanation() -> None:
    booked = a_recovery(lost_gpu_seconds=40.0)
    before = Goodput(lost_gpu_seconds={"code": 100.0, "device": 5.0})
    assert move_recovery_loss(before, booked, Cause.DEVICE).lost_gpu_seconds == {"code": 60.0, "device": 45.0}
    only = Goodput(lost_gpu_seconds={"code": 40.0})
    assert move_recovery_loss(only, booked, Cause.INFRA).lost_gpu_seconds == {"infra": 40.0}
    assert move_recovery_loss(only, a_recovery(), Cause.INFRA) is only


@pytest.mark.parametrize(
    ("lost", "under_way", "now", "ettr"),
    [
        (0.0, 0.0, 1100.0, 1.0),
        (10.0, 0.0, 1100.0, 0.9),
        (10.0, 15.0, 1100.0, 0.75),
        (500.0, 0.0, 1100.0, 0.0),
        (0.0, 0.0, 1000.0, 1.0),
    ],
)
def test_ettr(lost: float, under_way: float, now: float, ettr: float) -> None:
    assert goodput_at(Goodput(lost_seconds=lost), START, under_way, now).ettr == pytest.approx(ettr)


def test_before_the_first_start_there_is_no_ratio() -> None:
    assert goodput_at(Goodput(), None, 5.0, 2000.0) == Goodput()
