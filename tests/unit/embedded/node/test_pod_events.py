"""What a node tells of a pod, from two of its statuses."""

from __future__ import annotations

import msgspec
import pytest

from remuda.api.kubernetes.core_v1 import (
    Container,
    ContainerState,
    ContainerStateRunning,
    ContainerStateTerminated,
    ContainerStateWaiting,
    ContainerStatus,
    Pod,
    PodSpec,
    PodStatus,
)
from remuda.api.meta import KObject, ObjectMeta, to_time
from remuda.embedded.node.pod_events import emit_container_status_events, emit_stop_event

POD = Pod(metadata=ObjectMeta(name="p", uid="u"), spec=PodSpec(containers=[Container("main"), Container("side")]))
RUNNING = ContainerState(running=ContainerStateRunning(to_time(1000.0)))
CREATING = ContainerState(waiting=ContainerStateWaiting("ContainerCreating"))
BACKING_OFF = ContainerState(waiting=ContainerStateWaiting("CrashLoopBackOff", "Back-off 10 s."))


class Heard:
    def __init__(self) -> None:
        self.said: list[tuple[str, str, str]] = []

    def normal(self, obj: KObject, reason: str, message: str) -> None:
        self.said.append(("Normal", reason, message))

    def warning(self, obj: KObject, reason: str, message: str) -> None:
        self.said.append(("Warning", reason, message))


def ended(code: int, signal: int = 0, message: str = "") -> ContainerState:
    return ContainerState(terminated=ContainerStateTerminated(code, signal, "Error", message))


def a_status(state: ContainerState, last: ContainerState = ContainerState(), run: int = 0) -> PodStatus:  # noqa: B008
    return PodStatus(container_statuses=[ContainerStatus("main", restart_count=run, state=state, last_state=last)])


SIMULATED = PodStatus(reason="NoLocalCommand", message="It is simulated.")
STARTED = ("Normal", "Started", "Started container main")
FAILED = ("Warning", "Failed", "Container main ended with exit code 3: boom")
BACK_OFF = ("Warning", "BackOff", "Back-off restarting failed container main")


@pytest.mark.parametrize(
    ("before", "after", "said"),
    [
        (PodStatus(), a_status(CREATING), []),
        (a_status(CREATING), a_status(RUNNING), [STARTED]),
        (PodStatus(), a_status(RUNNING), [STARTED]),
        (PodStatus(), SIMULATED, [("Warning", "NoLocalCommand", "It is simulated.")]),
        (SIMULATED, SIMULATED, []),
        (a_status(RUNNING), a_status(ContainerState(running=ContainerStateRunning(to_time(1000.1)))), []),
        (a_status(RUNNING), a_status(RUNNING, ended(3, message="boom"), run=1), [STARTED, FAILED]),
        (a_status(RUNNING), a_status(ended(3, message="boom")), [FAILED]),
        (a_status(RUNNING), a_status(ended(0)), []),
        (a_status(RUNNING), a_status(BACKING_OFF, ended(3, message="boom")), [FAILED, BACK_OFF]),
        (a_status(BACKING_OFF, ended(3)), a_status(BACKING_OFF, ended(3)), []),
        (a_status(ended(3)), a_status(RUNNING, ended(3), run=1), [STARTED]),
        (
            a_status(RUNNING),
            a_status(ended(137, 9)),
            [("Warning", "Failed", "Container main ended with signal 9")],
        ),
    ],
)
def test_what_is_said(before: PodStatus, after: PodStatus, said: list[tuple[str, str, str]]) -> None:
    heard = Heard()
    emit_container_status_events(heard, POD, before, after)
    assert heard.said == said


def test_a_refused_pod() -> None:
    heard = Heard()
    refused = PodStatus(phase="Failed", reason="UnexpectedAdmissionError", message="Allocate failed: DeviceHeld")
    emit_container_status_events(heard, POD, PodStatus(), refused)
    emit_container_status_events(heard, POD, refused, refused)
    assert heard.said == [("Warning", "UnexpectedAdmissionError", "Allocate failed: DeviceHeld")]


def test_a_pod_that_is_told_to_end_has_not_failed() -> None:
    heard = Heard()
    going = msgspec.structs.replace(POD, metadata=ObjectMeta(name="p", deletion_timestamp=to_time(1.0)))
    emit_stop_event(heard, going)
    emit_container_status_events(heard, going, a_status(RUNNING), a_status(ended(143, 15)))
    assert heard.said == [
        ("Normal", "Killing", "Stopping container main"),
        ("Normal", "Killing", "Stopping container side"),
    ]
