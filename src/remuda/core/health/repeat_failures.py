"""Devices that fail again and again, each time cured by a reset that does not last.

Every turn to Unhealthy is remembered by the time of its signal (`DeviceHistory.failures`), so that a verdict that is written
twice, judged again by another manager or taken back by an order in between is counted once. More than the policy's `names`
within its window make the finding `repeat-offender`: the device needs to be replaced, whatever the last fault asks for.

The finding outlasts restarts of everything and the window too: a device does not get better by being left alone. Evidence of
health newer than it, or another device in its place, ends it.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime

from remuda.api.devices import DeviceHistory, DeviceState, Signal, Verdict
from remuda.api.meta import to_seconds, to_time
from remuda.api.remedies import Offender

SOURCE = "history"
CODE = "repeat-offender"
MAX_FAILURES = 32


def failed_at(found: Verdict, before: Verdict | None, history: DeviceHistory, now: float) -> datetime | None:
    """When the device failed, if that is news: it turned Unhealthy, by something else than what is remembered of it."""
    if found.state is not DeviceState.UNHEALTHY or found.origin[0] == SOURCE:
        return None
    if before is not None and before.state is DeviceState.UNHEALTHY:
        return None
    at = min(found.since, to_time(now)) if found.since is not None else to_time(now)
    return None if at in history.failures else at


def with_failure(failures: Iterable[datetime], at: datetime) -> list[datetime]:
    return sorted({*failures, at})[-MAX_FAILURES:]


def find_offence(
    failures: Iterable[datetime], standing: Signal | None, now: float, offender: Offender, cured_at: float = 0.0
) -> Signal | None:
    """The finding that should stand. `policy_status`: the one that does."""
    if standing is not None and standing.time is not None and to_seconds(standing.time) > cured_at:
        return standing
    recent = [f for f in sorted(failures) if now - offender.window_seconds < to_seconds(f) <= now]
    if len(recent) <= offender.incidents or to_seconds(recent[-1]) <= cured_at:
        return None
    days = f"{offender.window_seconds / 86_400:g} days"
    words = f"It failed {len(recent)} times within {days}; {offender.incidents} are allowed. It needs to be replaced."
    return Signal(SOURCE, CODE, words, recent[-1])
