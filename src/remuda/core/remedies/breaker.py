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

from remuda.api.meta import to_seconds, to_time
from remuda.api.remedies import Breaker, BreakerStatus
from remuda.core.remedies.limits import limit_of_share

AHEAD_S = 86_400.0


class NodeFailure(msgspec.Struct, frozen=True, order=True):
    """One incident of the pool, as the breaker sees it."""

    at: float
    node: str


class RemedyBreakerWatch:
    """The breaker of one pool, failure by failure: one more costs itself, not all that were."""

    def __init__(self, breaker: Breaker, pool: int) -> None:
        self._breaker = breaker
        self._pool = pool
        self._most = max(breaker.at_least, limit_of_share(breaker.share, pool) or 0)
        self._recent: deque[NodeFailure] = deque()
        self._nodes: dict[str, int] = {}  # of the recent ones
        self._since = self._closes = 0.0
        self._seen = 0

    @property
    def newest(self) -> float:
        return self._recent[-1].at if self._recent else 0.0

    def add(self, failed: NodeFailure) -> None:
        """None older than `newest`."""
        self._recent.append(failed)
        self._nodes[failed.node] = self._nodes.get(failed.node, 0) + 1
        while self._recent[0].at <= failed.at - self._breaker.window_seconds:
            gone = self._recent.popleft().node
            self._nodes[gone] -= 1
            if not self._nodes[gone]:
                del self._nodes[gone]
        nodes = len(self._nodes)
        is_open = failed.at < self._closes
        if nodes > self._most or is_open:
            self._since = self._since if is_open else failed.at
            self._seen = max(self._seen, nodes) if is_open else nodes
            self._closes = failed.at + self._breaker.cooldown_seconds

    def status(self, now: float) -> BreakerStatus:
        """As of `now`, not before `newest`."""
        if now >= self._closes:
            return BreakerStatus()
        return BreakerStatus(
            open=True,
            since=to_time(self._since),
            closes_at=to_time(self._closes),
            message=f"{self._seen} of {self._pool} nodes failed within {self._breaker.window_seconds:g} s "
            f"(limit {self._most}).",
        )


def watch_breaker(breaker: Breaker, failures: Iterable[NodeFailure], pool: int, now: float) -> RemedyBreakerWatch:
    """`failures`: of the pool's nodes, in any order, as far back as a day. What lies ahead of `now` counts as of now: a
    clock that was set back must not hold the breaker open for as long as it was wrong. More than a day ahead it counts
    no more, or it would be of now for ever."""
    watch = RemedyBreakerWatch(breaker, pool)
    for failed in sorted(msgspec.structs.replace(f, at=min(f.at, now)) for f in failures if f.at <= now + AHEAD_S):
        watch.add(failed)
    return watch


def with_last_breaker_opening(status: BreakerStatus, before: BreakerStatus, now: float) -> BreakerStatus:
    """What a policy's status says. One that has closed says when it was open: `before` is all that knows it, and whoever was told
    that it opened is owed the other half."""
    if status.open or before.since is None:
        return status
    closed = before.closes_at if before.closes_at is not None and to_seconds(before.closes_at) <= now else to_time(now)
    return BreakerStatus(since=before.since, closes_at=closed)


def breaker_status(breaker: Breaker, failures: Iterable[NodeFailure], pool: int, now: float) -> BreakerStatus:
    return watch_breaker(breaker, failures, pool, now).status(now)
