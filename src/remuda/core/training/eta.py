"""When the gang will be done: the steps that are left, at the pace of late, stretched by what interruptions usually take.

The pace is that of the attempt as a whole, checkpoints included, once it has made some steps; before that the median of the
ranks' newest step times. Divided by ETTR: a job that loses a tenth of its time to faults will lose it in the future, too.
"""

from __future__ import annotations

from remuda.core.training.gang_view import MemberProgress

ENOUGH_STEPS = 10  # of an attempt, for its own average to say more than the newest step
LEAST_ETTR = 0.05  # a job that has just begun badly is not late for ever


def pace_s(beats: list[MemberProgress], resumed: int, median_s: float) -> float:
    """Seconds a step takes the gang."""
    slowest = min(beats, key=lambda b: b.step)
    began = max(b.first_step_time for b in beats)
    made = slowest.step - resumed - 1  # the first step is where the clock starts
    took = slowest.time - began
    return took / made if made >= ENOUGH_STEPS and took > 0 else median_s


def eta_at(step: int, total: int, pace: float, ettr: float, now: float) -> float | None:
    """Unix seconds; None when there is no telling."""
    if total <= 0 or pace <= 0:
        return None
    return now + max(0, total - step) * pace / max(ettr, LEAST_ETTR)
