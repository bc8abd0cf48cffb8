"""Signals heard over the stream that the API does not show yet.

An agent tells a signal twice: over its stream at once, and in NodeDevices when its next write is through. The overlay holds the
first until the second arrives, so that a verdict need not wait for it. It is a cache of news and nothing else: a manager that
starts without it judges the same, a moment later.

What can change no verdict (codes that an application causes, by far the most frequent) is not held, and nobody has to look.
Of a code that is said again and again one signal is held, as in the record: a driver's noise costs little and cannot push out
the fault that took a device out of use.

Streams repeat and reorder. What was heard is applied in the order of its times; what takes others back never takes back what is
newer than it; a time ahead of the manager's clock is taken for now; and a signal older than `FORGET_S` when it is heard is left
to the record, which has it, or has what came after it.

A signal leaves when the node's record names the same code from the same source at that time or later, or after `FORGET_S`: by
then the agent has written it, or is not going to.
"""

from __future__ import annotations

import msgspec

from remuda.api.devices import DeviceState, NodeDevices, ObservedDevice, Signal
from remuda.api.meta import to_seconds, to_time
from remuda.core.health.device_history import is_minor_device_history_fault
from remuda.core.health.signals import ClassifiedSignal, classify_signal, is_repeat, with_signal
from remuda.core.health.timers import SKEW_S

FORGET_S = 30.0
MAX_PER_DEVICE = 32
MAX_DEVICES = 1024  # of one node: slices included, no machine has more; names that no device has are not to pile up


HeardSignal = tuple[float, ClassifiedSignal]  # when, and what


class StreamedSignals:
    def __init__(self) -> None:
        self._heard: dict[str, dict[str, list[HeardSignal]]] = {}  # node -> device -> what was heard of it

    def hear(self, node: str, device: str, signal: Signal, now: float) -> bool:
        """Whether it may change a verdict, so that somebody has to look."""
        heard = classify_signal(signal)
        if not can_change_verdict(heard):
            return False
        if signal.time is not None:
            age = now - to_seconds(signal.time)
            if age > FORGET_S:
                return False
            if age < -SKEW_S:
                heard = ClassifiedSignal(msgspec.structs.replace(signal, time=to_time(now)), heard.fault)
        of_node = self._heard.setdefault(node, {})
        if device not in of_node and len(of_node) >= MAX_DEVICES:
            del of_node[next(iter(of_node))]
        kept = of_node.setdefault(device, [])
        place = _place_of_same_signal(kept, heard)
        if place is None:
            kept.append((now, heard))
            del kept[:-MAX_PER_DEVICE]
        elif is_repeat(kept[place][1].signal, heard):
            kept[place] = now, kept[place][1]
        else:
            del kept[place]
            kept.append((now, heard))
        return True

    def merged(self, node: NodeDevices, now: float) -> NodeDevices:
        """The node's record with what was heard since; the same object when that adds nothing."""
        news = self._heard.get(node.name)
        if not news:
            return node
        devices = [self._with_news(device, news, now) for device in node.observed.devices]
        if not news:
            del self._heard[node.name]
        if all(new is old for new, old in zip(devices, node.observed.devices, strict=True)):
            return node
        return msgspec.structs.replace(node, observed=msgspec.structs.replace(node.observed, devices=devices))

    def forget(self, node: str) -> None:
        self._heard.pop(node, None)

    def _with_news(self, device: ObservedDevice, news: dict[str, list[HeardSignal]], now: float) -> ObservedDevice:
        heard = news.pop(device.id, [])
        kept = [(at, h) for at, h in heard if now - at < FORGET_S and not _is_signal_recorded(device, h.signal)]
        if kept:
            news[device.id] = kept
        for _, one in sorted(kept, key=_signal_reported_at) if len(kept) > 1 else kept:
            device = _with_heard_signal(device, one.signal)
        return device


def can_change_verdict(heard: ClassifiedSignal) -> bool:
    """Whether it says something against a device, or takes something back, or is remembered for a trend."""
    fault = heard.fault
    is_harmless = fault.effect is DeviceState.HEALTHY and not (fault.clears or fault.retracts or fault.debounced)
    return not is_harmless or is_minor_device_history_fault(heard)


def _signal_reported_at(heard: HeardSignal) -> float:
    at, one = heard
    return to_seconds(one.signal.time) if one.signal.time is not None else at


def _with_heard_signal(device: ObservedDevice, signal: Signal) -> ObservedDevice:
    """`with_signal`, except that what is newer than `signal` stays, whatever that takes back."""
    new = with_signal(device, signal)
    if new is device or signal.time is None or len(new.signals) > len(device.signals):
        return new
    newer = [s for s in device.signals if s not in new.signals and s.time is not None and s.time > signal.time]
    return msgspec.structs.replace(new, signals=[*new.signals, *newer]) if newer else new


def _place_of_same_signal(kept: list[HeardSignal], again: ClassifiedSignal) -> int | None:
    """Where the same code stands already, not taken back since. What takes others back has to be heard each time."""
    if again.fault.clears or again.fault.retracts:
        return None
    for place in range(len(kept) - 1, -1, -1):
        earlier = kept[place][1]
        if (earlier.signal.source, earlier.signal.code) == (again.signal.source, again.signal.code):
            return place
        if earlier.fault.clears or again.signal.code in earlier.fault.retracts:
            return None
    return None


def _is_signal_recorded(device: ObservedDevice, signal: Signal) -> bool:
    """Whether the record already names it, at that time or later."""
    for known in device.signals:
        if (known.source, known.code) == (signal.source, signal.code):
            if known.time is None or signal.time is None:
                return True
            return to_seconds(known.time) >= to_seconds(signal.time)
    return False
