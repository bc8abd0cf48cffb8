"""Around incidents: domains, retention, totals, notices."""

from __future__ import annotations

import msgspec
import pytest

from remuda.api.devices import DeviceState
from remuda.api.incidents import Incident, IncidentOutcome, IncidentPhase, IncidentStatus, RemedyOutcome, RemedyRecord
from remuda.api.meta import ObjectMeta
from remuda.api.remedies import BreakerStatus, RemedyPolicy, RemedyPolicyStatus, Webhook
from remuda.core.health.correlation import DomainSuspect
from remuda.core.incidents.closing import Retention, outdated_incidents
from remuda.core.incidents.summary import summarise_incidents
from remuda.core.incidents.webhook_notices import (
    ANNOTATION,
    breaker_incident_notices,
    due_notices,
    incident_notices,
    taken_incident_notices,
    taken_incident_notices_patch,
    webhook_body,
)
from tests.builders.incidents import T0, Book, a_gang, a_recovery, a_sight, a_verdict, at

RACK = DomainSuspect(
    domain="topology.remuda.dev/rack=rack-1",
    reason="RackSuspect",
    message="3 of 4 nodes of rack rack-1 failed within 2 s.",
    since=T0,
    until=T0 + 2,
    members=("node-1/gpu-0", "node-2/gpu-0", "node-3/gpu-0"),
    nodes=("node-1", "node-2", "node-3"),
)


def rack_fails(book: Book, now: float = 2.0) -> None:
    for n in range(1, 4):
        book.see_node(a_sight(a_verdict(since=n - 1), name=f"node-{n}"), now)


def test_devices_that_fail_together_are_parts_of_their_domains_incident() -> None:
    book = Book()
    rack_fails(book)
    book.see_domains([RACK], 3)
    domain = next(i for i in book.all if i.spec.subject.domain)
    parts = [i for i in book.all if not i.spec.subject.domain]
    assert sorted(domain.status.parts) == sorted(i.name for i in parts)
    assert {i.status.part_of for i in parts} == {domain.name}
    assert domain.status.verdict.reason == "RackSuspect"
    assert "Waits for 3 of its 3 parts" in domain.status.message


def test_a_domain_is_over_with_its_parts_and_not_called_again_for_them() -> None:
    book = Book()
    rack_fails(book)
    book.see_domains([RACK], 3)
    for n in range(1, 4):
        book.see_node(a_sight(a_verdict(state=DeviceState.HEALTHY, since=50), name=f"node-{n}"), 200)
    book.see_domains([RACK], 201)
    assert not book.open
    # Older failures fall out of the window, so the suspicion begins later: that is no other event.
    book.see_domains([msgspec.structs.replace(RACK, since=T0 + 1)], 300)
    assert len([i for i in book.all if i.spec.subject.domain]) == 1


@pytest.mark.parametrize("outcome", [RemedyOutcome.WAITING, RemedyOutcome.OBSERVED, RemedyOutcome.HELD_BACK])
def test_a_domain_says_what_its_own_ladder_waits_for(outcome: RemedyOutcome) -> None:
    book = Book()
    rack_fails(book)
    book.see_domains([RACK], 3)
    domain = next(i for i in book.all if i.spec.subject.domain)
    status = msgspec.structs.replace(domain.status, remedies=[RemedyRecord("ticket-1", "ticket", outcome=outcome)])
    book.incidents[domain.name] = msgspec.structs.replace(domain, status=status)
    book.see_domains([RACK], 4)
    message = book.incidents[domain.name].status.message
    assert "ticket-1" in message
    assert "Waits for 3 of its 3 parts" in message


def test_a_part_that_comes_later_joins() -> None:
    book = Book()
    rack_fails(book)
    book.see_domains([RACK], 3)
    book.see_node(a_sight(a_verdict(since=10), name="node-4"), 10)
    wider = msgspec.structs.replace(RACK, members=(*RACK.members, "node-4/gpu-0"), until=T0 + 10)
    book.see_domains([wider], 11)
    domain = next(i for i in book.all if i.spec.subject.domain)
    assert len(domain.status.parts) == 4


# -- retention --------------------------------------------------------------------------------------------------------


def closed(name: str, days_ago: float) -> Incident:
    found = a_closed(name)
    status = msgspec.structs.replace(found.status, closed_at=at(-86_400 * days_ago))
    return msgspec.structs.replace(found, status=status)


def a_closed(name: str = "i", **status: object) -> Incident:
    book = Book()
    book.see_node(a_sight(a_verdict()), 0)
    base = msgspec.structs.replace(
        book.only().status, phase=IncidentPhase.CLOSED, outcome=IncidentOutcome.CURED, closed_at=at(60), **status
    )
    return msgspec.structs.replace(book.only(), metadata=ObjectMeta(name=name), status=base)


def test_closed_incidents_go_when_they_are_old_or_too_many() -> None:
    old = [closed(f"i-{n}", n) for n in (40, 29, 10, 5)]
    assert [i.name for i in outdated_incidents(old, T0, Retention())] == ["i-40"]
    assert [i.name for i in outdated_incidents(old, T0, Retention(count=2))] == ["i-40", "i-29"]


def test_open_and_fresh_ones_stay_whatever_the_count() -> None:
    book = Book()
    book.see_node(a_sight(a_verdict()), 0)
    fresh = closed("fresh", 0.01)
    assert outdated_incidents([book.only(), fresh], T0 + 90 * 86_400, Retention(count=0)) == [fresh]
    assert outdated_incidents([book.only(), fresh], T0, Retention(count=0)) == []


