"""How far the gang is: heartbeats of the current attempt, reduced to what the slowest rank has done.

A step counts for the gang when every rank has reported it. The first such step of an attempt ends the recovery under way and
books what it cost; getting far enough refills the budgets.

When it will be done: the steps that are left, at the pace of late, stretched by what interruptions usually take. The pace is that
of the attempt as a whole, checkpoints included, once it has made some steps; before that the median of the ranks' newest step
times. Divided by ETTR: a job that loses a tenth of its time to faults will lose it in the future, too.
"""

from __future__ import annotations

import msgspec

from remuda.api.meta import to_seconds, to_time
from remuda.api.training import Progress
from remuda.core.gang.budgets import refill
from remuda.core.gang.pod_view import OPEN, MemberProgress
from remuda.core.training.goodput import with_loss
from remuda.core.training.next_look import PROGRESS_PERIOD_S
from remuda.core.training.planning_context import Look

ENOUGH_STEPS = 10  # of an attempt, for its own average to say more than the newest step
LEAST_ETTR = 0.05  # a job that has just begun badly is not late for ever


def read_progress(look: Look) -> None:
    status, old = look.status, look.status.progress
    at_work = [m for m in status.members if m.role not in status.held_roles]
    found = [v.progress for m in at_work if (v := look.views.get(m.uid)) and v.progress]
    beats = [b for b in found if b.attempt == status.attempt]
    if not beats or len(beats) < len(at_work):
        return
    look.fresh = _reduced(beats, old, status.resume_step or 0)
    look.fresh = _with_eta(look, beats)
    _end_recovery(look, max(b.first_step_time for b in beats))
    used, at = refill(look.spec.failure.budgets, status.used, status.refill_step, look.fresh.step)
    if at != status.refill_step:
        look.update(used=used, refill_step=at)
    is_due = old.time is None or look.now - to_seconds(old.time) >= PROGRESS_PERIOD_S
    if is_due and look.fresh != old:
        look.update(progress=look.fresh)


def _reduced(beats: list[MemberProgress], old: Progress, resumed: int) -> Progress:
    # A checkpoint ahead of the step it belongs to is of an attempt that got further and could not be resumed from there.
    saved = [(b.checkpoint if b.checkpoint <= b.step else resumed, b) for b in beats if b.checkpoint is not None]
    times = sorted(b.step_seconds for b in beats if b.step_seconds)
    return Progress(
        step=min(b.step for b in beats),
        checkpoint_step=min((step for step, _ in saved), default=old.checkpoint_step),
        checkpoint_time=to_time(max(b.checkpoint_time for _, b in saved)) if saved else old.checkpoint_time,
        step_seconds=round(times[len(times) // 2], 4) if times else old.step_seconds,
        time=to_time(max(b.time for b in beats)),
        steps=[b.step for b in beats],
    )


def _with_eta(look: Look, beats: list[MemberProgress]) -> Progress:
    fresh = look.fresh
    reported = max((b.total_steps or 0 for b in beats), default=0)
    total = look.spec.total_steps or reported
    pace = pace_s(beats, look.status.resume_step or 0, fresh.step_seconds)
    seen = to_seconds(fresh.time) if fresh.time is not None else look.now
    at = eta_at(fresh.step, total, pace, look.status.goodput.ettr, seen)
    fresh = msgspec.structs.replace(fresh, total_steps=total, eta=None if at is None else to_time(round(at)))
    old = look.status.progress
    # The ratio moves all the time; the estimate moves with the steps alone, or every look would write a new one.
    return old if msgspec.structs.replace(fresh, eta=old.eta) == old else fresh


def _end_recovery(look: Look, at: float) -> None:
    """The recovery under way ends with the last rank's first step of the new attempt."""
    last = look.last_recovery
    if last is None or last.first_step_at is not None or look.status.barrier != OPEN:
        return
    look.amend_recovery(first_step_at=to_time(at))
    done = look.status.recoveries[-1]
    goodput, booked = with_loss(look.status, done, at, look.fresh.step_seconds, look.gang_gpus)
    look.update(recoveries=[*look.status.recoveries[:-1], booked], goodput=goodput, progress=look.fresh)


def pace_s(beats: list[MemberProgress], resumed: int, median_s: float) -> float:
    """Seconds a step takes the gang."""
    slowest = min(beats, key=lambda b: b.step)
    began = max(b.first_step_time for b in beats)
    made = slowest.step - resumed - 1  # the first step is where the clock starts
    took = slowest.time - began
    return took / made if made >= ENOUGH_STEPS and took > 0 else median_s


def eta_at(step: int, total: int, pace: float, ettr: float, now: float) -> float | None:
    """Unix seconds; None when there is no telling."""
    if total <= 0 or pace <= 0:
        return None
    return now + max(0, total - step) * pace / max(ettr, LEAST_ETTR)
