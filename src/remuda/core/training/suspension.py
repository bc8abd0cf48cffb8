"""Suspend and resume: the gang gives everything back on request, and goes on later from its newest checkpoint.

`spec.suspend` is the request. The gang is asked for a checkpoint first (see `checkpoint_handshake`; bounded), and goes on
training, and recovering, until it has answered. Then the attempt is raised, every pod is retired, and the job stands still:
no pods, no devices, the record kept. When the request is taken back the gang is placed anew, anywhere, like one that starts,
and opens the barrier of the attempt that was raised then.

Nobody is charged, no interruption is counted, and the time does not count for the deadline or for goodput. A recovery that was
under way ends with the suspension: what it cost until then is booked.
"""

from __future__ import annotations

from remuda.api.meta import to_seconds, to_time
from remuda.core.training.checkpoint_handshake import ready_to_stop
from remuda.core.training.goodput import with_loss
from remuda.core.training.job_status import SUSPENDED
from remuda.core.training.membership import retire
from remuda.core.training.planning_context import Look
from remuda.core.training.recovery import raise_attempt


def stands_still(look: Look) -> bool:
    """Whether the job is suspended after this look; then nothing else is decided about it."""
    if look.spec.suspend:
        if look.status.suspended_at is None and ready_to_stop(look, SUSPENDED):
            _suspend(look)
    elif look.status.suspended_at is not None:
        _resume(look)
    is_suspended = look.status.suspended_at is not None
    if is_suspended:
        for uid in look.views:
            retire(look, uid, SUSPENDED)
    return is_suspended


def _suspend(look: Look) -> None:
    _end_recovery(look)
    for uid in look.views:
        retire(look, uid, SUSPENDED)
    if look.views or look.status.members:
        raise_attempt(look, is_move=True)
    look.update(suspended_at=to_time(look.now), progress=look.fresh)


def _end_recovery(look: Look) -> None:
    last = look.last_recovery
    if last is None or last.first_step_at is not None:
        return
    goodput, booked = with_loss(look.status, last, look.now, look.fresh.step_seconds, look.gang_gpus)
    look.update(recoveries=[*look.status.recoveries[:-1], booked], goodput=goodput)
    look.amend_recovery(opened_at=last.opened_at or to_time(look.now), first_step_at=to_time(look.now))


def _resume(look: Look) -> None:
    since = look.status.suspended_at
    stood = max(0.0, look.now - to_seconds(since)) if since is not None else 0.0
    look.update(
        suspended_at=None,
        suspended_seconds=round(look.status.suspended_seconds + stood, 3),
        attempt_raised_at=to_time(look.now) if not look.status.members else look.status.attempt_raised_at,
    )
