"""What each launcher is told, by job and state: the table of the barrier."""

from __future__ import annotations

import msgspec
import pytest

from remuda.agent.launchers.barrier_orders import (
    CANNOT_WRITE,
    LauncherOrders,
    checkpoint_dir_for_launchers,
    launcher_registry_roster,
    plan_launcher_barrier_orders,
)
from remuda.agent.launchers.launcher_state import (
    LauncherRecord,
    change_launcher,
    launcher_disconnected,
    launcher_state_after_fence,
    receive_launcher_message,
)
from remuda.api.meta import to_time
from remuda.api.training import CheckpointRequest, TrainingJob
from remuda.launch.protocol import Checkpoint, End, Exited, Fence, Start, Stop, ToAgent, ToLauncher
from tests.unit.agent.scene import NOW, a_job, a_launcher, a_site, heard, hello, ready, running

PARKED: list[ToAgent] = [hello()]
READY_1: list[ToAgent] = [hello(), ready(1)]
RUNNING_1: list[ToAgent] = [hello(), ready(1), running(1)]
EXITED_1: list[ToAgent] = [*RUNNING_1, Exited(1, 1, None, NOW)]
READY_2: list[ToAgent] = [hello(), ready(2)]
RUNNING_2: list[ToAgent] = [hello(), ready(2), running(2)]


def order(job: TrainingJob | None, launcher: LauncherRecord) -> LauncherOrders:
    return plan_launcher_barrier_orders(job, launcher, a_site(), NOW)


def stop(attempt: int, rank: int | None = 0, directory: str | None = "/ckpt") -> Stop:
    return Stop(attempt, "TERM", 2.0, rank, directory)


def start(attempt: int) -> Start:
    return Start(attempt, {"RANK": "0", "GPUS": "0", "REMUDA_CHECKPOINT_DIR": "/ckpt"})


CLOSED_2, OPEN_2 = a_job(2), a_job(2, "Open")


@pytest.mark.parametrize(
    ("job", "messages", "expected"),
    [
        # a member, barrier closed: everyone gets ready for the job's attempt
        pytest.param(a_job(1), PARKED, stop(1), id="first attempt"),
        pytest.param(CLOSED_2, READY_1, stop(2), id="ready for an older one"),
        pytest.param(CLOSED_2, RUNNING_1, stop(2), id="runs an older one"),
        pytest.param(CLOSED_2, EXITED_1, stop(2), id="ended an older one"),
        pytest.param(CLOSED_2, [hello("stopping", 1)], stop(2), id="stops, for whom is not known"),
        pytest.param(CLOSED_2, [hello("ready", 2), ready(2)], stop(2), id="ready, for which rank is not known"),
        pytest.param(CLOSED_2, RUNNING_2, None, id="runs it already"),
        pytest.param(CLOSED_2, [hello(), ready(3)], None, id="ahead of what we have seen"),
        # a member, barrier open
        pytest.param(OPEN_2, READY_2, start(2), id="ready: go"),
        pytest.param(OPEN_2, RUNNING_2, None, id="running"),
        pytest.param(OPEN_2, [*RUNNING_2, Exited(2, 0, None, NOW)], None, id="done"),
        pytest.param(OPEN_2, PARKED, None, id="came back empty: not into this attempt"),
        pytest.param(OPEN_2, READY_1, None, id="ready for another attempt"),
        pytest.param(OPEN_2, [hello(), ready(3)], None, id="ready for a later one"),
        # no attempt, no job, a finished job
        pytest.param(a_job(0), PARKED, None, id="no attempt yet"),
        pytest.param(None, PARKED, None, id="no job"),
        pytest.param(a_job(2, phase="Failed"), RUNNING_1, End(2.0), id="job has failed: its pod stays, ended"),
        pytest.param(a_job(2, phase="Failed", members=["b"]), PARKED, End(2.0), id="job has failed: a spare"),
        pytest.param(a_job(2, phase="Succeeded"), EXITED_1, None, id="job is done"),
        # not a member
        pytest.param(a_job(2, members=["b"]), PARKED, None, id="spare"),
        pytest.param(a_job(2, members=["b"]), RUNNING_1, stop(2, None, None), id="no member any more: runs"),
        pytest.param(a_job(2, members=["b"]), READY_1, stop(2, None, None), id="no member any more: ready"),
        pytest.param(a_job(2, "Open", ["b"]), RUNNING_1, stop(2, None, None), id="no member, barrier open"),
        pytest.param(a_job(2, members=["b"]), EXITED_1, None, id="no member, nothing runs"),
        pytest.param(a_job(2, members=["b"]), READY_2, None, id="no member, ready for this one"),
        # never heard
        pytest.param(a_job(1), [], None, id="never spoke"),
    ],
)
def test_orders(job: TrainingJob | None, messages: list[ToAgent], expected: ToLauncher | None) -> None:
    assert order(job, heard(*messages)).message == expected


