"""The status of a TrainingJob: its end, when it has one, and otherwise phase, spares and conditions.

Time limits: `activeDeadlineSeconds` counts from the first start; time in which the job was suspended does not count.
`ttlSecondsAfterFinished` counts from the end; then the controller deletes the job. Its incidents stay.

A job that contradicts itself: admission refuses it, but an API server that checks types alone may let it in, or it was edited
while it ran. It is told so and left as it is until its spec is corrected: what runs goes on; nothing is made, moved or ended.
"""

from __future__ import annotations

import msgspec

from remuda.api.conditions import find_condition, with_condition
from remuda.api.errors import Refusal
from remuda.api.meta import Condition, to_seconds, to_time
from remuda.api.training import Cause, SparePod, SuccessPolicy, TrainingJob, TrainingJobStatus
from remuda.api.validation.training_changes import TEMPLATE_IN_USE
from remuda.api.validation.validate import validate
from remuda.core.gang.launcher_trouble import LAUNCHER_TROUBLES, launcher_trouble
from remuda.core.gang.pod_view import CLOSED, OPEN, PodView
from remuda.core.training.copy_nodes import with_checkpoints_not_shared
from remuda.core.training.edited_templates import roles_with_template_in_use, template_in_use_text
from remuda.core.training.finished_pods import clear_finished_pods
from remuda.core.training.goodput import book_recovery_loss, goodput_at, job_suspended_s, seconds_lost_to_recovery
from remuda.core.training.kept_checkpoints import MISSING, UNREADABLE
from remuda.core.training.moves import with_slow_training_ranks
from remuda.core.training.planning_context import GANG_TOO_LARGE, PlanningContext

INVALID = "Invalid"

DEADLINE_EXCEEDED = "DeadlineExceeded"

SUSPENDED = "Suspended"
GANG_COMPLETE = "GangComplete"
GANG_SLOW = "GangSlow"  # condition: slower than it was, and no single device is to blame
_CAUSE_TEXT = {
    Cause.CODE: "its own code",
    Cause.DEVICE: "devices",
    Cause.INFRA: "nodes or pods that were lost",
    Cause.HANG: "hangs",
    Cause.PREEMPTION: "preemption",
    Cause.MAINTENANCE: "maintenance",
}
PODS_REFUSED = "PodsRefused"  # the API does not let the gang's pods be made


# -- the end ----------------------------------------------------------------------------------------------------------


def mark_job_succeeded(ctx: PlanningContext) -> None:
    reason, message = "AllRanksDone", "Every rank ended with code 0."
    if ctx.spec.success != SuccessPolicy():
        reason, message = "SuccessPolicyMet", f"{_success_ranks_text(ctx)} ended with code 0; the others are stopped."
    ctx.update(phase="Succeeded", reason=reason, message=message)
    _finish_job(ctx)


def _success_ranks_text(ctx: PlanningContext) -> str:
    policy = ctx.spec.success
    ranks = (
        f"Rank{'' if len(policy.ranks) == 1 else 's'} {', '.join(map(str, policy.ranks))}"
        if policy.ranks
        else "All ranks"
    )
    return f"{ranks} of role {policy.role}" if policy.role else ranks


def mark_training_job_failed(ctx: PlanningContext, reason: str, message: str) -> None:
    ctx.update(phase="Failed", reason=reason, message=message, barrier=CLOSED)
    _finish_job(ctx)


def fail_job_over_budget(ctx: PlanningContext, cause: Cause, message: str) -> None:
    count, limit = ctx.status.used[cause.value], ctx.spec.failure.budgets.limit(cause)
    times, last = f"{count} time{'' if count == 1 else 's'}", message.rstrip(". ")
    look = (
        f"remuda logs {ctx.job.name}" if cause in (Cause.CODE, Cause.HANG) else f"remuda incidents --job {ctx.job.name}"
    )
    text = (
        f"Failed {times} because of {_CAUSE_TEXT[cause]} (limit {limit}). {f'Last: {last}. ' if last else ''}"
        f"See {look}; a new job may fail more often with --budget {cause.value}=N."
    )
    mark_training_job_failed(ctx, f"{cause.value.capitalize()}BudgetExhausted", text)


