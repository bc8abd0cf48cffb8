"""The barrier: it opens when every rank has a pod, every pod is ready for this attempt, and nobody runs an older one any more,
with one step to resume from.

A pod that lost its rank counts until it has stopped and cannot start again: two processes of one rank would write the same
checkpoints. Its agent may be the last to hear of the new attempt, so "ready" for an older one is not enough: it could still be
started. One that does not answer in time is given up and its devices are quarantined, so the barrier never hangs.
"""

from __future__ import annotations

from remuda.api.meta import to_time
from remuda.api.training import RetiredPod
from remuda.core.workload.faults import NOT_STOPPED
from remuda.core.workload.gang import OPEN, common_checkpoint, seconds_of
from remuda.core.workload.look import Look


def open_barrier(look: Look) -> None:
    status = look.status
    if status.barrier == OPEN or len(status.members) < len(look.ranks):
        return
    views = [look.views[m.uid] for m in status.members]  # a member without a view is a fault and was dropped
    ready = [
        v.report
        for v in views
        if v.report is not None and v.is_ready_for(status.attempt) and v.is_usable and v.pod.status.pod_ip
    ]
    if len(ready) < len(views) or any(_is_waited_for(look, pod) for pod in status.retired):
        return
    resume = common_checkpoint(ready)
    under_way = look.under_way
    if under_way is not None:
        stopped = [r.time for r in ready if r.time and r.pod not in under_way.replaced]
        now = to_time(look.now)
        look.amend_recovery(
            stopped_at=min(max(stopped, default=now), now),
            opened_at=now,
            resume_step=resume or 0,
        )
    look.update(barrier=OPEN, resume_step=resume, started_at=status.started_at or to_time(look.now))


def _is_waited_for(look: Look, pod: RetiredPod) -> bool:
    view = look.views.get(pod.uid)
    return view is not None and pod.reason != NOT_STOPPED and (view.may_run or view.may_start(look.status.attempt))


def is_overdue(look: Look) -> bool:
    """Everyone has had the time to stop."""
    raised = seconds_of(look.status.attempt_raised_at, look.now)
    return look.now > raised + look.spec.failure.stop_deadline_seconds


def is_complete(look: Look) -> bool:
    """Every rank ended with 0 in this attempt. Asked before faults are: what breaks after the last step breaks nothing."""
    status = look.status
    if status.barrier != OPEN or not status.members:
        return False
    reports = [v.report for m in status.members if (v := look.views.get(m.uid))]
    done = [r for r in reports if r and r.state == "exited" and r.attempt == status.attempt and r.code == 0]
    return len(done) == len(status.members)