def test_the_stop_carries_rank_grace_and_directory() -> None:
    job = a_job(1, members=["x", "y", "a"], stop_grace_seconds=7.5)
    assert order(job, heard(hello())).message == Stop(1, "TERM", 7.5, 2, "/ckpt")


def test_the_environment_is_the_member_s_and_names_the_directory() -> None:
    job = a_job(1, "Open", ["x", "a"])
    message = order(job, heard(hello(), ready(1), gpus=8)).message
    assert message == Start(1, {"RANK": "1", "GPUS": "8", "REMUDA_CHECKPOINT_DIR": "/ckpt"})


def test_an_order_is_given_once() -> None:
    orders = order(a_job(1), heard(hello()))
    assert order(a_job(1), orders.launcher).message is None
    orders = order(OPEN_2, heard(*READY_2))
    assert order(OPEN_2, orders.launcher).message is None


def test_a_stop_is_said_again_after_a_reconnect() -> None:
    launcher = order(CLOSED_2, heard(*RUNNING_1)).launcher
    launcher = receive_launcher_message(launcher_disconnected(launcher, NOW), hello("running", 1), NOW).launcher
    assert order(CLOSED_2, launcher).message == stop(2)


def test_a_start_is_said_again_when_the_launcher_is_still_ready() -> None:
    launcher = order(OPEN_2, heard(*READY_2)).launcher
    launcher = receive_launcher_message(launcher_disconnected(launcher, NOW), hello("ready", 2), NOW).launcher
    assert order(OPEN_2, launcher).message == start(2)


def test_a_start_that_arrived_is_not_said_again() -> None:
    launcher = order(OPEN_2, heard(*READY_2)).launcher
    launcher = receive_launcher_message(launcher_disconnected(launcher, NOW), hello("running", 2), NOW).launcher
    assert order(OPEN_2, launcher).message is None


def asking(attempt: int = 2, left_s: float = 30.0, **fields: object) -> TrainingJob:
    job = a_job(2, "Open")
    request = CheckpointRequest(7, attempt, to_time(NOW - 1), to_time(NOW + left_s), step=12)
    request = msgspec.structs.replace(request, **fields)
    return msgspec.structs.replace(job, status=msgspec.structs.replace(job.status, checkpoint_request=request))


def test_a_checkpoint_is_asked_for_once_and_again_after_a_reconnect() -> None:
    told = order(asking(), heard(*RUNNING_2))
    assert told.message == Checkpoint(NOW + 30.0, "USR1", 12)
    assert order(asking(), told.launcher).message is None
    back = receive_launcher_message(launcher_disconnected(told.launcher, NOW), hello("running", 2), NOW).launcher
    assert order(asking(), back).message == told.message
    assert order(asking(id=8), told.launcher).message == told.message


@pytest.mark.parametrize(
    ("job", "messages"),
    [
        (asking(attempt=1), RUNNING_2),
        (asking(left_s=-1.0), RUNNING_2),
        (asking(answered_at=to_time(NOW)), RUNNING_2),
        (asking(), RUNNING_1),
        (asking(), PARKED),
    ],
    ids=["of an older attempt", "too late", "answered", "it runs an older attempt", "a spare"],
)
def test_nobody_is_asked_for_a_checkpoint_in_vain(job: TrainingJob, messages: list[ToAgent]) -> None:
    assert not isinstance(order(job, heard(*messages)).message, Checkpoint)


def test_nothing_is_said_to_an_absent_launcher() -> None:
    assert order(CLOSED_2, launcher_disconnected(heard(*RUNNING_1), NOW)).message is None


