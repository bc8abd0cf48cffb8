"""What the signals of one device add up to: its verdict.

Signals of the agent and findings of the manager are one set, and what is decided depends on the set, not on the order in which
it was heard, as far as times are given:

- Evidence of health silences whatever is not newer than it, so a signal that is reported again after a cure (an agent that reads
  its log from the start, a stream that repeats) does not count again.
- The same code from several sources counts once, reported by all of them; its time is the first of theirs.
- The gravest code decides: by state, then by how drastic the device's remedy is; a slow rank goes before signs (throttling, a
  degraded link) that merely suggest one. Of equals the one that the verdict names stays, else the newest speaks: a device with
  two faults does not change its mind whenever one of them is repeated.
- A quarantine order goes before all of it, except that one of a remedy lets the fault it is about speak.

Signals are classified once a look (`classify_device_signals`); whoever needs their meaning in the same look is handed that, and
whoever acts later finds remedy and scope in the verdict.

A time further ahead than `SKEW_S` cannot be true and is taken as not given: then, as for signals without a time, the order of
hearing counts. A report that the standing verdict names is not silenced by evidence heard before it, whatever the clocks say.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime

from remuda.api.devices import DeviceState, NodeDevices, QuarantineOrder, Signal, Verdict
from remuda.api.meta import to_seconds, to_time
from remuda.core.devices.fault_codes import DeviceRemedy
from remuda.core.health.signals import ClassifiedSignal, classify_signals
from remuda.core.health.timers import SKEW_S, HealthTimers

AHEAD = "Its time is ahead of the manager's clock."

# Worst first: with several signals on one device the gravest decides.
GRAVITY = [
    DeviceState.QUARANTINED,
    DeviceState.UNHEALTHY,
    DeviceState.UNKNOWN,
    DeviceState.DEGRADED,
    DeviceState.HEALTHY,
]
RANK = {state: rank for rank, state in enumerate(GRAVITY)}
_DRASTIC = {remedy: -rank for rank, remedy in enumerate(DeviceRemedy)}
CONFIRMS = "probe-failed"  # says that something is wrong and not what: whatever else is known speaks
SLOW_RANK = "straggler"  # measured: goes before signs that merely suggest it
_NEVER = datetime.min.replace(tzinfo=UTC)


ClassifiedDevices = Mapping[str, tuple[ClassifiedSignal, ...]]  # by device, as far as it has signals
Reports = Sequence[ClassifiedSignal]  # of one code that stands against a device: everyone's, in order of their times


def classify_device_signals(node: NodeDevices) -> ClassifiedDevices:
    """What each device's own signals mean."""
    return {d.id: classify_signals(d.signals) for d in node.observed.devices if d.signals}


def judge_signals(
    device: str,
    signals: Sequence[ClassifiedSignal],
    now: float,
    timers: HealthTimers,
    findings: Sequence[Signal] = (),
    before: Verdict | None = None,
) -> Verdict:
    """What the device's signals and the manager's findings add up to. `before`: the standing verdict.

    `since` is when the deciding code was first seen, None when nobody said; who holds the device is not in it."""
    if not findings and all(known.fault.effect is DeviceState.HEALTHY for known in signals):
        return Verdict(device)  # by far the most frequent: nothing was said, or nothing against the device
    worst: Reports = ()
    best = (RANK[DeviceState.HEALTHY], 0, 0, 0)
    for reports in standing_signals_for_verdict((*classify_signals(findings), *signals), now, before):
        state, fault = _reported_state(reports, now, timers, before), reports[0].fault
        if state is DeviceState.HEALTHY:
            continue
        # <=: of two equally grave codes the newer one speaks.
        slow = 0 if fault.code == SLOW_RANK else 1
        drastic = 1 if fault.code == CONFIRMS else _DRASTIC[fault.remedy]
        key = (RANK[state], drastic, slow, 0 if _named_in_verdict(reports, before) else 1)
        if key <= best:
            worst, best = reports, key
    return _verdict_of_reports(device, worst, GRAVITY[best[0]], now, before) if worst else Verdict(device)


