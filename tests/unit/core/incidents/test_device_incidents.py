"""Device incidents: one per failure, with everything in it, and closed only on something verified."""

from __future__ import annotations

import re

import pytest

from remuda.api.devices import DeviceState, LauncherReport, ObservedDevice, OrderAnswer, QuarantineOrder, Signal
from remuda.api.incidents import IncidentOutcome, IncidentPhase, RemedyOutcome, RemedyRecord
from remuda.core.incidents.names import device_subject, domain_subject, gang_subject, incident_name
from tests.builders.incidents import Book, a_device_pod, a_sight, a_verdict, at

XID79 = Signal("kmsg", "xid-79", "fell off the bus", at(0))
WELL = a_verdict(state=DeviceState.HEALTHY, since=100)


@pytest.mark.parametrize(
    ("subject", "name"),
    [
        (device_subject("node-1", "gpu-0"), "dev-node-1-gpu-0-tro8w0"),
        (gang_subject("default", "job"), "gang-default-job-tro8w0"),
    ],
)
def test_names_say_what_and_when(subject: object, name: str) -> None:
    assert incident_name(subject, at(0)) == name  # type: ignore[arg-type]


def test_names_are_always_valid_and_never_meet() -> None:
    subjects = [
        device_subject("node-1", "GPU-ABC"),
        device_subject("node-1", "gpu-abc"),
        device_subject("n" * 250, "0000:1b:00.0"),
        domain_subject("topology.remuda.dev/rack=rack-1"),
        domain_subject("topology.remuda.dev/rack=rack_1"),
    ]
    names = [incident_name(s, at(0)) for s in subjects]
    assert len(set(names)) == len(names)
    for name in names:
        assert len(name) <= 253
        assert re.fullmatch(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*", name), name


def test_a_broken_device_is_one_incident_with_its_signals_and_holders() -> None:
    book = Book()
    pod = a_device_pod("job-worker-1", labels={"remuda.dev/gang": "job"}, owner=("TrainingJob", "job"))
    book.see_node(a_sight(a_verdict(), pods=[pod], signals={"gpu-0": [XID79]}, ranks={pod.uid: 3}), 0.1)
    status = book.only().status
    assert book.only().name == incident_name(device_subject("node-1", "gpu-0"), at(0))
    assert (status.phase, status.verdict.reason, status.verdict.remedy) == (IncidentPhase.OPEN, "Xid79", "RebootNode")
    assert [(e.kind, e.code) for e in status.evidence] == [("signal", "xid-79"), ("verdict", "Xid79")]
    hit = status.affected[0]
    assert (hit.pod, hit.gang, hit.rank, hit.devices) == ("default/job-worker-1", "job", 3, ["gpu-0"])
    assert "Waits for" in status.message


def test_what_else_is_heard_of_it_belongs_to_the_same() -> None:
    book = Book()
    book.see_node(a_sight(a_verdict()), 0)
    book.see_node(a_sight(a_verdict(reason="Xid48", since=30, source="kmsg/xid-48")), 30)
    assert book.only().status.verdict.reason == "Xid48"
    assert [e.code for e in book.only().status.evidence if e.kind == "verdict"] == ["Xid79", "Xid48"]


def test_a_slow_device_is_an_incident_once_it_stays_slow() -> None:
    book = Book()
    slow = a_verdict(state=DeviceState.DEGRADED, reason="Straggler", source="straggler/straggler")
    plan = book.see_node(a_sight(slow), 1)
    assert not book.all
    assert plan.look_again_s == pytest.approx(4.0, abs=0.1)
    book.see_node(a_sight(slow), 5.1)
    assert book.only().status.verdict.state is DeviceState.DEGRADED


def test_nothing_known_opens_and_closes_nothing() -> None:
    book = Book()
    unknown = a_verdict(state=DeviceState.UNKNOWN, reason="AgentSilent", source="lease/agent", since=10)
    book.see_node(a_sight(unknown), 20)
    assert not book.all
    book.see_node(a_sight(a_verdict()), 25)
    book.see_node(a_sight(unknown), 1000)
    assert book.only().is_open
    assert "does not report it now" in book.only().status.message


def test_a_slice_is_told_with_its_device() -> None:
    book = Book()
    whole, piece = a_verdict("gpu-0"), a_verdict("gpu-0-s1")
    sight = a_sight(whole, piece)
    assert sight.devices is not None
    sight.devices.observed.devices[1] = ObservedDevice("gpu-0-s1", "H100", parent="gpu-0")
    book.see_node(sight, 0)
    assert book.only().spec.subject.device == "gpu-0"


# -- the end ----------------------------------------------------------------------------------------------------------


def test_well_for_long_enough_is_a_false_alarm_when_nothing_was_done() -> None:
    book = Book()
    book.see_node(a_sight(a_verdict()), 0)
    plan = book.see_node(a_sight(WELL), 101)
    assert book.only().is_open
    assert plan.look_again_s == pytest.approx(59.0, abs=0.1)
    book.see_node(a_sight(WELL), 160)
    assert book.only().status.outcome is IncidentOutcome.FALSE_ALARM


def test_well_again_after_a_remedy_is_cured() -> None:
    book = Book()
    book.see_node(a_sight(a_verdict()), 0)
    done = RemedyRecord("reset-1", "reset", outcome=RemedyOutcome.SUCCEEDED)
    book.amend(book.only().name, remedies=[done])
    book.see_node(a_sight(WELL), 160)
    assert book.only().status.outcome is IncidentOutcome.CURED
    assert "after reset-1" in book.only().status.message


def test_a_soak_is_waited_for() -> None:
    book = Book()
    book.see_node(a_sight(a_verdict()), 0)
    done = RemedyRecord("reset-1", "reset", outcome=RemedyOutcome.SUCCEEDED)
    book.amend(book.only().name, remedies=[done], phase=IncidentPhase.VERIFYING, soak_until=at(500))
    book.see_node(a_sight(WELL), 400)
    assert "is watched until" in book.only().status.message
    book.see_node(a_sight(WELL), 500)
    assert book.only().status.outcome is IncidentOutcome.CURED


def test_a_remedy_under_way_keeps_it_open() -> None:
    book = Book()
    book.see_node(a_sight(a_verdict()), 0)
    book.amend(book.only().name, remedies=[RemedyRecord("reboot-1", "reboot")], phase=IncidentPhase.REMEDYING)
    book.see_node(a_sight(WELL), 1000)
    assert book.only().is_open
    assert "reboot-1 is running" in book.only().status.message


def test_another_device_or_node_in_its_place_has_replaced_it() -> None:
    book = Book()
    book.see_node(a_sight(a_verdict()), 0)
    book.see_node(a_sight(a_verdict(), uuids={"gpu-0": "GPU-other"}), 10)
    assert book.only().status.outcome is IncidentOutcome.REPLACED
    book = Book()
    book.see_node(a_sight(a_verdict()), 0)
    book.see_node(a_sight(a_verdict(), node_uid="another"), 10)
    assert book.only().status.outcome is IncidentOutcome.REPLACED


def test_a_node_that_left_takes_its_incidents_along() -> None:
    book = Book()
    book.see_node(a_sight(a_verdict()), 0)
    book.see_node(a_sight(a_verdict(), node_uid=""), 10)
    assert book.only().status.outcome is IncidentOutcome.WORKED_AROUND


def test_out_of_use_by_order_stays_open_and_says_who() -> None:
    book = Book()
    order = QuarantineOrder("Maintenance", "swap the riser", by="alice", since=at(0))
    out = a_verdict(state=DeviceState.QUARANTINED, reason="Maintenance", source="alice")
    book.see_node(a_sight(out, quarantine={"gpu-0": order}), 0)
    book.see_node(a_sight(out, quarantine={"gpu-0": order}), 10_000)
    assert "Waits for alice" in book.only().status.message


def test_dismissed_stays_closed_while_the_same_fault_stands() -> None:
    book = Book()
    book.see_node(a_sight(a_verdict()), 0)
    book.dismiss(book.only().name, "known riser")
    book.see_node(a_sight(a_verdict()), 10)
    assert book.only().status.message == "Dismissed: known riser"
    # Also when an older signal of the device comes to the fore, whose name would be another.
    book.see_node(a_sight(a_verdict(reason="Xid48", since=5, source="kmsg/xid-48")), 20)
    book.only()
    book.see_node(a_sight(a_verdict(reason="Xid95", since=30, source="kmsg/xid-95")), 31)
    assert len(book.open) == 1, "a new fault is a new incident"


def test_old_signals_read_again_open_nothing() -> None:
    book = Book()
    book.see_node(a_sight(a_verdict()), 0)
    book.see_node(a_sight(WELL), 200)
    assert not book.open
    book.see_node(a_sight(a_verdict()), 300)  # the same verdict, by a monitor that started anew
    assert not book.open


@pytest.mark.parametrize("outcome", [IncidentOutcome.NOT_CURED, IncidentOutcome.CURED])
def test_an_order_of_a_closed_incident_is_not_a_new_failure(outcome: IncidentOutcome) -> None:
    book = Book()
    book.see_node(a_sight(a_verdict()), 0)
    name = book.only().name
    order = QuarantineOrder("Xid79", by="remuda", since=at(5), incident=name)
    out = a_verdict(state=DeviceState.QUARANTINED, since=5, source="remuda")
    book.see_node(a_sight(out, quarantine={"gpu-0": order}), 6)
    assert book.only().status.verdict.state is DeviceState.UNHEALTHY, "its own order is not its fault"
    book.amend(name, phase=IncidentPhase.CLOSED, outcome=outcome, closed_at=at(50))
    book.see_node(a_sight(out, quarantine={"gpu-0": order}), 60)
    assert not book.open


# -- whom it hit ------------------------------------------------------------------------------------------------------


def test_a_crash_beside_a_broken_device_is_one_incident() -> None:
    """Row 31: device id, message, exit code, node and workload in one record."""
    book = Book()
    pod = a_device_pod("train-0", owner=("Job", "train"), exit_code=134, ended=1.0, restarts=2)
    book.see_node(a_sight(a_verdict(), pods=[pod], signals={"gpu-0": [XID79]}), 2)
    status = book.only().status
    ends = [e for e in status.evidence if e.kind == "exit"]
    assert [(e.exit_code, e.pod, e.node) for e in ends] == [(134, "default/train-0", "node-1")]
    assert (status.affected[0].gang, status.affected[0].restarts, status.affected[0].exit_code) == ("Job/train", 2, 134)
    assert any("fell off the bus" in e.message for e in status.evidence)


@pytest.mark.parametrize(("ended", "is_told"), [(-8.0, True), (-30.0, False)])
def test_a_crash_just_before_is_the_devices(ended: float, is_told: bool) -> None:
    """Row 33, for pods that are not ours; one of long ago is not."""
    book = Book()
    pod = a_device_pod("train-0", exit_code=134, ended=ended, phase="Failed")
    book.see_node(a_sight(a_verdict(), gone=[pod]), 0)
    assert [a.pod for a in book.only().status.affected] == (["default/train-0"] if is_told else [])
    assert bool([e for e in book.only().status.evidence if e.kind == "exit"]) is is_told


def test_the_devices_state_at_the_pods_death_is_kept() -> None:
    """Row 32."""
    book = Book()
    pod = a_device_pod("train-0")
    book.see_node(a_sight(a_verdict(), pods=[pod]), 0)
    book.see_node(a_sight(a_verdict(), gone=[pod]), 5)
    book.see_node(a_sight(WELL), 105)
    hit = book.only().status.affected[0]
    assert (hit.ended, hit.state, hit.ended_at) == ("Deleted", DeviceState.UNHEALTHY, at(5))


def test_processes_under_a_launcher_tell_their_exit_too() -> None:
    book = Book()
    pod = a_device_pod("job-worker-0")
    said = LauncherReport("default/job-worker-0", pod.uid, "exited", 1, code=1, message="CUDA error", time=at(1))
    book.see_node(a_sight(a_verdict(), pods=[pod], launchers=[said]), 2)
    assert [(e.exit_code, e.source) for e in book.only().status.evidence if e.kind == "exit"] == [(1, "launcher")]


def test_probes_are_evidence() -> None:
    book = Book()
    said = OrderAnswer("o", "probe", "Failed", "gpu-0", message="No answer.", time=at(3))
    book.see_node(a_sight(a_verdict(), answers=[said]), 5)
    assert [(e.code, e.message) for e in book.only().status.evidence if e.kind == "probe"] == [("Failed", "No answer.")]


def test_evidence_is_bounded_and_what_fell_out_is_not_taken_again() -> None:
    book = Book()
    signals = [Signal("kmsg", f"xid-{n}", "x", at(n)) for n in range(100)]
    for end in range(1, 101):
        book.see_node(a_sight(a_verdict(), signals={"gpu-0": signals[:end][-16:]}), float(end))
    status = book.only().status
    assert len(status.evidence) == 48
    assert status.evidence_dropped == 101 - 48
    codes = [e.code for e in status.evidence if e.kind == "signal"]
    assert (codes[0], codes[-1]) == ("xid-0", "xid-99")
    before = book.writes
    book.see_node(a_sight(a_verdict(), signals={"gpu-0": signals[20:60]}), 200.0)
    assert book.writes == before


def test_a_signal_said_again_and_again_does_not_write_each_time() -> None:
    book = Book()
    for second in range(0, 600, 5):
        again = Signal("kmsg", "xid-79", "fell off the bus", at(second))
        book.see_node(a_sight(a_verdict(), signals={"gpu-0": [again]}), float(second))
    assert book.writes <= 12