def _finish_job(ctx: PlanningContext) -> None:
    last = ctx.last_recovery
    if last is not None and last.first_step_at is None and not last.lost_gpu_seconds:
        goodput, booked = book_recovery_loss(ctx.status, last, ctx.now, ctx.fresh.step_seconds, ctx.gang_gpus)
        ctx.update(recoveries=[*ctx.status.recoveries[:-1], booked], goodput=goodput)
    ctx.update(finished_at=to_time(ctx.now), progress=ctx.fresh, spares=[], loans=[])
    idle_s = job_suspended_s(ctx.status, ctx.now)
    ctx.update(goodput=goodput_at(ctx.status.goodput, ctx.status.started_at, 0.0, ctx.now, idle_s))
    ctx.create.clear()
    clear_finished_pods(ctx)


# -- what is said -----------------------------------------------------------------------------------------------------


def summarise_job_status(ctx: PlanningContext) -> None:
    if not ctx.is_finished:
        phase, reason, message = _job_phase(ctx)
        ctx.update(spares=_spare_pods(ctx), phase=phase, reason=reason, message=message)
        under_way = [r for r in ctx.status.recoveries[-1:] if r.first_step_at is None]
        open_loss = sum(
            seconds_lost_to_recovery(r, ctx.status.started_at, ctx.now, ctx.fresh.step_seconds) for r in under_way
        )
        if ctx.status != ctx.before:  # the ratio moves all the time; it is written with what else there is to write
            idle_s = job_suspended_s(ctx.status, ctx.now)
            ctx.update(goodput=goodput_at(ctx.status.goodput, ctx.status.started_at, open_loss, ctx.now, idle_s))
    ctx.update(conditions=_job_conditions(ctx))


def _job_conditions(ctx: PlanningContext) -> list[Condition]:
    status, now = ctx.status, to_time(ctx.now)
    is_running = status.phase == "Running"
    conditions = with_condition(status.conditions, "Running", is_running, status.reason, status.message, now)
    conditions = _with_job_suspended(ctx, conditions)
    conditions = _with_gang_complete(ctx, _with_gang_too_large(ctx, conditions))
    conditions = with_slow_training_ranks(ctx, _with_gang_slow(ctx, conditions))
    conditions = _with_barrier_hold(ctx, without_invalid_job(conditions, ctx.now))
    conditions = with_checkpoints_not_shared(ctx, _with_template_in_use(ctx, conditions))
    if ctx.is_finished:
        kind = "Complete" if status.phase == "Succeeded" else "Failed"
        conditions = with_condition(conditions, kind, True, status.reason, status.message, now)
    return conditions


def _with_gang_too_large(ctx: PlanningContext, conditions: list[Condition]) -> list[Condition]:
    """Said when it is, and afterwards that it is not."""
    if not ctx.is_size_judged or (ctx.too_large is None and find_condition(conditions, GANG_TOO_LARGE) is None):
        return conditions
    if ctx.too_large is None:
        return with_condition(conditions, GANG_TOO_LARGE, False, "Fits", "The cluster could hold it.", to_time(ctx.now))
    words = _gang_too_large_text(ctx.too_large)
    return with_condition(conditions, GANG_TOO_LARGE, True, ctx.too_large.reason, words, to_time(ctx.now))


def _gang_too_large_text(refusal: Refusal) -> str:
    return f"{refusal.message} {refusal.fix}"


def _with_gang_slow(ctx: PlanningContext, conditions: list[Condition]) -> list[Condition]:
    """Said once it is known to be slow, and afterwards that it is not. What nobody knows is left as it was."""
    slow = ctx.slow
    if slow is None or (not slow.reason and find_condition(conditions, GANG_SLOW) is None):
        return conditions
    ctx.update(best_step_seconds=slow.best_seconds)
    message = slow.message or "The gang is as fast as it ever was."
    return with_condition(
        conditions, GANG_SLOW, bool(slow.reason), slow.reason or "PaceNormal", message, to_time(ctx.now)
    )


def _with_barrier_hold(ctx: PlanningContext, conditions: list[Condition]) -> list[Condition]:
    """One condition for each reason to wait; once it was said, afterwards it says that it is over."""
    for kind in (UNREADABLE, MISSING):
        is_held = ctx.hold is not None and ctx.hold.reason == kind
        if is_held or find_condition(conditions, kind) is not None:
            message = ctx.hold.message if ctx.hold is not None and is_held else ""
            conditions = with_condition(
                conditions, kind, is_held, kind if is_held else "CheckpointsFound", message, to_time(ctx.now)
            )
    return conditions


