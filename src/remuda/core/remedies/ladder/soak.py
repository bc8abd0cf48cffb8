"""Whether a device that passed its probe may be believed. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from remuda.api.conditions import is_condition_true
from remuda.api.devices import DeviceState
from remuda.api.incidents import SubjectKind
from remuda.api.meta import to_seconds
from remuda.core.health.signals import ClassifiedSignal, classify_signals
from remuda.core.remedies.ladder.types import LadderCase

_BAD = (DeviceState.UNHEALTHY, DeviceState.DEGRADED)


def fault_during_ladder_soak(case: LadderCase, passed: float) -> str:
    """A fault of the device, or of the device it is a slice of, that was seen after the probe; "" when there is none.

    What has no time cannot be told from what was there before."""
    for known in _signals_of_subject(case):
        signal = known.signal
        if known.fault.effect in _BAD and signal.time is not None and to_seconds(signal.time) > passed:
            return f"{signal.code} reported by {signal.source} at {signal.time:%H:%M:%S}, after the probe had passed."
    return ""


def why_soak_failed(case: LadderCase, now: float) -> str:
    """Why the device cannot be given back though the soak was quiet; "" when it can."""
    node = case.nodes.get(case.subject.node)
    if case.subject.kind is SubjectKind.NODE:
        is_ready = node is not None and is_condition_true(node.status.conditions, "Ready")
        return "" if is_ready else f"{case.subject.node} is not ready."
    if case.device_row is None:
        return f"{case.subject.device} is not there."
    standing = None
    for known in _signals_of_subject(case):
        if known.fault.clears:
            standing = None
        elif known.fault.effect is DeviceState.UNHEALTHY:
            standing = known.signal
    return "" if standing is None else f"{standing.code}, reported by {standing.source}, has not cleared."


def _signals_of_subject(case: LadderCase) -> Iterator[ClassifiedSignal]:
    """What is known against the subject, oldest first."""
    if case.devices is None or case.device_row is None:
        return
    found = list(case.device_row.signals) + list(case.devices.findings.get(case.device_row.id, ()))
    parent = next((d for d in case.devices.observed.devices if d.id == case.device_row.parent), None)
    if case.device_row.parent and parent is not None:
        found += parent.signals
    yield from classify_signals(sorted(found, key=lambda s: to_seconds(s.time) if s.time is not None else 0.0))
