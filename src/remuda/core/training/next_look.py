"""When a gang is looked at again without an event: the earliest moment at which time alone would change the plan.

Every step that waits for a moment (a hang, a deadline, a pause, a move, a loan) says when that is; the plan takes the earliest.
"""

from __future__ import annotations

from collections.abc import Iterator

from remuda.api.meta import to_seconds
from remuda.core.gang.pod_view import CLOSED, OPEN, seconds_of
from remuda.core.training import checkpoint_handshake, moves
from remuda.core.training.backoff import restart_at
from remuda.core.training.elastic_size import next_growth_look, next_shrink_look
from remuda.core.training.faults import start_deadline
from remuda.core.training.hung_ranks import next_hang_at
from remuda.core.training.job_status import deadline_of
from remuda.core.training.planning_context import Look
from remuda.core.training.spare_lending import next_lending_look

PROGRESS_PERIOD_S = 1.0  # the API holds transitions; progress is shown, so it may be a second old
WAITING_PERIOD_S = 1.0  # how often a gang that waits for room looks again
MARGIN_S = 0.01  # a deadline is over only after it


def look_again_s(look: Look) -> float | None:
    """Seconds until time alone would change the plan; None when only an event can."""
    resized = [] if look.is_finished else [next_shrink_look(look), next_growth_look(look), next_lending_look(look)]
    waits = [at - look.now + MARGIN_S for at in resized if at is not None and at >= look.now]
    usual = _usual_wait_s(look)
    return min(waits if usual is None else [usual, *waits], default=None)


def _usual_wait_s(look: Look) -> float | None:
    if look.is_finished:
        return None
    if look.status.suspended_at is not None:
        return _while_suspended(look)
    waits = [at - look.now + MARGIN_S for at in _deadlines(look) if at >= look.now]
    if look.status.barrier == OPEN:
        if look.fresh != look.status.progress:
            waits.append(PROGRESS_PERIOD_S)
        if look.status.held_roles:
            waits.append(WAITING_PERIOD_S)
    elif len(look.status.members) < len(look.ranks):
        waits.append(WAITING_PERIOD_S)  # room appears without an event of this gang
    return min(waits, default=None)


def _while_suspended(look: Look) -> float | None:
    """A pod that does not stop in time costs its devices; nothing else can happen by itself."""
    late = seconds_of(look.status.attempt_raised_at, look.now) + look.spec.failure.stop_deadline_seconds
    return late - look.now + MARGIN_S if look.status.retired and late >= look.now else None


def _deadlines(look: Look) -> Iterator[float]:
    status, limits = look.status, look.spec.failure
    if (at := checkpoint_handshake.next_look(look)) is not None:
        yield at
    if (at := next_hang_at(look)) is not None:
        yield at
    if (at := moves.next_move_look(look)) is not None:
        yield at
    if (at := restart_at(look)) is not None:
        yield at
    if (at := deadline_of(look)) is not None:
        yield at
    for pod in status.retired:
        if pod.until is not None:
            yield to_seconds(pod.until)
    for view in look.free():
        if view.is_bound and view.is_silent and (at := view.bound_at) is not None:
            yield at + limits.start_deadline_seconds
    if status.barrier == CLOSED and status.members:
        raised = seconds_of(status.attempt_raised_at, look.now)
        yield raised + limits.stop_deadline_seconds
        for member in status.members:
            if (found := look.views.get(member.uid)) and not found.is_ready_for(status.attempt):
                yield start_deadline(look.job, member, look.now)
