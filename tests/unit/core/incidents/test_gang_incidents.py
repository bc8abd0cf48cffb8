"""Interruptions of gangs: whose incident they belong to, what came of them, and what they cost."""

from __future__ import annotations

import msgspec
import pytest

from remuda.api.devices import DeviceState
from remuda.api.incidents import IncidentOutcome, IncidentPhase, RemedyOutcome, SubjectKind
from remuda.api.training import Cause, Remedy
from remuda.core.incidents.gang_incidents import GangIncidentView
from tests.builders.incidents import Book, a_gang, a_recovery, a_sight, a_verdict

HEALTHY = a_verdict(state=DeviceState.HEALTHY)


def kinds(book: Book) -> list[SubjectKind]:
    return sorted(i.spec.subject.kind for i in book.all)


def test_a_crash_is_the_gangs_own_until_it_is_past_the_fault() -> None:
    book = Book()
    book.see_gang(a_gang(a_recovery(exit_code=1), phase="Recovering", message="2 of 4 ranks are ready."), 0.1)
    status = book.only().status
    assert (status.verdict.cause, status.remedies[0].outcome) == ("code", RemedyOutcome.RUNNING)
    assert status.affected[0].exit_code == 1
    assert "Waits for the first step of attempt 2: 2 of 4" in status.message
    again = a_recovery(exit_code=1, first_step=5, lost_gpu_hours=0.25)
    book.see_gang(a_gang(again, step=24), 6)
    assert (book.only().status.phase, book.only().status.lost_gpu_hours) == (IncidentPhase.VERIFYING, 0.25)
    dearer = a_recovery(exit_code=1, first_step=5, lost_gpu_hours=0.4)  # another fault was found to be part of it
    book.see_gang(a_gang(dearer, step=26), 8)
    assert (book.only().status.outcome, book.only().status.lost_gpu_hours) == (IncidentOutcome.CURED, 0.4)
    assert book.only().status.remedies[0].why_not == ["PromoteSpare: costs 0.14 GPU-hours"]


def test_crashing_again_before_getting_past_is_the_same_incident() -> None:
    book = Book()
    book.see_gang(a_gang(a_recovery()), 0.1)
    first, second = a_recovery(), a_recovery(3, 30, step=22)
    book.see_gang(a_gang(first, second), 31)
    assert [(r.key, r.outcome) for r in book.only().status.remedies] == [
        ("attempt-2", RemedyOutcome.FAILED),
        ("attempt-3", RemedyOutcome.RUNNING),
    ]
    cured = a_recovery(3, 30, step=22, first_step=33)
    book.see_gang(a_gang(first, cured, step=25), 40)
    assert book.only().is_open, "step 25 is where it failed first"
    book.see_gang(a_gang(first, cured, step=26), 41)
    assert book.only().status.outcome is IncidentOutcome.CURED
    book.see_gang(a_gang(first, cured, a_recovery(4, 100, step=90), step=80), 101)
    assert len(book.all) == 2, "a crash later on is another failure"


def test_a_gangs_incident_is_closed_before_its_next_one_is_opened() -> None:
    book = Book()
    crash = a_recovery()
    book.see_gang(a_gang(crash), 0.1)
    before = book.only().name
    (device,) = book.see_node(a_sight(a_verdict()), 0.2).opened
    plan = book.see_gang(a_gang(crash, a_recovery(3, 1.0, node="node-2")), 1.1)
    # The device's takes over what the gang's said, that one is closed, and only then the crash elsewhere gets one of its own.
    assert [i.name for i, _ in plan.amended_before_opening] == [device.name, before]
    assert plan.amended_before_opening[1][1].outcome is IncidentOutcome.MERGED
    assert [i.name for i, _ in plan.amended_after_opening] == [i.name for i in plan.opened] != []


def test_without_a_next_one_nothing_is_written_before_what_is_opened() -> None:
    book = Book()
    book.see_gang(a_gang(a_recovery()), 0.1)
    plan = book.see_node(a_sight(a_verdict()), 0.2)
    assert (len(plan.opened), plan.amended_before_opening) == (1, ())
    assert plan.amended_after_opening == plan.amended


