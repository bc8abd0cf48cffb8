"""What fails at one and the same step again and again, on whatever pods, is not the hardware's fault.

A failure counts when the gang had got to that step by training: it has made a step in its attempt, or a process of it ended or
hung. Nodes that die while the gang starts, and everything that was planned, say nothing about the step.

*On whatever pods* means that two different ones have failed there. One pod that keeps failing may sit on hardware that is broken
without saying so: the ladder moves it, and only what fails there again is the code's.
"""

from __future__ import annotations

from collections.abc import Sequence

from remuda.api.training import Cause
from remuda.core.gang.gang_remedy import Fault, root_fault
from remuda.core.training.gang_view import OPEN
from remuda.core.training.planning_context import Look

SAME_STEP = "SameStepFailing"

_SYMPTOMS = (Cause.CODE, Cause.HANG)
_COUNTED = (*_SYMPTOMS, Cause.DEVICE, Cause.INFRA)


def failures_at_step(look: Look, faults: Sequence[Fault]) -> int:
    """How often the gang has failed at the step it is at, this time included; 0 when that says nothing about the step."""
    step, past = look.fresh.step, look.status.recoveries
    root = root_fault(faults)
    if step <= 0 or look.status.barrier != OPEN or not _counts(root.cause, has_trained=_has_trained(look, len(past))):
        return 0
    there = [
        recovery
        for index, recovery in enumerate(past)
        if recovery.step_at_fault == step and _counts(recovery.cause, has_trained=_has_trained(look, index))
    ]
    pods = {fault.uid for fault in faults}.union(*({seat.uid for seat in r.seats} for r in there))
    return 1 + len(there) if len(pods) > 1 else 0


def _counts(cause: Cause, *, has_trained: bool) -> bool:
    return cause in _SYMPTOMS or (cause in _COUNTED and has_trained)


def _has_trained(look: Look, index: int) -> bool:
    """Whether the gang made a step before the interruption of that number and after the one before it."""
    return index == 0 or look.status.recoveries[index - 1].first_step_at is not None
