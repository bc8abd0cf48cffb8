"""The times that keep a flap from becoming a failure, and a flapping device from staying in use.

Three that must not be mixed up, each settable: *hold-down* is for plugins and kubelets that restart (a node's count falls to
nothing and comes back), *debounce* for devices whose fault comes and goes, *look-back* (core.training.recovery) for a crash
whose device is reported bad only afterwards. A fault still within its debounce makes the device Unknown: nothing new is placed
on it and nobody is taken off it.

How often a device flapped is kept by its agent (`ObservedDevice.flaps`), because a fault that went again leaves no signal
behind. More than `flap_limit` of them within `flap_window_s` is a quarantine order, which no restart of anything lifts.
"""

from __future__ import annotations

import msgspec

from remuda.api.devices import NodeDevices, QuarantineOrder
from remuda.api.meta import to_seconds, to_time
from remuda.api.remedies import Timers as PolicyTimers

SKEW_S = 60.0  # how far clocks may differ before a time is not believed


class HealthTimers(msgspec.Struct, frozen=True):
    hold_down_s: float = 60.0
    debounce_s: float = 5.0
    flap_window_s: float = 3600.0
    flap_limit: int = 3


DEFAULT_TIMERS = HealthTimers()


def health_timers_of(policy: PolicyTimers) -> HealthTimers:
    return HealthTimers(
        hold_down_s=policy.hold_down_seconds,
        debounce_s=policy.debounce_seconds,
        flap_window_s=policy.flap_window_seconds,
        flap_limit=policy.flap_limit,
    )


def health_quarantine_for_flapping(node: NodeDevices, now: float, timers: HealthTimers) -> dict[str, QuarantineOrder]:
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
                message=f"{device.id} came and went {len(recent)} times within {window} (limit {timers.flap_limit}).",
                by="remuda",
                since=to_time(now),
            )
    return orders
