"""What an Incident may say. Mostly Remuda makes them; an operator writes approvals and the dismissal, and may write anything."""

from __future__ import annotations

from remuda.api.errors import Refusal
from remuda.api.incidents import Incident, Subject, SubjectKind

MAX_APPROVALS = 256
MAX_NAME = 253
MAX_WORDS = 4096

# What each kind of subject is found by; a Subject that says anything else would be two.
_NEEDS: dict[SubjectKind, tuple[str, ...]] = {
    SubjectKind.DEVICE: ("node", "device"),
    SubjectKind.NODE: ("node",),
    SubjectKind.GANG: ("namespace", "gang"),
    SubjectKind.DOMAIN: ("domain",),
}
_ALL = ("node", "device", "namespace", "gang", "domain")


def check_incident(incident: Incident) -> None:
    """Raises Refusal."""
    _check_incident_subject(incident.spec.subject)
    approvals = incident.spec.approvals
    if len(approvals) > MAX_APPROVALS:
        raise Refusal(
            "TooManyApprovals",
            f"The incident has {len(approvals)} approvals.",
            f"Keep at most {MAX_APPROVALS}; only those of remedies that wait count.",
            "spec.approvals",
        )
    for index, approval in enumerate(approvals):
        _check_printable_name(approval.remedy, f"spec.approvals[{index}].remedy", "InvalidApproval")
        if approval.time is not None and approval.time.tzinfo is None:
            raise time_zone_validation_refusal(f"spec.approvals[{index}].time")
    if len(incident.spec.dismiss) > MAX_WORDS:
        raise Refusal(
            "DismissTooLong",
            f"The reason for the dismissal has {len(incident.spec.dismiss)} characters.",
            f"Use at most {MAX_WORDS}.",
            "spec.dismiss",
        )


def _check_incident_subject(subject: Subject) -> None:
    needed = _NEEDS[subject.kind]
    for field in _ALL:
        value, where = getattr(subject, field), f"spec.subject.{field}"
        if field in needed:
            _check_printable_name(value, where, "InvalidSubject")
        elif value:
            raise Refusal(
                "InvalidSubject",
                f"A {subject.kind} has no {field}.",
                f"Leave it out; a {subject.kind} is named by {' and '.join(needed)}.",
                where,
            )


def _check_printable_name(text: str, where: str, reason: str) -> None:
    if not text or len(text) > MAX_NAME or not text.isprintable():
        shown = text.encode("unicode_escape").decode("ascii")
        raise Refusal(reason, f"{where} is `{shown:.100}`.", f"Give 1 to {MAX_NAME} printable characters.", where)


def time_zone_validation_refusal(where: str) -> Refusal:
    return Refusal("InvalidTime", f"{where} does not say its time zone.", "Write it like 2026-01-31T12:00:00Z.", where)
