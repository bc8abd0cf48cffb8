"""The device ladder, step by step: what is tried, in which order, what ends it, and what it never does."""

from __future__ import annotations

import msgspec
import pytest

from remuda.api.devices import DeviceHistory, DeviceState, NodeDevices, QuarantineOrder
from remuda.api.incidents import Approval, IncidentOutcome, IncidentPhase
from remuda.api.kubernetes.core_v1 import Node, NodeSpec
from remuda.api.meta import ObjectMeta, to_time
from remuda.api.names import ANNOTATION_CORDONED_BY, ANNOTATION_REMEDY_BY, LABEL_CLIQUE
from remuda.api.remedies import Action, Drain, Hook, Mode, Offender, Rung, Soak
from remuda.core.remedies.hook_objects import HookResult
from remuda.core.remedies.ladder.climb import may_take_over_quarantine
from remuda.core.remedies.rungs import are_remedies_exhausted
from tests.builders.remedies import DEVICE, NODE, T0, Bench, a_pod, incident, ladder, ledger, machine, remedy_policy

SOAK = Soak(seconds=60.0)


def test_a_probe_that_passes_is_enough() -> None:
    bench = Bench(incident())
    bench.run(until=30)
    assert bench.outcomes() == {"probe-1": "Succeeded"}
    assert bench.phase is IncidentPhase.VERIFYING
    assert bench.quarantined == [DEVICE]
    bench.run(until=100)
    assert bench.quarantined == []
    assert not bench.ledgers[NODE].orders


@pytest.mark.parametrize(
    ("by", "incident", "is_ours_to_take"),
    [("remuda", "", True), ("job default/train", "", True), ("alice", "", False), ("remuda", "dev-other", False)],
)
def test_it_takes_over_what_was_found_and_leaves_a_person_s_order(
    by: str, incident: str, is_ours_to_take: bool
) -> None:
    assert may_take_over_quarantine(QuarantineOrder("MemberNotStopped", by=by, incident=incident)) is is_ours_to_take


def test_row_41_it_escalates_within_its_budget_then_stops_and_pages() -> None:
    """Reset twice, reboot once, replace, ticket: each once per attempt, nothing again."""
    everything = dict.fromkeys(("probe-1", "probe-reset-1", "reset-2", "reboot-1"), "Failed")
    bench = Bench(incident(), answers=everything)
    bench.run(until=100_000)
    assert bench.outcomes() == {
        "probe-1": "Failed",
        "reset-1": "Succeeded",
        "probe-reset-1": "Failed",
        "reset-2": "Failed",
        "drain-reboot-1": "Succeeded",
        "reboot-1": "Failed",
        "replace-1": "Refused",
        "ticket-1": "Succeeded",
    }
    assert bench.reason("replace-1") == "NoHook"
    assert are_remedies_exhausted(bench.incident)
    assert (bench.phase, bench.incident.status.outcome) == (IncidentPhase.OPEN, IncidentOutcome.NOT_CURED)
    assert bench.quarantined == [DEVICE], "a device that was not cured stays out"
    node = bench.nodes[NODE]
    assert not node.spec.unschedulable
    assert ANNOTATION_REMEDY_BY not in node.annotations
    assert len(bench.begun) == len(set(bench.begun))
    before = list(bench.begun)
    bench.run(until=200_000)
    assert bench.begun == before


def test_an_agent_that_does_not_answer_costs_the_deadline_and_no_more() -> None:
    bench = Bench(incident(), answers={"probe-1": "", "reset-1": ""})
    bench.run(until=100)
    assert bench.outcomes() == {"probe-1": "Running"}
    bench.run(until=131)
    assert bench.outcomes() == {"probe-1": "TimedOut", "reset-1": "Running"}
    assert list(bench.ledgers[NODE].orders) == ["inc-n1-gpu-3.reset-1"], "an order that is over is taken away"


def test_the_same_look_again_changes_nothing() -> None:
    bench = Bench(incident(), answers={"probe-1": "Failed", "reset-1": ""})
    bench.look()
    for _ in range(3):
        bench.look()
    before = bench._picture()
    bench.look()
    assert bench._picture() == before