def _with_template_in_use(ctx: PlanningContext, conditions: list[Condition]) -> list[Condition]:
    """Only of a job whose template was changed while it ran; afterwards it says that all pods are of one."""
    roles = roles_with_template_in_use(ctx)
    if not roles and find_condition(conditions, TEMPLATE_IN_USE) is None:
        return conditions
    reason, message = (TEMPLATE_IN_USE, template_in_use_text(ctx, roles)) if roles else ("OneTemplate", "")
    return with_condition(conditions, TEMPLATE_IN_USE, bool(roles), reason, message, to_time(ctx.now))


def _with_job_suspended(ctx: PlanningContext, conditions: list[Condition]) -> list[Condition]:
    """Only of a job that was suspended once; afterwards it says that it is not."""
    is_suspended = ctx.status.suspended_at is not None
    if not is_suspended and find_condition(conditions, SUSPENDED) is None:
        return conditions
    reason = SUSPENDED if is_suspended else "Resumed"
    message = "spec.suspend is true." if is_suspended else "spec.suspend is false."
    return with_condition(conditions, SUSPENDED, is_suspended, reason, message, to_time(ctx.now))


def _with_gang_complete(ctx: PlanningContext, conditions: list[Condition]) -> list[Condition]:
    """Whether every rank is there, of a gang that has run. One below its size says so for as long as it is."""
    status = ctx.status
    if status.started_at is None or ctx.is_finished or status.suspended_at is not None:
        return [c for c in conditions if c.type != GANG_COMPLETE]
    size, least = ctx.asked_size, sum(r.min_replicas or r.replicas for r in ctx.spec.roles)
    there = [
        m for m in status.members if m.uid in ctx.views
    ]  # while it runs: whoever cannot go on has closed the barrier
    if status.barrier == CLOSED:
        views = ((m, ctx.views[m.uid]) for m in there)
        there = [m for m, view in views if view.is_usable and view.is_ready_for(status.attempt)]
    is_whole = len(there) >= size
    reason = "AllRanksThere" if is_whole else ("BelowMinimum" if len(there) < least else "BelowSize")
    message = f"{len(there)} of {size} ranks are there; training needs {least}."
    return with_condition(conditions, GANG_COMPLETE, is_whole, reason, message, to_time(ctx.now))


def _spare_pods(ctx: PlanningContext) -> list[SparePod]:
    is_full = {role.name: ctx.vacant(role) <= 0 for role in ctx.spec.roles}
    extra = [v for v in ctx.free() if v.is_spare or is_full.get(v.role, False)]
    return [
        SparePod(v.pod.name, v.uid, v.role, v.node, list(v.devices), v.is_parked)
        for v in sorted(extra, key=lambda v: v.index)
    ]


def _job_phase(ctx: PlanningContext) -> tuple[str, str, str]:
    """(phase, reason, message)."""
    status, size = ctx.status, len(ctx.ranks)
    if status.suspended_at is not None:
        step = (
            f"the checkpoint of step {status.progress.checkpoint_step}"
            if status.progress.checkpoint_step
            else "the beginning"
        )
        return (
            SUSPENDED,
            SUSPENDED,
            f"Its devices are free again. The job resumes from {step} after `remuda resume` (spec.suspend: false).",
        )
    if status.barrier == OPEN and status.held_roles:
        held = ", ".join(status.held_roles)
        return (
            "Running",
            "RoleJoining",
            f"Attempt {status.attempt} runs; role {held} starts when all its ranks are ready.",
        )
    if status.barrier == OPEN:
        if len(status.members) < ctx.asked_size:
            text = f"{len(status.members)} of {ctx.asked_size} ranks run attempt {status.attempt}."
            if size >= ctx.asked_size:
                text += " The others join the next attempt."
            return "Running", "FewerRanks", text
        if len(status.members) > size:  # `replicas` were reduced meanwhile
            text = f"{len(status.members)} ranks run attempt {status.attempt}. The next attempt has {size}."
            return "Running", "BarrierOpen", text
        return "Running", "BarrierOpen", f"All {size} ranks run attempt {status.attempt}."
    has_run = status.started_at is not None
    waiting = "Recovering" if has_run else "Pending"
    if ctx.too_large is not None:
        return waiting, ctx.too_large.reason, _gang_too_large_text(ctx.too_large)
    if ctx.refusal and ctx.create:  # before the scheduler's word: it only says that pods are missing
        return waiting, PODS_REFUSED, _pods_refused_text(ctx.refusal)
    if len(status.members) < size and (roles := roles_with_template_in_use(ctx)):
        return waiting, TEMPLATE_IN_USE, template_in_use_text(ctx, roles)
    refusal = training_placement_refusal(ctx)
    if refusal is not None:
        return waiting, refusal.reason, refusal.message
    if ctx.hold is not None:
        return "Recovering" if has_run else "Starting", ctx.hold.reason, ctx.hold.message
    ready = sum(1 for m in status.members if (v := ctx.views.get(m.uid)) and v.is_ready_for(status.attempt))
    text = f"{ready} of {size} ranks are ready for attempt {status.attempt}."
    if (trouble := _start_trouble(ctx)) is not None:
        return "Recovering" if has_run else "Starting", trouble[0], f"{trouble[1]} {text}"
    if has_run and ctx.under_way is not None:
        return "Recovering", ctx.under_way.reason, text
    return ("Starting", "WaitingAtBarrier", text) if status.members else ("Pending", "WaitingForPlacement", text)


