"""The signals of one device: how they are kept, which of them still stand, and what each means.

A device keeps one signal per (source, code), newest last. A repeat takes the place of the earlier one, evidence of health drops
all that came before it, and a code that takes others back drops those; how often a fault came and went is kept in the device's
`flaps`. Agents keep the record by `with_signal`; the manager applies what it hears on a stream by the same function.

`classify_signals` looks the codes up. A look at a device does it once and hands the result on.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime

import msgspec

from remuda.api.devices import DeviceState, ObservedDevice, Signal
from remuda.api.meta import to_seconds
from remuda.core.devices.fault_codes import FaultClass, classify_device_fault_code

MAX_SIGNALS = 16
MAX_FLAPS = 16
REPEAT_S = 5.0  # the same code of the same device within this time is the same event: drivers report in bursts


class ClassifiedSignal(msgspec.Struct, frozen=True):
    signal: Signal
    fault: FaultClass

    @property
    def message(self) -> str:
        return self.signal.message or self.fault.message


def classify_signal(signal: Signal) -> ClassifiedSignal:
    return ClassifiedSignal(signal, classify_device_fault_code(signal.source, signal.code))


def classify_signals(signals: Iterable[Signal]) -> tuple[ClassifiedSignal, ...]:
    return tuple(map(classify_signal, signals))


def standing_faults(signals: Iterable[Signal]) -> list[FaultClass]:
    """What still counts, in the order it was heard: not what came before evidence of health, nor what is older than it."""
    found: list[FaultClass] = []
    cured: datetime | None = None
    for known in classify_signals(signals):
        if known.fault.clears:
            found, cured = [], known.signal.time
        elif cured is None or known.signal.time is None or known.signal.time > cured:
            found.append(known.fault)
    return found


def cure_times(signals: Iterable[ClassifiedSignal]) -> list[datetime]:
    """When there was evidence of health, as far as a time is given."""
    return [known.signal.time for known in signals if known.fault.clears and known.signal.time is not None]


def is_repeat(before: Signal, again: ClassifiedSignal) -> bool:
    """Whether `again`, of the same source and code, says nothing that `before` did not."""
    if before.time is None or again.signal.time is None:
        return False
    if to_seconds(again.signal.time) - to_seconds(before.time) < REPEAT_S:
        return True  # an older one said again is not news either
    return again.fault.debounced  # it never went: a later time would start the debounce anew


def with_signal(device: ObservedDevice, signal: Signal) -> ObservedDevice:
    """The device after one more observation; the same object when it says nothing new."""
    new, known = classify_signal(signal), classify_signals(device.signals)
    same = next((s for s in device.signals if (s.source, s.code) == (signal.source, signal.code)), None)
    # Evidence of health is news again once something came after it, and so is a fault that was cured in between.
    if same is not None and is_repeat(same, new):
        is_news = same is not device.signals[-1] if new.fault.clears else _is_cured_between(known, same, signal)
        if not is_news:
            return device
    taken_back = [k for k in known if k.signal.code in new.fault.retracts]
    if new.fault.retracts and not taken_back:
        return device
    flaps = [] if new.fault.clears else device.flaps
    if signal.time is not None and any(k.fault.debounced for k in taken_back):
        flaps = [*flaps, signal.time][-MAX_FLAPS:]
    return msgspec.structs.replace(device, signals=_with_classified(known, new), flaps=flaps)


def add_signal(signals: Iterable[Signal], new: Signal) -> list[Signal]:
    """The signals with `new`, newest last: one per (source, code), at most MAX_SIGNALS."""
    return _with_classified(classify_signals(signals), classify_signal(new))


def _with_classified(known: Iterable[ClassifiedSignal], new: ClassifiedSignal) -> list[Signal]:
    """When there are too many, the mildest and oldest goes first: noise from an application must not push out the fault that
    took the device out."""
    signal, fault = new.signal, new.fault
    if fault.clears:
        return [signal]
    kept = [
        k
        for k in known
        if (k.signal.source, k.signal.code) != (signal.source, signal.code) and k.signal.code not in fault.retracts
    ]
    if fault.retracts:
        return [
            k.signal for k in kept
        ]  # what was taken back leaves no trace here; how often it happened is in the flaps
    while len(kept) >= MAX_SIGNALS:
        kept.remove(min(kept, key=_signal_gravity))
    return [*(k.signal for k in kept), signal]


def _signal_gravity(known: ClassifiedSignal) -> int:
    if known.fault.clears:
        return 3  # it says which of the others no longer count
    return {DeviceState.HEALTHY: 0, DeviceState.DEGRADED: 1}.get(known.fault.effect, 2)


def _is_cured_between(known: Iterable[ClassifiedSignal], before: Signal, again: Signal) -> bool:
    if before.time is None or again.time is None or before.time >= again.time:
        return False
    return any(before.time <= cure < again.time for cure in cure_times(known))