def verdict_under_quarantine(found: Verdict, order: QuarantineOrder | None) -> Verdict:
    """An order goes before the signals. One that belongs to a remedy says nothing that the fault does not: while that
    stands, the fault speaks."""
    if order is None or (order.incident and found.state is DeviceState.UNHEALTHY):
        return found
    by = order.by or "operator"
    return Verdict(found.device, DeviceState.QUARANTINED, order.reason, order.message, by, order.since)


def standing_signals_for_verdict(
    signals: Sequence[ClassifiedSignal], now: float, before: Verdict | None = None
) -> list[Reports]:
    """What stands against the device, by code, oldest first; codes that say nothing against it are among them."""
    limit = to_time(now + SKEW_S)
    clear: tuple[datetime, int] | None = None
    timed: list[tuple[datetime, int, ClassifiedSignal]] = []
    last = _NEVER
    for place, known in enumerate(signals):
        given = known.signal.time
        moment = given if given is not None and given <= limit else last
        last = max(last, moment)
        if known.fault.clears:
            clear = max(clear, (moment, place)) if clear is not None else (moment, place)
        else:
            timed.append((moment, place, known))
    timed.sort(key=lambda one: one[:2])
    by_code: dict[str, list[ClassifiedSignal]] = {}
    for moment, place, known in timed:
        is_silenced = clear is not None and (moment, place) < clear
        if is_silenced and not (clear and clear[1] < place and _named_in_verdict([known], before)):
            continue
        by_code.setdefault(known.signal.code, []).append(known)
    return list(by_code.values())


def reports_believed_at(reports: Reports, now: float, timers: HealthTimers, before: Verdict | None = None) -> float:
    """Unix seconds at which a debounced code that still stands counts. One that nobody gave a time for counts at once; one with
    a time that cannot be true counts from when it was first judged."""
    at = _first_reported_at(reports)
    if _is_signal_time_ahead(at, now) and before is not None and _named_in_verdict(reports, before):
        at = before.since
    return to_seconds(at) + timers.debounce_s if at is not None else 0.0


def health_signal_debounce_ends_at(
    node: NodeDevices, classified: ClassifiedDevices, now: float, timers: HealthTimers
) -> float | None:
    """When to look again because a debounce of one of the node's devices ends; None when none runs."""
    ends: list[float] = []
    for device, signals in classified.items():
        if any(known.fault.debounced for known in signals):
            before = next((v for v in node.verdicts if v.device == device), None)
            standing = (r for r in standing_signals_for_verdict(signals, now, before) if r[0].fault.debounced)
            ends += (reports_believed_at(reports, now, timers, before) for reports in standing)
    return min((end for end in ends if end > now), default=None)


def _reported_state(reports: Reports, now: float, timers: HealthTimers, before: Verdict | None) -> DeviceState:
    fault = reports[0].fault
    is_young = fault.debounced and now < reports_believed_at(reports, now, timers, before)
    return DeviceState.UNKNOWN if is_young else fault.effect


def _first_reported_at(reports: Reports) -> datetime | None:
    return min((known.signal.time for known in reports if known.signal.time is not None), default=None)


def _is_signal_time_ahead(at: datetime | None, now: float) -> bool:
    """Whether every time that was given is one that cannot be true."""
    return at is not None and at > to_time(now + SKEW_S)


def _named_in_verdict(reports: Reports, before: Verdict | None) -> ClassifiedSignal | None:
    """The report that the standing verdict is named after."""
    return next((k for k in reports if before is not None and before.source == k.signal.origin), None)


def _verdict_of_reports(
    device: str, reports: Reports, state: DeviceState, now: float, before: Verdict | None
) -> Verdict:
    """Named after whoever the verdict names already, else after whoever reported it first."""
    first, fault, at = _named_in_verdict(reports, before) or reports[0], reports[0].fault, _first_reported_at(reports)
    words = [first.message]
    if len(sources := sorted({known.signal.source for known in reports})) > 1:
        words.append(f"Reported by {', '.join(sources)}.")
    if _is_signal_time_ahead(at, now):
        words.append(AHEAD)
    return Verdict(
        device=device,
        state=state,
        reason=fault.reason,
        message=" ".join(words),
        source=first.signal.origin,
        since=at,
        remedy=fault.remedy.value,
        scope=fault.scope,
    )