def test_a_crash_that_another_interruption_overtook_ends_with_that_ones_first_step() -> None:
    book = Book()
    book.see_gang(a_gang(a_recovery(2)), 0.1)
    moved = a_recovery(3, 5, cause=Cause.PREEMPTION, first_step=9)
    book.see_gang(a_gang(a_recovery(2), moved, step=24), 10)
    assert book.only().status.phase is IncidentPhase.VERIFYING
    book.see_gang(a_gang(a_recovery(2), moved, step=26), 12)
    assert book.only().status.outcome is IncidentOutcome.CURED
    assert "in attempt 3" in book.only().status.message


def test_the_attempt_of_one_interruption_may_move() -> None:
    book = Book()
    book.see_gang(a_gang(a_recovery(2)), 0.1)
    book.see_gang(a_gang(a_recovery(3)), 1)
    assert [r.key for r in book.only().status.remedies] == ["attempt-3"]


@pytest.mark.parametrize(
    ("sight", "outcome", "words"),
    [
        (
            a_gang(a_recovery(remedy=Remedy.FAIL), phase="Failed", reason="CodeBudgetExhausted", message="Too many."),
            IncidentOutcome.NOT_CURED,
            "CodeBudgetExhausted",
        ),
        (GangIncidentView("default", "job"), IncidentOutcome.NOT_CURED, "deleted"),
        (a_gang(a_recovery(), phase="Succeeded"), IncidentOutcome.CURED, "succeeded"),
    ],
)
def test_a_job_that_ends_ends_its_incident(sight: GangIncidentView, outcome: IncidentOutcome, words: str) -> None:
    book = Book()
    book.see_gang(a_gang(a_recovery()), 0.1)
    book.see_gang(sight, 10)
    assert book.only().status.outcome is outcome
    assert words in book.only().status.message
    assert book.only().status.remedies[0].outcome is not RemedyOutcome.RUNNING


@pytest.mark.parametrize("cause", [Cause.PREEMPTION, Cause.MAINTENANCE])
def test_what_somebody_decided_is_no_failure(cause: Cause) -> None:
    book = Book()
    book.see_gang(a_gang(a_recovery(cause=cause, reason="PreemptionByScheduler")), 100)
    assert not book.all


def test_an_interruption_by_a_device_is_a_remedy_in_the_devices_incident() -> None:
    book = Book()
    book.see_node(a_sight(a_verdict()), 0)
    hit = a_recovery(cause=Cause.DEVICE, reason="Xid79", remedy=Remedy.PROMOTE_SPARE, first_step=4, lost_gpu_hours=0.5)
    book.see_gang(a_gang(hit), 5)
    status = book.only().status
    record = status.remedies[0]
    assert (record.key, record.action, record.target) == ("attempt-2", "PromoteSpare", "default/job")
    assert (record.outcome, record.price_gpu_hours, status.lost_gpu_hours) == (RemedyOutcome.SUCCEEDED, 0.1, 0.5)
    assert (status.affected[0].rank, status.affected[0].devices) == (1, ["gpu-0"])


def test_the_gangs_look_may_come_before_the_devices() -> None:
    book = Book()
    hit = a_recovery(cause=Cause.DEVICE, reason="Xid79")
    plan = book.see_gang(a_gang(hit), 0.1)
    assert not book.all
    assert plan.look_again_s == pytest.approx(9.9, abs=0.1)
    book.see_node(a_sight(a_verdict()), 0.2)
    book.see_gang(a_gang(hit), 0.3)
    assert book.only().status.remedies[0].key == "attempt-2"


def test_a_fault_that_no_incident_explains_in_time_is_the_gangs() -> None:
    book = Book()
    book.see_gang(a_gang(a_recovery(cause=Cause.DEVICE, reason="Xid79")), 11)
    assert book.only().spec.subject.kind is SubjectKind.GANG


