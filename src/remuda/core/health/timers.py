"""The times that keep a flap from becoming a failure, and a flapping device from staying in use.

Three that must not be mixed up, each settable: *hold-down* is for plugins and kubelets that restart (a node's count falls to
nothing and comes back), *debounce* for devices whose fault comes and goes, *look-back* (core.workload.recovery) for a crash
whose device is reported bad only afterwards. A fault still within its debounce makes the device Unknown: nothing new is placed
on it and nobody is taken off it.

How often a device flapped is kept by its agent (`ObservedDevice.flaps`), because a fault that went again leaves no signal
behind. More than `flap_limit` of them within `flap_window_s` is a quarantine order, which no restart of anything lifts.
"""

from __future__ import annotations

import msgspec

from remuda.api.devices import NodeDevices, ObservedDevice, QuarantineOrder, Signal
from remuda.api.meta import to_seconds, to_time
from remuda.api.remedies import Timers as PolicyTimers
from remuda.core.devices.fault_codes import add_signal, classify

MAX_FLAPS = 16
SKEW_S = 60.0  # how far clocks may differ before a time is not believed
REPEAT_S = 5.0  # the same code of the same device within this time is the same event: drivers report in bursts


class Timers(msgspec.Struct, frozen=True):
    hold_down_s: float = 60.0
    debounce_s: float = 5.0
    flap_window_s: float = 3600.0
    flap_limit: int = 3


DEFAULT = Timers()


def timers_of(policy: PolicyTimers) -> Timers:
    return Timers(
        hold_down_s=policy.hold_down_seconds,
        debounce_s=policy.debounce_seconds,
        flap_window_s=policy.flap_window_seconds,
        flap_limit=policy.flap_limit,
    )


def is_repeat(before: Signal, again: Signal) -> bool:
    """Whether `again`, of the same source and code, says nothing that `before` did not."""
    if before.time is None or again.time is None:
        return False
    if to_seconds(again.time) - to_seconds(before.time) < REPEAT_S:
        return True  # an older one said again is not news either
    return classify(again.source, again.code).debounced  # it never went: a later time would start the debounce anew


def with_signal(device: ObservedDevice, signal: Signal) -> ObservedDevice:
    """The device after one more observation; the same object when it says nothing new."""
    fault = classify(signal.source, signal.code)
    same = next((s for s in device.signals if (s.source, s.code) == (signal.source, signal.code)), None)
    # Evidence of health is news again once something came after it, and so is a fault that was cured in between.
    if (
        same is not None
        and is_repeat(same, signal)
        and not (same is not device.signals[-1] if fault.clears else _is_cured_between(device, same, signal))
    ):
        return device
    taken_back = [s for s in device.signals if s.code in fault.retracts]
    if fault.retracts and not taken_back:
        return device
    flaps = [] if fault.clears else device.flaps
    if signal.time is not None and any(classify(s.source, s.code).debounced for s in taken_back):
        flaps = [*flaps, signal.time][-MAX_FLAPS:]
    return msgspec.structs.replace(device, signals=add_signal(device.signals, signal), flaps=flaps)


def _is_cured_between(device: ObservedDevice, before: Signal, again: Signal) -> bool:
    if before.time is None or again.time is None or before.time >= again.time:
        return False
    cures = (s.time for s in device.signals if s.time is not None and classify(s.source, s.code).clears)
    return any(before.time <= cure < again.time for cure in cures)


def flapping(node: NodeDevices, now: float, timers: Timers) -> dict[str, QuarantineOrder]:
    """Orders for devices that flapped too often and are not under one yet.

    Evidence of health (`probe-passed`) drops a device's flaps: lifting an order without it means that the next look orders
    the same again, which is right while the flaps are recent."""
    orders: dict[str, QuarantineOrder] = {}
    for device in node.observed.devices:
        recent = [f for f in device.flaps if now - to_seconds(f) <= timers.flap_window_s]
        if len(recent) > timers.flap_limit and device.id not in node.quarantine:
            window = f"{timers.flap_window_s / 60:g} minutes"
            orders[device.id] = QuarantineOrder(
                reason="DeviceFlapping",
                message=f"{device.id} came and went {len(recent)} times within {window}; {timers.flap_limit} are allowed.",
                by="remuda",
                since=to_time(now),
            )
    return orders
