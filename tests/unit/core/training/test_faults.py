"""What is wrong with a member, read from everything known of its pod: the cause, the reason, and whether the pod is lost."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from remuda.api.devices import DeviceState, Signal, Verdict
from remuda.api.meta import Condition, to_time
from remuda.api.training import Cause, Member, TrainingJob
from remuda.core.gang.pod_view import MemberProgress, PodView
from remuda.core.state.leaving_nodes import NodeLeavingState
from remuda.core.training.checkpoint_sizes import common_checkpoint
from remuda.core.training.faults import find_member_faults, training_command_never_ran
from tests.builders.gangs import a_held_pod, a_job, a_report

NOW = 1000.0
POD = a_held_pod("p", "node-01", ["gpu-0"])
ATTEMPT = 2


def job(barrier: str = "Open", raised: float = NOW - 1.0, since: float = NOW - 1.0) -> TrainingJob:
    member = Member(0, "worker", "p", POD.uid, "node-01", ["gpu-0"], "127.0.0.1", to_time(since))
    failure = {"stop_deadline_seconds": 10.0, "start_deadline_seconds": 60.0}
    return (
        a_job()
        .replicas(1)
        .failure(**failure)
        .status(attempt=ATTEMPT, barrier=barrier, members=[member], attempt_raised_at=to_time(raised))
        .build()
    )


def a_view(state: str = "running", attempt: int = ATTEMPT, **fields: Any) -> PodView:
    return PodView(POD, a_report(POD, state, attempt, **{"time": to_time(NOW - 0.5), **fields}))


def deleting(reason: str = "") -> PodView:
    pod = a_held_pod("p", "node-01", ["gpu-0"], deleting_at=NOW + 5)
    if reason:
        target = [Condition("DisruptionTarget", "True", reason, "Somebody did it.")]
        pod = msgspec.structs.replace(pod, status=msgspec.structs.replace(pod.status, conditions=target))
    return PodView(pod, a_report(POD, "running", ATTEMPT))


def found(view: PodView | None, of: TrainingJob | None = None) -> tuple[Cause, str, bool] | None:
    faults = find_member_faults(of or job(), {POD.uid: view} if view else {}, NOW)
    return (faults[0].cause, faults[0].reason, faults[0].lost) if faults else None


BAD = Verdict("gpu-0", DeviceState.UNHEALTHY, "Xid79", since=to_time(NOW - 3))


def leaving(view: PodView, until: float | None) -> PodView:
    """Its node was to go then."""
    return msgspec.structs.replace(
        view, leaving=NodeLeavingState(Cause.MAINTENANCE, "MaintenancePlanned", "Maintained.", until)
    )


@pytest.mark.parametrize(
    ("view", "expected"),
    [
        (a_view(), None),
        (a_view("ready"), None),
        (a_view("exited", code=0), None),
        (None, (Cause.INFRA, "PodDeleted", True)),
        (deleting(), (Cause.INFRA, "PodDeleted", True)),
        (deleting("PreemptionByScheduler"), (Cause.PREEMPTION, "PreemptionByScheduler", True)),
        (deleting("EvictionByEvictionAPI"), (Cause.MAINTENANCE, "EvictionByEvictionAPI", True)),
        (PodView(a_held_pod("p", "node-01", phase="Failed")), (Cause.INFRA, "PodEnded", True)),
        (msgspec.structs.replace(a_view(), bad_device=BAD), (Cause.DEVICE, "Xid79", True)),
        (msgspec.structs.replace(a_view(), node_dead=True), (Cause.INFRA, "NodeLost", True)),
        (a_view("exited", code=1), (Cause.CODE, "ProcessExited", False)),
        (a_view("exited", code=137), (Cause.CODE, "ProcessExited", False)),
        (a_view(hung_since=to_time(NOW - 30)), (Cause.HANG, "NoProgress", False)),
        (a_view("gone"), (Cause.INFRA, "LauncherDied", False)),
        (a_view("parked", 0), (Cause.INFRA, "LauncherDied", False)),
        (PodView(POD), (Cause.INFRA, "LauncherDied", False)),
        (a_view("gone", planned=True), (Cause.MAINTENANCE, "NodeStopped", False)),
        (a_view("parked", 0, planned=True), (Cause.MAINTENANCE, "NodeStopped", False)),
        (a_view("exited", code=1, planned=True), (Cause.CODE, "ProcessExited", False)),
        (leaving(a_view("gone"), NOW - 1), (Cause.MAINTENANCE, "MaintenancePlanned", False)),
        (leaving(a_view("parked", 0), None), (Cause.MAINTENANCE, "MaintenancePlanned", False)),
        (leaving(a_view("gone"), NOW + 60), (Cause.INFRA, "LauncherDied", False)),
        (leaving(a_view("exited", code=1), NOW - 1), (Cause.CODE, "ProcessExited", False)),
        (leaving(a_view(), NOW - 1), None),
        (leaving(deleting(), NOW - 1), (Cause.MAINTENANCE, "MaintenancePlanned", True)),
        (leaving(deleting(), NOW + 60), (Cause.INFRA, "PodDeleted", True)),
    ],
)
def test_while_the_barrier_is_open(view: PodView | None, expected: tuple[Cause, str, bool] | None) -> None:
    assert found(view) == expected


@pytest.mark.parametrize(
    ("view", "raised", "since", "expected"),
    [
        (a_view("running", 1), NOW - 9, NOW - 9, None),
        (a_view("running", 1), NOW - 11, NOW - 11, (Cause.INFRA, "MemberNotStopped", True)),
        (a_view("stopping", 1), NOW - 11, NOW - 11, (Cause.INFRA, "MemberNotStopped", True)),
        (a_view("exited", 1, code=1), NOW - 11, NOW - 11, None),
        (a_view("gone", 1), NOW - 59, NOW - 59, None),
        (a_view("gone", 1), NOW - 61, NOW - 61, (Cause.INFRA, "MemberNotStarted", True)),
        (PodView(POD), NOW - 61, NOW - 61, (Cause.INFRA, "MemberNotStarted", True)),
        (a_view("ready"), NOW - 9999, NOW - 9999, None),
        # It was ready, and waited for the others for hours: its launcher may come back.
        (a_view("gone"), NOW - 9999, NOW - 9999, None),
        (a_view("parked", 0), NOW - 9999, NOW - 9999, None),
        (a_view("gone", time=to_time(NOW - 61)), NOW - 9999, NOW - 9999, (Cause.INFRA, "MemberNotStarted", True)),
        (a_view("gone", time=to_time(NOW + 9999)), NOW - 9999, NOW - 9999, (Cause.INFRA, "MemberNotStarted", True)),
        # The gang waited for room for hours; the pod that came at last has its whole time to start.
        (PodView(POD), NOW - 9999, NOW - 1, None),
        # Fenced in this very attempt: it obeys the next one only, so waiting would not help.
        (a_view("parked", ATTEMPT), NOW - 1, NOW - 1, (Cause.INFRA, "LauncherFenced", False)),
        (a_view("parked", 1), NOW - 1, NOW - 1, None),
    ],
)
def test_while_the_barrier_is_closed(
    view: PodView, raised: float, since: float, expected: tuple[Cause, str, bool] | None
) -> None:
    assert found(view, job("Closed", raised, since)) == expected


def test_a_device_explains_whatever_else_is_wrong_with_its_pod() -> None:
    view = msgspec.structs.replace(a_view("exited", code=1), bad_device=BAD)
    (fault,) = find_member_faults(job(), {POD.uid: view}, NOW)
    assert fault.cause is Cause.DEVICE
    assert fault.signal_at == NOW - 3


def test_a_signal_from_the_future_is_from_now() -> None:
    view = msgspec.structs.replace(a_view(), bad_device=Verdict("gpu-0", since=to_time(NOW + 100)))
    (fault,) = find_member_faults(job(), {POD.uid: view}, NOW)
    assert fault.signal_at == NOW


STEP = MemberProgress(ATTEMPT, 5, NOW, NOW - 5)


@pytest.mark.parametrize(
    ("code", "message", "progress", "reason"),
    [
        (127, "command not found: trian", None, "CommandNotFound"),
        (126, "permission denied: train.py", None, "CommandNotExecutable"),
        (73, "CheckpointPathNotWritable: /data is read-only", None, "CheckpointPathNotWritable"),
        (127, "exit code 127: x: command not found", STEP, None),  # it made steps, so it ran
        (127, "command not found: trian", MemberProgress(1, 5, NOW, NOW), "CommandNotFound"),  # of an older attempt
        (73, "exit code 73: cannot create file", None, None),  # the program's own word
        (1, "boom", None, None),
        (127, "", None, None),
    ],
)
def test_a_command_that_never_ran(code: int, message: str, progress: MemberProgress | None, reason: str | None) -> None:
    view = PodView(POD, a_report(POD, "exited", ATTEMPT, code=code, message=message), progress)
    answer = training_command_never_ran(job(), {POD.uid: view})
    assert (answer[0] if answer else None) == reason


def test_an_older_attempts_end_is_not_read() -> None:
    assert training_command_never_ran(job(), {POD.uid: a_view("exited", 1, code=127, message="x")}) is None
    assert find_member_faults(job("Closed"), {POD.uid: a_view("exited", 1, code=1)}, NOW) == []


@pytest.mark.parametrize(
    ("kept", "step"),
    [
        ([[30, 20, 10], [30, 20, 10]], 30),
        ([[30, 20, 10], [20, 10]], 20),  # one rank's newest is unreadable: everyone falls back one
        ([[30], [20]], None),
        ([[30, 20], [], []], 30),  # rank 0 writes for all
        ([[30, 20], [30, 20], []], None),  # a shard is missing
        ([[], []], None),
        ([], None),
    ],
)
def test_the_newest_step_that_everyone_has(kept: list[list[int]], step: int | None) -> None:
    assert common_checkpoint([a_report(f"p{i}", checkpoints=c) for i, c in enumerate(kept)]) == step


# --- whose exit it was ------------------------------------------------------------------------------------------------


def an_exit(*signals: Signal, pressure: bool = False, code: int = 1) -> PodView:
    view = a_view("exited", code=code)
    return msgspec.structs.replace(view, signals=signals, memory_pressure=pressure)


def said(code: str, at: float = NOW - 1.0) -> Signal:
    return Signal("kmsg", code, time=to_time(at))


@pytest.mark.parametrize(
    ("view", "expected"),
    [
        (an_exit(), (Cause.CODE, "ProcessExited", False)),
        (
            an_exit(said("xid-94")),
            (Cause.DEVICE, "Xid94", False),
        ),  # contained: the pod may go on, the memory is to blame
        (an_exit(said("xid-31")), (Cause.CODE, "Xid31", False)),
        (an_exit(said("xid-94", NOW - 60)), (Cause.CODE, "ProcessExited", False)),
        (an_exit(pressure=True, code=137), (Cause.INFRA, "NodeMemoryPressure", False)),
        (an_exit(pressure=True), (Cause.CODE, "ProcessExited", False)),
    ],
)
def test_an_exit_is_read_with_what_stood_around_it(view: PodView, expected: tuple[Cause, str, bool]) -> None:
    assert found(view) == expected


def test_how_far_to_look_back_is_the_jobs_own() -> None:
    one = job()
    failure = msgspec.structs.replace(one.spec.failure, look_back_seconds=120.0)
    patient = msgspec.structs.replace(one, spec=msgspec.structs.replace(one.spec, failure=failure))
    assert found(an_exit(said("xid-94", NOW - 60)), patient) == (Cause.DEVICE, "Xid94", False)
