"""Incidents counted: how many, by cause, what they cost, how long a cure takes and how far apart they come. Pure.

What was merged into another incident is counted there, and a domain's parts are counted, not the domain: every GPU-hour and every
failure once.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from remuda.api.incidents import Incident, IncidentOutcome, SubjectKind
from remuda.api.meta import to_seconds

_ENDED_WELL = (IncidentOutcome.CURED, IncidentOutcome.REPLACED, IncidentOutcome.WORKED_AROUND)


class CauseTotals(msgspec.Struct, frozen=True, rename="camel"):
    """`cured_seconds`: the mean time from the first signal to the cure; `between_seconds`: the mean time between two."""

    cause: str
    count: int = 0
    open: int = 0
    lost_gpu_hours: float = 0.0
    device_hours_out: float = 0.0
    cured_seconds: float | None = None
    between_seconds: float | None = None


def incident_began_at(incident: Incident) -> float:
    known = incident.status.first_signal_at or incident.status.opened_at or incident.metadata.creation_timestamp
    return to_seconds(known) if known is not None else 0.0


def device_hours_lost_to_incident(incident: Incident, now: float) -> float:
    """How long its devices were out of use, so far."""
    status = incident.status
    if status.opened_at is None or not status.devices:
        return 0.0
    until = to_seconds(status.closed_at) if status.closed_at is not None else now
    return status.devices * max(0.0, until - to_seconds(status.opened_at)) / 3600


def summarise_incidents(incidents: Iterable[Incident], now: float) -> list[CauseTotals]:
    """A row per cause, the costliest first, and the total last."""
    kept = [
        i
        for i in incidents
        if i.status.outcome is not IncidentOutcome.MERGED and i.spec.subject.kind is not SubjectKind.DOMAIN
    ]
    causes: dict[str, list[Incident]] = {}
    for incident in kept:
        causes.setdefault(incident.status.verdict.cause or "unknown", []).append(incident)
    rows = [_incident_cause_totals(cause, found, now) for cause, found in causes.items()]
    rows.sort(key=lambda r: (-r.lost_gpu_hours, -r.count, r.cause))
    return [*rows, _incident_cause_totals("total", kept, now)]


def _incident_cause_totals(cause: str, incidents: list[Incident], now: float) -> CauseTotals:
    starts = sorted(incident_began_at(i) for i in incidents)
    cures = [
        to_seconds(i.status.closed_at) - incident_began_at(i)
        for i in incidents
        if i.status.outcome in _ENDED_WELL and i.status.closed_at is not None
    ]
    return CauseTotals(
        cause=cause,
        count=len(incidents),
        open=sum(i.is_open for i in incidents),
        lost_gpu_hours=round(sum(i.status.lost_gpu_hours for i in incidents), 4),
        device_hours_out=round(sum(device_hours_lost_to_incident(i, now) for i in incidents), 4),
        cured_seconds=round(sum(cures) / len(cures), 3) if cures else None,
        between_seconds=round((starts[-1] - starts[0]) / (len(starts) - 1), 3) if len(starts) > 1 else None,
    )
