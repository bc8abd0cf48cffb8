"""The pause before a gang that keeps failing starts again.

The first restart comes at once. Each further one without a step gained waits twice as long, up to the job's limit: a process that
dies at start, and above all one that a rule says to ignore, must not keep a whole gang spinning. Derived from the recoveries in
the status, so no restart of Remuda forgets it. What was planned (suspension, a move, maintenance) waits for nothing.
"""

from __future__ import annotations

from remuda.api.meta import to_seconds
from remuda.api.training import Cause
from remuda.core.training.planning_context import Look

FIRST_S = 1.0

_SYMPTOMS = (Cause.CODE, Cause.HANG)


def restart_at(look: Look) -> float | None:
    """When the barrier may open again, for a gang that stands still after a crash or hang; None = at once."""
    last = look.under_way
    if last is None or last.cause not in _SYMPTOMS or last.detected_at is None:
        return None
    before = sum(
        1 for r in look.status.recoveries[:-1] if r.cause in _SYMPTOMS and r.step_at_fault >= last.step_at_fault
    )
    if not before:
        return None
    pause = min(FIRST_S * 2.0 ** min(before - 1, 16), look.spec.failure.backoff_max_seconds)
    return to_seconds(last.detected_at) + pause
