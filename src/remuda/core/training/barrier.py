"""The barrier: it opens when every rank has a pod, every pod is ready for this attempt, and nobody runs an older one any more,
with one step to resume from. Which step that is, and when doubt about it keeps the barrier closed, is `kept_checkpoints`.

A pod that lost its rank counts until it has stopped and cannot start again: two processes of one rank would write the same
checkpoints. Its agent may be the last to hear of the new attempt, so "ready" for an older one is not enough: it could still be
started. One that does not answer in time is given up and its devices are quarantined, so the barrier never hangs.
"""

from __future__ import annotations

import msgspec

from remuda.api.meta import to_time
from remuda.api.training import Member, RetiredPod, SuccessPolicy
from remuda.core.gang.pod_view import OPEN
from remuda.core.training.backoff import job_restart_at
from remuda.core.training.checkpoint_copies import resumes_after_start
from remuda.core.training.checkpoint_sizes import with_world_size, worlds_so_far
from remuda.core.training.faults import NOT_STOPPED
from remuda.core.training.kept_checkpoints import (
    BarrierHold,
    ResumeStep,
    decide_resume_step,
    kept_after_start,
    unreadable_checkpoint_barrier_hold,
)
from remuda.core.training.planning_context import PlanningContext
from remuda.core.training.role_stages import roles_still_to_come


def open_barrier(ctx: PlanningContext) -> None:
    status = ctx.status
    if status.barrier == OPEN or len(status.members) < len(ctx.ranks):
        return
    views = [ctx.views[m.uid] for m in status.members]  # a member without a view is a fault and was dropped
    ready = [
        v.report
        for v in views
        if v.report is not None and v.is_ready_for(status.attempt) and v.is_usable and v.pod.status.pod_ip
    ]
    is_new_stage = status.stage != len(status.done_roles)  # another role's checkpoints are not this one's
    ctx.hold = (
        None if is_new_stage else unreadable_checkpoint_barrier_hold(ctx.job, ready)
    )  # told while others are still awaited
    if len(ready) < len(views) or any(_is_retired_pod_awaited(ctx, pod) for pod in status.retired):
        return
    pause = job_restart_at(ctx)
    if pause is not None and ctx.now < pause:
        return
    worlds = [] if is_new_stage else worlds_so_far(status)
    decided = ResumeStep(None) if is_new_stage else decide_resume_step(ctx.job, ready, worlds)
    if isinstance(decided, BarrierHold):
        ctx.hold = decided
        return
    ctx.hold = None
    resume = decided.step
    _note_resume_step(ctx, decided, is_per_node=any(r.per_node for r in ready))
    under_way = ctx.under_way
    if under_way is not None:
        stopped = [r.time for r in ready if r.time and r.pod not in under_way.replaced]
        now = to_time(ctx.now)
        ctx.amend_recovery(
            stopped_at=min(max(stopped, default=now), now),
            opened_at=now,
            resume_step=resume or 0,
        )
    ctx.update(
        barrier=OPEN,
        resume_step=resume,
        opened_attempt=status.attempt,
        started_at=status.started_at or to_time(ctx.now),
        stage=len(status.done_roles),
        worlds=with_world_size(worlds, len(views), resume),
        resumes=resumes_after_start(status.resumes, status.attempt, resume or 0),
        copies=[] if is_new_stage else status.copies,
        held_roles=[],
    )


def _note_resume_step(ctx: PlanningContext, resume: ResumeStep, *, is_per_node: bool) -> None:
    """What lies ahead of that step is no checkpoint of this history any more."""
    old = ctx.fresh
    if resume.step is None and not old.kept:
        return  # it has none that we know of; what it says of its own is its own
    kept = kept_after_start(old.kept, resume, is_per_node=is_per_node)
    step = resume.step or 0
    if is_per_node:  # what would be lost with a node is what no copy has
        step = kept[-1].step if kept else 0
    ctx.fresh = msgspec.structs.replace(old, checkpoint_step=step, kept=kept)
    ctx.update(progress=ctx.fresh)


def _is_retired_pod_awaited(ctx: PlanningContext, pod: RetiredPod) -> bool:
    view = ctx.views.get(pod.uid)
    return view is not None and pod.reason != NOT_STOPPED and (view.may_run or view.may_start(ctx.status.attempt))


def is_training_job_complete(ctx: PlanningContext) -> bool:
    """Every rank that counts ended with 0 in this attempt. Asked before faults are: what breaks after the last step breaks
    nothing."""
    if ctx.status.barrier != OPEN:
        return False
    if ctx.spec.success == SuccessPolicy() and roles_still_to_come(ctx.whole_spec, ctx.status):
        return False
    needed = _ranks_for_success(ctx)
    return bool(needed) and all(has_rank_succeeded(ctx, m) for m in needed)


def has_rank_succeeded(ctx: PlanningContext, member: Member) -> bool:
    view = ctx.views.get(member.uid)
    report = view.report if view is not None else None
    return report is not None and (report.state, report.attempt, report.code) == ("exited", ctx.status.attempt, 0)


def _ranks_for_success(ctx: PlanningContext) -> list[Member]:
    """By the success policy: the ranks it names, or all of them."""
    policy, members = ctx.spec.success, ctx.status.members
    of_role = [m for m in members if policy.role in ("", m.role)]
    if not policy.ranks:
        return of_role
    first = next((i for i, r in enumerate(ctx.ranks) if policy.role in ("", r.name)), 0)
    return [m for m in of_role if m.rank - first in policy.ranks]