def test_another_rank_in_the_same_attempt_takes_the_ready_back() -> None:
    """Its checkpoints are the other rank's: the barrier must not open on them."""
    launcher = order(a_job(2), heard(*RUNNING_1)).launcher
    launcher = receive_launcher_message(launcher, ready(2, 9), NOW).launcher
    orders = order(a_job(2, members=["b", "a"]), launcher)
    assert orders.message == stop(2, rank=1)
    assert orders.transition
    assert orders.launcher.report is not None
    assert orders.launcher.report.state == "stopping"
    again = receive_launcher_message(orders.launcher, ready(2, 8), NOW)
    assert again.transition
    assert order(a_job(2, members=["b", "a"]), again.launcher).message is None


def test_without_a_look_at_the_directory_nothing_starts() -> None:
    orders = plan_launcher_barrier_orders(OPEN_2, heard(*READY_2), a_site(fault=None), NOW)
    assert orders == LauncherOrders(heard(*READY_2), check=True)


def test_a_directory_that_cannot_be_written_fails_in_the_child_s_place() -> None:
    orders = plan_launcher_barrier_orders(OPEN_2, heard(*READY_2), a_site(fault="/ckpt cannot be written."), NOW)
    assert orders.message is None
    assert orders.transition
    report = orders.launcher.report
    assert report is not None
    assert (report.state, report.attempt, report.code) == ("exited", 2, CANNOT_WRITE)
    assert report.message == "CheckpointPathNotWritable: /ckpt cannot be written."
    assert order(OPEN_2, orders.launcher).message is None
    assert order(a_job(3), orders.launcher).message == stop(3)


def test_simulated_pods_write_nowhere() -> None:
    assert plan_launcher_barrier_orders(
        OPEN_2, heard(*READY_2, simulated=True), a_site(fault=None), NOW
    ).message == start(2)


def test_a_launcher_that_missed_the_fence_gets_it() -> None:
    launcher = launcher_state_after_fence(launcher_disconnected(heard(*RUNNING_1), NOW), NOW)
    launcher = receive_launcher_message(launcher, hello("running", 1), NOW).launcher
    orders = order(a_job(1, "Open"), launcher)
    assert orders.message == Fence()
    assert orders.launcher.report is not None
    assert orders.launcher.report.state == "parked"
    assert order(a_job(1, "Open"), orders.launcher).message is None
    assert order(a_job(2), orders.launcher).message == stop(2)


def test_a_fenced_attempt_is_never_started() -> None:
    launcher = launcher_state_after_fence(heard(*RUNNING_2), NOW)
    assert order(OPEN_2, launcher).message is None


# --- who is who ---------------------------------------------------------------------------------------------------------


def test_roster_is_indexed_once_per_member_list() -> None:
    job = a_job(1, members=["a", "b"])
    assert launcher_registry_roster(job) is launcher_registry_roster(job)
    assert sorted(launcher_registry_roster(job)) == ["a", "b"]
    assert sorted(launcher_registry_roster(a_job(1, members=["c"]))) == ["c"]
    assert sorted(launcher_registry_roster(job)) == ["a", "b"]


def test_many_jobs_do_not_fill_the_memory() -> None:
    from remuda.agent.launchers import barrier_orders

    for number in range(1000):
        assert sorted(launcher_registry_roster(a_job(name=f"job-{number}"))) == ["a"]
    assert len(barrier_orders._rosters) <= barrier_orders._ROSTERS


def test_checkpoints_go_where_the_job_says() -> None:
    assert checkpoint_dir_for_launchers(a_job(path="/shared/ckpt"), "/state/checkpoints") == "/shared/ckpt"
    assert checkpoint_dir_for_launchers(a_job(), "/state/checkpoints") == "/state/checkpoints/default/job-uid-job"


def test_a_job_does_not_find_the_checkpoints_of_one_that_had_its_name() -> None:
    job = a_job()
    later = msgspec.structs.replace(job, metadata=msgspec.structs.replace(job.metadata, uid="another"))
    assert checkpoint_dir_for_launchers(job, "/state") != checkpoint_dir_for_launchers(later, "/state")


def test_a_launcher_is_a_value() -> None:
    before = heard(*READY_2)
    order(OPEN_2, before)
    assert before == change_launcher(a_launcher(), **{f: getattr(before, f) for f in before.__struct_fields__})
    assert before.started == 0
