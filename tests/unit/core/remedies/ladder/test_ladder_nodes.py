"""Ladders of what is no device: a lost node gets its time and needs a hook; of a domain somebody is told, and its parts wait."""

from __future__ import annotations

import msgspec
import pytest

from remuda.api.devices import DeviceState, Verdict
from remuda.api.incidents import (
    Approval,
    Evidence,
    Incident,
    IncidentOutcome,
    IncidentPhase,
    IncidentSpec,
    IncidentStatus,
    IncidentVerdict,
)
from remuda.api.meta import ObjectMeta, to_time
from remuda.api.remedies import Action, Hook, Mode, Rung, Soak
from remuda.core.incidents.closing import SubjectHealth, conclude_incident
from remuda.core.incidents.names import domain_subject
from remuda.core.remedies.hook_objects import HookResult
from remuda.core.remedies.policies import OWN_REASONS, SHARED_REASONS
from tests.builders.remedies import DEVICE, NODE, T0, Bench, incident, ladder, remedy_policy

SOAK = Soak(seconds=60.0)
RACK = "topology.remuda.dev/rack=rack-1"
CALL = Hook(object={"apiVersion": "dc.example/v1", "kind": "PowerCycle", "spec": {"node": "{node}"}})


def lost() -> Incident:
    return incident(device="", reason="NodeLost", remedy="", state=DeviceState.UNKNOWN)


def rack(reason: str = "RackSuspect", **status: object) -> Incident:
    verdict = IncidentVerdict(reason=reason, message="4 of 4 nodes of rack rack-1 failed within 2 s.")
    return Incident(
        metadata=ObjectMeta(name="domain-rack-1"),
        spec=IncidentSpec(domain_subject(RACK)),
        status=IncidentStatus(verdict=verdict, opened_at=to_time(T0), **status),  # type: ignore[arg-type]
    )


def say(bench: Bench, key: str, *, granted: bool = True) -> None:
    spec = msgspec.structs.replace(bench.incident.spec, approvals=[Approval(key, "eva", granted)])
    bench.incident = msgspec.structs.replace(bench.incident, spec=spec)


def see(bench: Bench, code: str, at: float) -> None:
    """As the incident controller notes it."""
    piece = Evidence("node", code, to_time(at), code=code, node=NODE)
    status = msgspec.structs.replace(bench.incident.status, evidence=[*bench.incident.status.evidence, piece])
    bench.incident = msgspec.structs.replace(bench.incident, status=status)


def message(bench: Bench) -> str:
    return conclude_incident(bench.incident, bench.incident.status, SubjectHealth(None, "uid"), 60.0, bench.now).message


# --- lost nodes -------------------------------------------------------------------------------------------------------


def test_a_lost_node_without_a_hook_is_waited_for_then_somebody_is_told_and_it_stands_as_not_cured() -> None:
    bench = Bench(lost())
    bench.run(until=1799)
    assert bench.outcomes() == {"reboot-1": "Refused", "replace-1": "Refused", "ticket-1": "HeldBack"}
    assert bench.reason("reboot-1") == bench.reason("replace-1") == "NoHook"
    assert bench.reason("ticket-1") == "TooEarly"
    assert "may come back by itself" in message(bench)
    bench.run(until=1801)
    assert bench.outcomes()["ticket-1"] == "Succeeded"
    assert (bench.phase, bench.incident.status.outcome) == (IncidentPhase.OPEN, IncidentOutcome.NOT_CURED)
    assert "reboot-1 NoHook, replace-1 NoHook, ticket-1 Succeeded" in message(bench)
    assert (bench.begun, bench.nodes[NODE].spec.unschedulable) == ([], False)


def test_a_hook_from_outside_reboots_it_after_its_time_and_the_soak_decides() -> None:
    rungs = ladder("NodeLost", Rung(Action.REBOOT, after_seconds=600.0, hook=CALL))
    bench = Bench(lost(), remedy_policy(soak=SOAK, ladders=[rungs]))
    bench.run(until=599)
    assert bench.reason("reboot-1") == "TooEarly"
    assert not bench.nodes[NODE].spec.unschedulable
    bench.run(until=605)
    assert bench.last is not None
    assert bench.last.call is not None
    assert bench.last.call.bodies[0]["spec"] == {"node": NODE}
    bench.made = HookResult("reboot-1", "Succeeded", "cycled")
    bench.run(until=620)
    assert bench.phase is IncidentPhase.VERIFYING
    assert not bench.nodes[NODE].spec.unschedulable


def test_an_operator_need_not_wait() -> None:
    rungs = ladder("NodeLost", Rung(Action.REBOOT, after_seconds=600.0, hook=CALL))
    bench = Bench(lost(), remedy_policy(ladders=[rungs]))
    say(bench, "reboot-1")
    bench.run(until=5)
    assert bench.outcomes()["reboot-1"] == "Running"


def test_a_command_of_a_lost_nodes_agent_is_no_way_to_reach_it() -> None:
    rungs = ladder("NodeLost", Rung(Action.REBOOT, hook=Hook(command=["/opt/reboot"])))
    bench = Bench(lost(), remedy_policy(ladders=[rungs]))
    bench.run(until=100)
    assert bench.reason("reboot-1") == "NoHook"
    assert not bench.begun


def test_a_node_that_is_back_when_its_time_comes_is_left_alone_until_it_fails_again() -> None:
    rungs = ladder("NodeLost", Rung(Action.REBOOT, after_seconds=600.0, hook=CALL))
    bench = Bench(lost(), remedy_policy(ladders=[rungs]))
    see(bench, "NodeLost", T0)
    bench.run(until=590)
    see(bench, "WellAgain", T0 + 590)
    bench.run(until=640)
    assert bench.reason("reboot-1") == "WellAgain"
    see(bench, "NodeLost", T0 + 645)
    bench.run(until=650)
    assert bench.outcomes()["reboot-1"] == "Running"


