"""The incident of a zone whose nodes fell silent together: one for all of them, while it lasts.

It says who is held, until when, and how an operator ends it. It closes when the nodes answer again, or when what is left of
them is no longer most: those are lost then, each with an incident of its own.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from remuda.api.incidents import Evidence, Incident, IncidentOutcome, IncidentStatus, IncidentVerdict
from remuda.api.meta import to_time
from remuda.api.training import Cause
from remuda.core.health.mass_silence import MASS_SILENCE, WAIT, MassSilence, MassSilenceRule
from remuda.core.incidents.closing import closed_status
from remuda.core.incidents.evidence import with_evidence
from remuda.core.incidents.names import IncidentPlan, blank_incident, domain_subject, incident_name, incidents_of

PREFIX = "silent-"  # of the subjects' domains
_NAMED = 4


def is_mass_silence_incident(incident: Incident) -> bool:
    return incident.spec.subject.domain.startswith(PREFIX)


def plan_mass_silence_incidents(
    standing: Iterable[MassSilence], domains: Sequence[Incident], rule: MassSilenceRule, now: float
) -> IncidentPlan:
    """`domains`: incidents of domains, closed ones too."""
    mine = [i for i in domains if is_mass_silence_incident(i)]
    opened: list[Incident] = []
    amended: list[tuple[Incident, IncidentStatus]] = []
    seen: set[str] = set()
    for silence in standing:
        subject, since = domain_subject(f"{PREFIX}{silence.zone or 'cluster'}"), to_time(silence.since)
        past = incidents_of(mine, subject)
        incident = next((i for i in past if i.is_open), None)
        if incident is None:
            if any(i.name == incident_name(subject, since) for i in past):
                continue  # it was closed by hand
            incident = blank_incident(subject, since)
            opened.append(incident)
        seen.add(incident.name)
        status = _silent_status(incident.status, silence, rule, now)
        if incident.spec.dismiss:
            status = closed_status(status, IncidentOutcome.DISMISSED, f"Dismissed: {incident.spec.dismiss}", now)
        if status != incident.status:
            amended.append((incident, status))
    for incident in mine:
        if incident.is_open and incident.name not in seen:
            words = "It is over: most of the nodes answer again, or were given up."
            amended.append((incident, closed_status(incident.status, IncidentOutcome.FALSE_ALARM, words, now)))
    return IncidentPlan(tuple(opened), tuple(amended))


def _silent_status(status: IncidentStatus, silence: MassSilence, rule: MassSilenceRule, now: float) -> IncidentStatus:
    more = f" and {len(silence.nodes) - _NAMED} more" if len(silence.nodes) > _NAMED else ""
    who = f"{', '.join(silence.nodes[:_NAMED])}{more}"
    words = (
        f"{len(silence.nodes)} of {silence.of} nodes of {silence.words} fell silent at once: {who}. Nobody is replaced"
    )
    until = f"until {to_time(silence.since + rule.hold_s):%H:%M:%S} UTC" if rule.then != WAIT else "until they answer"
    message = f"{words} {until}. If they are gone for good: remuda give-up NODE..."
    if status.opened_at is None:
        piece = Evidence("node", words + ".", to_time(silence.since), "lease", MASS_SILENCE)
        status = msgspec.structs.replace(
            with_evidence(status, [piece]), opened_at=to_time(now), first_signal_at=to_time(silence.since)
        )
    verdict = IncidentVerdict(reason=MASS_SILENCE, message=words + ".", source="lease", cause=Cause.INFRA.value)
    return msgspec.structs.replace(status, verdict=verdict, message=message)