@pytest.mark.parametrize("lost", ["orders", "marks", "quarantine"])
def test_what_a_crash_left_undone_is_done_by_the_next_look_under_the_same_key(lost: str) -> None:
    """The record was written and the manager died before what it stands for."""
    bench = Bench(incident(), answers={"probe-1": ""})
    bench.look()
    assert bench.outcomes() == {"probe-1": "Running"}
    if lost == "orders":
        bench.ledgers[NODE] = msgspec.structs.replace(bench.ledgers[NODE], orders={})
    elif lost == "quarantine":
        bench.ledgers[NODE] = msgspec.structs.replace(bench.ledgers[NODE], quarantine={})
    else:
        bench.nodes[NODE] = machine()
    bench.look(T0 + 1)
    assert list(bench.ledgers[NODE].orders) == ["inc-n1-gpu-3.probe-1"]
    assert bench.quarantined == [DEVICE]
    assert bench.nodes[NODE].annotations[ANNOTATION_REMEDY_BY] == bench.incident.name


# --- soak -------------------------------------------------------------------------------------------------------------


def test_row_39_a_fault_in_the_soak_starts_it_over_one_rung_higher() -> None:
    bench = Bench(incident())
    bench.run(until=20)
    bench.hear("xid-48", at=T0 + 25)
    bench.run(until=30)
    assert bench.outcomes()["probe-1"] == "Failed"
    assert bench.reason("probe-1") == "FaultDuringSoak"
    assert bench.outcomes()["reset-1"] == "Succeeded"
    assert bench.quarantined == [DEVICE]


def test_a_monitor_that_tells_the_old_fault_again_during_the_remedy_starts_nothing() -> None:
    """A reset makes the monitor start anew and fire the same code: before the probe that follows, it is no news."""
    bench = Bench(incident(), answers={"probe-1": "Failed", "probe-reset-1": ""})
    bench.look(T0 + 5)
    bench.look(T0 + 6)
    bench.hear("xid-48", at=T0 + 7)
    bench.answers.pop("probe-reset-1")
    bench.look(T0 + 8)
    bench.look(T0 + 9)
    bench.hear("probe-passed", source="probe", at=T0 + 9)
    bench.run(until=200)
    assert bench.quarantined == []
    assert bench.outcomes() == {
        "probe-1": "Failed",
        "reset-1": "Succeeded",
        "probe-reset-1": "Succeeded",
    }


def test_what_stands_against_the_device_at_the_end_of_the_soak_keeps_it_out() -> None:
    bench = Bench(incident(), remedy_policy(soak=SOAK, ladders=[ladder("ResetDevice", Action.PROBE, Action.TICKET)]))
    bench.hear("xid-48", at=T0 - 5)  # nobody took it back
    bench.run(until=100)
    assert bench.quarantined == [DEVICE]
    assert bench.outcomes() == {"probe-1": "Failed", "ticket-1": "Succeeded"}


def test_silence_is_no_proof_of_health() -> None:
    bench = Bench(incident())
    bench.run(until=30)
    bench.is_silent = True
    bench.run(until=300)
    assert bench.quarantined == [DEVICE]
    assert bench.phase is IncidentPhase.VERIFYING
    bench.is_silent = False
    bench.run(until=400)
    assert bench.quarantined == []


# --- modes ------------------------------------------------------------------------------------------------------------


def test_observe_writes_what_it_would_do_and_does_nothing() -> None:
    bench = Bench(incident(), remedy_policy(mode=Mode.OBSERVE))
    bench.run(until=1000)
    assert bench.outcomes() == {"probe-1": "ObserveOnly"}
    assert (bench.begun, bench.quarantined, bench.phase) == ([], [], IncidentPhase.OPEN)


