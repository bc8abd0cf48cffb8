"""The barrier: it opens when every rank has a pod, every pod is ready for this attempt, and nobody runs an older one any more,
with one step to resume from.

A pod that lost its rank counts until it has stopped and cannot start again: two processes of one rank would write the same
checkpoints. Its agent may be the last to hear of the new attempt, so "ready" for an older one is not enough: it could still be
started. One that does not answer in time is given up and its devices are quarantined, so the barrier never hangs.
"""

from __future__ import annotations

from remuda.api.meta import to_time
from remuda.api.training import Member, RetiredPod, SuccessPolicy
from remuda.core.gang.pod_view import OPEN, seconds_of
from remuda.core.training.backoff import restart_at
from remuda.core.training.checkpoint_sizes import resume_from, with_world
from remuda.core.training.faults import NOT_STOPPED
from remuda.core.training.planning_context import Look
from remuda.core.training.role_stages import still_to_come


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
    pause = restart_at(look)
    if pause is not None and look.now < pause:
        return
    is_new_stage = status.stage != len(status.done_roles)
    worlds = [] if is_new_stage else status.worlds
    resume = None if is_new_stage else resume_from(ready, worlds)  # another role's checkpoints are not this one's
    under_way = look.under_way
    if under_way is not None:
        stopped = [r.time for r in ready if r.time and r.pod not in under_way.replaced]
        now = to_time(look.now)
        look.amend_recovery(
            stopped_at=min(max(stopped, default=now), now),
            opened_at=now,
            resume_step=resume or 0,
        )
    look.update(
        barrier=OPEN,
        resume_step=resume,
        started_at=status.started_at or to_time(look.now),
        stage=len(status.done_roles),
        worlds=with_world(worlds, len(views), resume, look.asked_size, has_run=status.started_at is not None),
        held_roles=[],
    )


def _is_waited_for(look: Look, pod: RetiredPod) -> bool:
    view = look.views.get(pod.uid)
    return view is not None and pod.reason != NOT_STOPPED and (view.may_run or view.may_start(look.status.attempt))


def is_overdue(look: Look) -> bool:
    """Everyone has had the time to stop."""
    raised = seconds_of(look.status.attempt_raised_at, look.now)
    return look.now > raised + look.spec.failure.stop_deadline_seconds


def is_complete(look: Look) -> bool:
    """Every rank that counts ended with 0 in this attempt. Asked before faults are: what breaks after the last step breaks
    nothing."""
    if look.status.barrier != OPEN:
        return False
    if look.spec.success == SuccessPolicy() and still_to_come(look.whole_spec, look.status):
        return False
    needed = _those_that_count(look)
    return bool(needed) and all(has_ended_well(look, m) for m in needed)


def has_ended_well(look: Look, member: Member) -> bool:
    view = look.views.get(member.uid)
    report = view.report if view is not None else None
    return report is not None and (report.state, report.attempt, report.code) == ("exited", look.status.attempt, 0)


def _those_that_count(look: Look) -> list[Member]:
    """By the success policy: the ranks it names, or all of them."""
    policy, members = look.spec.success, look.status.members
    of_role = [m for m in members if policy.role in ("", m.role)]
    if not policy.ranks:
        return of_role
    first = next((i for i, r in enumerate(look.ranks) if policy.role in ("", r.name)), 0)
    return [m for m in of_role if m.rank - first in policy.ranks]
