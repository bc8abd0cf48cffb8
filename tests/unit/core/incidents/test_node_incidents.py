"""Node incidents: held down first, told apart from failed devices, over when the node is well."""

from __future__ import annotations

import pytest

from remuda.api.devices import DeviceState, Notice
from remuda.api.incidents import IncidentOutcome, SubjectKind
from tests.builders.incidents import Book, a_device_pod, a_sight, a_verdict, at

WELL = a_verdict(state=DeviceState.HEALTHY)


def lost_plugin(since: float, held_until: float) -> Notice:
    words = "The plugin for nvidia.com/gpu is lost. None of its 8 devices failed; 2 held by a, b."
    return Notice("PluginLost", words, "nvidia.com/gpu", at(since), at(held_until))


def test_a_restart_within_the_hold_down_opens_nothing() -> None:
    """Rows 3 and 5: counts fall to nothing and come back."""
    book = Book()
    plan = book.see_node(a_sight(WELL, notices=[lost_plugin(0, 60)]), 10)
    assert plan.look_again_s == pytest.approx(50, abs=0.1)
    book.see_node(a_sight(WELL), 40)
    book.see_node(a_sight(WELL), 100)
    assert not book.all


def test_a_lost_plugin_is_a_nodes_incident_and_no_devices() -> None:
    """Row 2."""
    book = Book()
    pods = [a_device_pod("a"), a_device_pod("b", ("gpu-1",))]
    healthy = [a_verdict(f"gpu-{n}", DeviceState.HEALTHY) for n in range(2)]
    book.see_node(a_sight(*healthy, pods=pods, notices=[lost_plugin(0, 60)]), 60)
    incident = book.only()
    assert incident.spec.subject.kind is SubjectKind.NODE
    assert (incident.status.verdict.reason, incident.status.verdict.cause) == ("PluginLost", "infra")
    assert "None of its 8 devices failed" in incident.status.evidence[0].message
    assert [a.pod for a in incident.status.affected] == ["default/a", "default/b"]
    book.see_node(a_sight(*healthy, pods=pods), 70)
    book.see_node(a_sight(*healthy, pods=pods), 131)
    assert book.only().status.outcome is IncidentOutcome.FALSE_ALARM, "nobody did anything, and nobody was hurt"


def test_a_lost_node_is_an_incident_once_it_stays_lost() -> None:
    book = Book()
    pod = a_device_pod("a")
    book.see_node(a_sight(WELL, pods=[pod], dead_since=0), 5)
    assert not book.all
    book.see_node(a_sight(WELL, pods=[pod], dead_since=0), 10)
    assert book.only().status.verdict.reason == "NodeLost"
    assert book.only().status.devices == 1


def test_a_manager_that_just_started_waits_before_it_believes_old_leases() -> None:
    """Everything was down for an hour: every lease has run out, and every node is about to renew it."""
    book = Book()
    book.see_node(a_sight(WELL, dead_since=0), 3600, watching_since=3599)
    assert not book.all
    book.see_node(a_sight(WELL), 3605, watching_since=3599)
    book.see_node(a_sight(WELL), 4000, watching_since=3599)
    assert not book.all


def test_a_node_that_comes_and_goes_is_not_well_because_it_was_once() -> None:
    book = Book()
    book.see_node(a_sight(WELL, dead_since=0), 10)
    book.see_node(a_sight(WELL), 20)
    book.see_node(a_sight(WELL, dead_since=70), 75)
    book.see_node(a_sight(WELL), 90)
    assert book.only().is_open
    book.see_node(a_sight(WELL), 149)
    assert book.only().is_open
    book.see_node(a_sight(WELL), 151)
    assert not book.open


def test_news_that_come_late_are_news_all_the_same() -> None:
    """Its agent was silent already when the node was taken for well; it is well only once that is over, too."""
    book = Book()
    book.see_node(a_sight(WELL, dead_since=0), 10)
    book.see_node(a_sight(WELL), 20)
    book.see_node(a_sight(WELL, notices=[Notice("AgentSilent", "The agent is silent.", since=at(15))]), 60)
    book.see_node(a_sight(WELL), 70)
    book.see_node(a_sight(WELL), 100)
    assert book.only().is_open
    book.see_node(a_sight(WELL), 131)
    assert not book.open


def test_a_node_object_made_anew_has_replaced_it_and_one_deleted_is_gone() -> None:
    for uid, outcome in (("other", IncidentOutcome.REPLACED), ("", IncidentOutcome.WORKED_AROUND)):
        book = Book()
        book.see_node(a_sight(WELL, dead_since=0), 10)
        book.see_node(a_sight(WELL, dead_since=0, node_uid=uid), 20)
        assert book.only().status.outcome is outcome


def test_troubles_on_top_are_one_incident_named_by_the_gravest() -> None:
    book = Book()
    silent = Notice("AgentSilent", "The agent is silent.", since=at(0))
    book.see_node(a_sight(WELL, notices=[silent]), 10)
    book.see_node(a_sight(WELL, notices=[silent], dead_since=20), 21)
    assert book.only().status.verdict.reason == "NodeLost"
    assert [e.code for e in book.only().status.evidence] == ["AgentSilent", "NodeLost"]


def test_what_only_lowers_knowledge_is_no_failure() -> None:
    book = Book()
    book.see_node(a_sight(WELL, notices=[Notice("KmsgGap", "17 lines lost.", since=at(0))]), 1000)
    assert not book.all
