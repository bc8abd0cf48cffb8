"""A token bucket: at most `burst` requests at once and `per_s` a second on average. Pure: the time is an argument.

Every caller reserves the next free moment and then waits for it, so the order of asking is the order of going.
"""

from __future__ import annotations

import msgspec


class Rate(msgspec.Struct, frozen=True):
    per_s: float
    burst: int = 1

    def __post_init__(self) -> None:
        if self.per_s <= 0 or self.burst < 1:
            raise ValueError(f"a rate needs per_s > 0 and burst >= 1, not {self.per_s} and {self.burst}")


class TokenBucket:
    """The generic cell rate algorithm: one number, the moment at which the bucket would be full again."""

    def __init__(self, rate: Rate) -> None:
        self._interval_s = 1.0 / rate.per_s
        self._tolerance_s = (rate.burst - 1) * self._interval_s
        self._full_at = float("-inf")

    def reserve(self, now: float) -> float:
        """Seconds to wait before going; the token is taken either way."""
        full_at = max(self._full_at, now)
        self._full_at = full_at + self._interval_s
        return max(0.0, full_at - self._tolerance_s - now)

    def give_back(self) -> None:
        """A reserved token that was not used."""
        self._full_at -= self._interval_s
