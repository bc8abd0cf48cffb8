"""What a user is told of a gang, from two of its statuses."""

from __future__ import annotations

import msgspec
import pytest

from remuda.api.meta import to_time
from remuda.api.training import Borrower, Cause, Loan, Member, Placement, Recovery, Remedy, SparePod, TrainingJobStatus
from remuda.core.training.status_events import JobEvent, training_job_status_events


def members(*pods: str) -> list[Member]:
    return [Member(rank, "worker", pod, f"uid-{pod}", f"node-0{rank}") for rank, pod in enumerate(pods)]


def a_recovery(remedy: Remedy, cause: Cause = Cause.DEVICE) -> Recovery:
    return Recovery(2, cause, remedy, "XidError", "gpu-1 of node-01 is Unhealthy.", members=["b"])


RUNNING = TrainingJobStatus(phase="Running", reason="BarrierOpen", attempt=1, barrier="Open", members=members("a", "b"))


def changed(status: TrainingJobStatus, **changes: object) -> TrainingJobStatus:
    return msgspec.structs.replace(status, **changes)


def test_nothing_is_said_of_progress() -> None:
    assert training_job_status_events(RUNNING, RUNNING) == []
    assert (
        training_job_status_events(RUNNING, changed(RUNNING, interruptions=3, resume_step=4, message="other words"))
        == []
    )


def test_the_first_start() -> None:
    new = TrainingJobStatus()
    attempt = changed(new, attempt=1, reason="WaitingForPlacement")
    assert training_job_status_events(new, attempt) == []
    placed = changed(attempt, members=members("a", "b"), phase="Starting", placement=Placement("rack", "rack-1"))
    assert training_job_status_events(attempt, placed) == [JobEvent("Placed", "2 pods have a rank in rack-1.")]
    opened = changed(placed, barrier="Open", phase="Running")
    assert training_job_status_events(placed, opened) == [
        JobEvent("Started", "All 2 ranks run attempt 1 from the beginning.")
    ]


def test_a_spare_takes_over_and_training_resumes() -> None:
    spare = SparePod("c", "uid-c", "worker", "node-05")
    before = changed(RUNNING, spares=[spare])
    after = changed(
        before,
        attempt=2,
        barrier="Closed",
        phase="Recovering",
        reason="XidError",
        members=members("a", "c"),
        recoveries=[a_recovery(Remedy.PROMOTE_SPARE)],
    )
    raised = "Attempt 2 by PromoteSpare (device: XidError: gpu-1 of node-01 is Unhealthy). Failed: b."
    assert training_job_status_events(before, after) == [
        JobEvent("AttemptRaised", raised, is_warning=True),
        JobEvent("SparePromoted", "c on node-01 takes rank 1."),
    ]
    resumed = changed(after, barrier="Open", phase="Running", reason="BarrierOpen", resume_step=40)
    assert training_job_status_events(after, resumed) == [
        JobEvent("Resumed", "All 2 ranks run attempt 2 from step 40.")
    ]


def test_a_pod_that_was_no_spare_replaces_another() -> None:
    before = changed(RUNNING, attempt=2, barrier="Closed", recoveries=[a_recovery(Remedy.REPLACE_POD)])
    (news,) = training_job_status_events(before, changed(before, members=members("a", "d")))
    assert news == JobEvent("PodReplaced", "d on node-01 takes rank 1.")


def test_a_gang_that_moves_is_one_sentence_however_large() -> None:
    pods = [f"p{n}" for n in range(512)]
    before = changed(RUNNING, members=members(*pods))
    recovery = msgspec.structs.replace(a_recovery(Remedy.REPLACE_GANG), members=pods)
    raised = changed(before, attempt=2, barrier="Closed", members=[], recoveries=[recovery])
    (news,) = training_job_status_events(before, raised)
    assert news.reason == "GangReplaced"
    assert news.message.endswith("Failed: p0, p1, p2, p3 and 508 others.")
    again = training_job_status_events(raised, changed(raised, members=members(*(f"q{n}" for n in range(512)))))
    assert again == [JobEvent("Placed", "512 pods have a rank.")]


def test_many_replaced_pods_are_counted() -> None:
    before = changed(RUNNING, attempt=2, members=[], recoveries=[a_recovery(Remedy.REPLACE_POD)])
    (news,) = training_job_status_events(before, changed(before, members=members(*(f"q{n}" for n in range(9)))))
    assert news == JobEvent("PodReplaced", "9 pods take ranks 0, 1, 2, 3 and others.")


@pytest.mark.parametrize(
    ("phase", "expected"),
    [
        ("Succeeded", JobEvent("Completed", "words")),
        ("Failed", JobEvent("Failed", "CodeBudgetExhausted: words", is_warning=True)),
    ],
)
def test_the_end(phase: str, expected: JobEvent) -> None:
    after = changed(RUNNING, phase=phase, reason="CodeBudgetExhausted", message="words")
    assert training_job_status_events(RUNNING, after) == [expected]


def test_why_it_waits_is_said_once() -> None:
    before = TrainingJobStatus(attempt=1, reason="WaitingForPlacement")
    after = changed(before, reason="InsufficientDevices", message="8 GPUs are free.")
    assert training_job_status_events(before, after) == [
        JobEvent("WaitingForRoom", "InsufficientDevices: 8 GPUs are free.", is_warning=True)
    ]
    assert training_job_status_events(after, after) == []


def test_a_loan_is_told_from_its_beginning_to_its_end() -> None:
    loan = Loan("c", "uid-c", "worker", "node-05", ["gpu-0", "gpu-1"], borrowers=[Borrower("else", "guest", "uid-g")])
    lent = changed(RUNNING, loans=[loan])
    assert training_job_status_events(RUNNING, lent) == [
        JobEvent("SpareLent", "c gives 2 devices of node-05 to else/guest until the gang needs them.")
    ]
    assert training_job_status_events(lent, lent) == []
    called = changed(lent, loans=[msgspec.structs.replace(loan, recalled_at=to_time(1.0), reason="Xid79")])
    text = "2 devices of node-05 are called back from else/guest: Xid79."
    assert training_job_status_events(lent, called) == [JobEvent("SpareRecalled", text, is_warning=True)]
    back = changed(lent, loans=[msgspec.structs.replace(loan, borrowers=[], returned_at=to_time(1.0))])
    assert [n.reason for n in training_job_status_events(lent, back)] == ["SpareReturned"]
