"""What the signals of one device add up to: one judgement.

Signals of the agent and findings of the manager are one set, and what is decided depends on the set, not on the order in which
it was heard, as far as times are given:

- Evidence of health silences whatever is not newer than it, so a signal that is said again after a cure (an agent that reads
  its log from the start, a stream that repeats) does not count again.
- The same code from several sources is one *fact*, told by all of them; its time is the first of theirs.
- The gravest fact decides: by state, then by how drastic the device's remedy is; a slow rank goes before signs (throttling, a
  degraded link) that merely suggest one. Of equals the one that the verdict names stays, else the newest speaks: a device with
  two faults does not change its mind whenever one of them is repeated.
- A quarantine order goes before all of it, except that one of a remedy lets the fault it is about speak.

A time further ahead than `SKEW_S` cannot be true and is taken as not given: then, as for signals without a time, the order of
hearing counts. A fact that the standing verdict names is not silenced by evidence heard before it, whatever the clocks say.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime

import msgspec

from remuda.api.devices import DeviceState, NodeDevices, ObservedDevice, QuarantineOrder, Signal, Verdict
from remuda.api.meta import to_seconds, to_time
from remuda.core.devices.fault_codes import DeviceRemedy, FaultClass, classify
from remuda.core.health.timers import SKEW_S, Timers

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


class Judgement(msgspec.Struct, frozen=True):
    """What is known against a device. `at`: when the deciding fact was first seen, None when nobody said."""

    state: DeviceState = DeviceState.HEALTHY
    reason: str = ""
    message: str = ""
    source: str = ""
    at: datetime | None = None


HEALTHY = Judgement()


class Fact(msgspec.Struct, frozen=True):
    """One code that stands against a device, and everyone who told it, in order of their times."""

    fault: FaultClass
    told: tuple[Signal, ...]
    at: datetime | None  # the first time that can be true
    is_ahead: bool = False  # a time was given that cannot be true


def judge_device(
    device: ObservedDevice,
    order: QuarantineOrder | None,
    now: float,
    timers: Timers,
    findings: Sequence[Signal] = (),
    before: Verdict | None = None,
) -> Judgement:
    """What the device's signals, the manager's findings and a quarantine order add up to. `before`: the standing verdict."""
    found = _by_signals(device, now, timers, findings, before)
    # An order that belongs to a remedy says nothing that the fault does not: while the fault stands, the fault speaks.
    if order is None or (order.incident and found.state is DeviceState.UNHEALTHY):
        return found
    return Judgement(DeviceState.QUARANTINED, order.reason, order.message, order.by or "operator", order.since)


def _by_signals(
    device: ObservedDevice, now: float, timers: Timers, findings: Sequence[Signal], before: Verdict | None
) -> Judgement:
    if not findings and all(classify(s.source, s.code).effect is DeviceState.HEALTHY for s in device.signals):
        return HEALTHY  # by far the most frequent: nothing was said, or nothing against the device
    facts = facts_of((*findings, *device.signals), now, before)
    worst: Fact | None = None
    best = (RANK[DeviceState.HEALTHY], 0, 0, 0)
    for fact in facts:
        state = _state(fact, now, timers, before)
        if state is DeviceState.HEALTHY:
            continue
        # <=: of two equally grave facts the newer one speaks.
        slow = 0 if fact.fault.code == SLOW_RANK else 1
        drastic = 1 if fact.fault.code == CONFIRMS else _DRASTIC[fact.fault.remedy]
        key = (RANK[state], drastic, slow, 0 if _is_named(fact, before) else 1)
        if key <= best:
            worst, best = fact, key
    return HEALTHY if worst is None else _judgement(worst, GRAVITY[best[0]], before)


def facts_of(signals: Sequence[Signal], now: float, before: Verdict | None = None) -> list[Fact]:
    """What stands against the device, oldest first; codes that say nothing against it are among them."""
    limit = to_time(now + SKEW_S)
    clear: tuple[datetime, int] | None = None
    timed: list[tuple[datetime, int, Signal, FaultClass]] = []
    last = _NEVER
    for place, signal in enumerate(signals):
        moment = signal.time if signal.time is not None and signal.time <= limit else last
        last = max(last, moment)
        fault = classify(signal.source, signal.code)
        if fault.clears:
            clear = max(clear, (moment, place)) if clear is not None else (moment, place)
        else:
            timed.append((moment, place, signal, fault))
    timed.sort(key=lambda one: one[:2])
    told: dict[str, list[tuple[datetime, Signal, FaultClass]]] = {}
    for moment, place, signal, fault in timed:
        is_silenced = clear is not None and (moment, place) < clear
        if is_silenced and not (clear and clear[1] < place and before is not None and before.source == _name(signal)):
            continue
        told.setdefault(signal.code, []).append((moment, signal, fault))
    return [_fact(tellers, limit) for tellers in told.values()]


def believed_at(fact: Fact, timers: Timers, before: Verdict | None = None) -> float:
    """Unix seconds at which a debounced fact that is still there counts. One that nobody gave a time for counts at once; one
    with a time that cannot be true counts from when it was first judged."""
    at = fact.at
    if fact.is_ahead and before is not None and _is_named(fact, before):
        at = before.since
    return to_seconds(at) + timers.debounce_s if at is not None else 0.0


def settles_at(node: NodeDevices, now: float, timers: Timers) -> float | None:
    """When to look again because a debounce of one of the node's devices ends; None when none runs."""
    ends: list[float] = []
    for device in node.observed.devices:
        if any(classify(s.source, s.code).debounced for s in device.signals):
            before = next((v for v in node.verdicts if v.device == device.id), None)
            facts = facts_of(device.signals, now, before)
            ends += (believed_at(fact, timers, before) for fact in facts if fact.fault.debounced)
    return min((end for end in ends if end > now), default=None)


def _fact(tellers: list[tuple[datetime, Signal, FaultClass]], limit: datetime) -> Fact:
    given = [s.time for _, s, _ in tellers if s.time is not None]
    ahead = [time for time in given if time > limit]
    at = min(given, default=None)
    return Fact(tellers[0][2], tuple(s for _, s, _ in tellers), at, is_ahead=bool(ahead) and len(ahead) == len(given))


def _state(fact: Fact, now: float, timers: Timers, before: Verdict | None) -> DeviceState:
    is_young = fact.fault.debounced and now < believed_at(fact, timers, before)
    return DeviceState.UNKNOWN if is_young else fact.fault.effect


def _name(signal: Signal) -> str:
    return f"{signal.source}/{signal.code}"


def _is_named(fact: Fact, before: Verdict | None) -> bool:
    return before is not None and any(before.source == _name(signal) for signal in fact.told)


def _judgement(fact: Fact, state: DeviceState, before: Verdict | None) -> Judgement:
    """Named after whoever the verdict names already, else after whoever told it first."""
    first = next((s for s in fact.told if before is not None and before.source == _name(s)), fact.told[0])
    words = [first.message or fact.fault.message]
    if len(sources := sorted({s.source for s in fact.told})) > 1:
        words.append(f"Told by {', '.join(sources)}.")
    if fact.is_ahead:
        words.append(AHEAD)
    return Judgement(state, fact.fault.reason, " ".join(words), _name(first), fact.at)
