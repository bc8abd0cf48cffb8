"""When an incident of a device or node ends, how, what it waits for until then, and how long it is kept afterwards.

An incident is closed only on something verified: the subject was well for long enough (with a ladder: the probe passed and the
soak is over; without one: `settle` seconds), or is another one now, or an operator said so. *WorkedAround* is for what left the
cluster; a subject that somebody keeps out of use by order stays open, because its cure is still owed. So does one whose ladder
has ended, with the outcome *NotCured*, until one of these comes true: closed, nobody would find a device that was swapped, and
nobody could ask for another probe.

An open incident always says in its message what it waits for.

Closed ones are kept for so many days, and not more than so many of them. Open ones always stay, and so does what still keeps a
device out of use: without its incident nobody could give it back. A name is recognised only while its object is there, so nothing
that was closed a moment ago is removed, whatever the count.
"""

from __future__ import annotations

from collections.abc import Container, Iterable
from datetime import datetime

import msgspec

from remuda.api.conditions import find_condition
from remuda.api.incidents import Incident, IncidentOutcome, IncidentPhase, IncidentStatus, RemedyOutcome, RemedyRecord
from remuda.api.meta import to_seconds, to_time
from remuda.core.incidents.names import incident_subject_name
from remuda.core.remedies.remedy_keys import is_workload_remedy_key

# Remedies that were really taken, on whichever ladder.
_DONE = (RemedyOutcome.RUNNING, RemedyOutcome.SUCCEEDED, RemedyOutcome.FAILED, RemedyOutcome.TIMED_OUT)


class SubjectHealth(msgspec.Struct, frozen=True):
    """How the subject is now. `well_since`: None while it is not well, or not known to be."""

    well_since: float | None = None
    node_uid: str = ""  # "" = the node is gone
    device_uuid: str = ""
    out_by: str = ""  # who keeps it out of use by order, when it is not a remedy of this incident
    waits: str = ""  # what an open incident waits for, when nothing else is to be said


def closed_status(status: IncidentStatus, outcome: IncidentOutcome, message: str, now: float) -> IncidentStatus:
    return msgspec.structs.replace(
        status, phase=IncidentPhase.CLOSED, outcome=outcome, message=message, closed_at=to_time(now), soak_until=None
    )


def conclude_incident(
    incident: Incident, status: IncidentStatus, health: SubjectHealth, settle_s: float, now: float
) -> IncidentStatus:
    """The status closed, if it is over, else with a message that says what it waits for."""
    what = incident_subject_name(incident.spec.subject)
    if incident.spec.dismiss:
        return closed_status(status, IncidentOutcome.DISMISSED, f"Dismissed: {incident.spec.dismiss}", now)
    if not health.node_uid:
        text = f"{incident.spec.subject.node} has left the cluster; {what} is out of use with it."
        return closed_status(status, IncidentOutcome.WORKED_AROUND, text, now)
    if status.node_uid and health.node_uid != status.node_uid:
        return closed_status(
            status, IncidentOutcome.REPLACED, f"{incident.spec.subject.node} was replaced by another node.", now
        )
    if status.device_uuid and health.device_uuid and health.device_uuid != status.device_uuid:
        text = f"{what} was replaced: {health.device_uuid} is in place of {status.device_uuid}."
        return closed_status(status, IncidentOutcome.REPLACED, text, now)
    if incident_ends_at(status, health, settle_s) is not None and now >= (
        incident_ends_at(status, health, settle_s) or 0.0
    ):
        if incident_was_acted_on(status):
            return closed_status(
                status, IncidentOutcome.CURED, f"{what} is healthy again{_incident_cure_words(status)}.", now
            )
        text = f"{what} recovered before anything was done."
        return closed_status(status, IncidentOutcome.FALSE_ALARM, text, now)
    message = incident_closing_waits_for(incident, status, health, settle_s)
    return status if message == status.message else msgspec.structs.replace(status, message=message)


def incident_ends_at(status: IncidentStatus, health: SubjectHealth, settle_s: float) -> float | None:
    """When it will be over if nothing else happens; None while that cannot be said."""
    if health.well_since is None or _incident_running_rung(status) is not None:
        return None
    if status.phase is IncidentPhase.VERIFYING and status.soak_until is not None:
        return max(health.well_since, to_seconds(status.soak_until))
    return health.well_since + settle_s