def test_approve_waits_rung_by_rung() -> None:
    bench = Bench(incident(), remedy_policy(mode=Mode.APPROVE, soak=SOAK), answers={"probe-1": "Failed"})
    bench.run(until=10)
    assert bench.outcomes() == {"probe-1": "AwaitingApproval"}
    assert not bench.begun
    assert bench.phase is IncidentPhase.REMEDYING
    _approve(bench, "probe-1")
    bench.run(until=20)
    assert bench.outcomes() == {"probe-1": "Failed", "reset-1": "AwaitingApproval"}
    _approve(bench, "reset-1", granted=False)
    bench.run(until=30)
    assert bench.reason("reset-1") == bench.reason("reset-2") == "Denied", "not asked again under another number"
    assert bench.outcomes()["reboot-1"] == "AwaitingApproval"
    assert bench.begun == ["n1/probe-1"]


def test_a_yes_to_a_later_attempt_counts_more_than_the_no_to_an_earlier_one() -> None:
    bench = Bench(incident(), remedy_policy(mode=Mode.APPROVE, soak=SOAK), answers={"probe-1": "Failed"})
    for key, granted in (("probe-1", True), ("reset-1", False), ("reset-2", True)):
        _approve(bench, key, granted=granted)
    bench.run(until=30)
    assert (bench.reason("reset-1"), bench.outcomes()["reset-2"]) == ("Denied", "Succeeded")


def test_a_ladder_of_which_all_is_denied_ends_and_says_so() -> None:
    policy = remedy_policy(mode=Mode.APPROVE, ladders=[ladder("ResetDevice", Rung(Action.RESET, attempts=3))])
    bench = Bench(incident(), policy)
    bench.run(until=10)
    _approve(bench, "reset-1", granted=False)
    bench.run(until=30)
    assert are_remedies_exhausted(bench.incident)
    assert bench.incident.status.outcome is IncidentOutcome.NOT_CURED
    assert "reset-1 Denied, reset-2 Denied, reset-3 Denied" in bench.incident.status.conditions[0].message
    assert (bench.begun, bench.quarantined) == ([], [])


def _approve(bench: Bench, key: str, *, granted: bool = True) -> None:
    said = [*bench.incident.spec.approvals, Approval(key, "eva", granted)]
    spec = msgspec.structs.replace(bench.incident.spec, approvals=said)
    bench.incident = msgspec.structs.replace(bench.incident, spec=spec)


def test_after_the_end_an_operator_may_ask_for_another_probe() -> None:
    policy = remedy_policy(soak=SOAK, ladders=[ladder("ResetDevice", Action.PROBE, Action.TICKET)])
    bench = Bench(incident(), policy, answers={"probe-1": "Failed", "recheck-1": "Failed"})
    bench.run(until=50)
    _approve(bench, "recheck-1")
    bench.run(until=100)
    assert bench.outcomes()["recheck-1"] == "Failed"
    assert bench.quarantined == [DEVICE]
    assert bench.incident.status.outcome is IncidentOutcome.NOT_CURED
    _approve(bench, "recheck-2")
    bench.run(until=400)
    assert bench.outcomes()["recheck-2"] == "Succeeded"
    assert bench.quarantined == []
    assert bench.incident.status.outcome is None, "it soaked: the incident controller says how it ends"


def test_what_the_rungs_bring_to_light_starts_no_other_ladder() -> None:
    """A probe that failed is a verdict of its own, which asks for a replacement; the ladder that was begun goes on."""
    bench = Bench(incident(), answers={"probe-1": "Failed", "reset-1": ""})
    bench.look()
    bench.look()
    _judge(bench, "ProbeFailed", "Replace")
    bench.look(T0 + 1)
    assert bench.outcomes() == {"probe-1": "Failed", "reset-1": "Running"}


def test_a_ladder_that_has_ended_is_not_climbed_again_for_another_verdict() -> None:
    policy = remedy_policy(
        soak=SOAK, ladders=[ladder("ResetDevice", Action.PROBE, Action.TICKET), ladder("RebootNode", Action.REBOOT)]
    )
    bench = Bench(incident(), policy, answers={"probe-1": "Failed"})
    bench.run(until=50)
    assert are_remedies_exhausted(bench.incident)
    _judge(bench, "Xid79", "RebootNode")
    bench.run(until=500)
    assert list(bench.outcomes()) == ["probe-1", "ticket-1"]


