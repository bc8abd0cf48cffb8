"""What the manager finds out by itself about a node's devices, and what it remembers for that.

Signals come and go; the history stays (`NodeDevices.history`). From both follow the findings of three sources:
`trend` (minor faults that come back), `history` (a repeat offender) and `correlation` (the switch under a device
took most of its neighbours). They are written into `NodeDevices.findings` beside those of others, which are left alone, and
judged like any signal.

Only devices for which something changes are in the result, and a device nobody ever said anything about costs one look-up.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from remuda.api.devices import DeviceHistory, DeviceState, NodeDevices, ObservedDevice, Signal, Verdict
from remuda.api.meta import to_seconds
from remuda.api.remedies import Offender
from remuda.core.health import correlation
from remuda.core.health.device_history import (
    OFFENDER_SOURCE,
    TREND_SOURCE,
    device_failed_at,
    device_history_with_failure,
    device_history_with_minor_faults,
    find_fault_trends,
    find_repeat_offence,
    is_minor_device_history_fault,
)
from remuda.core.health.signal_fusion import ClassifiedDevices
from remuda.core.health.signals import ClassifiedSignal, cure_times
from remuda.core.health.timers import SKEW_S

OWN_SOURCES = (TREND_SOURCE, OFFENDER_SOURCE, correlation.SOURCE)

_NOTHING = DeviceHistory()


class NodeFindings(msgspec.Struct, frozen=True):
    """Changes only, by device. `ends_at`: when one of the findings may end by itself."""

    history: dict[str, DeviceHistory] = {}
    findings: dict[str, list[Signal]] = {}
    ends_at: float | None = None

    def on(self, node: NodeDevices) -> NodeDevices:
        """The node's record with the changes."""
        if not self.history and not self.findings:
            return node
        return msgspec.structs.replace(
            node, history={**node.history, **self.history}, findings={**node.findings, **self.findings}
        )


def find_findings(
    node: NodeDevices,
    classified: ClassifiedDevices,
    judged: Mapping[str, Verdict],
    now: float,
    policy: Offender,
    suspected: Mapping[str, Signal] | None = None,
) -> NodeFindings:
    """`classified`: the devices' own signals. `judged`: every device by them, on the record as it is. `suspected`: devices whose
    switch is."""
    before = {v.device: v for v in node.verdicts} if node.verdicts else {}
    suspects = suspected or {}
    history: dict[str, DeviceHistory] = {}
    findings: dict[str, list[Signal]] = {}
    ends: list[float] = []
    for device in node.observed.devices:
        id, signals = device.id, classified.get(device.id, ())
        if id not in node.history and id not in node.findings and id not in suspects:
            found_now = judged.get(id)
            is_well = found_now is None or found_now.state is DeviceState.HEALTHY
            if is_well and not any(map(is_minor_device_history_fault, signals)):
                continue
        standing = node.findings.get(id, [])
        known = node.history.get(id, _NOTHING)
        if device.uuid and known.uuid and device.uuid != known.uuid:
            known, standing = _NOTHING, []  # another device in its place
        remembered = _remembered_history(device, signals, known, judged.get(id), before.get(id), now)
        found, end = _device_findings(signals, remembered, standing, suspects.get(id), now, policy)
        if remembered != node.history.get(id, _NOTHING):
            history[id] = remembered
        if found != node.findings.get(id, []):
            findings[id] = found
        if end is not None:
            ends.append(end)
    return NodeFindings(history, findings, min(ends, default=None))


def _remembered_history(
    device: ObservedDevice,
    signals: Sequence[ClassifiedSignal],
    known: DeviceHistory,
    judged: Verdict | None,
    before: Verdict | None,
    now: float,
) -> DeviceHistory:
    minor = device_history_with_minor_faults(known.minor, (s for s in signals if not _is_signal_ahead(s.signal, now)))
    at = device_failed_at(judged, before, known, now) if judged is not None else None
    if minor is known.minor and at is None:
        return known
    failures = device_history_with_failure(known.failures, at) if at is not None else known.failures
    return msgspec.structs.replace(known, minor=minor, failures=failures, uuid=device.uuid or known.uuid)


def _device_findings(
    signals: Sequence[ClassifiedSignal],
    known: DeviceHistory,
    standing: list[Signal],
    suspected: Signal | None,
    now: float,
    policy: Offender,
) -> tuple[list[Signal], float | None]:
    cured = _device_cured_at(signals, now)
    others = [s for s in standing if s.source not in OWN_SOURCES]
    offence = next((s for s in standing if s.source == OFFENDER_SOURCE), None)
    found, end = find_fault_trends(known.minor, now, cured) if known.minor else ([], None)
    offence = find_repeat_offence(known.failures, offence, now, policy, cured)
    if suspected is not None and (suspected.time is None or to_seconds(suspected.time) > cured):
        found = [*found, suspected]
    return [*others, *found, *([offence] if offence is not None else ())], end


def _device_cured_at(signals: Sequence[ClassifiedSignal], now: float) -> float:
    """Of the newest evidence of health; 0 when there is none. One from the future is as old as now."""
    return min(now, max(map(to_seconds, cure_times(signals)), default=0.0))


def _is_signal_ahead(signal: Signal, now: float) -> bool:
    return signal.time is not None and to_seconds(signal.time) > now + SKEW_S