def test_what_keeps_a_device_out_of_use_is_kept_as_long() -> None:
    old = closed("old", 400)
    assert outdated_incidents([old], T0, Retention(), needed={"old"}) == []
    assert outdated_incidents([old], T0, Retention(), needed={"another"}) == [old]


# -- totals -----------------------------------------------------------------------------------------------------------


def test_every_gpu_hour_and_failure_is_counted_once() -> None:
    book = Book()
    crash = a_recovery(first_step=2, lost_gpu_hours=0.1)
    book.see_gang(a_gang(crash, step=30), 3)
    rack_fails(book, 6)
    book.see_domains([RACK], 7)
    second = a_recovery(3, 6, first_step=9, lost_gpu_hours=0.2)
    book.see_gang(a_gang(crash, second, step=40), 10)
    rows = {r.cause: r for r in summarise_incidents(book.all, T0 + 3600)}
    assert rows["total"].count == 3, "the crash was merged and the rack is its parts"
    assert rows["total"].lost_gpu_hours == pytest.approx(0.3)
    assert rows["device"].open == 3
    assert rows["device"].device_hours_out == pytest.approx(3.0, abs=0.01)
    assert rows["device"].between_seconds == pytest.approx(1.0)


def test_times_to_cure_are_of_those_that_were_cured() -> None:
    rows = summarise_incidents([a_closed("a"), closed("b", -1)], T0 + 1e6)
    assert rows[-1].cured_seconds == pytest.approx((60 + 86_400) / 2)
    assert summarise_incidents([], T0)[-1].cured_seconds is None


# -- notices ----------------------------------------------------------------------------------------------------------


def an_incident(**status: object) -> Incident:
    book = Book()
    book.see_node(a_sight(a_verdict()), 0)
    return msgspec.structs.replace(book.only(), status=msgspec.structs.replace(book.only().status, **status))


def test_each_transition_is_a_notice_of_its_own() -> None:
    records = [
        RemedyRecord("attempt-2", "PromoteSpare", outcome=RemedyOutcome.SUCCEEDED, ended_at=at(1)),
        RemedyRecord("reset-1", "reset", outcome=RemedyOutcome.WAITING),
    ]
    found = incident_notices(an_incident(remedies=records, closed_at=at(9), outcome=IncidentOutcome.CURED))
    assert [n.id for n in found] == ["Opened", "Remedy/attempt-2/Succeeded", "AwaitingApproval/reset-1", "Closed"]
    assert incident_notices(an_incident(outcome=IncidentOutcome.MERGED)) == []
    assert incident_notices(msgspec.structs.replace(an_incident(), status=IncidentStatus())) == []


def test_a_webhook_gets_what_it_asked_for_once_and_nothing_old() -> None:
    incident = an_incident(closed_at=at(9), outcome=IncidentOutcome.CURED)
    hooks = [Webhook("http://a"), Webhook("http://b", ["Closed"])]
    due = due_notices(incident, incident_notices(incident), hooks, T0 + 10)
    assert [(d.url, d.notice.id) for d in due] == [
        ("http://a", "Opened"),
        ("http://a", "Closed"),
        ("http://b", "Closed"),
    ]
    patch = taken_incident_notices_patch(incident, "http://a", ["Opened"])["metadata"]["annotations"]
    assert "http" not in patch[ANNOTATION], "the address is a secret"
    told = msgspec.structs.replace(incident, metadata=ObjectMeta(name=incident.name, annotations=patch))
    assert len(due_notices(told, incident_notices(told), hooks, T0 + 10)) == 2
    assert due_notices(told, incident_notices(told), hooks, T0 + 7200) == ()
    spoilt = msgspec.structs.replace(incident, metadata=ObjectMeta(annotations={ANNOTATION: "no json"}))
    assert taken_incident_notices(spoilt) == {}


def test_what_is_posted_is_a_sentence_and_the_facts() -> None:
    incident = an_incident()
    body = webhook_body([(incident, incident_notices(incident)[0])])
    assert body["text"].startswith("gpu-0 on node-1: Xid79.")
    assert (body["event"], body["incident"]["name"]) == ("Opened", incident.name)
    many = webhook_body([(incident, incident_notices(incident)[0])] * 12)
    assert many["text"].startswith("12 notices:")
    assert "and 2 more" in many["text"]
    notices = [
        (incident, msgspec.structs.replace(incident_notices(incident)[0], text=f"notice {n}.")) for n in range(12)
    ]
    assert webhook_body(notices)["text"].endswith("notice 11."), "the newest say where things stand"
    assert len(many["notices"]) == 12


def test_a_breaker_is_told_when_it_opens_and_when_it_closes() -> None:
    policy = RemedyPolicy(metadata=ObjectMeta(name="p"))
    assert breaker_incident_notices(policy) == []
    opened = RemedyPolicyStatus(breaker=BreakerStatus(open=True, since=at(0), message="5 of 8 nodes failed."))
    found = breaker_incident_notices(msgspec.structs.replace(policy, status=opened))
    assert [(n.event, n.text) for n in found] == [("Breaker", "Breaker of policy p is open. 5 of 8 nodes failed.")]
    again = RemedyPolicyStatus(breaker=BreakerStatus(since=at(0), closes_at=at(600)))
    [over] = breaker_incident_notices(msgspec.structs.replace(policy, status=again))
    assert (over.text, over.at) == ("Breaker of policy p is closed. Remedies go on.", at(600))
    assert over.id != found[0].id