def _judge(bench: Bench, reason: str, remedy: str) -> None:
    verdict = msgspec.structs.replace(bench.incident.status.verdict, reason=reason, remedy=remedy)
    status = msgspec.structs.replace(bench.incident.status, verdict=verdict)
    bench.incident = msgspec.structs.replace(bench.incident, status=status)


# --- what holds it back -----------------------------------------------------------------------------------------------


def test_row_42_what_is_held_back_goes_on_later_and_devices_are_given_back_meanwhile() -> None:
    waits = Bench(incident())
    waits.shut("BreakerOpen")
    waits.run(until=100)
    assert waits.outcomes() == {"probe-1": "HeldBack"}
    assert waits.quarantined == []
    assert waits.phase is IncidentPhase.OPEN
    soaks = Bench(incident())
    soaks.run(until=30)
    soaks.shut("BreakerOpen")
    soaks.run(until=100)
    assert soaks.quarantined == [], "giving back works while the breaker is open"
    waits.gate = None
    waits.run(until=200)
    assert waits.outcomes() == {"probe-1": "Succeeded"}


def test_what_is_under_way_ends_in_a_pause_and_no_rung_is_begun() -> None:
    bench = Bench(incident(), answers={"probe-1": "Failed", "reset-1": "", "probe-reset-1": "Failed"})
    bench.look()
    bench.look()
    bench.shut()
    bench.answers["reset-1"] = "Succeeded"
    bench.run(until=50)
    assert bench.outcomes() == {
        "probe-1": "Failed",
        "reset-1": "Succeeded",
        "probe-reset-1": "Failed",
        "reset-2": "HeldBack",
    }


def test_a_node_somebody_else_cordoned_is_left_alone_until_they_give_it_back() -> None:
    bench = Bench(incident())
    bench.cordon()
    bench.run(until=100)
    assert bench.outcomes() == {"probe-1": "Refused"}
    assert bench.reason("probe-1") == "NodeTakenByOther"
    assert not bench.begun
    assert bench.nodes[NODE].spec.unschedulable
    assert not bench.nodes[NODE].annotations
    bench.nodes[NODE] = machine()
    bench.run(until=200)
    assert bench.outcomes() == {"probe-1": "Succeeded"}


def test_with_take_over_anothers_cordon_stays_when_we_are_done() -> None:
    policy = remedy_policy(soak=SOAK, drain=Drain(take_over=True))
    bench = Bench(incident(remedy="RebootNode", reason="Xid79"), policy, answers={"probe-1": "Failed"})
    bench.cordon()
    bench.run(until=300)
    assert bench.outcomes()["reboot-1"] == "Succeeded"
    assert bench.nodes[NODE].spec.unschedulable
    assert ANNOTATION_CORDONED_BY not in bench.nodes[NODE].annotations


def test_one_incident_has_a_node_at_a_time() -> None:
    bench = Bench(incident())
    bench.nodes[NODE] = _held_by("other")
    bench.at_work = frozenset({"other"})
    bench.run(until=100)
    assert bench.outcomes() == {"probe-1": "HeldBack"}
    assert bench.reason("probe-1") == "NodeBusy"
    bench.at_work = frozenset()  # it is closed, and died before it took its mark away
    bench.run(until=200)
    assert bench.outcomes() == {"probe-1": "Succeeded"}


def test_a_node_a_roll_out_keeps_cordoned_is_its_own() -> None:
    bench = Bench(incident())
    node = machine()
    meta = msgspec.structs.replace(node.metadata, annotations={ANNOTATION_CORDONED_BY: "rollout-r580"})
    bench.nodes[NODE] = msgspec.structs.replace(node, metadata=meta, spec=NodeSpec(unschedulable=True))
    bench.at_work = frozenset({"rollout-r580"})
    bench.run(until=100)
    assert bench.reason("probe-1") == "NodeBusy"
    assert not bench.begun


def _held_by(other: str) -> Node:
    node = machine()
    meta = msgspec.structs.replace(node.metadata, annotations={ANNOTATION_REMEDY_BY: other})
    return msgspec.structs.replace(node, metadata=meta)


