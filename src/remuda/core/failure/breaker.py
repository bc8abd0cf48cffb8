"""The breaker: too many nodes failing at once is a fault of the monitoring, the network or the power, not of devices. Pure.

It follows from when the pool's incidents were opened, and from nothing else: it cannot be left open by a crash, and
nobody has to close it. Read from the oldest failure on, it opens with the one that makes more than `share` of the pool
(and more than `atLeast`) within `windowSeconds`, every failure while it is open keeps it so for `cooldownSeconds` more,
and it closes when those have passed.

While it is open no rung is begun. What is under way ends, soaks end, and devices are given back.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

import msgspec

from remuda.api.meta import to_time
from remuda.api.remedies import Breaker, BreakerStatus
from remuda.core.failure.limits import bound


class Failed(msgspec.Struct, frozen=True, order=True):
    """One incident of the pool, as the breaker sees it."""

    at: float
    node: str


def breaker_of(breaker: Breaker, failures: Iterable[Failed], pool: int, now: float) -> BreakerStatus:
    """`failures`: of the pool's nodes, in any order, as far back as a day. What lies ahead of `now` counts as of now: a
    clock that was set back must not hold the breaker open for as long as it was wrong."""
    most = max(breaker.at_least, bound(breaker.share, pool) or 0)
    recent: deque[Failed] = deque()
    since = closes = 0.0
    seen = 0
    for failed in sorted(msgspec.structs.replace(f, at=min(f.at, now)) for f in failures):
        recent.append(failed)
        while recent[0].at <= failed.at - breaker.window_seconds:
            recent.popleft()
        nodes = len({f.node for f in recent})
        is_open = failed.at < closes
        if nodes > most or is_open:
            since = since if is_open else failed.at
            seen = max(seen, nodes) if is_open else nodes
            closes = failed.at + breaker.cooldown_seconds
    if now >= closes:
        return BreakerStatus()
    return BreakerStatus(
        open=True,
        since=to_time(since),
        closes_at=to_time(closes),
        message=f"{seen} of {pool} nodes failed within {breaker.window_seconds:g} s; {most} may.",
    )
