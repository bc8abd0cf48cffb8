"""The screens of jobs, as text."""

from typing import Any

import msgspec
import pytest

from remuda.api.kubernetes.core_v1 import (
    ContainerState,
    ContainerStateTerminated,
    ContainerStateWaiting,
    ContainerStatus,
    PodStatus,
)
from remuda.api.meta import Condition, ObjectMeta
from remuda.api.training import Borrower, Budgets, Failure, Loan, Member, Progress, TrainingJob
from remuda.cli.jobs.job_screen import JobPicture, member_state_text, render_job, render_jobs, take_job_screen_picture
from tests.unit.cli.scenes import NOW, a_job, a_node, a_pod, a_report, at, devices_of_node, pods, text_of


def picture(job: TrainingJob | None = None) -> JobPicture:
    found = [a_report(0), a_report(2), a_report(3), a_report(4, "parked", 0)]
    nodes = [a_node(n) for n in range(1, 6)]
    return take_job_screen_picture(job or a_job(), pods(), [devices_of_node(1, found)], nodes, NOW)


def test_jobs_fit_eighty_columns() -> None:
    waiting = a_job(
        "waiting",
        phase="Pending",
        reason="NoDomainHasRoom",
        attempt=1,
        members=[],
        spares=[],
        recoveries=[],
        started_at=None,
    )
    screen = text_of(render_jobs([waiting, a_job()], NOW, 80), 80)
    assert screen == (
        "NAME    PHASE   ATTEMPT RANKS STEP CKPT  ETTR SPARES   AGE REASON\n"
        "hello   Running       2   3/3  140  140 97.1%    1/1 2m05s\n"
        "waiting Pending       1   0/3  140  140     -    0/1 2m05s NoDomainHasRoom"
    )


def test_a_narrow_terminal_keeps_names_and_reasons_whole_and_says_which_columns_it_has_no_room_for() -> None:
    job = a_job(
        "training-of-four", phase="Failed", reason="RuleFailed", progress=Progress(140, 140, at(-3), 0.2, at(0), [])
    )
    lines = text_of(render_jobs([job], NOW, 80), 80).splitlines()
    assert lines[1].split()[0] == "training-of-four"
    assert lines[1].split()[-1] == "RuleFailed"
    assert "SPARES" in lines[0]
    assert len(lines) == 2, "all fits"

    long = a_job("a-rather-long-name-of-a-job", phase="Recovering", reason="CheckpointPathNotWritable")
    lines = text_of(render_jobs([long], NOW, 80), 80).splitlines()
    assert all(len(line) <= 80 for line in lines)
    assert lines[0].split() == ["NAME", "PHASE", "RANKS", "STEP", "REASON"]
    assert lines[1].split() == ["a-rather-long-name-of-a-job", "Recovering", "3/3", "140", "CheckpointPathNotWritable"]
    said = " ".join(lines[2:])
    assert said == "Columns left out: SPARES, CKPT, ETTR, AGE, ATTEMPT. Widen the terminal, or -o wide."
    assert "left out" not in text_of(render_jobs([long], NOW, 80, wide=True), 300)


def test_the_widest_names_fold_and_lose_nothing() -> None:
    job = a_job("n" * 63, phase="Recovering", reason="CheckpointPathNotWritable")
    table, _, left_out = text_of(render_jobs([job], NOW, 80), 80).partition("Columns left out: ")
    assert left_out
    assert table.count("n") == 63 + "RecoveringCheckpointPathNotWritable".count("n")
    assert "…" not in table