def test_what_has_no_ladder_says_why_until_it_has_one() -> None:
    bench = Bench(incident(device="", reason="PluginLost", remedy="", state=DeviceState.UNKNOWN))
    bench.run(until=100)
    assert bench.outcomes() == {}
    assert "Policy default has no ladder for PluginLost" in message(bench)
    bench.policy = remedy_policy(ladders=[ladder("PluginLost", Action.REBOOT)])
    bench.run(until=200)
    assert bench.outcomes()["reboot-1"] == "Succeeded"
    assert "no ladder" not in message(bench)


# --- domains ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("reason", SHARED_REASONS)
def test_of_a_domain_somebody_is_told_once_and_nothing_is_done_to_it(reason: str) -> None:
    bench = Bench(rack(reason))
    bench.run(until=10_000)
    assert bench.outcomes() == {"ticket-1": "Succeeded"}
    said = bench.incident.status.conditions[0]
    assert (said.status, said.reason) == ("False", "LadderEnded")
    assert "none of its nodes is recycled" in said.message
    assert bench.incident.status.outcome is None, "its parts say how it ends"
    assert not bench.begun


def test_devices_of_one_node_climb_their_own_ladders_and_the_incident_says_so() -> None:
    assert "NodeSuspect" in OWN_REASONS
    bench = Bench(rack("NodeSuspect"))
    bench.run(until=100)
    assert bench.outcomes() == {}
    assert "Its parts have ladders of their own." in bench.incident.status.conditions[0].message


def test_a_part_of_a_domain_is_not_recycled_by_itself_but_is_when_the_domain_is_over() -> None:
    bench = Bench(incident(remedy="RebootNode", reason="Xid79"), answers={"probe-1": "Failed"})
    bench.cause = rack()
    bench.run(until=5000)
    assert bench.outcomes() == {"probe-1": "Failed", "reboot-1": "HeldBack"}
    assert bench.reason("reboot-1") == "PartOfDomain"
    assert RACK in message(bench)
    assert "remuda approve inc-n1-gpu-3 reboot-1" in message(bench)
    bench.cause = None
    bench.run(until=5100)
    assert bench.outcomes()["reboot-1"] == "Succeeded"


def test_an_operators_yes_recycles_a_part_all_the_same() -> None:
    bench = Bench(incident(remedy="RebootNode", reason="Xid79"), answers={"probe-1": "Failed"})
    bench.cause = rack()
    bench.run(until=50)
    say(bench, "reboot-1")
    bench.run(until=100)
    assert bench.outcomes()["reboot-1"] == "Succeeded"


def test_one_ticket_for_the_rack_not_one_for_each_of_its_nodes() -> None:
    bench = Bench(lost())
    bench.cause = rack()
    bench.run(until=5000)
    assert bench.reason("ticket-1") == "PartOfDomain"


def test_a_policy_that_asks_asks_for_parts_as_well() -> None:
    bench = Bench(
        incident(remedy="RebootNode", reason="Xid79"),
        remedy_policy(mode=Mode.APPROVE, ladders=[ladder("RebootNode", Action.REBOOT)]),
    )
    bench.cause = rack()
    bench.run(until=50)
    assert bench.outcomes() == {"reboot-1": "AwaitingApproval"}


def test_what_had_no_ladder_gets_one_when_it_turns_out_to_be_something_else() -> None:
    """A node whose plugin was lost first, and then all of it."""
    bench = Bench(incident(device="", reason="PluginLost", remedy="", state=DeviceState.UNKNOWN))
    bench.run(until=10)
    assert "has no ladder for PluginLost" in message(bench)
    verdict = msgspec.structs.replace(bench.incident.status.verdict, reason="NodeLost")
    status = msgspec.structs.replace(bench.incident.status, verdict=verdict)
    bench.incident = msgspec.structs.replace(bench.incident, status=status)
    bench.run(until=20)
    assert bench.outcomes()["ticket-1"] == "HeldBack"  # there is no hook for more
    assert "PluginLost" not in message(bench)


def test_what_waited_on_a_ladder_is_forgotten_when_none_leads_to_it_any_more() -> None:
    """A node that was lost for a moment, and is back with what it had before."""
    bench = Bench(lost())
    bench.run(until=10)
    assert bench.reason("ticket-1") == "TooEarly"
    verdict = msgspec.structs.replace(bench.incident.status.verdict, reason="PluginLost")
    status = msgspec.structs.replace(bench.incident.status, verdict=verdict)
    bench.incident = msgspec.structs.replace(bench.incident, status=status)
    bench.run(until=20)
    assert "ticket-1" not in bench.outcomes()
    assert "has no ladder for PluginLost" in message(bench)


def test_a_device_that_is_well_again_before_its_first_rung_is_left_to_whoever_got_it() -> None:
    """It is Healthy, so it may have been given out a moment ago. A ladder that began now would take it away again."""
    bench = Bench(incident())
    well = [Verdict(DEVICE, DeviceState.HEALTHY)]
    bench.ledgers[NODE] = msgspec.structs.replace(bench.ledgers[NODE], verdicts=well)
    bench.run(until=10)
    assert bench.outcomes() == {"probe-1": "HeldBack"}
    assert bench.reason("probe-1") == "WellAgain"
    assert not bench.ledgers[NODE].quarantine
    say(bench, "probe-1")
    bench.run(until=20)
    assert bench.begun[0] == f"{NODE}/probe-1"
