"""Suspend and resume: the gang gives everything back on request, and goes on later from its newest checkpoint.

`spec.suspend` is the request. The gang is asked for a checkpoint first (see `checkpoint_handshake`; bounded), and goes on
training, and recovering, until it has answered. Then the attempt is raised, every pod is retired, and the job stands still:
no pods, no devices, the record kept. When the request is taken back the gang is placed anew, anywhere, like one that starts,
and opens the barrier of the attempt that was raised then.

Nobody is charged, no interruption is counted, and the time does not count for the deadline or for goodput. A recovery that was
under way ends with the suspension: what it cost until then is booked.
"""

from __future__ import annotations

from remuda.api.meta import to_seconds, to_time
from remuda.core.training.checkpoint_handshake import may_stop_training_job
from remuda.core.training.goodput import book_recovery_loss
from remuda.core.training.job_status import SUSPENDED
from remuda.core.training.membership import retire_pod
from remuda.core.training.planning_context import PlanningContext
from remuda.core.training.recovery import raise_attempt


def suspend_or_resume_job(ctx: PlanningContext) -> bool:
    """Whether the job is suspended after this look; then nothing else is decided about it."""
    if ctx.spec.suspend:
        if ctx.status.suspended_at is None and may_stop_training_job(ctx, SUSPENDED):
            _suspend_job(ctx)
    elif ctx.status.suspended_at is not None:
        _resume_job(ctx)
    is_suspended = ctx.status.suspended_at is not None
    if is_suspended:
        for uid in ctx.views:
            retire_pod(ctx, uid, SUSPENDED)
    return is_suspended


def _suspend_job(ctx: PlanningContext) -> None:
    _end_recovery_by_suspension(ctx)
    for uid in ctx.views:
        retire_pod(ctx, uid, SUSPENDED)
    if ctx.views or ctx.status.members:
        raise_attempt(ctx, is_move=True)
    ctx.update(suspended_at=to_time(ctx.now), progress=ctx.fresh)


def _end_recovery_by_suspension(ctx: PlanningContext) -> None:
    last = ctx.last_recovery
    if last is None or last.first_step_at is not None:
        return
    goodput, booked = book_recovery_loss(ctx.status, last, ctx.now, ctx.fresh.step_seconds, ctx.gang_gpus)
    ctx.update(recoveries=[*ctx.status.recoveries[:-1], booked], goodput=goodput)
    ctx.amend_recovery(opened_at=last.opened_at or to_time(ctx.now), first_step_at=to_time(ctx.now))


def _resume_job(ctx: PlanningContext) -> None:
    since = ctx.status.suspended_at
    stood = max(0.0, ctx.now - to_seconds(since)) if since is not None else 0.0
    ctx.update(
        suspended_at=None,
        suspended_seconds=round(ctx.status.suspended_seconds + stood, 3),
        attempt_raised_at=to_time(ctx.now) if not ctx.status.members else ctx.status.attempt_raised_at,
    )