def test_a_running_job_on_one_screen() -> None:
    screen = text_of(render_job(picture(), 80), 80)
    assert screen == (
        "hello  Running  attempt 2  default · rack-1 · age 2m05s\n"
        "step 140 · checkpoint 140 (3s ago) · 0.2s/step · ETTR 97.1%\n"
        "failures/limit  code 0/3 device 1/10 infra 0/10 hang 0/3\n"
        "GPU-seconds lost  device 82\n"
        "\n"
        " RANK  POD             NODE     RACK    DEVICES   STEP  STATE\n"
        "    0  hello-worker-0  node-01  rack-1  gpu-0..7   140  running\n"
        "    1  hello-worker-3  node-04  rack-1  gpu-0..7   140  running\n"
        "    2  hello-worker-2  node-03  rack-1  gpu-0..7   141  running\n"
        "spare  hello-worker-4  node-05  rack-1  gpu-0..7     -  parked\n"
        "\n"
        "Recoveries (price in GPU-hours; times since the failure; steps lost)\n"
        "ATTEMPT CAUSE  REASON   REMEDY       PRICE DETECT  STOP START  STEP LOST\n"
        "      2 device Xid79    PromoteSpare  0.12  0.05s 0.60s 1.00s 1.50s    3\n"
        "\n"
        "attempt 2: gpu-2 on node-02 is Unhealthy: xid-79: GPU has fallen off the bus.\n"
        "  hello-worker-1 -> hello-worker-3\n"
        "  not RestartInPlace: hello-worker-1 cannot be used again (Xid79)"
    )


def test_slow_ranks_that_stay_are_explained_while_the_job_runs() -> None:
    words = "Rank 2 (hello-worker-2 on node-03, gpu-1): 1.6 times slower than its peers since then. It stays. Swap it."
    slow = Condition(type="SlowRanks", status="True", reason="CarryOn", message=words, last_transition_time=at(-65))
    normal = Condition(
        type="GangSlow", status="False", reason="PaceNormal", message="The gang is as fast as it ever was."
    )
    screen = text_of(render_job(picture(a_job(conditions=[slow, normal])), 200), 200)
    assert screen.splitlines()[1] == f"SlowRanks for 1m05s: CarryOn: {words}"
    assert "PaceNormal" not in screen
    ended = a_job(phase="Succeeded", conditions=[slow])
    assert "SlowRanks" not in text_of(render_job(picture(ended), 200), 200)


def test_a_failed_job_says_why_in_the_second_line() -> None:
    job = a_job(phase="Failed", reason="CodeBudgetExhausted", message="4 crashes, 3 allowed.", members=[], spares=[])
    lines = text_of(render_job(picture(job), 120), 120).splitlines()
    assert lines[1] == "CodeBudgetExhausted: 4 crashes, 3 allowed."
    assert "No pods placed yet." in lines


def test_many_ranks_leave_out_those_that_simply_run() -> None:
    job = a_job()
    crowd = [Member(r, "worker", f"hello-worker-{r}", f"uid-{r}", "node-01", ["gpu-0"]) for r in range(100)]
    job = msgspec.structs.replace(job, status=msgspec.structs.replace(job.status, members=crowd))
    found = [a_report(r, "exited" if r == 77 else "running", code=1 if r == 77 else None) for r in range(100)]
    view = take_job_screen_picture(job, [a_pod(r) for r in range(100)], [devices_of_node(1, found)], [], NOW)
    screen = text_of(render_job(view, 100, rows=5), 100)
    assert "hello-worker-77" in screen
    assert "exited 1" in screen
    assert "… and 95 more ranks" in screen
    assert "RACK" not in screen, "no node has a rack"


@pytest.mark.parametrize(
    ("report", "text"),
    [
        (a_report(0, "running"), "running"),
        (a_report(0, "running", attempt=1), "running (attempt 1)"),
        (a_report(0, "parked", attempt=0), "parked"),
        (a_report(0, "exited", code=0), "exited 0"),
        (a_report(0, "exited", code=137, message="killed by signal 9"), "exited 137: killed by signal 9"),
        (a_report(0, "running", hung_since=at(-12)), "hung for 12s"),
    ],
)
def test_what_a_launcher_reports_is_the_state(report: object, text: str) -> None:
    view = msgspec.structs.replace(picture(), reports={"uid-0": report})
    assert member_state_text(view, "uid-0").plain == text