def test_a_device_somebody_holds_is_not_touched() -> None:
    bench = Bench(incident(), pods=[a_pod("train-0", devices=DEVICE)])
    bench.run(until=5000)
    assert bench.reason("probe-1") == "DeviceInUse"
    assert not bench.begun
    bench.pods.clear()
    bench.run(until=5100)
    assert bench.outcomes() == {"probe-1": "Succeeded"}


def test_a_holder_that_will_not_go_is_waited_for_as_long_as_the_rung_may_take() -> None:
    gone = to_time(T0)
    bench = Bench(incident(), pods=[a_pod("stuck", devices=DEVICE, deletion_timestamp=gone)])
    bench.run(until=119)
    assert bench.outcomes() == {"probe-1": "HeldBack"}
    bench.run(until=125)
    assert bench.outcomes()["probe-1"] == "TimedOut"
    assert bench.reason("probe-1") == "DeviceInUse"


# --- which ladder -----------------------------------------------------------------------------------------------------


def test_row_36_the_other_seven_go_on_serving_and_the_node_is_not_recycled_under_them() -> None:
    pod = a_pod("train-0", devices="gpu-0,gpu-1")
    bench = Bench(incident(remedy="RebootNode", reason="Xid79"), answers={"probe-1": "Failed"}, pods=[pod])
    bench.run(until=3000)
    assert bench.quarantined == [DEVICE]
    assert bench.pods == [pod]
    assert bench.reason("reboot-1") == "NodeInUse"
    assert not bench.nodes[NODE].spec.unschedulable
    bench.pods.clear()
    bench.run(until=3100)
    assert bench.outcomes()["reboot-1"] == "Succeeded"


def test_patience_has_an_end() -> None:
    pod = a_pod("train-0", devices="gpu-0,gpu-1")
    bench = Bench(incident(remedy="RebootNode", reason="Xid79"), answers={"probe-1": "Failed"}, pods=[pod])
    bench.run(until=3700)
    assert bench.evicted == ["train-0"]
    assert bench.outcomes()["reboot-1"] == "Succeeded"


@pytest.mark.parametrize("remedy", ["RestartApp", "None", ""])
def test_a_fault_of_the_application_leaves_the_device_alone(remedy: str) -> None:
    bench = Bench(incident(remedy=remedy, reason="Xid31"))
    bench.run(until=1000)
    assert bench.outcomes() == {}
    assert bench.quarantined == []


def test_a_slow_device_is_left_alone_unless_the_policy_names_it() -> None:
    slow = incident(remedy="", reason="Straggler", state=DeviceState.DEGRADED)
    bench = Bench(slow, remedy_policy(ladders=[ladder("*", Action.PROBE)]))
    bench.run(until=1000)
    assert bench.outcomes() == {}
    bench = Bench(slow, remedy_policy(ladders=[ladder("Straggler", Action.PROBE)]))
    bench.run(until=10)
    assert bench.outcomes() == {"probe-1": "Succeeded"}


def test_a_repeat_offender_starts_where_the_policy_says() -> None:
    policy = remedy_policy(soak=SOAK, offender=Offender(incidents=2, window_seconds=1000.0, action=Action.REBOOT))
    failures = [to_time(T0 - 900), to_time(T0 - 500), to_time(T0)]
    old = msgspec.structs.replace(ledger(), history={DEVICE: DeviceHistory(failures=failures)})
    bench = Bench(incident(), policy, ledgers=[old])
    bench.run(until=50)
    assert list(bench.outcomes()) == ["drain-reboot-1", "reboot-1", "probe-reboot-1"]
    first = bench.incident.status.remedies[0]
    assert any(line.startswith("reset-1: skipped") for line in first.why_not)
    younger = msgspec.structs.replace(ledger(), history={DEVICE: DeviceHistory(failures=failures[1:])})
    bench = Bench(incident(), policy, ledgers=[younger])
    bench.run(until=50)
    assert list(bench.outcomes()) == ["probe-1"]


