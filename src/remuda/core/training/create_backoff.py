"""Pods that the API would not make: when to try again.

A quota, a policy or a field refuses the same pod again until somebody changes something, and nobody tells when. So the gang tries
again, more and more rarely. What is remembered costs one early try when it is lost; what the user needs, the refusal itself,
stands in the status (PodsRefused).
"""

from __future__ import annotations

import msgspec

REFUSED_CODES = (403, 422)
FIRST_S, MAX_S = 1.0, 15.0


class Refused(msgspec.Struct, frozen=True):
    """The refusal as last heard. Nothing is tried before `until`."""

    message: str
    tries: int
    until: float


def wait_s(refused: Refused | None, now: float) -> float | None:
    """Seconds until pods may be asked for again; None = now."""
    return refused.until - now if refused is not None and now < refused.until else None


def refused_again(before: Refused | None, message: str, now: float) -> Refused:
    tries = before.tries + 1 if before is not None else 1
    return Refused(message, tries, now + min(FIRST_S * 2.0 ** min(tries - 1, 16), MAX_S))


def is_news(before: Refused | None, after: Refused) -> bool:
    """Worth telling, and worth writing down: the same refusal is told once."""
    return before is None or before.message != after.message
