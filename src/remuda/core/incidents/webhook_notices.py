"""Notices: what is told to webhooks about an incident or a policy's breaker, and what was told already.

A notice follows from the object's status alone and has an id; which ids a webhook has taken is kept in an annotation of the same
object, so a manager that starts anew goes on where the last one stopped: nothing is lost, and at most what was under way is said
twice. Notices older than `MAX_AGE_S` are not sent any more: a webhook that is added later does not get the past poured over it.

The annotation names webhooks by a hash: their addresses are secrets.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from datetime import datetime

import msgspec

from remuda.api.codec import to_wire
from remuda.api.conditions import find_condition
from remuda.api.incidents import Incident, IncidentOutcome, RemedyOutcome
from remuda.api.meta import JsonObject, KObject, to_seconds
from remuda.api.remedies import RemedyPolicy, Webhook
from remuda.core.incidents.names import incident_subject_name
from remuda.core.remedies.remedy_keys import is_workload_remedy_key
from remuda.core.remedies.rungs import LADDER, TOO_EARLY, are_remedies_exhausted

ANNOTATION = "remuda.dev/notified"
MAX_AGE_S = 3600.0
NAMED = 10

OPENED, REMEDY, WAITING, CLOSED, BREAKER = "Opened", "Remedy", "AwaitingApproval", "Closed", "Breaker"


class WebhookNotice(msgspec.Struct, frozen=True):
    id: str  # of all that is told about one object
    event: str
    at: datetime | None
    text: str


class DueNotice(msgspec.Struct, frozen=True):
    url: str
    notice: WebhookNotice


def incident_notices(incident: Incident) -> list[WebhookNotice]:
    """What there is to say, oldest first."""
    status, what = incident.status, incident_subject_name(incident.spec.subject)
    if status.opened_at is None or status.outcome is IncidentOutcome.MERGED:
        return []
    pods = [a.pod for a in status.affected]
    hit = f" Hit: {', '.join(pods[:3])}{f' and {len(pods) - 3} more' if len(pods) > 3 else ''}." if pods else ""
    found = [
        WebhookNotice(OPENED, OPENED, status.opened_at, f"{what}: {status.verdict.reason}.{hit} ({incident.name})")
    ]
    for record in status.remedies:
        if record.outcome is RemedyOutcome.WAITING:
            ask = f"{record.key} for {record.target or what} waits for approval: {record.message or record.reason}"
            found.append(
                WebhookNotice(f"{WAITING}/{record.key}", WAITING, record.started_at, f"{ask} ({incident.name})")
            )
        elif record.outcome is not RemedyOutcome.SKIPPED and record.reason != TOO_EARLY:
            about = "" if is_workload_remedy_key(record.key) or not record.message else f" {record.message}"
            text = f"{what}: {record.key} ({record.action}) {record.outcome.value}.{about} ({incident.name})"
            at = record.ended_at or record.started_at
            found.append(WebhookNotice(f"{REMEDY}/{record.key}/{record.outcome.value}", REMEDY, at, text))
    ladder = find_condition(status.conditions, LADDER)
    if ladder is not None and are_remedies_exhausted(incident):
        at = ladder.last_transition_time
        id = f"{REMEDY}/ended/{int(to_seconds(at)) if at is not None else 0}"
        found.append(WebhookNotice(id, REMEDY, at, f"{what}: {ladder.message} ({incident.name})"))
    if status.closed_at is not None:
        text = (
            f"{what}: {status.outcome}. {status.message} {status.lost_gpu_hours:.2f} GPU-hours lost. ({incident.name})"
        )
        found.append(WebhookNotice(CLOSED, CLOSED, status.closed_at, text))
    return found


def breaker_incident_notices(policy: RemedyPolicy) -> list[WebhookNotice]:
    """That it opened, or that it has closed again, whichever is the newest."""
    breaker = policy.status.breaker
    if breaker.since is None:
        return []
    state, at = ("open", breaker.since) if breaker.open else ("closed", breaker.closes_at or breaker.since)
    words = breaker.message if breaker.open else "Remedies go on."
    text = f"Breaker of policy {policy.name} is {state}. {words}".strip()
    return [WebhookNotice(f"{BREAKER}/{state}/{int(to_seconds(breaker.since))}", BREAKER, at, text)]


def due_notices(
    obj: KObject, notices: Sequence[WebhookNotice], webhooks: Sequence[Webhook], now: float
) -> tuple[DueNotice, ...]:
    """Those that a webhook wants, has not taken, and that are not too old."""
    told = taken_incident_notices(obj)
    return tuple(
        DueNotice(webhook.url, notice)
        for webhook in webhooks
        for notice in notices
        if (not webhook.on or notice.event in webhook.on)
        and notice.id not in told.get(webhook_id(webhook.url), ())
        and (notice.at is None or now - to_seconds(notice.at) <= MAX_AGE_S)
    )


def taken_incident_notices(obj: KObject) -> Mapping[str, list[str]]:
    """What each webhook has taken; an annotation that somebody spoilt counts as none."""
    try:
        return msgspec.json.decode(obj.annotations.get(ANNOTATION, "{}"), type=dict[str, list[str]])
    except msgspec.DecodeError:
        return {}


def taken_incident_notices_patch(obj: KObject, url: str, ids: Sequence[str]) -> JsonObject:
    """The patch that remembers it."""
    told = {name: list(known) for name, known in taken_incident_notices(obj).items()}
    known = told.setdefault(webhook_id(url), [])
    known += [id for id in ids if id not in known]
    return {"metadata": {"annotations": {ANNOTATION: msgspec.json.encode(told).decode()}}}


def webhook_id(url: str) -> str:
    return hashlib.blake2b(url.encode(), digest_size=4).hexdigest()


def webhook_body(about: Sequence[tuple[KObject, WebhookNotice]]) -> JsonObject:
    """What is posted: a sentence that chat tools show, and the facts for programs. Several notices become one message."""
    texts = [notice.text for _, notice in about]
    if len(texts) == 1:
        text = texts[0]
    else:
        more = f"... and {len(texts) - NAMED} more before\n" if len(texts) > NAMED else ""
        text = f"{len(texts)} notices:\n{more}" + "\n".join(texts[-NAMED:])  # the newest say where things stand
    entries = [{"event": notice.event, **_webhook_notice_facts(obj)} for obj, notice in about]
    body: JsonObject = {"text": text, **entries[0]}
    if len(entries) > 1:
        body["notices"] = entries
    return body


def _webhook_notice_facts(obj: KObject) -> JsonObject:
    if isinstance(obj, Incident):
        status: JsonObject = to_wire(obj.status)
        for name in ("evidence", "conditions"):  # long; `remuda incident NAME -o json` has them
            status.pop(name, None)
        status["affected"] = status.get("affected", [])[:NAMED]
        return {"incident": {"name": obj.name, "subject": to_wire(obj.spec.subject), **status}}
    if isinstance(obj, RemedyPolicy):
        return {"policy": {"name": obj.name, "breaker": to_wire(obj.status.breaker)}}
    return {}
