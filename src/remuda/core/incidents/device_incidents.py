"""Incidents of a node's devices: verdicts, signals, holders and their exits -> which to open, amend and close.

A device is *bad* when its verdict is Unhealthy or Quarantined, or has been Degraded for a while. Unknown is neither bad nor
well: it opens nothing and closes nothing (a debounce, an agent that restarts). A bad device without an open incident gets one,
named by when the verdict began, unless that failure was told already: its name is taken by a closed one, the order that keeps the
device out belongs to one, or an operator or the end of the ladder has closed one since.

A slice that is only as bad as its device is told with its device.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import msgspec

from remuda.api.devices import DeviceState, NodeDevices, ObservedDevice, Signal, Verdict
from remuda.api.incidents import Affected, Evidence, Incident, IncidentOutcome, IncidentStatus, IncidentVerdict
from remuda.api.meta import to_seconds, to_time
from remuda.api.training import Cause
from remuda.core.health.device_holders import HoldersByDevice, device_holders_on
from remuda.core.health.signals import classify_signal
from remuda.core.incidents.closing import SubjectHealth, conclude_incident, incident_ends_at
from remuda.core.incidents.evidence import with_affected, with_evidence
from remuda.core.incidents.names import (
    IncidentPlan,
    IncidentTimes,
    blank_incident,
    device_subject,
    incident_name,
    incidents_of,
)
from remuda.core.incidents.pods import (
    NodeIncidentView,
    affected_pods,
    crashed_pods_in_incident,
    follow_affected_pods,
    incident_evidence_of_container_exit,
    incident_evidence_of_launcher_exit,
)

BEFORE_S = 600.0  # signals so long before the verdict are part of its story
_UNTOLD = (DeviceState.HEALTHY, DeviceState.UNKNOWN)  # open nothing
_FINAL = (IncidentOutcome.DISMISSED, IncidentOutcome.NOT_CURED, IncidentOutcome.WORKED_AROUND)


def plan_device_incidents(
    sight: NodeIncidentView, incidents: Sequence[Incident], now: float, times: IncidentTimes
) -> IncidentPlan:
    """`incidents`: those of this node, closed ones too."""
    opened: list[Incident] = []
    amended: list[tuple[Incident, IncidentStatus]] = []
    looks: list[float] = []
    devices = sight.devices or NodeDevices()
    held = device_holders_on(devices, sight.pods)
    seen = {d.id: d for d in devices.observed.devices}
    verdicts = {v.device: v for v in devices.verdicts}
    mine: dict[str, list[Incident]] = {}
    for incident in incidents:
        if incident.spec.subject.device:
            mine.setdefault(incident.spec.subject.device, []).append(incident)
    for device in [*verdicts, *(d for d in mine if d not in verdicts)]:
        verdict = verdicts.get(device)
        if device not in mine and verdict is not None and verdict.state in _UNTOLD:
            continue  # by far the most frequent
        past = incidents_of(mine.get(device, ()), device_subject(sight.name, device))
        standing = next((i for i in past if i.is_open), None)
        if standing is None and verdict is not None and not _is_parents_incident(verdict, seen, verdicts):
            if not verdict_warrants_incident(verdict, now, times):
                if verdict.state is DeviceState.DEGRADED and verdict.since is not None:
                    looks.append(to_seconds(verdict.since) + times.degraded)
            elif (fresh := _new_device_incident(sight, devices, verdict, past, now)) is not None:
                opened.append(fresh)
                standing = fresh
        if standing is None:
            continue
        status, health = _look_at_device(sight, devices, standing, verdict, held, now, times)
        status = conclude_incident(standing, status, health, times.settle, now)
        if status != standing.status:
            amended.append((standing, status))
        end = incident_ends_at(status, health, times.settle)
        if end is not None and end > now and status.closed_at is None:
            looks.append(end)
    again = min((at for at in looks if at >= now), default=None)
    return IncidentPlan(tuple(opened), tuple(amended), look_again_s=None if again is None else again - now + 0.01)


def verdict_warrants_incident(verdict: Verdict, now: float, times: IncidentTimes) -> bool:
    if verdict.state is DeviceState.DEGRADED:
        return verdict.since is None or now >= to_seconds(verdict.since) + times.degraded
    return verdict.state in (DeviceState.UNHEALTHY, DeviceState.QUARANTINED)


def _is_parents_incident(verdict: Verdict, seen: Mapping[str, ObservedDevice], verdicts: Mapping[str, Verdict]) -> bool:
    device = seen.get(verdict.device)
    parent = verdicts.get(device.parent) if device is not None and device.parent else None
    return parent is not None and (parent.state, parent.reason) == (verdict.state, verdict.reason)


def _new_device_incident(
    sight: NodeIncidentView, devices: NodeDevices, verdict: Verdict, past: Sequence[Incident], now: float
) -> Incident | None:
    """A new incident, unless this failure was told already."""
    order = devices.quarantine.get(verdict.device)
    if verdict.state is DeviceState.QUARANTINED and order is not None and order.incident:
        return None
    subject = device_subject(sight.name, verdict.device)
    since = verdict.since or to_time(now)
    if any(i.name == incident_name(subject, since) for i in past):
        return None
    last = past[-1].status if past else None
    if last is not None and last.outcome in _FINAL and last.closed_at is not None and since <= last.closed_at:
        return None
    return blank_incident(subject, since)


def _look_at_device(
    sight: NodeIncidentView,
    devices: NodeDevices,
    incident: Incident,
    verdict: Verdict | None,
    held: HoldersByDevice,
    now: float,
    times: IncidentTimes,
) -> tuple[IncidentStatus, SubjectHealth]:
    status, name = incident.status, incident.spec.subject.device
    seen = next((d for d in devices.observed.devices if d.id == name), None)
    order = devices.quarantine.get(name)
    if status.opened_at is None:
        status = _begun_device_status(status, sight, seen, verdict, now)
    is_own_order = order is not None and order.incident == incident.name
    if verdict is not None and verdict_warrants_incident(verdict, now, times):
        # An order of the incident's own is its remedy, not its fault; so is the verdict that still stands when it is lifted.
        # Neither is a probe that found what was known: the ladder asks what broke.
        is_told = verdict.origin[0] == "probe" and bool(status.verdict.reason)
        is_remedy = verdict.state is DeviceState.QUARANTINED and (order is None or is_own_order)
        if not is_told and not is_remedy:
            status = msgspec.structs.replace(status, verdict=_incident_verdict(verdict, status.verdict))
        began = to_seconds(status.first_signal_at) if status.first_signal_at is not None else now
        status = with_affected(status, _affected_by_device(sight, devices, name, held, began - times.look_back))
    state = verdict.state if verdict is not None else status.verdict.state
    status = with_affected(status, follow_affected_pods(status.affected, sight, held, state, now))
    status = with_evidence(status, _device_evidence(sight, devices, seen, verdict, status, times))
    well = None
    if verdict is not None and verdict.state is DeviceState.HEALTHY and order is None:
        well = to_seconds(verdict.since) if verdict.since is not None else now
    out_by = (order.by or "an operator") if order is not None and not is_own_order else ""
    waits = ""
    if verdict is None or verdict.state is DeviceState.UNKNOWN:
        waits = "Its agent does not report it now. Waits for the next report."
    uuid = seen.uuid if seen is not None else ""
    return status, SubjectHealth(well, sight.node_uid, uuid, out_by, waits)


def _begun_device_status(
    status: IncidentStatus, sight: NodeIncidentView, seen: ObservedDevice | None, verdict: Verdict | None, now: float
) -> IncidentStatus:
    since = verdict.since if verdict is not None and verdict.since is not None else to_time(now)
    return msgspec.structs.replace(
        status,
        opened_at=to_time(now),
        first_signal_at=min(since, to_time(now)),
        devices=1,
        device_uuid=seen.uuid if seen is not None else "",
        node_uid=sight.node_uid,
    )


def _incident_verdict(verdict: Verdict, before: IncidentVerdict) -> IncidentVerdict:
    return IncidentVerdict(
        state=verdict.state,
        reason=verdict.reason,
        message=verdict.message,
        source=verdict.source,
        cause=Cause.DEVICE.value,
        remedy=verdict.remedy or before.remedy,
    )


def _affected_by_device(
    sight: NodeIncidentView, devices: NodeDevices, name: str, held: HoldersByDevice, since: float
) -> list[Affected]:
    """Who has the device or a slice of it, and who had it until a crash at `since` or later."""
    rows = [name, *(d.id for d in devices.observed.devices if d.parent == name)]
    found = [(row, holder) for row in rows for holder in held.get(row, ())] + crashed_pods_in_incident(
        sight, rows, since
    )
    of: dict[str, list[str]] = {}
    for row, holder in found:
        if row not in of.setdefault(holder.uid, []):
            of[holder.uid].append(row)
    return affected_pods(sight, of, [holder for _, holder in found])


def _device_evidence(
    sight: NodeIncidentView,
    devices: NodeDevices,
    seen: ObservedDevice | None,
    verdict: Verdict | None,
    status: IncidentStatus,
    times: IncidentTimes,
) -> Iterable[Evidence]:
    began = to_seconds(status.first_signal_at) if status.first_signal_at is not None else 0.0
    if seen is not None:
        for signal in (*seen.signals, *devices.findings.get(seen.id, ())):
            if signal.time is None or to_seconds(signal.time) >= began - BEFORE_S:
                yield _signal_evidence(signal, sight.name, seen.id)
        for answer in devices.observed.answers:
            is_later = answer.time is None or to_seconds(answer.time) >= began
            if answer.action == "probe" and answer.device == seen.id and answer.outcome != "Running" and is_later:
                words = answer.message or answer.reason or f"The probe has {answer.outcome.lower()}."
                yield Evidence("probe", words, answer.time, "agent", answer.outcome, sight.name, seen.id)
    if verdict is not None and verdict.state is not DeviceState.UNKNOWN:
        words = f"{verdict.state}: {verdict.reason}: {verdict.message}" if verdict.reason else verdict.state.value
        yield Evidence("verdict", words, verdict.since, verdict.source, verdict.reason, sight.name, verdict.device)
    uids = {a.uid for a in status.affected if a.uid}
    since = began - times.look_back
    yield from incident_evidence_of_container_exit(sight.pods, uids, since, sight.ranks)
    yield from incident_evidence_of_launcher_exit(devices.observed.launchers, uids, since, sight.name)


def _signal_evidence(signal: Signal, node: str, device: str) -> Evidence:
    return Evidence("signal", classify_signal(signal).message, signal.time, signal.source, signal.code, node, device)
