"""Incidents of a domain: devices or nodes that failed together, and the incident that explains theirs.

A suspect domain (`correlation.find_suspects`) gets one incident; those of its members become its parts and name it in
`partOf`. They stay incidents of their own, because each device still has to be cured; the domain's is over when all of them
are. A domain is called again only for a failure after that. What is done about a domain is its ladder's to say (by default
somebody is told, and none of its nodes is recycled for it by itself); the incident's message repeats it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import msgspec

from remuda.api.conditions import find_condition
from remuda.api.incidents import Evidence, Incident, IncidentOutcome, IncidentPhase, IncidentStatus, IncidentVerdict
from remuda.api.meta import to_seconds, to_time
from remuda.api.training import Cause
from remuda.core.health.correlation import DomainSuspect
from remuda.core.health.failure_index import WINDOW_S
from remuda.core.incidents.closing import closed_status, incident_closing_waits_for_rung
from remuda.core.incidents.evidence import with_evidence
from remuda.core.incidents.names import IncidentPlan, blank_incident, domain_subject, incident_name, incidents_of
from remuda.core.remedies.rungs import LADDER

_NAMED = 4
# The best of how its parts ended is how the domain's ended.
_ENDS = (IncidentOutcome.CURED, IncidentOutcome.REPLACED, IncidentOutcome.WORKED_AROUND, IncidentOutcome.NOT_CURED)


def plan_domain_incidents(
    suspects: Sequence[DomainSuspect],
    domains: Sequence[Incident],
    parts: Mapping[str, Sequence[Incident]],
    named: Callable[[str], Incident | None],
    now: float,
) -> IncidentPlan:
    """`domains`: incidents of domains, closed ones too. `parts`: incidents by member, "node/device" or "node"."""
    opened: list[Incident] = []
    amended: dict[str, tuple[Incident, IncidentStatus]] = {}
    seen: set[str] = set()
    for suspect in suspects:
        standing = _domain_incident(suspect, domains, parts)
        if standing is None:
            continue
        if standing not in domains:
            opened.append(standing)
        seen.add(standing.name)
        members = [i for i in _member_incidents(suspect, parts) if not i.status.part_of]
        fresh = [i for i in members if i.name not in standing.status.parts]
        status = _conclude_domain(standing, _domain_status(standing, suspect, fresh, now), named, now)
        if status != standing.status:
            amended[standing.name] = standing, status
        for part in members:
            amended[part.name] = part, msgspec.structs.replace(part.status, part_of=standing.name)
    for incident in domains:
        if incident.is_open and incident.name not in seen:
            status = _conclude_domain(incident, incident.status, named, now)
            if status != incident.status:
                amended[incident.name] = incident, status
    return IncidentPlan(tuple(opened), tuple(amended.values()))


def _domain_incident(
    suspect: DomainSuspect, domains: Sequence[Incident], parts: Mapping[str, Sequence[Incident]]
) -> Incident | None:
    """The domain's open incident, or a new one when something failed that none tells of."""
    subject, since = domain_subject(suspect.domain), to_time(suspect.since)
    past = incidents_of(domains, subject)
    standing = next((i for i in past if i.is_open), None)
    if standing is not None:
        return standing
    untold = [i for i in _member_incidents(suspect, parts) if i.is_open and not i.status.part_of]
    if not untold or any(i.name == incident_name(subject, since) for i in past):
        return None
    return blank_incident(subject, since)


def _member_incidents(suspect: DomainSuspect, parts: Mapping[str, Sequence[Incident]]) -> list[Incident]:
    """The incidents of what failed then; others of the same devices, earlier or later, are no part of it."""
    return [
        incident
        for member in suspect.members
        for incident in parts.get(member, ())
        if incident.status.first_signal_at is not None
        and suspect.since - WINDOW_S <= to_seconds(incident.status.first_signal_at) <= suspect.until + WINDOW_S
    ]


def _domain_status(incident: Incident, suspect: DomainSuspect, fresh: Sequence[Incident], now: float) -> IncidentStatus:
    status = incident.status
    if status.opened_at is None:
        status = msgspec.structs.replace(status, opened_at=to_time(now), first_signal_at=to_time(suspect.since))
    if fresh:
        verdict = IncidentVerdict(
            reason=suspect.reason, message=suspect.message, source="correlation", cause=Cause.INFRA.value
        )
        piece = Evidence("correlation", suspect.message, to_time(suspect.until), "correlation", suspect.reason)
        status = msgspec.structs.replace(
            with_evidence(status, [piece]),
            verdict=verdict,
            parts=[*status.parts, *(i.name for i in fresh)],
        )
    return status


def _conclude_domain(
    incident: Incident, status: IncidentStatus, named: Callable[[str], Incident | None], now: float
) -> IncidentStatus:
    if status.phase is IncidentPhase.CLOSED:
        return status
    parts = [part for name in status.parts if (part := named(name)) is not None]
    domain = incident.spec.subject.domain
    if incident.spec.dismiss:
        return closed_status(status, IncidentOutcome.DISMISSED, f"Dismissed: {incident.spec.dismiss}", now)
    status = msgspec.structs.replace(status, lost_gpu_hours=round(sum(p.status.lost_gpu_hours for p in parts), 4))
    left = sorted(p.name for p in parts if p.is_open)
    if left:
        more = f" and {len(left) - _NAMED} more" if len(left) > _NAMED else ""
        words = f"Waits for {len(left)} of its {len(parts)} parts to be closed: {', '.join(left[:_NAMED])}{more}."
        ladder = find_condition(status.conditions, LADDER)
        said = (
            ladder.message
            if ladder is not None and ladder.status != "True"
            else incident_closing_waits_for_rung(status)
        )
        message = " ".join(filter(None, (status.verdict.message, said, words)))
        return status if message == status.message else msgspec.structs.replace(status, message=message)
    outcomes = {p.status.outcome for p in parts}
    outcome = next((o for o in _ENDS if o in outcomes), IncidentOutcome.FALSE_ALARM)
    return closed_status(status, outcome, f"All {len(status.parts)} parts of {domain} are closed.", now)
