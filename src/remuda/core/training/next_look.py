"""When a gang is looked at again without an event: the earliest moment at which time alone would change the plan.

Every step that waits for a moment (a hang, a deadline, a pause, a move, a loan) says when that is; the plan takes the earliest.
"""

from __future__ import annotations

from collections.abc import Iterator

from remuda.api.meta import to_seconds
from remuda.core.gang.pod_view import CLOSED, OPEN
from remuda.core.training import checkpoint_handshake, moves
from remuda.core.training.backoff import job_restart_at
from remuda.core.training.elastic_size import next_growth_at, next_shrink_at
from remuda.core.training.faults import member_start_deadline, spare_start_deadline, training_pod_stop_deadline
from remuda.core.training.hung_ranks import next_hang_at
from remuda.core.training.job_status import training_job_deadline
from remuda.core.training.planning_context import PlanningContext
from remuda.core.training.spare_lending import next_lending_at

PROGRESS_PERIOD_S = 1.0  # the API holds transitions; progress is shown, so it may be a second old
WAITING_PERIOD_S = 1.0  # how often a gang that waits for room looks again
MARGIN_S = 0.01  # a deadline is over only after it


def job_look_again_s(ctx: PlanningContext) -> float | None:
    """Seconds until time alone would change the plan; None when only an event can."""
    resized = [] if ctx.is_finished else [next_shrink_at(ctx), next_growth_at(ctx), next_lending_at(ctx)]
    waits = [at - ctx.now + MARGIN_S for at in resized if at is not None and at >= ctx.now]
    usual = _next_job_deadline_s(ctx)
    return min(waits if usual is None else [usual, *waits], default=None)


def _next_job_deadline_s(ctx: PlanningContext) -> float | None:
    if ctx.is_finished:
        return None
    if ctx.status.suspended_at is not None:
        return _suspended_job_wait_s(ctx)
    waits = [at - ctx.now + MARGIN_S for at in _job_deadlines(ctx) if at >= ctx.now]
    if ctx.status.barrier == OPEN:
        if ctx.fresh != ctx.status.progress:
            waits.append(PROGRESS_PERIOD_S)
        if ctx.status.held_roles:
            waits.append(WAITING_PERIOD_S)
    elif len(ctx.status.members) < len(ctx.ranks) and ctx.too_large is None:
        waits.append(WAITING_PERIOD_S)  # room appears without an event of this gang
    return min(waits, default=None)


def _suspended_job_wait_s(ctx: PlanningContext) -> float | None:
    """A pod that does not stop in time costs its devices; nothing else can happen by itself."""
    return min((late - ctx.now + MARGIN_S for late in _retired_pod_deadlines(ctx) if late >= ctx.now), default=None)


def _retired_pod_deadlines(ctx: PlanningContext) -> Iterator[float]:
    for pod in ctx.status.retired:
        if (view := ctx.views.get(pod.uid)) is not None:
            yield training_pod_stop_deadline(ctx.job, view, ctx.now, ctx.stalls)


def _job_deadlines(ctx: PlanningContext) -> Iterator[float]:
    status = ctx.status
    if (at := checkpoint_handshake.next_checkpoint_check_at(ctx)) is not None:
        yield at
    if (at := next_hang_at(ctx)) is not None:
        yield at
    if (at := moves.next_move_at(ctx)) is not None:
        yield at
    if (at := job_restart_at(ctx)) is not None:
        yield at
    if (at := training_job_deadline(ctx)) is not None:
        yield at
    for pod in status.retired:
        if pod.until is not None:
            yield to_seconds(pod.until)
    for view in ctx.free():
        if view.is_bound and view.is_silent and (at := view.bound_at) is not None:
            yield spare_start_deadline(ctx.job, view, at, ctx.stalls)
    if status.barrier == CLOSED and status.members:
        yield from _retired_pod_deadlines(ctx)
        for member in status.members:
            if (found := ctx.views.get(member.uid)) and not found.is_ready_for(status.attempt):
                yield training_pod_stop_deadline(ctx.job, found, ctx.now, ctx.stalls)
                yield member_start_deadline(ctx.job, member, found, ctx.now, ctx.stalls)
