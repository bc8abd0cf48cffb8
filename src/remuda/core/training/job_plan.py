"""TrainingJob: desired against observed -> plan. The whole life of a gang is decided here, and nothing is done here.

The steps of one look, in order:
  1 progress    how far the gang is (heartbeats of the current attempt only)
  2 completion  every rank that counts ended with 0 -> Succeeded; a command that cannot be run at all, or a deadline -> Failed;
                told to stand still -> Suspended, and nothing below happens
  3 faults      members that cannot go on, or had better go elsewhere -> cheapest remedy -> a new attempt, barrier closed,
                lost pods retired
  4 unfit       pods without a rank that went bad are dropped; no attempt is raised for them
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

from remuda.core.training.barrier import is_complete, open_barrier
from remuda.core.training.checkpoint_handshake import note_answer
from remuda.core.training.faults import find_faults, never_ran, with_ignored
from remuda.core.training.hung_ranks import find_hung_members
from remuda.core.training.job_status import DEADLINE_EXCEEDED, fail, is_past_deadline, kept_s, succeed, summarise
from remuda.core.training.membership import count_pods, drop_unfit, fill_ranks, keep_retired_out, locate, start
from remuda.core.training.missing_pods import ask_for_pods
from remuda.core.training.moves import planned_moves
from remuda.core.training.next_look import look_again_s
from remuda.core.training.planning_context import Doomed, GangObserved, Look, Quarantine, TrainingPlan
from remuda.core.training.progress import read_progress
from remuda.core.training.recovery import (
    grow_if_possible,
    move_if_stranded,
    quarantine_unstoppable,
    recover,
    shrink_if_stranded,
)
from remuda.core.training.role_ordering import end_stage, join_roles, let_go
from remuda.core.training.spare_lending import (
    lend_spares,
    recall_if_stranded,
    recalled_pods,
    tend_loans,
)
from remuda.core.training.suspension import stands_still

__all__ = ["Doomed", "GangObserved", "Quarantine", "TrainingPlan", "plan_training"]


def plan_training(observed: GangObserved, now: float) -> TrainingPlan:
    if observed.job.is_deleting:
        return TrainingPlan(observed.job.status)  # its pods go with their owner
    look = Look(observed, now)
    if look.is_finished:
        look.doom_all()
        left_s = kept_s(look)
        return msgspec.structs.replace(_plan(look), look_again_s=left_s, is_over=left_s == 0.0)
    start(look)
    count_pods(look)
    keep_retired_out(look)
    read_progress(look)
    note_answer(look)
    tend_loans(look)
    if is_complete(look):
        succeed(look)
    elif refused := never_ran(look.job, look.views):
        fail(look, *refused)
    elif is_past_deadline(look):
        fail(look, DEADLINE_EXCEEDED, f"The job ran for {look.spec.active_deadline_seconds:g} s, as long as it may.")
    elif not stands_still(look):
        _steer(look)
    summarise(look)
    return _plan(look)


def _steer(look: Look) -> None:
    faults = find_faults(look.job, look.views, look.now) or find_hung_members(look) or planned_moves(look)
    if faults:
        recover(look, with_ignored(faults, look.job, look.views, look.now))
    else:
        grow_if_possible(look)
        end_stage(look)
    if not look.is_finished and stands_still(look):
        return  # it waited for a checkpoint, and now there is nobody left to save one
    if not look.is_finished:
        locate(look)
        drop_unfit(look)
    if look.is_finished:
        return
    join_roles(look)
    fill_ranks(look)
    recall_if_stranded(look)
    ask_for_pods(look)
    move_if_stranded(look)
    shrink_if_stranded(look)
    open_barrier(look)
    let_go(look)
    lend_spares(look)


def _plan(look: Look) -> TrainingPlan:
    return TrainingPlan(
        status=look.status,
        quarantine=tuple(quarantine_unstoppable(look)),
        delete=tuple(look.doomed[uid] for uid in sorted(look.doomed)),
        create=tuple(look.create),
        recall=tuple(recalled_pods(look)),
        look_again_s=look_again_s(look),
    )
