"""The checkpoint handshake: whoever is about to stop the gang asks it for a checkpoint first, and waits for a bounded time.

The request is a field of the status (`checkpointRequest`), so it survives whoever asked; agents pass it on to launchers, and the
answer is seen in the progress: every rank has a checkpoint of the asked step or a later one. Heartbeats may be lost, so an
answer that is not heard costs the wait until the deadline and nothing else: what the ranks can resume from is told again, through
the API, when they have stopped.

    if may_stop_gang(ctx, "NodeMaintenance", 60.0):    # asks at the first look, then waits
        ...                                             # answered, too late, or nobody runs

One request serves all who ask while it is open; a shorter deadline shortens it. A new attempt ends it.
"""

from __future__ import annotations

import math

import msgspec

from remuda.api.meta import to_seconds, to_time
from remuda.api.training import CheckpointRequest
from remuda.core.gang.pod_view import OPEN
from remuda.core.training.planning_context import PlanningContext

LEAD_S = 2.0  # for the request to reach every rank: the step it names is at least that far ahead
SPARE_STEPS = 1
DEFAULT_WAIT_S = 60.0  # when nothing says how long a checkpoint takes
FRESH_S = 1.0  # of work since the last checkpoint: no other is needed
OVER_S = 5.0  # so long after its answer, or its deadline, a request still counts for whoever asked
SETTLE_S = 2.0  # for ranks that may still be writing theirs


def open_checkpoint_request(ctx: PlanningContext) -> CheckpointRequest | None:
    """The request the gang works on now."""
    request = ctx.status.checkpoint_request
    if request is None or request.attempt != ctx.status.attempt or request.answered_at is not None:
        return None
    return request if ctx.now < to_seconds(request.deadline) else None


def begin_checkpoint_handshake(ctx: PlanningContext, why: str, within_s: float) -> CheckpointRequest:
    """Asks, unless that has been done."""
    deadline = to_time(ctx.now + within_s)
    request = open_checkpoint_request(ctx)
    if request is not None:
        if deadline < request.deadline:
            # The same request: the launchers keep the later deadline, which decides nothing for them.
            request = msgspec.structs.replace(request, deadline=deadline)
            ctx.update(checkpoint_request=request)
        return request
    last = ctx.status.checkpoint_request
    request = CheckpointRequest(
        id=last.id + 1 if last is not None else 1,
        attempt=ctx.status.attempt,
        asked_at=to_time(ctx.now),
        deadline=deadline,
        step=_checkpoint_step_ahead(ctx),
        why=why,
    )
    ctx.update(checkpoint_request=request)
    return request


def note_checkpoint_answer(ctx: PlanningContext) -> None:
    """Writes down that the request has been answered."""
    request = ctx.status.checkpoint_request
    if request is None or request.answered_at is not None or request.attempt != ctx.status.attempt:
        return
    made = ctx.fresh.checkpoint_time
    if made is None or min(ctx.fresh.checkpoint_step, ctx.fresh.step) < max(1, request.step):
        return  # also while a rank that never reported a checkpoint has not come as far
    if not _all_ranks_have_saved(ctx) and ctx.now - to_seconds(made) < SETTLE_S:
        return
    ctx.update(checkpoint_request=msgspec.structs.replace(request, answered_at=made), progress=ctx.fresh)


def _all_ranks_have_saved(ctx: PlanningContext) -> bool:
    """Every rank has reported a checkpoint. Else one writes for all, or those that are slower have not reported theirs."""
    beats = [v.progress for m in ctx.status.members if (v := ctx.views.get(m.uid))]
    return all(b is not None and b.checkpoint is not None for b in beats)


def may_stop_training_job(ctx: PlanningContext, why: str, within_s: float = 0.0) -> bool:
    """Whether the gang may be stopped now at no more loss than can be helped. Called at every look until it says yes.

    `within_s`: how long to wait for the checkpoint; 0 = what the job's checkpoints usually take, and some.
    """
    if ctx.status.barrier != OPEN or ctx.fresh.time is None:
        return True  # nobody runs, or nobody ever reported a step: there is nothing to save, or nobody who would
    request = ctx.status.checkpoint_request
    if request is not None and request.attempt == ctx.status.attempt:
        over = to_seconds(request.answered_at or request.deadline)
        if 0.0 <= ctx.now - over <= OVER_S:
            return True
    if is_checkpoint_fresh(ctx):
        return True
    begin_checkpoint_handshake(ctx, why, within_s or usual_checkpoint_wait_s(ctx))
    return False


def is_checkpoint_fresh(ctx: PlanningContext) -> bool:
    """Hardly anything has been done since the newest checkpoint."""
    done = ctx.fresh.step - ctx.fresh.checkpoint_step
    return ctx.fresh.checkpoint_step > 0 and done >= 0 and (done <= 1 or done * ctx.fresh.step_seconds <= FRESH_S)


def usual_checkpoint_wait_s(ctx: PlanningContext) -> float:
    typical = ctx.spec.checkpoint.typical_seconds
    return 2 * typical + 2 * LEAD_S + 2 * ctx.fresh.step_seconds if typical else DEFAULT_WAIT_S


def next_checkpoint_check_at(ctx: PlanningContext) -> float | None:
    """When time alone changes what the request means."""
    request = open_checkpoint_request(ctx)
    if request is None:
        return None
    made = ctx.fresh.checkpoint_time
    if made is not None and min(ctx.fresh.checkpoint_step, ctx.fresh.step) >= max(1, request.step):
        return to_seconds(made) + SETTLE_S
    return to_seconds(request.deadline)


def _checkpoint_step_ahead(ctx: PlanningContext) -> int:
    step_s = ctx.fresh.step_seconds
    reached = max(ctx.fresh.steps, default=ctx.fresh.step)
    return reached + SPARE_STEPS + (math.ceil(LEAD_S / step_s) if step_s > 0 else 1)
