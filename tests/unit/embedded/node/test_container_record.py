"""Back-off, and what a node makes of a container it has no trace of."""

from __future__ import annotations

import pytest

from remuda.api.kubernetes.core_v1 import (
    ContainerState,
    ContainerStateRunning,
    ContainerStateTerminated,
    ContainerStateWaiting,
    ContainerStatus,
)
from remuda.api.meta import to_time
from remuda.embedded.node import container_record
from remuda.embedded.node.container_record import (
    KUBELET_BACKOFF,
    LAUNCHER_BACKOFF,
    STATUS_UNKNOWN,
    ContainerExit,
    ContainerPhase,
    ContainerRecord,
    RestartBackoff,
    remembered_container,
)


def crash_delays(backoff: RestartBackoff, times: int, ran_s: float = 1.0) -> list[float]:
    record, now, delays = ContainerRecord("main"), 1000.0, []
    for run in range(times):
        record = container_record.container_started(record, run, now)
        now += ran_s
        record = container_record.container_exited(record, ContainerExit(1, now), backoff)
        delays.append(round(record.not_before - now, 6))
        now = record.not_before
    return delays


def test_first_death_restarts_at_once_then_doubles_to_the_cap() -> None:
    assert crash_delays(KUBELET_BACKOFF, 8) == [0, 10, 20, 40, 80, 160, 300, 300]


def test_a_launcher_waits_seconds_not_minutes() -> None:
    assert crash_delays(LAUNCHER_BACKOFF, 8) == [0, 0.2, 0.4, 0.8, 1.6, 3.2, 5, 5]


def test_a_good_run_starts_the_backoff_over() -> None:
    assert crash_delays(KUBELET_BACKOFF, 4, ran_s=600.0) == [0, 0, 0, 0]
    assert crash_delays(KUBELET_BACKOFF, 4, ran_s=599.9) == [0, 10, 20, 40]


def test_a_huge_number_of_crashes_does_not_overflow() -> None:
    assert KUBELET_BACKOFF.delay(10**6) == 300


def test_a_restart_keeps_the_end_of_the_run_before() -> None:
    record = container_record.container_started(ContainerRecord("main"), 0, 100.0)
    record = container_record.container_exited(record, ContainerExit(3, 104.0, message="boom"), KUBELET_BACKOFF)
    record = container_record.container_started(record, record.next_run, 105.0)
    assert (record.run, record.is_live, record.exit) == (1, True, None)
    assert record.last == ContainerStateTerminated(
        exit_code=3, reason="Error", message="boom", started_at=to_time(100.0), finished_at=to_time(104.0)
    )


RUNNING = ContainerState(running=ContainerStateRunning(started_at=to_time(50.0)))
ENDED = ContainerState(
    terminated=ContainerStateTerminated(
        exit_code=4, reason="Error", started_at=to_time(50.0), finished_at=to_time(60.0)
    )
)


@pytest.mark.parametrize(
    ("status", "phase", "run", "code", "reason"),
    [
        (None, ContainerPhase.WAITING, 0, None, None),
        (ContainerStatus("main"), ContainerPhase.WAITING, 0, None, None),
        (ContainerStatus("main", restart_count=2, state=RUNNING), ContainerPhase.EXITED, 2, 137, STATUS_UNKNOWN),
        (ContainerStatus("main", restart_count=1, state=ENDED), ContainerPhase.EXITED, 1, 4, "Error"),
        (
            ContainerStatus(
                "main",
                restart_count=3,
                state=ContainerState(waiting=ContainerStateWaiting("CrashLoopBackOff")),
                last_state=ENDED,
            ),
            ContainerPhase.EXITED,
            3,
            4,
            "Error",
        ),
    ],
    ids=["never seen", "never started", "was running", "had ended", "was in back-off"],
)
def test_what_the_api_remembers(
    status: ContainerStatus | None, phase: ContainerPhase, run: int, code: int | None, reason: str | None
) -> None:
    record = remembered_container("main", status, 200.0)
    assert (record.phase, record.run) == (phase, run)
    assert (record.exit.code if record.exit else None) == code
    assert (record.exit.reason if record.exit else None) == reason