def test_before_the_launcher_speaks_the_pod_tells() -> None:
    def state(**changes: Any) -> str:
        view = picture()
        view = msgspec.structs.replace(view, reports={}, pods={"uid-0": a_pod(0, **changes)})
        return member_state_text(view, "uid-0").plain

    waiting = ContainerStatus("main", state=ContainerState(waiting=ContainerStateWaiting(reason="ImagePulling")))
    refused = Condition("PodScheduled", "False", "NoRoom")
    assert state() == "starting"
    assert state(status=PodStatus(container_statuses=[waiting])) == "ImagePulling"
    assert state(status=PodStatus(phase="Failed", reason="Evicted")) == "Evicted"
    assert state(status=PodStatus(conditions=[refused])) == "NoRoom"
    assert state(metadata=ObjectMeta(name="x", uid="uid-0", deletion_timestamp=at(0))) == "terminating"
    assert member_state_text(picture(), "uid-unknown").plain == "gone"


@pytest.mark.parametrize(
    ("phase", "code", "words"),
    [
        ("Failed", 1, "failed (exit 1)"),
        ("Failed", 143, "stopped"),
        ("Succeeded", 0, "ended"),
        ("Failed", None, "failed"),
    ],
)
def test_a_pod_that_has_ended_does_not_start(phase: str, code: int | None, words: str) -> None:
    ended = (
        []
        if code is None
        else [ContainerStatus("main", state=ContainerState(terminated=ContainerStateTerminated(code)))]
    )
    pod = a_pod(0, status=PodStatus(phase=phase, container_statuses=ended))
    for report in ({}, {"uid-0": a_report(0, "gone")}):
        view = msgspec.structs.replace(picture(), reports=report, pods={"uid-0": pod})
        assert member_state_text(view, "uid-0").plain == words


@pytest.mark.parametrize(
    ("reports", "words"), [({}, "stopping"), ({"uid-0": a_report(0, "gone")}, "stopped")], ids=["nothing", "gone"]
)
def test_nobody_starts_in_a_job_that_has_ended(reports: dict[str, Any], words: str) -> None:
    job = a_job(phase="Failed")
    view = msgspec.structs.replace(picture(job), reports=reports, pods={"uid-0": a_pod(0)})
    assert member_state_text(view, "uid-0").plain == words


@pytest.mark.parametrize("phase", ["Failed", "Succeeded"])
def test_a_job_that_has_ended_has_no_ranks_that_run(phase: str) -> None:
    assert " 0/3 " in text_of(render_jobs([a_job(phase=phase)], NOW, 120), 120)


def test_budgets_show_what_is_used_and_unlimited_ones_only_then() -> None:
    job = a_job(used={"preemption": 2, "code": 3})
    job = msgspec.structs.replace(job, spec=msgspec.structs.replace(job.spec, failure=Failure(budgets=Budgets(code=3))))
    screen = text_of(render_job(picture(job), 120), 120)
    assert "failures/limit  code 3/3 device 0/10 infra 0/10 hang 0/3 preemption 2/∞" in screen


def test_a_lent_spare_says_who_has_its_place() -> None:
    loan = Loan(
        "hello-worker-4", "uid-4", "worker", "node-05", ["gpu-0"], at(-9), [Borrower("else", "guest", "uid-guest")]
    )
    job = a_job(spares=[], loans=[loan])
    assert "lent  hello-worker-4  node-05  rack-1  gpu-0        -  to else/guest" in text_of(
        render_job(picture(job), 80), 80
    )
    assert "0/1 (1 lent)" in text_of(render_jobs([job], NOW, 120), 120)
    called = a_job(spares=[], loans=[msgspec.structs.replace(loan, recalled_at=at(-1))])
    assert "called back from else/guest" in text_of(render_job(picture(called), 100), 100)
