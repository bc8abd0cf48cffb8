"""The rules of `tests.builders.remedy_invariants` can fail: each is shown a history that breaks it, and one that does not."""

from __future__ import annotations

import msgspec
import pytest

from remuda.api.devices import NodeDevices, OrderAnswer, QuarantineOrder
from remuda.api.incidents import (
    Approval,
    Incident,
    IncidentOutcome,
    IncidentPhase,
    IncidentSpec,
    RemedyOutcome,
    RemedyRecord,
)
from remuda.api.kubernetes.core_v1 import NodeSpec
from remuda.api.meta import to_time
from remuda.api.remedies import Limits, Mode, Pause, RemedyPolicy
from tests.builders.remedies import a_pod, incident, ledger, machine, remedy_policy
from tests.builders.remedy_invariants import RemedyInvariants

replace = msgspec.structs.replace


class History:
    """Nodes n1 to n3, one rack, and a policy that stands since long ago."""

    def __init__(self, policy: RemedyPolicy | None = None) -> None:
        self.now = 0.0
        self.rules = RemedyInvariants(lambda: self.now)
        self.rules._see_policy(policy or remedy_policy(limits=Limits(pool="1")), gone=False)
        for name in ("n1", "n2", "n3"):
            self.rules._see_node(machine(name), gone=False)
            self.rules._see_devices(ledger(name), gone=False)
        self.now = 100.0

    def see(self, *incidents: Incident) -> list[str]:
        for found in incidents:
            self.rules._see_incident(found, gone=False)
        return [text.partition("] ")[2].partition(":")[0] for text in self.rules.violations]


def on(node: str, *records: RemedyRecord, phase: IncidentPhase = IncidentPhase.REMEDYING, name: str = "") -> Incident:
    found = incident(node=node, name=name or f"inc-{node}")
    return replace(found, status=replace(found.status, phase=phase, remedies=list(records), message="Waits."))


def rung(key: str, outcome: RemedyOutcome = RemedyOutcome.RUNNING, started: float | None = 100.0) -> RemedyRecord:
    at = to_time(started) if started is not None else None
    return RemedyRecord(key, key.split("-")[0], outcome=outcome, started_at=at)


def ended(found: Incident, outcome: IncidentOutcome = IncidentOutcome.CURED) -> Incident:
    return replace(found, status=replace(found.status, phase=IncidentPhase.CLOSED, outcome=outcome, message="Over."))


def test_limits_hold() -> None:
    assert History().see(on("n1", rung("reset-1"))) == []
    assert History().see(on("n1", rung("reset-1")), on("n2", rung("reset-1"))) == ["limits hold"]
    done = on("n1", rung("reset-1", RemedyOutcome.FAILED), phase=IncidentPhase.OPEN)
    assert History().see(on("n1", rung("reset-1")), done, on("n2", rung("reset-1"))) == []
    soaks = on("n1", rung("reset-1", RemedyOutcome.SUCCEEDED), phase=IncidentPhase.VERIFYING)
    assert History().see(on("n1", rung("reset-1")), soaks, on("n2", rung("reset-1"))) == ["limits hold"]


def test_a_rung_is_begun_once() -> None:
    failed = on("n1", rung("reset-1", RemedyOutcome.FAILED))
    assert History().see(on("n1", rung("reset-1")), failed) == []
    assert "a rung that has ended does not run again" in History().see(failed, on("n1", rung("reset-1")))
    assert History().see(failed, on("n1", rung("reset-1", RemedyOutcome.FAILED, 200.0))) == ["a rung is begun once"]
    assert History().see(failed, on("n1")) == ["a rung's record stays"]
    assert History().see(on("n1", rung("reset-1", RemedyOutcome.WAITING, None)), on("n1")) == []
    assert "a rung has one record" in History().see(on("n1", rung("reset-1"), rung("reset-1")))


def test_mode_approval_and_pause_bind() -> None:
    started = on("n1", rung("reset-1"))
    observes, asks = remedy_policy(mode=Mode.OBSERVE), remedy_policy(mode=Mode.APPROVE)
    assert History(observes).see(started) == ["a policy that only observes begins nothing"]
    assert History(asks).see(started) == ["a policy that asks waits for the answer"]
    for granted, broken in ((True, []), (False, ["what is denied is not done"])):
        said = IncidentSpec(started.spec.subject, [Approval("reset-1", granted=granted)])
        assert History(asks if granted else None).see(replace(started, spec=said)) == broken
    paused = remedy_policy(pause=Pause(by="op"))
    assert History(paused).see(started) == ["nothing is begun while the policy is paused"]


def test_what_is_under_way_goes_on_in_a_pause() -> None:
    history = History()
    history.see(on("n1", rung("drain-reboot-1")))
    history.rules._see_policy(remedy_policy(pause=Pause(by="op")), gone=False)
    history.now = 150.0
    drained = rung("drain-reboot-1", RemedyOutcome.SUCCEEDED)
    assert history.see(on("n1", drained, rung("reboot-1"))) == []


def test_incidents_are_one_per_subject_and_end_once() -> None:
    assert History().see(on("n1"), on("n1", name="other")) == ["one open incident per subject"]
    assert History().see(ended(on("n1")), on("n1", name="other")) == []
    assert History().see(ended(on("n1")), on("n1")) == ["closed stays closed"]
    assert History().see(ended(on("n1")), ended(on("n1"), IncidentOutcome.NOT_CURED)) == ["an outcome is final"]


def answered(outcome: str, started: float) -> NodeDevices:
    found = ledger("n1")
    answer = OrderAnswer("inc.reset-1", "reset", outcome, started_at=to_time(started))
    return replace(found, observed=replace(found.observed, answers=[answer]))


@pytest.mark.parametrize(
    ("second", "broken"),
    [
        (answered("Succeeded", 100.0), []),
        (answered("Running", 200.0), ["an order is carried out once", "an order is answered once"]),
    ],
)
def test_an_order_is_carried_out_once(second: NodeDevices, broken: list[str]) -> None:
    history = History()
    for found in (answered("Running", 100.0), answered("Succeeded", 100.0), second):
        history.rules._see_devices(found, gone=False)
    assert history.see() == broken


def test_somebody_elses_cordon_is_left_alone() -> None:
    history = History()
    history.rules._see_node(replace(machine("n1"), spec=NodeSpec(unschedulable=True)), gone=False)
    history.rules.theirs.add("n1")
    history.rules._see_node(machine("n1"), gone=False)
    assert history.see() == ["somebody else's cordon is left alone"]


def test_nothing_of_a_withheld_resource_is_placed() -> None:
    history = History()
    order = QuarantineOrder("Refuses")
    history.rules._see_devices(replace(ledger("n1"), withheld={"nvidia.com/gpu": order}), gone=False)
    history.now = 200.0
    pod = a_pod("p", "n1")
    limits = {"limits": {"nvidia.com/gpu": "1"}, "requests": {"nvidia.com/gpu": "1"}}
    spec = msgspec.convert(
        {"nodeName": "n1", "containers": [{"name": "main", "resources": limits}]}, type(pod.spec), strict=False
    )
    history.rules._see_pod(replace(pod, spec=spec), gone=False)
    assert history.see() == ["nothing of a withheld resource is placed"]