def test_a_node_is_rebooted_without_a_probe_and_believed_when_it_is_ready() -> None:
    bench = Bench(incident(device="", remedy="RebootNode", reason="NodeNotReady"))
    bench.run(until=20)
    assert bench.outcomes() == {
        "probe-1": "Skipped",
        "drain-reboot-1": "Succeeded",
        "reboot-1": "Succeeded",
        "probe-reboot-1": "Succeeded",
    }
    assert bench.phase is IncidentPhase.VERIFYING
    assert not bench.nodes[NODE].spec.unschedulable


# --- hooks ------------------------------------------------------------------------------------------------------------


def test_a_command_hook_is_an_order_with_all_it_needs_to_know() -> None:
    rung = Rung(Action.REPLACE, hook=Hook(command=["/opt/replace", "--now"]))
    bench = Bench(incident(), remedy_policy(ladders=[ladder("ResetDevice", rung)]), answers={"replace-1": ""})
    bench.look()
    bench.look()
    order = bench.ledgers[NODE].orders["inc-n1-gpu-3.replace-1"]
    assert (order.action, order.command, order.device) == ("command", ["/opt/replace", "--now"], DEVICE)
    assert order.env == {
        "REMUDA_NODE": NODE,
        "REMUDA_DEVICE": DEVICE,
        "REMUDA_UUID": "GPU-n1-3",
        "REMUDA_INCIDENT": bench.incident.name,
        "REMUDA_ACTION": "replace",
    }


def test_an_object_hook_is_filled_in_named_once_and_waited_for() -> None:
    body = {"apiVersion": "dc.example/v1", "kind": "Rma", "spec": {"serial": "{uuid}", "of": ["{node}/{device}"]}}
    rung = Rung(Action.TICKET, timeout_seconds=100.0, hook=Hook(object=body))
    bench = Bench(incident(), remedy_policy(ladders=[ladder("ResetDevice", rung)]))
    step = bench.look()
    assert step.call is not None
    assert step.call.bodies == (
        {
            "apiVersion": "dc.example/v1",
            "kind": "Rma",
            "metadata": {"name": "inc-n1-gpu-3-ticket-1"},
            "spec": {"serial": "GPU-n1-3", "of": ["n1/gpu-3"]},
        },
    )
    bench.made = HookResult("ticket-1", "Succeeded", "RMA 4711", ("Rma/inc-n1-gpu-3-ticket-1",))
    bench.look(T0 + 5)
    assert bench.outcomes() == {"ticket-1": "Succeeded"}
    assert bench.incident.status.ticket == "Rma/inc-n1-gpu-3-ticket-1"


# --- domains ----------------------------------------------------------------------------------------------------------


def _rack(count: int) -> tuple[list[Node], list[NodeDevices]]:
    nodes = [machine(f"n{i}", **{LABEL_CLIQUE: "rack-7.1"}) for i in range(1, count + 1)]
    return nodes, [ledger(n.name, 4, model="gb200-nvl72-tray") for n in nodes]


def test_row_43_a_node_of_a_domain_is_recycled_with_all_of_it() -> None:
    nodes, ledgers = _rack(18)
    policy = remedy_policy(soak=SOAK, drain=Drain(patience_seconds=0.0))
    pods = [a_pod("far", "n17", devices="gpu-0")]
    about = incident(remedy="RebootNode", reason="Xid79")
    bench = Bench(about, policy, answers={"probe-1": "Failed", "reboot-1": ""}, nodes=nodes, ledgers=ledgers, pods=pods)
    bench.run(until=50)
    record = next(r for r in bench.incident.status.remedies if r.key == "reboot-1")
    assert record.target == "nvlink/rack-7.1"
    assert bench.evicted == ["far"]
    assert all(n.spec.unschedulable and n.annotations[ANNOTATION_REMEDY_BY] == about.name for n in bench.nodes.values())
    assert all(f"{about.name}.reboot-1" in d.orders for d in bench.ledgers.values())
    bench.answers.clear()
    bench.run(until=100)
    assert bench.outcomes()["reboot-1"] == "Succeeded"
    assert not any(n.spec.unschedulable or n.annotations for n in bench.nodes.values())


