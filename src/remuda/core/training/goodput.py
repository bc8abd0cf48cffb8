"""Goodput: how much of the time since the first start was training that counted (ETTR), and what the rest was lost to.

An interruption loses two things: the stand-still from the first signal to the first new step, and the steps after the
checkpoint that have to be done again (known once that first step is there; an interruption overtaken by another one leaves
them to it). Both are charged to its cause, in GPU-seconds of the whole gang. What goes wrong before the first start delays
it and costs nothing here: the clock does not run yet.
"""

from __future__ import annotations

from datetime import datetime

import msgspec

from remuda.api.meta import to_seconds
from remuda.api.number_bounds import MAX_COUNT, are_plausible_seconds
from remuda.api.training import Cause, Goodput, Recovery, TrainingJobStatus


def seconds_lost_to_recovery(
    recovery: Recovery, started_at: datetime | None, until: float, step_seconds: float
) -> float:
    """Stand-still so far plus the steps to be done again."""
    began = recovery.signal_at or recovery.detected_at
    if began is None or started_at is None or (recovery.detected_at or began) < started_at:
        return 0.0
    ended = to_seconds(recovery.first_step_at) if recovery.first_step_at else until
    again = max(0, recovery.step_at_fault - recovery.resume_step) if recovery.first_step_at else 0
    again_s = min(again, MAX_COUNT) * step_seconds
    stood_still_s = max(0.0, ended - to_seconds(max(began, started_at)))
    return stood_still_s + (again_s if are_plausible_seconds(again_s) else 0.0)  # what cannot be is not booked


def book_recovery_loss(
    status: TrainingJobStatus, recovery: Recovery, until: float, step_seconds: float, gpus: int
) -> tuple[Goodput, Recovery]:
    """Books a recovery once: when its first new step is seen, or at `until` when another fault overtakes it."""
    seconds = seconds_lost_to_recovery(recovery, status.started_at, until, step_seconds)
    if not seconds:
        return status.goodput, recovery
    booked = msgspec.structs.replace(recovery, lost_gpu_seconds=round(seconds * gpus, 3))
    by_cause = dict(status.goodput.lost_gpu_seconds)
    by_cause[recovery.cause.value] = round(by_cause.get(recovery.cause.value, 0.0) + booked.lost_gpu_seconds, 3)
    after = msgspec.structs.replace(
        status.goodput, lost_seconds=round(status.goodput.lost_seconds + seconds, 3), lost_gpu_seconds=by_cause
    )
    return after, booked


def move_recovery_loss(goodput: Goodput, recovery: Recovery, cause: Cause) -> Goodput:
    """What was booked for a recovery, charged to another cause."""
    if not recovery.lost_gpu_seconds or cause is recovery.cause:
        return goodput
    by_cause = dict(goodput.lost_gpu_seconds)
    left = round(by_cause.get(recovery.cause.value, 0.0) - recovery.lost_gpu_seconds, 3)
    by_cause.pop(recovery.cause.value, None)
    if left > 0:
        by_cause[recovery.cause.value] = left
    by_cause[cause.value] = round(by_cause.get(cause.value, 0.0) + recovery.lost_gpu_seconds, 3)
    return msgspec.structs.replace(goodput, lost_gpu_seconds=by_cause)


def job_suspended_s(status: TrainingJobStatus, now: float) -> float:
    """For how long the gang has stood still because it was told to."""
    since = 0.0 if status.suspended_at is None else max(0.0, now - to_seconds(status.suspended_at))
    return status.suspended_seconds + since


def goodput_at(
    goodput: Goodput, started_at: datetime | None, open_loss: float, now: float, idle_s: float = 0.0
) -> Goodput:
    """The ratio as of `now`; `open_loss` is what the recovery still under way has cost so far. `idle_s`: time that does not
    count, because nobody wanted the gang to run then."""
    if started_at is None:
        return goodput
    wall = max(0.0, now - to_seconds(started_at) - idle_s)
    lost = min(wall, goodput.lost_seconds + open_loss)
    ettr = 1.0 if wall <= 0 else (wall - lost) / wall
    return msgspec.structs.replace(goodput, wall_seconds=round(wall, 3), ettr=round(ettr, 4))