def _start_trouble(ctx: PlanningContext) -> tuple[str, str] | None:
    """Why a rank's launcher does not start now, or why the last one did not, whose place is to be taken."""
    views = (ctx.views.get(m.uid) for m in ctx.status.members)
    found = (launcher_trouble(v) for v in views if v is not None and not v.is_ready_for(ctx.status.attempt))
    if (trouble := next((t for t in found if t is not None), None)) is not None:
        return trouble.reason, trouble.message
    last = ctx.under_way
    return (last.reason, last.message) if last is not None and last.reason in LAUNCHER_TROUBLES else None


def _pods_refused_text(said: str) -> str:
    """Without the name of the one pod it was said of; it holds for all that are missing."""
    why = said.partition(" is forbidden: ")[2] or said
    fix = (
        "Raise the quota or ask for fewer replicas."
        if "exceeded quota" in why
        else "Allow such pods or change the job."
    )
    return f"{why.rstrip('.')}. {fix}"


def unplaced_rank_pods(ctx: PlanningContext) -> list[PodView]:
    """Pods made for a rank that have no node yet."""
    return [v for v in ctx.free() if not v.is_bound and not v.is_spare]


def training_placement_refusal(ctx: PlanningContext) -> Condition | None:
    """Why the scheduler could not place one of them, when it has said so."""
    said = (find_condition(v.pod.status.conditions, "PodScheduled") for v in unplaced_rank_pods(ctx))
    return next((c for c in said if c is not None and c.status == "False"), None)


# -- time limits -------------------------------------------------------------------------------------------------------


def training_job_deadline(ctx: PlanningContext) -> float | None:
    """When the job has run for as long as it may; None without a limit, before the first start, and while it is suspended."""
    status, limit = ctx.status, ctx.spec.active_deadline_seconds
    if limit <= 0 or status.started_at is None or status.suspended_at is not None:
        return None
    return to_seconds(status.started_at) + status.suspended_seconds + limit


def is_training_job_past_deadline(ctx: PlanningContext) -> bool:
    at = training_job_deadline(ctx)
    return at is not None and ctx.now > at


def finished_training_job_kept_s(ctx: PlanningContext) -> float | None:
    """Seconds for which the record of a finished job is still kept; None = until somebody deletes it."""
    ttl, ended = ctx.spec.ttl_seconds_after_finished, ctx.status.finished_at
    if ttl is None or ended is None or not ctx.is_finished:
        return None
    return max(0.0, to_seconds(ended) + ttl - ctx.now)


# -- a job that contradicts itself -------------------------------------------------------------------------------------


def invalid_job_refusal(job: TrainingJob) -> Refusal | None:
    try:
        validate(job)
    except Refusal as refusal:
        return refusal
    return None


def with_invalid_job(status: TrainingJobStatus, refused: Refusal, now: float) -> TrainingJobStatus:
    """The status of a job that is not looked after."""
    message = f"{refused.message} {refused.fix} Until then the job is left as it is."
    conditions = with_condition(status.conditions, INVALID, True, refused.reason, message, to_time(now))
    return msgspec.structs.replace(status, reason=refused.reason, message=message, conditions=conditions)


def without_invalid_job(conditions: list[Condition], now: float) -> list[Condition]:
    """Once it was invalid, afterwards it says that it is not."""
    if find_condition(conditions, INVALID) is None:
        return conditions
    return with_condition(conditions, INVALID, False, "Valid", "", to_time(now))
