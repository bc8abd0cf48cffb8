"""Which ranks hang: no new step for many times as long as the gang's own median step.

The limit follows the gang: k x the median step its ranks last told, never less than LEAST_S. While a checkpoint is written no
step is made, so the longest one known is allowed for, twice. Until every rank has made STEADY_STEPS steps nobody hangs: the first
ones compile, fill caches and wait for stragglers of the start.

In a coupled gang one hanging rank stops all. Those that got least far are named; where all stand at the same step, all are.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence

import msgspec

LEAST_S = 1.0
STEADY_STEPS = 3
CHECKPOINTS_ALLOWED = 2.0


class LastStep(msgspec.Struct, frozen=True):
    """The newest sign of progress of one rank."""

    rank: int
    step: int
    time: float
    step_seconds: float | None = None
    steps: int = STEADY_STEPS  # made in this attempt


class HangLimits(msgspec.Struct, frozen=True):
    after_steps: float  # 0 = off
    checkpoint_seconds: float = 0.0  # the longest known


class Hung(msgspec.Struct, frozen=True):
    rank: int
    since: float
    limit_seconds: float
    median_seconds: float


def hang_limit(samples: Sequence[LastStep], limits: HangLimits) -> tuple[float, float] | None:
    """(seconds without a step that are allowed, median step); None while nothing can be said."""
    told = [s.step_seconds for s in samples if s.step_seconds]
    if limits.after_steps <= 0 or not told or any(s.steps < STEADY_STEPS for s in samples):
        return None
    median = statistics.median(told)
    return max(LEAST_S, limits.after_steps * median) + CHECKPOINTS_ALLOWED * limits.checkpoint_seconds, median


def hung_ranks(samples: Sequence[LastStep], now: float, limits: HangLimits) -> list[Hung]:
    """`step_samples`: one of each rank of the gang."""
    found = hang_limit(samples, limits)
    if found is None:
        return []
    limit, median = found
    quiet = [s for s in samples if now - s.time > limit]
    if len(quiet) == len(samples):
        least = min(s.step for s in quiet)
        quiet = [s for s in quiet if s.step == least]
    return [Hung(s.rank, s.time, limit, median) for s in quiet]


def hangs_at(samples: Sequence[LastStep], limits: HangLimits) -> float | None:
    """When the first rank would hang if nothing were heard any more."""
    found = hang_limit(samples, limits)
    return min(s.time for s in samples) + found[0] if found is not None else None
