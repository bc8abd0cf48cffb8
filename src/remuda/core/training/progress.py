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
from remuda.api.number_bounds import MAX_COUNT, MAX_SECONDS
from remuda.api.training import Progress
from remuda.core.gang.budgets import refill_budgets
from remuda.core.gang.pod_view import OPEN, MemberProgress
from remuda.core.training.goodput import book_recovery_loss
from remuda.core.training.kept_checkpoints import kept_after_beats
from remuda.core.training.next_look import PROGRESS_PERIOD_S
from remuda.core.training.planning_context import PlanningContext

ENOUGH_STEPS = 10  # of an attempt, for its own average to say more than the newest step
MOST_LEFT_S = 100 * 365 * 86_400.0  # an estimate beyond that tells nobody anything
LEAST_ETTR = 0.05  # a job that has just begun badly is not late for ever


def read_job_progress(ctx: PlanningContext) -> None:
    status, old = ctx.status, ctx.status.progress
    at_work = [m for m in status.members if m.role not in status.held_roles]
    found = [v.progress for m in at_work if (v := ctx.views.get(m.uid)) and v.progress]
    beats = [b for b in found if b.attempt == status.attempt]
    if not beats or len(beats) < len(at_work):
        return
    ctx.fresh = _reduced_progress(beats, old, status.resume_step or 0, is_whole=not status.held_roles)
    ctx.fresh = _progress_with_eta(ctx, beats)
    _end_recovery_at_step(ctx, max(b.first_step_time for b in beats))
    used, at = refill_budgets(ctx.spec.failure.budgets, status.used, status.refill_step, ctx.fresh.step)
    if at != status.refill_step:
        ctx.update(used=used, refill_step=at)
    is_due = old.time is None or ctx.now - to_seconds(old.time) >= PROGRESS_PERIOD_S
    if is_due and ctx.fresh != old:
        ctx.update(progress=ctx.fresh)


def _reduced_progress(beats: list[MemberProgress], old: Progress, resumed: int, *, is_whole: bool) -> Progress:
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
        kept=kept_after_beats(old.kept, beats) if is_whole else old.kept,
    )


def _progress_with_eta(ctx: PlanningContext, beats: list[MemberProgress]) -> Progress:
    fresh = ctx.fresh
    reported = max((b.total_steps or 0 for b in beats), default=0)
    total = ctx.spec.total_steps or reported
    pace = training_step_pace_s(beats, ctx.status.resume_step or 0, fresh.step_seconds)
    seen = to_seconds(fresh.time) if fresh.time is not None else ctx.now
    at = training_job_eta(fresh.step, total, pace, ctx.status.goodput.ettr, seen)
    fresh = msgspec.structs.replace(fresh, total_steps=total, eta=None if at is None else to_time(round(at)))
    old = ctx.status.progress
    # The ratio moves all the time; the estimate moves with the steps alone, or every look would write a new one.
    return old if msgspec.structs.replace(fresh, eta=old.eta) == old else fresh


def _end_recovery_at_step(ctx: PlanningContext, at: float) -> None:
    """The recovery under way ends with the last rank's first step of the new attempt."""
    last = ctx.last_recovery
    if last is None or last.first_step_at is not None or ctx.status.barrier != OPEN:
        return
    ctx.amend_recovery(first_step_at=to_time(at))
    done = ctx.status.recoveries[-1]
    goodput, booked = book_recovery_loss(ctx.status, done, at, ctx.fresh.step_seconds, ctx.gang_gpus)
    ctx.update(recoveries=[*ctx.status.recoveries[:-1], booked], goodput=goodput, progress=ctx.fresh)


def training_step_pace_s(beats: list[MemberProgress], resumed: int, median_s: float) -> float:
    """Seconds a step takes the gang."""
    slowest = min(beats, key=lambda b: b.step)
    began = max(b.first_step_time for b in beats)
    made = slowest.step - resumed - 1  # the first step is where the clock starts
    took = slowest.time - began
    return took / made if made >= ENOUGH_STEPS and took > 0 else median_s


def training_job_eta(step: int, total: int, pace: float, ettr: float, now: float) -> float | None:
    """Unix seconds; None when there is no telling, or the answer would be no use. Whatever the numbers, it raises nothing."""
    if not (0 < total <= MAX_COUNT and 0 < pace <= MAX_SECONDS):
        return None
    left = max(0, total - step) * pace / (ettr if ettr > LEAST_ETTR else LEAST_ETTR)
    return now + left if left <= MOST_LEFT_S else None
