"""When to ask again, and after how long. Pure: chance is an argument.

The server's own wish comes first: a 429 or 5xx with Retry-After was turned away unprocessed, so any request may be repeated,
no earlier than it says. Without such a wish only a request that changes nothing is repeated: of a write nobody knows
whether it took place, and the layers above decide that by looking. Waits are spread by chance so that a crowd does not
return at once, and there is an end to them.
"""

from __future__ import annotations

import msgspec

from remuda.kube.runtime.backoff import Backoff, Jitter, no_jitter


class Patience(msgspec.Struct, frozen=True, kw_only=True):
    """`tries` of a read whose connection broke; `waits` for a server that asks for them, `longest_s` the longest of them."""

    tries: int = 3
    waits: int = 10
    longest_s: float = 60.0
    backoff: Backoff = Backoff(base_s=0.1, max_s=10.0)


class Failure(msgspec.Struct, frozen=True):
    """One attempt that did not succeed. `code` 0: there was no answer. `asked_s`: the server's Retry-After."""

    code: int = 0
    asked_s: float | None = None


def next_wait(
    patience: Patience, failure: Failure, failures: int, *, is_read: bool, jitter: Jitter = no_jitter
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
