"""Pauses that grow: before a gang that keeps failing starts again, and before pods that the API refused are asked for again.

A restart. The first comes at once. Each further one without a step gained waits twice as long, up to the job's limit: a process
that dies at start, and above all one that a rule says to ignore, must not keep a whole gang spinning. Derived from the recoveries
in the status, so no restart of Remuda forgets it. What was planned (suspension, a move, maintenance) waits for nothing.

A launcher that cannot start. Its pod is replaced, and each further one in a row waits in the same way.

A refused pod. A quota, a policy or a field refuses the same pod again until somebody changes something, and nobody tells when.
So the gang tries again, more and more rarely. The pause is kept in memory: losing it costs one early try. The refusal itself is
in the status (PodsRefused).
"""

from __future__ import annotations

from itertools import takewhile

import msgspec

from remuda.api.meta import to_seconds
from remuda.api.training import Cause
from remuda.core.gang.launcher_trouble import LAUNCHER_TROUBLES
from remuda.core.training.planning_context import PlanningContext

CREATE_FIRST_S, CREATE_MAX_S = 1.0, 15.0

RESTART_FIRST_S = 1.0
_SYMPTOMS = (Cause.CODE, Cause.HANG)


def job_restart_at(ctx: PlanningContext) -> float | None:
    """When the barrier may open again, for a gang that stands still after a crash or hang; None = at once."""
    last = ctx.under_way
    if last is None or last.cause not in _SYMPTOMS or last.detected_at is None:
        return None
    before = sum(
        1 for r in ctx.status.recoveries[:-1] if r.cause in _SYMPTOMS and r.step_at_fault >= last.step_at_fault
    )
    if not before:
        return None
    return to_seconds(last.detected_at) + _growing_pause_s(
        RESTART_FIRST_S, before, ctx.spec.failure.backoff_max_seconds
    )


def training_launcher_retry_at(ctx: PlanningContext, reason: str) -> float | None:
    """When a pod may be made for one whose launcher could not start: later with each such try in a row."""
    if reason not in LAUNCHER_TROUBLES:
        return None
    in_a_row = takewhile(lambda r: r.reason in LAUNCHER_TROUBLES, reversed(ctx.status.recoveries))
    tries = max(1, sum(1 for _ in in_a_row))
    return ctx.now + _growing_pause_s(RESTART_FIRST_S, tries, ctx.spec.failure.backoff_max_seconds)


def _growing_pause_s(first_s: float, tries: int, most_s: float) -> float:
    return min(first_s * 2.0 ** min(tries - 1, 16), most_s)


# -- pods that the API refused -----------------------------------------------------------------------------------------


class PodCreateBackoff(msgspec.Struct, frozen=True):
    """The refusal as last heard. Nothing is tried before `until`."""

    message: str
    tries: int
    until: float


def pod_create_wait_s(refused: PodCreateBackoff | None, now: float) -> float | None:
    """Seconds until pods may be asked for again; None = now."""
    return refused.until - now if refused is not None and now < refused.until else None


def next_training_pod_backoff(before: PodCreateBackoff | None, message: str, now: float) -> PodCreateBackoff:
    tries = before.tries + 1 if before is not None else 1
    return PodCreateBackoff(message, tries, now + _growing_pause_s(CREATE_FIRST_S, tries, CREATE_MAX_S))


def is_new_training_pod_refusal(before: PodCreateBackoff | None, after: PodCreateBackoff) -> bool:
    """Worth telling, and worth writing down: the same refusal is told once."""
    return before is None or before.message != after.message
