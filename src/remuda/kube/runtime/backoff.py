"""How long to wait before trying again: doubling from `base_s` to `max_s`, spread by chance so that a crowd does not return
at once. Chance is an argument: a function that draws from [0, 1)."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

Jitter = Callable[[], float]


def no_jitter() -> float:
    return 0.0


class Backoff(msgspec.Struct, frozen=True):
    base_s: float = 0.05
    max_s: float = 30.0

    def delay(self, failures: int, jitter: Jitter = no_jitter) -> float:
        """The wait after the n-th failure in a row (n >= 1): between the doubled base and one and a half times it."""
        doubled = self.base_s * 2.0 ** min(max(failures, 1) - 1, 60)
        return min(doubled, self.max_s) * (1 + jitter() / 2)