def test_the_crash_came_first() -> None:
    """Row 33: re-attributed to the device; the gang's incident is part of the device's."""
    book = Book()
    crash = a_recovery(exit_code=134, first_step=2, lost_gpu_hours=0.1)
    book.see_gang(a_gang(crash, step=30), 3)
    assert book.only().status.outcome is IncidentOutcome.CURED
    book.see_node(a_sight(a_verdict(since=6)), 6)
    reattributed = msgspec.structs.replace(crash, cause=Cause.DEVICE)
    second = a_recovery(3, 6, Cause.DEVICE, "Xid79", first_step=9, lost_gpu_hours=0.2)
    book.see_gang(a_gang(reattributed, second), 10)
    gang, device = sorted(book.all, key=lambda i: i.spec.subject.kind, reverse=True)
    assert (gang.status.outcome, gang.status.part_of) == (IncidentOutcome.MERGED, device.name)
    assert [r.key for r in device.status.remedies] == ["attempt-2", "attempt-3"]
    assert device.status.lost_gpu_hours == pytest.approx(0.3)
    assert gang.status.lost_gpu_hours == 0.0
    assert [e.exit_code for e in device.status.evidence if e.kind == "exit"] == [134]
    assert device.status.first_signal_at == crash.signal_at


def test_a_crash_long_before_is_not_the_devices() -> None:
    book = Book()
    book.see_gang(a_gang(a_recovery(first_step=2), step=30), 3)
    book.see_node(a_sight(a_verdict(since=30)), 30)
    book.see_gang(a_gang(a_recovery(first_step=2), step=30), 31)
    assert kinds(book) == [SubjectKind.DEVICE, SubjectKind.GANG]
    assert IncidentOutcome.MERGED not in book.outcomes().values()


def test_a_crash_on_a_slow_device_is_still_the_codes() -> None:
    book = Book()
    slow = a_verdict(state=DeviceState.DEGRADED, reason="Straggler", source="straggler/straggler")
    book.see_node(a_sight(slow), 6)
    book.see_gang(a_gang(a_recovery(2, 7)), 8)
    assert kinds(book) == [SubjectKind.DEVICE, SubjectKind.GANG]


def test_a_crash_elsewhere_is_not_this_devices() -> None:
    book = Book()
    book.see_node(a_sight(a_verdict()), 0)
    book.see_gang(a_gang(a_recovery(node="node-2")), 1)
    book.see_gang(a_gang(a_recovery(2, 2, devices=["gpu-7"])), 3)
    assert kinds(book) == [SubjectKind.DEVICE, SubjectKind.GANG]


def test_a_lost_node_explains_its_gangs() -> None:
    book = Book()
    lost = a_recovery(2, 0.1, Cause.INFRA, "NodeLost", first_step=5)
    book.see_gang(a_gang(lost), 6)
    assert not book.all, "the node's own incident is held down for a moment"
    book.see_node(a_sight(HEALTHY, dead_since=0), 10)
    book.see_gang(a_gang(lost), 11)
    assert book.only().spec.subject.kind is SubjectKind.NODE
    assert book.only().status.remedies[0].outcome is RemedyOutcome.SUCCEEDED


def test_two_devices_at_once_share_an_interruption_and_its_cost_is_counted_once() -> None:
    book = Book()
    book.see_node(a_sight(a_verdict("gpu-0"), a_verdict("gpu-1")), 0)
    hit = a_recovery(cause=Cause.DEVICE, reason="Xid79", devices=["gpu-0", "gpu-1"], first_step=2, lost_gpu_hours=1.0)
    book.see_gang(a_gang(hit), 3)
    assert [len(i.status.remedies) for i in book.all] == [1, 1]
    assert sorted(i.status.lost_gpu_hours for i in book.all) == [0.0, 1.0]


def test_what_was_told_long_ago_is_not_told_again() -> None:
    """The incident was removed meanwhile; the job's record still has the interruption."""
    book = Book()
    book.see_gang(a_gang(a_recovery(first_step=3), step=100), 7200)
    assert not book.all


def test_a_device_is_closed_and_its_gang_still_waits_for_room() -> None:
    book = Book()
    book.see_node(a_sight(a_verdict()), 0)
    hit = a_recovery(cause=Cause.DEVICE, reason="Xid79")
    book.see_gang(a_gang(hit, phase="Recovering"), 1)
    book.see_node(a_sight(a_verdict(state=DeviceState.HEALTHY, since=20)), 80)
    assert book.only().status.outcome is IncidentOutcome.CURED
    book.see_gang(a_gang(a_recovery(cause=Cause.DEVICE, reason="Xid79", first_step=100, lost_gpu_hours=2.0)), 101)
    assert (book.only().status.remedies[0].outcome, book.only().status.lost_gpu_hours) == (RemedyOutcome.SUCCEEDED, 2.0)
