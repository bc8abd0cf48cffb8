"""A launcher that cannot start is named by what its kubelet says of the container."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from remuda.api.kubernetes.core_v1 import (
    Container,
    ContainerState,
    ContainerStateRunning,
    ContainerStateTerminated,
    ContainerStateWaiting,
    ContainerStatus,
    PodSpec,
)
from remuda.api.training import Cause
from remuda.core.gang.launcher_trouble import launcher_trouble
from remuda.core.gang.pod_view import PodView
from tests.builders.gangs import a_held_pod, a_report

NO_PYTHON = (
    "failed to create containerd task: failed to create shim task: OCI runtime create failed: runc create failed: "
    'unable to start container process: error during container init: exec: "python3": executable file not found in $PATH'
)
NO_LAUNCHER = (
    'Traceback (most recent call last):\n  File "<string>", line 1, in <module>\n'
    "ModuleNotFoundError: No module named 'remuda'\n"
)
NEVER = ContainerState()
CRASHING = ContainerState(waiting=ContainerStateWaiting("CrashLoopBackOff", "back-off 10s restarting"))


def ended(message: str, reason: str = "Error", code: int = 1) -> ContainerState:
    return ContainerState(terminated=ContainerStateTerminated(code, reason=reason, message=message))


def waiting(reason: str, message: str = "") -> ContainerState:
    return ContainerState(waiting=ContainerStateWaiting(reason, message))


def a_view(
    state: ContainerState,
    last: ContainerState = NEVER,
    restarts: int = 0,
    report: Any = None,
) -> PodView:
    pod = a_held_pod("p", "node-01", ["gpu-0"])
    status = ContainerStatus("main", restart_count=restarts, state=state, last_state=last)
    spec = msgspec.structs.replace(pod.spec, containers=[Container("main")])
    assert isinstance(spec, PodSpec)
    told = msgspec.structs.replace(pod.status, container_statuses=[status])
    return PodView(msgspec.structs.replace(pod, spec=spec, status=told), report)


@pytest.mark.parametrize(
    ("view", "reason", "cause", "is_ended", "words"),
    [
        (a_view(ended(NO_PYTHON, "StartError", 128)), "NoPython", Cause.CODE, True, "no python3"),
        (a_view(CRASHING, ended(NO_PYTHON, "StartError", 128), 1), "NoPython", Cause.CODE, True, "no python3"),
        (
            a_view(ended("exec /usr/bin/python3: exec format error", "StartError", 128)),
            "ExecFormatError",
            Cause.CODE,
            True,
            "another kind of machine",
        ),
        (a_view(ended("mkdir: no space", "StartError", 128)), "ContainerNotStarted", Cause.INFRA, True, "no space"),
        (a_view(ended(NO_LAUNCHER)), "LauncherMissing", Cause.INFRA, True, "No module named 'remuda'"),
        (a_view(CRASHING, ended("Killed\n", code=137), 2), "LauncherEnded", Cause.INFRA, True, "code 137"),
        (
            a_view(waiting("ErrImagePull", "rpc error: not found")),
            "ImageNotPulled",
            Cause.INFRA,
            False,
            "rpc error: not found",
        ),
        (
            a_view(waiting("ImagePullBackOff", 'Back-off pulling image "x": ErrImagePull: rpc error: not found')),
            "ImageNotPulled",
            Cause.INFRA,
            False,
            "cannot be had. rpc error: not found",
        ),
        (a_view(waiting("InvalidImageName", "bad")), "ImageNotPulled", Cause.CODE, True, "bad"),
        (
            a_view(waiting("CreateContainerConfigError", 'configmap "c" not found')),
            "ContainerNotCreated",
            Cause.INFRA,
            False,
            'configmap "c" not found',
        ),
    ],
)
def test_it_has_a_name_and_its_last_words(view: PodView, reason: str, cause: Cause, is_ended: bool, words: str) -> None:
    found = launcher_trouble(view)
    assert found is not None
    assert (found.reason, found.cause, found.is_ended) == (reason, cause, is_ended)
    assert words in found.message
    assert found.message.startswith(f"{reason}: ")


@pytest.mark.parametrize(
    "view",
    [
        a_view(waiting("ContainerCreating")),
        a_view(waiting("PodInitializing")),
        a_view(ContainerState(running=ContainerStateRunning()), ended(NO_LAUNCHER), 3),
        a_view(ended("", "Completed", 0)),
        a_view(CRASHING, ended("oops"), 1),
        a_view(ended(NO_LAUNCHER), report=a_report("p", "ready", 1)),
        # It was heard of: that it comes back is the start deadline's matter.
        a_view(CRASHING, ended("Killed", code=137), 7, report=a_report("p", "gone", 1)),
        # What the rank's own program wrote last is not the launcher's.
        a_view(ended("  File \"train.py\", line 1\nModuleNotFoundError: No module named 'remuda'")),
    ],
)
def test_what_may_come_right_or_runs_is_no_trouble(view: PodView) -> None:
    assert launcher_trouble(view) is None


def test_one_that_was_heard_of_and_then_lost_its_launcher_is_named() -> None:
    found = launcher_trouble(a_view(CRASHING, ended(NO_LAUNCHER), 3, report=a_report("p", "gone", 1)))
    assert found is not None
    assert found.reason == "LauncherMissing"


def test_last_words_are_few_and_harmless() -> None:
    noise = "\n".join(["x" * 1000, "\x1b[31mred\x07", "end"])
    found = launcher_trouble(a_view(ended(noise, "StartError", 128)))
    assert found is not None
    assert found.message.endswith("red  end")
    assert len(found.message) < 600
    assert found.message.isprintable()
