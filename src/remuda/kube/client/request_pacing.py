"""When a request may go out: how many a second, and after a failure when again. Pure: time and chance are arguments.

Rate: a token bucket, at most `burst` requests at once and `per_s` a second on average. Every caller reserves the next free moment
and then waits for it, so the order of asking is the order of going.

Retries: the server's own wish comes first: a 429 or 5xx with Retry-After was turned away unprocessed, so any request may be
repeated, no earlier than it says. Without such a wish only a request that changes nothing is repeated: of a write nobody knows
whether it took place, and the layers above decide that by looking. Waits are spread by chance so that a crowd does not return at
once, and there is an end to them.
"""

from __future__ import annotations

import msgspec

from remuda.kube.runtime.backoff import Backoff, Jitter, no_jitter


class Rate(msgspec.Struct, frozen=True):
    per_s: float
    burst: int = 1

    def __post_init__(self) -> None:
        if self.per_s <= 0 or self.burst < 1:
            raise ValueError(f"a rate needs per_s > 0 and burst >= 1, not {self.per_s} and {self.burst}")


class RequestTokenBucket:
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


class Patience(msgspec.Struct, frozen=True, kw_only=True):
    """`tries` of a read whose connection broke; `waits` for a server that asks for them, `longest_s` the longest of them."""

    tries: int = 3
    waits: int = 10
    longest_s: float = 60.0
    backoff: Backoff = Backoff(base_s=0.1, max_s=10.0)


class RequestFailure(msgspec.Struct, frozen=True):
    """One attempt that did not succeed. `code` 0: there was no answer. `asked_s`: the server's Retry-After."""

    code: int = 0
    asked_s: float | None = None


def http_request_retry_wait(
    patience: Patience, failure: RequestFailure, failures: int, *, is_read: bool, jitter: Jitter = no_jitter
) -> float | None:
    """Seconds to wait after the n-th failure in a row (n >= 1) of one request; None = give it up."""
    own = patience.backoff.delay(failures, jitter)
    if failure.asked_s is not None:
        if failures > patience.waits or failure.asked_s > patience.longest_s:
            return None
        return max(own, failure.asked_s * (1 + jitter() / 2))
    if failure.code == 429:  # turned away as well, merely without a time
        return own if failures <= patience.waits else None
    is_passing = failure.code in (0, 502, 503, 504)
    return own if is_read and is_passing and failures < patience.tries else None
