"""TrainingJob: desired against observed -> plan. The whole life of a gang is decided here, and nothing is done here.

The steps of one look, in order:
  1 progress    how far the gang is (heartbeats of the current attempt only)
  2 completion  every rank ended with 0 -> Succeeded; a command that cannot be run at all -> Failed
  3 faults      members that cannot go on -> cheapest remedy -> a new attempt, barrier closed, lost pods retired
  4 unfit       pods without a rank that went bad are dropped; no attempt is raised for them
  5 ranks       vacant ranks go to parked spares, then to pods made for them; missing pods are asked for
  6 stranded    a gang that waits for room its domain does not have moves whole, if another domain has it
  7 barrier     every rank has a pod and every pod is ready for this attempt -> open, with one common resume step

Invariants: `attempt` never goes down; ranks are assigned only while the barrier is closed, and taken away only by raising the
attempt, so no two pods ever run one rank of one attempt; membership is decided by the status alone and pods that were taken
out of it are retired for good, so a crash between two writes leaves nothing that the next look would not put right; planning
again on what was applied changes nothing; planning twice on the same input gives the same plan.
"""

from __future__ import annotations

from remuda.core.workload.barrier import is_complete, open_barrier
from remuda.core.workload.faults import find_faults, never_ran
from remuda.core.workload.look import Doomed, GangObserved, Look, Quarantine, TrainingPlan
from remuda.core.workload.membership import (
    ask_for_pods,
    count_pods,
    drop_unfit,
    fill_ranks,
    keep_retired_out,
    locate,
    start,
)
from remuda.core.workload.outcome import fail, look_again_s, succeed, summarise
from remuda.core.workload.progress import read_progress
from remuda.core.workload.recovery import move_if_stranded, quarantine_unstoppable, recover

__all__ = ["Doomed", "GangObserved", "Quarantine", "TrainingPlan", "plan_training"]


def plan_training(observed: GangObserved, now: float) -> TrainingPlan:
    if observed.job.is_deleting:
        return TrainingPlan(observed.job.status)  # its pods go with their owner
    look = Look(observed, now)
    if look.is_finished:
        look.doom_all()
        return _plan(look)
    start(look)
    count_pods(look)
    keep_retired_out(look)
    read_progress(look)
    if is_complete(look):
        succeed(look)
    elif refused := never_ran(look.job, look.views):
        fail(look, *refused)
    else:
        _steer(look)
    summarise(look)
    return _plan(look)


def _steer(look: Look) -> None:
    faults = find_faults(look.job, look.views, look.now)
    if faults:
        recover(look, faults)
    if not look.is_finished:
        locate(look)
        drop_unfit(look)
    if look.is_finished:
        return
    fill_ranks(look)
    ask_for_pods(look)
    move_if_stranded(look)
    open_barrier(look)


def _plan(look: Look) -> TrainingPlan:
    return TrainingPlan(
        status=look.status,
        quarantine=tuple(quarantine_unstoppable(look)),
        delete=tuple(look.doomed[uid] for uid in sorted(look.doomed)),
        create=tuple(look.create),
        look_again_s=look_again_s(look),
    )
