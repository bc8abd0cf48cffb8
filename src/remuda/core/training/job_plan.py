"""TrainingJob: desired against observed -> plan. The whole life of a gang is decided here, and nothing is done here.

The steps of one look, in order:
  1 progress    how far the gang is (heartbeats of the current attempt only)
  2 completion  every rank that counts ended with 0 -> Succeeded; a command that cannot be run at all, or a deadline -> Failed;
                told to stand still -> Suspended, and nothing below happens
  3 faults      members that cannot go on, or had better go elsewhere -> cheapest remedy -> a new attempt, barrier closed,
                lost pods retired
  4 unfit       pods without a rank that went bad, or are of a template that was changed, are dropped; no attempt is raised
  5 ranks       vacant ranks go to parked spares, then to pods made for them; missing pods are asked for
  6 stranded    a gang that waits for room its domain does not have moves whole, if another domain has it, or goes on with
                fewer ranks, if it may; one that went on with fewer takes the others in when there is room
  7 barrier     every rank has a pod and every pod is ready for this attempt -> open, with one common resume step
                roles that come after others join, or follow (`role_ordering`)
  8 lending     a gang that is well may give up a spare for preemptible work (`spare_lending`)

Invariants: `attempt` never goes down; ranks are assigned only while the barrier is closed, and taken away only by raising the
attempt, so no two pods ever run one rank of one attempt; membership is decided by the status alone and pods that were taken
out of it are retired for good, so a crash between two writes leaves nothing that the next look would not put right; planning
again on what was applied changes nothing; planning twice on the same input gives the same plan.
"""

from __future__ import annotations

import msgspec

from remuda.core.training.barrier import is_training_job_complete, open_barrier
from remuda.core.training.checkpoint_handshake import note_checkpoint_answer
from remuda.core.training.copy_nodes import note_copy_nodes
from remuda.core.training.edited_templates import drop_pods_of_old_templates
from remuda.core.training.faults import find_member_faults, training_command_never_ran, with_ignored_training_faults
from remuda.core.training.finished_pods import clear_finished_pods
from remuda.core.training.hung_ranks import find_hung_members
from remuda.core.training.job_status import (
    DEADLINE_EXCEEDED,
    finished_training_job_kept_s,
    is_training_job_past_deadline,
    mark_job_succeeded,
    mark_training_job_failed,
    summarise_job_status,
)
from remuda.core.training.membership import (
    count_training_pods_created,
    delete_retired_training_pods,
    drop_unfit_training_pods,
    fill_training_job_ranks,
    keep_training_job_domain,
    start_first_attempt,
)
from remuda.core.training.missing_pods import ask_for_missing_pods
from remuda.core.training.moves import plan_member_moves
from remuda.core.training.next_look import job_look_again_s
from remuda.core.training.planning_context import GangObserved, PlanningContext, TrainingPlan
from remuda.core.training.progress import read_job_progress
from remuda.core.training.recovery import (
    grow_job_if_possible,
    move_job_if_stranded,
    quarantine_unstoppable_members,
    recover_job,
    shrink_job_if_stranded,
)
from remuda.core.training.role_ordering import end_role_stage, join_roles, start_held_roles
from remuda.core.training.spare_lending import lend_spares, recall_loans_if_stranded, recalled_borrowers, tend_loans
from remuda.core.training.suspension import suspend_or_resume_job


def plan_training(observed: GangObserved, now: float) -> TrainingPlan:
    if observed.job.is_deleting:
        return TrainingPlan(observed.job.status)  # its pods go with their owner
    ctx = PlanningContext(observed, now)
    if ctx.is_finished:
        ends_s, left_s = clear_finished_pods(ctx), finished_training_job_kept_s(ctx)
        look_s = min((s for s in (ends_s, left_s) if s is not None), default=None)
        return msgspec.structs.replace(_training_plan(ctx), look_again_s=look_s, is_over=left_s == 0.0)
    start_first_attempt(ctx)
    count_training_pods_created(ctx)
    delete_retired_training_pods(ctx)
    read_job_progress(ctx)
    note_copy_nodes(ctx)
    note_checkpoint_answer(ctx)
    tend_loans(ctx)
    if is_training_job_complete(ctx):
        mark_job_succeeded(ctx)
    elif refused := training_command_never_ran(ctx.job, ctx.views):
        mark_training_job_failed(ctx, *refused)
    elif is_training_job_past_deadline(ctx):
        mark_training_job_failed(
            ctx,
            DEADLINE_EXCEEDED,
            f"The job reached its time limit of {ctx.spec.active_deadline_seconds:g} s (spec.activeDeadlineSeconds).",
        )
    elif not suspend_or_resume_job(ctx):
        _steer_job(ctx)
    summarise_job_status(ctx)
    return _training_plan(ctx)


def _steer_job(ctx: PlanningContext) -> None:
    faults = (
        find_member_faults(ctx.job, ctx.views, ctx.now, ctx.stalls) or find_hung_members(ctx) or plan_member_moves(ctx)
    )
    if faults:
        recover_job(ctx, with_ignored_training_faults(faults, ctx.job, ctx.views, ctx.now, ctx.stalls))
    else:
        grow_job_if_possible(ctx)
        end_role_stage(ctx)
    if not ctx.is_finished and suspend_or_resume_job(ctx):
        return  # it waited for a checkpoint, and now there is nobody left to save one
    if not ctx.is_finished:
        keep_training_job_domain(ctx)
        drop_unfit_training_pods(ctx)
        drop_pods_of_old_templates(ctx)
    if ctx.is_finished:
        return
    join_roles(ctx)
    fill_training_job_ranks(ctx)
    recall_loans_if_stranded(ctx)
    ask_for_missing_pods(ctx)
    move_job_if_stranded(ctx)
    shrink_job_if_stranded(ctx)
    open_barrier(ctx)
    start_held_roles(ctx)
    lend_spares(ctx)


def _training_plan(ctx: PlanningContext) -> TrainingPlan:
    return TrainingPlan(
        status=ctx.status,
        quarantine=tuple(quarantine_unstoppable_members(ctx)),
        delete=tuple(ctx.deletions[uid] for uid in sorted(ctx.deletions)),
        create=tuple(ctx.create),
        recall=tuple(recalled_borrowers(ctx)),
        look_again_s=job_look_again_s(ctx),
    )