def incident_was_acted_on(status: IncidentStatus) -> bool:
    return any(r.outcome in _DONE for r in status.remedies) or any(a.ended == "Failed" for a in status.affected)


def incident_closing_waits_for(
    incident: Incident, status: IncidentStatus, health: SubjectHealth, settle_s: float
) -> str:
    """What happened and what is to come, in one or two sentences."""
    verdict, what = status.verdict, incident_subject_name(incident.spec.subject)
    state = verdict.state.value if incident.spec.subject.device else "in trouble"
    head = f"{what} is {state} ({verdict.reason})." if verdict.reason else f"{what} is {state}."
    if (running := _incident_running_rung(status)) is not None:
        return f"{head} {running.key} is running{_incident_deadline_words(running.deadline)}."
    if status.phase is IncidentPhase.VERIFYING and status.soak_until is not None:
        return f"{what} passed its probe and is watched until {status.soak_until:%H:%M:%S}."
    if health.well_since is not None:
        end = to_time(health.well_since + settle_s)
        return f"{what} is healthy again. This closes if it stays so until {end:%H:%M:%S}."
    ladder = find_condition(status.conditions, "Ladder")
    if ladder is not None and ladder.status == "False":
        ask = ", to ask for another probe," if incident.spec.subject.device else ""
        return f"{head} {ladder.message} Waits for an operator to replace it{ask} or to dismiss this."
    if ladder is not None and ladder.status == "Unknown":
        return f"{head} {ladder.message} Waits for it to be healthy again."
    if words := incident_closing_waits_for_rung(status):
        return f"{head} {words}"
    if health.out_by:
        return f"{head} Waits for {health.out_by} to lift the quarantine."
    return f"{head} {health.waits or 'Waits for a remedy, or for it to be healthy again.'}"


def incident_closing_waits_for_rung(status: IncidentStatus) -> str:
    """What the ladder's next rung waits for; "" when it waits for nothing."""
    last = next((r for r in reversed(status.remedies) if not is_workload_remedy_key(r.key)), None)
    if last is None:
        return ""
    if last.outcome is RemedyOutcome.WAITING:
        return f"Waits for an operator to approve {last.key}."
    if last.outcome is RemedyOutcome.HELD_BACK:
        return f"{last.key} is held back: {last.message or last.reason}"
    if last.outcome is RemedyOutcome.OBSERVED:
        return f"The policy only observes: {last.key} would be taken. Waits for an operator."
    return ""


def _incident_running_rung(status: IncidentStatus) -> RemedyRecord | None:
    """The device ladder's remedy that runs now."""
    running = (r for r in status.remedies if r.outcome is RemedyOutcome.RUNNING and not is_workload_remedy_key(r.key))
    return next(running, None)


def _incident_cure_words(status: IncidentStatus) -> str:
    cured = [r for r in status.remedies if r.outcome is RemedyOutcome.SUCCEEDED and not is_workload_remedy_key(r.key)]
    return f" after {cured[-1].key}" if cured else ""


def _incident_deadline_words(deadline: datetime | None) -> str:
    return f" until {deadline:%H:%M:%S} at the latest" if deadline is not None else ""


# -- after the end ------------------------------------------------------------------------------------------------------


class Retention(msgspec.Struct, frozen=True):
    days: float = 30.0
    count: int = 10_000
    at_least_s: float = 7200.0


def outdated_incidents(
    incidents: Iterable[Incident], now: float, retention: Retention, needed: Container[str] = ()
) -> list[Incident]:
    """Those to remove, oldest first. `needed`: names that orders carry."""
    closed = (i for i in incidents if not i.is_open and i.name not in needed)
    over = [(to_seconds(i.status.closed_at), i) for i in closed if i.status.closed_at is not None]
    over.sort(key=lambda pair: (pair[0], pair[1].name))
    too_many = max(0, len(over) - retention.count)
    return [
        incident
        for place, (at, incident) in enumerate(over)
        if now - at > retention.at_least_s and (place < too_many or now - at > retention.days * 86_400)
    ]
