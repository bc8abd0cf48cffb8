"""What the straggler watch reads, and what it says of a gang as a whole. Plain data: who passes it on needs no numpy."""

from __future__ import annotations

import msgspec

WINDOW = 64  # samples of a rank that are looked at
WARM_UP = 3  # first steps of an attempt: compiling, filling caches


class StepSample(msgspec.Struct, frozen=True, array_like=True):
    """One step of one rank, as its heartbeat told it. On the wire a list: there are many of them in one message."""

    step: int
    self_seconds: float | None
    step_seconds: float | None
    time: float = 0.0


class GangSlow(msgspec.Struct, frozen=True):
    """Slower than it was (`best_seconds` a step), and no single device to blame. `reason` is empty for a gang known not to be."""

    reason: str
    message: str
    factor: float
    best_seconds: float = 0.0


NOT_SLOW = GangSlow("", "", 1.0)
