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
from remuda.api.validation.validate import validate
from remuda.core.gang.pod_view import CLOSED, OPEN, PodView
from remuda.core.training.goodput import at_time, lost_seconds, suspended_s, with_loss
from remuda.core.training.moves import with_slow_ranks
from remuda.core.training.planning_context import Look

INVALID = "Invalid"

DEADLINE_EXCEEDED = "DeadlineExceeded"

SUSPENDED = "Suspended"
GANG_COMPLETE = "GangComplete"
GANG_SLOW = "GangSlow"  # condition: slower than it was, and no single device is to blame
PODS_REFUSED = "PodsRefused"  # the API does not let the gang's pods be made


# -- the end ----------------------------------------------------------------------------------------------------------


def succeed(look: Look) -> None:
    reason, message = "AllRanksDone", "Every rank ended with code 0."
    if look.spec.success != SuccessPolicy():
        reason, message = "SuccessPolicyMet", f"{_those_that_count(look)} ended with code 0; the others are stopped."
    look.update(phase="Succeeded", reason=reason, message=message)
    _finish(look)


def _those_that_count(look: Look) -> str:
    policy = look.spec.success
    ranks = (
        f"Rank{'' if len(policy.ranks) == 1 else 's'} {', '.join(map(str, policy.ranks))}"
        if policy.ranks
        else "All ranks"
    )
    return f"{ranks} of role {policy.role}" if policy.role else ranks


def fail(look: Look, reason: str, message: str) -> None:
    look.update(phase="Failed", reason=reason, message=message, barrier=CLOSED)
    _finish(look)


def fail_over_budget(look: Look, cause: Cause, message: str) -> None:
    count, limit = look.status.used[cause.value], look.spec.failure.budgets.limit(cause)
    text = f"{message} That was interruption {count} of cause {cause}; {limit} {'is' if limit == 1 else 'are'} allowed."
    fail(look, f"{cause.value.capitalize()}BudgetExhausted", text)


def _finish(look: Look) -> None:
    last = look.last_recovery
    if last is not None and last.first_step_at is None and not last.lost_gpu_seconds:
        goodput, booked = with_loss(look.status, last, look.now, look.fresh.step_seconds, look.gang_gpus)
        look.update(recoveries=[*look.status.recoveries[:-1], booked], goodput=goodput)
    look.update(finished_at=to_time(look.now), progress=look.fresh, spares=[], loans=[])
    idle_s = suspended_s(look.status, look.now)
    look.update(goodput=at_time(look.status.goodput, look.status.started_at, 0.0, look.now, idle_s))
    look.create.clear()
    look.doom_all()


# -- what is said -----------------------------------------------------------------------------------------------------


def summarise(look: Look) -> None:
    if not look.is_finished:
        phase, reason, message = _phase(look)
        look.update(spares=_spares(look), phase=phase, reason=reason, message=message)
        under_way = [r for r in look.status.recoveries[-1:] if r.first_step_at is None]
        open_loss = sum(lost_seconds(r, look.status.started_at, look.now, look.fresh.step_seconds) for r in under_way)
        if look.status != look.before:  # the ratio moves all the time; it is written with what else there is to write
            idle_s = suspended_s(look.status, look.now)
            look.update(goodput=at_time(look.status.goodput, look.status.started_at, open_loss, look.now, idle_s))
    look.update(conditions=_conditions(look))


def _conditions(look: Look) -> list[Condition]:
    status, now = look.status, to_time(look.now)
    is_running = status.phase == "Running"
    conditions = with_condition(status.conditions, "Running", is_running, status.reason, status.message, now)
    conditions = _suspended(look, conditions)
    conditions = _complete(look, conditions)
    conditions = with_slow_ranks(look, _slow(look, conditions))
    conditions = looked_after(conditions, look.now)
    if look.is_finished:
        kind = "Complete" if status.phase == "Succeeded" else "Failed"
        conditions = with_condition(conditions, kind, True, status.reason, status.message, now)
    return conditions


def _slow(look: Look, conditions: list[Condition]) -> list[Condition]:
    """Said once it is known to be slow, and afterwards that it is not. What nobody knows is left as it was."""
    slow = look.slow
    if slow is None or (not slow.reason and find_condition(conditions, GANG_SLOW) is None):
        return conditions
    look.update(best_step_seconds=slow.best_seconds)
    message = slow.message or "The gang keeps its best pace."
    return with_condition(
        conditions, GANG_SLOW, bool(slow.reason), slow.reason or "PaceNormal", message, to_time(look.now)
    )


def _suspended(look: Look, conditions: list[Condition]) -> list[Condition]:
    """Only of a job that was suspended once; afterwards it says that it is not."""
    is_suspended = look.status.suspended_at is not None
    if not is_suspended and find_condition(conditions, SUSPENDED) is None:
        return conditions
    reason = SUSPENDED if is_suspended else "Resumed"
    message = "spec.suspend is true." if is_suspended else "spec.suspend is false."
    return with_condition(conditions, SUSPENDED, is_suspended, reason, message, to_time(look.now))


