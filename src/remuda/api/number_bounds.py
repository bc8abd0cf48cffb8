"""How large a number may be that somebody else says: far beyond every real job, and far below where arithmetic breaks.

Counts (steps, attempts) stay whole in every JSON reader and in a float. Seconds, be they a length or a moment, can be written as
a time. The launcher's protocol has its own copy, because it imports nothing of Remuda.
"""

from __future__ import annotations

from remuda.api.untrusted_times import LATEST_S

MAX_COUNT = 10**15
MAX_SECONDS = LATEST_S


def is_count_within_number_bounds(value: int | None) -> bool:
    return value is None or 0 <= value <= MAX_COUNT


def are_plausible_seconds(value: float | None) -> bool:
    """What is no number (NaN) is not plausible."""
    return value is None or 0 <= value <= MAX_SECONDS
