"""Incidents by name: who an incident is about, how it is called, and which one is open.

One failure has one incident. What keeps it so is its *name*, made of the subject and of when the failure began, never of when
somebody looked: a look that is repeated, a controller that starts anew and signals that are read again after a restart all
arrive at the same name, and a name that was closed is never opened again.

While an incident of a subject is open, whatever else is heard against the subject belongs to it. Closed ones are kept for a
while (`closing.Retention`), because a name can only be recognised while its object is there.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable
from datetime import datetime

import msgspec

from remuda.api.incidents import Incident, IncidentPhase, IncidentSpec, IncidentStatus, Subject, SubjectKind
from remuda.api.meta import ObjectMeta, to_seconds

_PREFIX = {SubjectKind.DEVICE: "dev", SubjectKind.NODE: "node", SubjectKind.GANG: "gang", SubjectKind.DOMAIN: "domain"}
_DIGITS = "0123456789abcdefghijklmnopqrstuvwxyz"
_LONGEST = 200


class IncidentTimes(msgspec.Struct, frozen=True):
    """Seconds. `settle`: how long a device or node must be well before it is believed where no ladder says so; `degraded`: how
    long a device must be slow before it is an incident; `hold_down`: the same for a node without its lease or its agent;
    `look_back`: how long before its device was reported bad a crash may lie and still be the device's doing."""

    settle: float = 60.0
    degraded: float = 5.0
    hold_down: float = 10.0
    look_back: float = 10.0


Amendment = tuple[Incident, IncidentStatus]  # as it is, and as it should be


class IncidentPlan(msgspec.Struct, frozen=True):
    """`opened` are to be made; their status, which stands in `amended`, is written once they are there.

    The order of writing is `amended_before_opening`, `opened`, `amended_after_opening`. A subject has one open incident: where
    one is closed and the next one opened, what is there already is written first, in the order of `amended`. Else it is written
    last: what takes over is there before anything is closed in its favour."""

    opened: tuple[Incident, ...] = ()
    amended: tuple[Amendment, ...] = ()
    removed: tuple[Incident, ...] = ()
    look_again_s: float | None = None

    @property
    def amended_before_opening(self) -> tuple[Amendment, ...]:
        opened = {incident.spec.subject for incident in self.opened}
        there = tuple(amendment for amendment in self.amended if amendment[0] not in self.opened)
        is_followed = any(i.spec.subject in opened and status.phase is IncidentPhase.CLOSED for i, status in there)
        return there if is_followed else ()

    @property
    def amended_after_opening(self) -> tuple[Amendment, ...]:
        before = self.amended_before_opening
        return tuple(amendment for amendment in self.amended if amendment not in before)


def device_subject(node: str, device: str) -> Subject:
    return Subject(SubjectKind.DEVICE, node=node, device=device)


def node_subject(node: str) -> Subject:
    return Subject(SubjectKind.NODE, node=node)


def gang_subject(namespace: str, gang: str) -> Subject:
    return Subject(SubjectKind.GANG, namespace=namespace, gang=gang)


def domain_subject(domain: str) -> Subject:
    return Subject(SubjectKind.DOMAIN, domain=domain)


def incident_name(subject: Subject, since: datetime) -> str:
    """`dev-<node>-<device>-<unix seconds of since, base 36>` and alike: always a name the API takes."""
    parts = {
        SubjectKind.DEVICE: (subject.node, subject.device),
        SubjectKind.NODE: (subject.node,),
        SubjectKind.GANG: (subject.namespace, subject.gang),
        SubjectKind.DOMAIN: (subject.domain,),
    }[subject.kind]
    said = "-".join((_PREFIX[subject.kind], *parts))
    return f"{_fit_for_incident_name(said)}-{_base36_for_incident_name(int(to_seconds(since)))}"


def blank_incident(subject: Subject, since: datetime) -> Incident:
    """As it is made: its status comes with the next write."""
    labels = {"remuda.dev/subject": subject.kind.value}
    if subject.node and len(subject.node) <= 63:
        labels["remuda.dev/node"] = subject.node
    return Incident(
        metadata=ObjectMeta(name=incident_name(subject, since), labels=labels), spec=IncidentSpec(subject=subject)
    )


def incidents_of(incidents: Iterable[Incident], subject: Subject) -> list[Incident]:
    """All of the subject, oldest first."""
    return sorted((i for i in incidents if i.spec.subject == subject), key=_incident_opened_at)


def incident_subject_name(subject: Subject) -> str:
    """How people call it."""
    match subject.kind:
        case SubjectKind.DEVICE:
            return f"{subject.device} on {subject.node}"
        case SubjectKind.NODE:
            return subject.node
        case SubjectKind.GANG:
            return f"{subject.namespace}/{subject.gang}"
    return subject.domain


def _incident_opened_at(incident: Incident) -> tuple[float, str]:
    opened = incident.status.opened_at or incident.metadata.creation_timestamp
    return (to_seconds(opened) if opened is not None else 0.0), incident.name


def _fit_for_incident_name(text: str) -> str:
    """Two texts never become one: where letters had to be changed, a piece of the text's hash is added."""
    fit = re.sub(r"[^a-z0-9.-]", "-", text.lower())
    fit = re.sub(r"[.-]*\.[.-]*", ".", fit).strip("-.")
    if fit == text and len(fit) <= _LONGEST:
        return fit
    return f"{fit[:_LONGEST].rstrip('-.')}-{hashlib.blake2b(text.encode(), digest_size=3).hexdigest()}"


def _base36_for_incident_name(number: int) -> str:
    digits = ""
    while number > 0:
        number, digit = divmod(number, 36)
        digits = _DIGITS[digit] + digits
    return digits or "0"
