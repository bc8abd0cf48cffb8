"""Our own stalls: times in which we could hear nobody, so that nobody's silence in them means anything.

A process that was stopped, a laptop whose lid was shut, a disk that hung, an API that was away: when it is over, every countdown
about others seems to have run out, and none of them did anything wrong. So a process keeps proofs that it could hear: its event
loop ran (`LOOP`), and the API took a write of ours (`API`; reads are answered from memory while nobody's renewal can be
written). Two proofs of a kind that are further apart than they may be are a *deaf time*, from the first to the second; so is a
clock that jumps. Proofs are also held against the moment of the question: a timer may ask before the watch has had its turn.

One rule for every countdown about somebody else's silence (`StallHistory.countdown_ends_at`): it begins anew when a deaf time
ends, unless it had run out before that time began. Whoever was silent too long before we went deaf stays so until heard.

What is heard counts by itself: a renewal a little ahead of the look that finds it (a rounding error, a clock) is the newest
there is, and never makes a countdown begin earlier. Only after our clock went back are times ahead of it those of the old clock;
they count from when it did.
"""

from __future__ import annotations

import math

import msgspec

LOOP, API = "loop", "api"
# How far apart two proofs may be. A lease is renewed four times per length: what is shorter than this costs nobody their life.
LOOP_LATE_S, API_LATE_S = 1.5, 2.5
KEPT = 32  # deaf times; older ones matter to nobody whose countdown is still under way


class DeafTime(msgspec.Struct, frozen=True):
    """From the last proof before it to the first after it."""

    since: float
    until: float


class StallHistory(msgspec.Struct, frozen=True):
    """What is known of our own stalls at one moment. `went_back_at`: when our clock last went back, on the new clock."""

    times: tuple[DeafTime, ...] = ()
    went_back_at: float | None = None
    now: float = math.inf

    def countdown_ends_at(self, since: float, length: float) -> float:
        """When a silence that began at `since` has lasted for `length`, as far as we could have heard its end."""
        if self.went_back_at is not None and since > self.now:
            since = self.went_back_at
        end = since + length
        for time in self.times:
            if since < time.until and time.since < end:
                end = time.until + length
        return end

    def with_unheard(self, times: tuple[DeafTime, ...]) -> StallHistory:
        """Also for times in which one of the others could not be heard, though we could hear."""
        if not times:
            return self
        merged = sorted((*self.times, *times), key=lambda time: time.until)
        return msgspec.structs.replace(self, times=tuple(merged))

    def counted_from(self, since: float, length: float) -> float:
        """From when a countdown of that length counts."""
        return self.countdown_ends_at(since, length) - length


NO_STALLS = StallHistory()


class OwnStalls:
    """The proofs of one process, or of one part of it with a way of its own to the API. `is_on` False: no stall is ever seen; for
    tests that show what the guard is good for."""

    def __init__(self, *, is_on: bool = True) -> None:
        self._is_on = is_on
        self._limits: dict[str, float] = {}
        self._last: dict[str, float] = {}
        self._times: list[DeafTime] = []
        self._went_back_at: float | None = None

    def expect(self, proof: str, late_s: float, now: float) -> None:
        """From now on there are to be proofs of that kind, no further apart than `late_s`."""
        self._limits[proof] = late_s
        self._last[proof] = now

    def was_deaf_until(self, now: float) -> None:
        """Nothing that was before counts: the API itself has only begun."""
        self._add(DeafTime(-math.inf, now))

    def proved(self, proof: str, now: float) -> float:
        """A proof; how long we had been deaf, 0 if not at all."""
        last, late_s = self._last.get(proof), self._limits.get(proof)
        if last is None or late_s is None:
            return 0.0
        self._last[proof] = now
        gap = now - last
        if gap < -late_s:
            self._go_back(now)
            return -gap
        if gap <= late_s:
            return 0.0
        self._add(DeafTime(last, now))
        return gap

    def known(self, now: float) -> StallHistory:
        if not self._is_on:
            return NO_STALLS
        standing = [DeafTime(last, now) for proof, last in self._last.items() if abs(now - last) > self._limits[proof]]
        return StallHistory((*self._times, *standing), self._went_back_at, now)  # in the order in which they ended

    def _add(self, time: DeafTime) -> None:
        self._times = [*self._times, time][-KEPT:]

    def _go_back(self, now: float) -> None:
        """Everything that was noted is of another clock."""
        self._times = [DeafTime(-math.inf, now)]
        self._went_back_at = now
        for proof, last in self._last.items():
            self._last[proof] = min(last, now)
