"""What the straggler watch reads, and what it says of a gang as a whole. Plain data: who passes it on needs no numpy."""

from __future__ import annotations

import msgspec

WINDOW = 64  # samples of a rank that are looked at
WARM_UP = 3  # first steps of an attempt: compiling, filling caches


class Sample(msgspec.Struct, frozen=True):
    """One step of one rank, as its heartbeat told it."""

    step: int
    self_seconds: float | None
    step_seconds: float | None
    time: float = 0.0


class GangSlow(msgspec.Struct, frozen=True):
    """Slower than it was, and no single device to blame. `reason` is empty for a gang known not to be slow."""

    reason: str
    message: str
    factor: float


NOT_SLOW = GangSlow("", "", 1.0)