def test_row_43_a_node_whose_domain_is_not_known_whole_is_not_recycled() -> None:
    nodes, ledgers = _rack(5)
    about = incident(remedy="RebootNode", reason="Xid79")
    bench = Bench(about, answers={"probe-1": "Failed"}, nodes=nodes, ledgers=ledgers)
    bench.run(until=50)
    assert bench.outcomes()["reboot-1"] == "Refused"
    assert bench.reason("reboot-1") == "DomainIncomplete"
    assert not any("reboot" in begun for begun in bench.begun)


# --- the end ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("outcome", "stays"),
    [
        (IncidentOutcome.DISMISSED, False),
        (IncidentOutcome.REPLACED, False),
        (IncidentOutcome.NOT_CURED, True),
        (IncidentOutcome.WORKED_AROUND, True),
    ],
)
def test_a_closed_incident_leaves_nothing_behind_but_what_is_still_owed(outcome: IncidentOutcome, stays: bool) -> None:
    bench = Bench(incident(remedy="RebootNode", reason="Xid79"), answers={"probe-1": "Failed", "reboot-1": ""})
    bench.run(until=20)
    assert bench.nodes[NODE].spec.unschedulable
    assert bench.ledgers[NODE].orders
    status = msgspec.structs.replace(bench.incident.status, phase=IncidentPhase.CLOSED, outcome=outcome)
    bench.incident = msgspec.structs.replace(bench.incident, status=status)
    bench.look()
    assert not bench.nodes[NODE].spec.unschedulable
    assert not bench.nodes[NODE].annotations
    assert not bench.ledgers[NODE].orders
    assert bench.quarantined == ([DEVICE] if stays else [])


@pytest.mark.parametrize(
    ("node_uid", "uuid", "stays"),
    [("u1", f"GPU-{NODE}-3", True), ("u2", f"GPU-{NODE}-3", False), ("u1", "GPU-new", False), ("u1", "", True)],
)
def test_what_left_with_its_node_is_not_owed_to_the_next_of_its_name(node_uid: str, uuid: str, stays: bool) -> None:
    """A closed incident keeps the device out; another node or device under the same name is not the one that failed."""
    bench = Bench(incident(), answers={"probe-1": ""})
    bench.run(until=5)
    status = msgspec.structs.replace(
        bench.incident.status,
        phase=IncidentPhase.CLOSED,
        outcome=IncidentOutcome.WORKED_AROUND,
        node_uid="u1",
        device_uuid=f"GPU-{NODE}-3",
    )
    bench.incident = msgspec.structs.replace(bench.incident, status=status)
    bench.nodes[NODE] = msgspec.structs.replace(machine(), metadata=ObjectMeta(name=NODE, uid=node_uid))
    seen = bench.ledgers[NODE].observed
    rows = [msgspec.structs.replace(d, uuid=uuid) if d.id == DEVICE else d for d in seen.devices]
    bench.ledgers[NODE] = msgspec.structs.replace(
        bench.ledgers[NODE], observed=msgspec.structs.replace(seen, devices=rows)
    )
    bench.look()
    assert bench.quarantined == ([DEVICE] if stays else [])


def test_row_11_an_operators_order_is_neither_replaced_nor_lifted() -> None:
    order = QuarantineOrder("Maintenance", by="eva")
    bench = Bench(incident(), ledgers=[msgspec.structs.replace(ledger(), quarantine={DEVICE: order})])
    bench.run(until=500)
    assert bench.outcomes() == {"probe-1": "Succeeded"}
    assert bench.ledgers[NODE].quarantine == {DEVICE: order}


def test_our_own_order_for_flapping_is_taken_over() -> None:
    order = QuarantineOrder("DeviceFlapping", by="remuda")
    flapping = incident(reason="DeviceFlapping", remedy="", state=DeviceState.QUARANTINED)
    bench = Bench(flapping, ledgers=[msgspec.structs.replace(ledger(), quarantine={DEVICE: order})])
    bench.run(until=30)
    assert bench.ledgers[NODE].quarantine[DEVICE].incident == flapping.name
    assert list(bench.outcomes()) == ["reset-1", "probe-reset-1"]
    bench.run(until=200)
    assert bench.quarantined == []