def _complete(look: Look, conditions: list[Condition]) -> list[Condition]:
    """Whether every rank is there, of a gang that has run. One below its size says so for as long as it is."""
    status = look.status
    if status.started_at is None or look.is_finished or status.suspended_at is not None:
        return [c for c in conditions if c.type != GANG_COMPLETE]
    size, least = look.asked_size, sum(r.min_replicas or r.replicas for r in look.spec.roles)
    there = [
        m for m in status.members if m.uid in look.views
    ]  # while it runs: whoever cannot go on has closed the barrier
    if status.barrier == CLOSED:
        views = ((m, look.views[m.uid]) for m in there)
        there = [m for m, view in views if view.is_usable and view.is_ready_for(status.attempt)]
    is_whole = len(there) >= size
    reason = "AllRanksThere" if is_whole else ("BelowMinimum" if len(there) < least else "BelowSize")
    message = f"{len(there)} of {size} ranks are there; {least} are needed to train."
    return with_condition(conditions, GANG_COMPLETE, is_whole, reason, message, to_time(look.now))


def _spares(look: Look) -> list[SparePod]:
    is_full = {role.name: look.vacant(role) <= 0 for role in look.spec.roles}
    extra = [v for v in look.free() if v.is_spare or is_full.get(v.role, False)]
    return [
        SparePod(v.pod.name, v.uid, v.role, v.node, list(v.devices), v.is_parked)
        for v in sorted(extra, key=lambda v: v.index)
    ]


def _phase(look: Look) -> tuple[str, str, str]:
    """(phase, reason, message)."""
    status, size = look.status, len(look.ranks)
    if status.suspended_at is not None:
        step = (
            f"the checkpoint of step {status.progress.checkpoint_step}"
            if status.progress.checkpoint_step
            else "the beginning"
        )
        return SUSPENDED, SUSPENDED, f"Everything is given back. Resumes from {step} when spec.suspend is false."
    if status.barrier == OPEN and status.held_roles:
        waiting = ", ".join(status.held_roles)
        return (
            "Running",
            "RoleJoining",
            f"Attempt {status.attempt} runs; role {waiting} starts when all of it is ready.",
        )
    if status.barrier == OPEN:
        if size < look.asked_size:
            return "Running", "FewerRanks", f"{size} of {look.asked_size} ranks run attempt {status.attempt}."
        return "Running", "BarrierOpen", f"All {size} ranks run attempt {status.attempt}."
    has_run = status.started_at is not None
    if look.refusal and look.create:  # before the scheduler's word: it only says that pods are missing
        return "Recovering" if has_run else "Pending", PODS_REFUSED, _refused_pods(look.refusal)
    refusal = refused(look)
    if refusal is not None:
        return "Recovering" if has_run else "Pending", refusal.reason, refusal.message
    ready = sum(1 for m in status.members if (v := look.views.get(m.uid)) and v.is_ready_for(status.attempt))
    text = f"{ready} of {size} ranks are ready for attempt {status.attempt}."
    if has_run and look.under_way is not None:
        return "Recovering", look.under_way.reason, text
    return ("Starting", "WaitingAtBarrier", text) if status.members else ("Pending", "WaitingForPlacement", text)


def _refused_pods(said: str) -> str:
    """Without the name of the one pod it was said of; it holds for all that are missing."""
    why = said.partition(" is forbidden: ")[2] or said
    fix = (
        "Raise the quota or ask for fewer replicas."
        if "exceeded quota" in why
        else "Allow such pods or change the job."
    )
    return f"{why.rstrip('.')}. {fix}"


def waiting_pods(look: Look) -> list[PodView]:
    """Pods made for a rank that have no node yet."""
    return [v for v in look.free() if not v.is_bound and not v.is_spare]


def refused(look: Look) -> Condition | None:
    """Why the scheduler could not place one of them, when it has said so."""
    said = (find_condition(v.pod.status.conditions, "PodScheduled") for v in waiting_pods(look))
    return next((c for c in said if c is not None and c.status == "False"), None)


# -- time limits -------------------------------------------------------------------------------------------------------


def deadline_of(look: Look) -> float | None:
    """When the job has run for as long as it may; None without a limit, before the first start, and while it is suspended."""
    status, limit = look.status, look.spec.active_deadline_seconds
    if limit <= 0 or status.started_at is None or status.suspended_at is not None:
        return None
    return to_seconds(status.started_at) + status.suspended_seconds + limit


def is_past_deadline(look: Look) -> bool:
    at = deadline_of(look)
    return at is not None and look.now > at


def kept_s(look: Look) -> float | None:
    """Seconds for which the record of a finished job is still kept; None = until somebody deletes it."""
    ttl, ended = look.spec.ttl_seconds_after_finished, look.status.finished_at
    if ttl is None or ended is None or not look.is_finished:
        return None
    return max(0.0, to_seconds(ended) + ttl - look.now)


# -- a job that contradicts itself -------------------------------------------------------------------------------------


def refusal_of(job: TrainingJob) -> Refusal | None:
    try:
        validate(job)
    except Refusal as refusal:
        return refusal
    return None


def left_alone(status: TrainingJobStatus, refused: Refusal, now: float) -> TrainingJobStatus:
    """The status of a job that is not looked after."""
    message = f"{refused.message} {refused.fix} Until then nobody looks after the job."
    conditions = with_condition(status.conditions, INVALID, True, refused.reason, message, to_time(now))
    return msgspec.structs.replace(status, reason=refused.reason, message=message, conditions=conditions)


def looked_after(conditions: list[Condition], now: float) -> list[Condition]:
    """Once it was invalid, afterwards it says that it is not."""
    if find_condition(conditions, INVALID) is None:
        return conditions
    return with_condition(conditions, INVALID, False, "Valid", "", to_time(now))
