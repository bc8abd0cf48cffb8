"""What is remembered of a device when its signals are gone (`NodeDevices.history`), and what follows from it.

*Minor faults that come back.* A counter that crosses its threshold is a signal, and a signal that is taken back leaves nothing
behind. So each crossing is remembered (`DeviceHistory.minor`: code and time, bounded), and rules count them: the same kind of
trouble more often than `limit` within the window, or so many *different* minor faults within one, is a finding. It makes the
device Degraded, never worse, and says its numbers. It ends when enough crossings are older than the window.

*Repeat offenders.* A device may fail again and again, each time cured by a reset that does not last. Every turn to Unhealthy is
remembered by the time of its signal (`DeviceHistory.failures`), so that a verdict that is written twice, judged again by another
manager or taken back by an order in between is counted once. More than the policy's `incidents` within its window make the
finding `repeat-offender`: the device needs to be replaced, whatever the last fault asks for. It outlasts restarts of everything
and the window too: a device does not get better by being left alone.

Both follow from the history and from nothing else: told twice, or after a restart, a finding is the same one. Evidence of health
newer than it, or another device in its place, ends either.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime

import msgspec

from remuda.api.devices import DeviceHistory, DeviceState, Signal, Verdict
from remuda.api.meta import to_seconds, to_time
from remuda.api.remedies import Offender
from remuda.core.health.signals import ClassifiedSignal

OFFENDER_SOURCE = "history"
OFFENDER_CODE = "repeat-offender"
MAX_FAILURES = 32

TREND_SOURCE = "trend"
MAX_MINOR = 32
GAP_S = 60.0  # the same code within this time is the same crossing

HOUR_S, DAY_S = 3600.0, 86_400.0


class TrendRule(msgspec.Struct, frozen=True):
    """More than `limit` crossings of `codes` within the window; with `different`, of that many different codes."""

    code: str  # the finding's
    what: str
    codes: frozenset[str]  # empty = any
    limit: int
    window_s: float
    different: bool = False


RULES = (
    TrendRule(
        "ecc-trend",
        "memory errors crossed their limit",
        frozenset({"ecc-sbe-rate", "row-remap-pending", "xid-63", "xid-92", "xid-94", "xid-160"}),
        limit=3,
        window_s=DAY_S,
    ),
    TrendRule(
        "link-trend",
        "link errors crossed their limit",
        frozenset({"nvlink-errors", "pcie-replays", "pcie-degraded", "link-down", "nvlink-down", "xid-80", "xid-121"}),
        limit=3,
        window_s=DAY_S,
    ),
    TrendRule("throttle-trend", "the clocks were held down", frozenset({"thermal", "power-brake"}), 6, DAY_S),
    TrendRule("minor-faults", "different minor faults came", frozenset(), 3, HOUR_S, different=True),
)
_COUNTED = frozenset().union(*(rule.codes for rule in RULES))
_OWN = frozenset(rule.code for rule in RULES) | {"straggler"}


def is_minor_device_history_fault(known: ClassifiedSignal) -> bool:
    """Whether it is to be remembered: what makes a device Degraded, and what a rule names. What an application causes is
    neither."""
    code = known.signal.code
    return code in _COUNTED or (code not in _OWN and known.fault.effect is DeviceState.DEGRADED)


def device_history_with_minor_faults(minor: list[Signal], signals: Iterable[ClassifiedSignal]) -> list[Signal]:
    """What is remembered after `signals` were seen standing; the same list when that adds nothing."""
    kept = minor
    for known in signals:
        signal = known.signal
        if signal.time is None or not is_minor_device_history_fault(known):
            continue
        at = to_seconds(signal.time)
        same = (to_seconds(m.time) for m in kept if m.code == signal.code and m.time is not None)
        if all(abs(at - other) >= GAP_S for other in same):
            added = [*kept, Signal(signal.source, signal.code, time=signal.time)]
            kept = sorted(added, key=lambda m: (to_seconds(m.time) if m.time else 0.0, m.code))[-MAX_MINOR:]
    return kept


def find_fault_trends(minor: Sequence[Signal], now: float, cured_at: float = 0.0) -> tuple[list[Signal], float | None]:
    """(findings, when the first of them may end by itself). `cured_at`: of the newest evidence of health."""
    findings: list[Signal] = []
    ends: list[float] = []
    timed = [(to_seconds(m.time), m) for m in minor if m.time is not None]
    for rule in RULES:
        since = max(now - rule.window_s, cured_at)
        hits = [(at, m) for at, m in timed if since < at <= now and (not rule.codes or m.code in rule.codes)]
        if rule.different:
            hits = list({m.code: (at, m) for at, m in hits}.values())
            hits.sort(key=lambda hit: hit[0])
        if len(hits) <= rule.limit:
            continue
        window = f"{rule.window_s / HOUR_S:g} h"
        codes = ", ".join(sorted({m.code for _, m in hits}))
        words = f"Within {window} {rule.what} {len(hits)} times (limit {rule.limit}; {codes})."
        findings.append(Signal(TREND_SOURCE, rule.code, words, hits[rule.limit][1].time))
        ends.append(hits[-rule.limit - 1][0] + rule.window_s)
    return findings, min(ends, default=None)


def device_failed_at(found: Verdict, before: Verdict | None, history: DeviceHistory, now: float) -> datetime | None:
    """When the device failed, if that is news: it turned Unhealthy, by something else than what is remembered of it."""
    if found.state is not DeviceState.UNHEALTHY or found.origin[0] == OFFENDER_SOURCE:
        return None
    if before is not None and before.state is DeviceState.UNHEALTHY:
        return None
    at = min(found.since, to_time(now)) if found.since is not None else to_time(now)
    return None if at in history.failures else at


def device_history_with_failure(failures: Iterable[datetime], at: datetime) -> list[datetime]:
    return sorted({*failures, at})[-MAX_FAILURES:]


def find_repeat_offence(
    failures: Iterable[datetime], standing: Signal | None, now: float, offender: Offender, cured_at: float = 0.0
) -> Signal | None:
    """The finding that should stand. `standing`: the one that does."""
    if standing is not None and standing.time is not None and to_seconds(standing.time) > cured_at:
        return standing
    recent = [f for f in sorted(failures) if now - offender.window_seconds < to_seconds(f) <= now]
    if len(recent) <= offender.incidents or to_seconds(recent[-1]) <= cured_at:
        return None
    days = f"{offender.window_seconds / 86_400:g} days"
    words = f"It failed {len(recent)} times within {days} (limit {offender.incidents}). It needs to be replaced."
    return Signal(OFFENDER_SOURCE, OFFENDER_CODE, words, recent[-1])
