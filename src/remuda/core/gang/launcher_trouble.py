"""Why a pod's launcher does not get to speak: what its kubelet says of the container. Pure.

A launcher that runs tells its agent everything. One that cannot start has only its container's status: the reason, and the last
lines it wrote. Each trouble has a name:

  ImageNotPulled       the image is not there yet, or never will be
  ContainerNotCreated  something the container needs is missing (a ConfigMap, a Secret), or its runtime refuses it
  NoPython             the image has no python3, which the launcher runs on
  ExecFormatError      the image is for another kind of machine
  ContainerNotStarted  the runtime could not start it, for another reason
  LauncherMissing      python3 is there, but the launcher's file is not: its node's agent has not brought it
  LauncherEnded        it ended again and again without a word to its agent

What a kubelet goes on trying by itself (`is_ended` False) is told at once and has the job's start deadline to come right. A
container that ended is not left to the kubelet to start for ever: that is a fault of the member, with a budget and a pause.
"""

from __future__ import annotations

import msgspec

from remuda.api.kubernetes.core_v1 import ContainerStateTerminated, ContainerStatus
from remuda.api.training import Cause
from remuda.core.gang.pod_view import PodView

IMAGE_NOT_PULLED, NOT_CREATED, NOT_STARTED = "ImageNotPulled", "ContainerNotCreated", "ContainerNotStarted"
NO_PYTHON, EXEC_FORMAT, MISSING, ENDED = "NoPython", "ExecFormatError", "LauncherMissing", "LauncherEnded"
LAUNCHER_TROUBLES = (IMAGE_NOT_PULLED, NOT_CREATED, NOT_STARTED, NO_PYTHON, EXEC_FORMAT, MISSING, ENDED)

_PULLING = ("ErrImagePull", "ImagePullBackOff", "ErrImageNeverPull", "ImageInspectError", "RegistryUnavailable")
_BAD_NAME = "InvalidImageName"
_CREATING = ("CreateContainerConfigError", "CreateContainerError", "PreCreateHookError")
_NOT_RUN = ("StartError", "ContainerCannotRun")  # the runtime's words for a container whose first process never was

ENDS = 3  # of a launcher that says nothing of why
LINES, WORDS = 3, 400  # of what it wrote, at most


class LauncherTrouble(msgspec.Struct, frozen=True):
    reason: str
    message: str
    cause: Cause
    is_ended: bool  # the container ended, or never can start: waiting cures nothing


def launcher_trouble(view: PodView) -> LauncherTrouble | None:
    """None while it speaks, runs, or nothing is known against it."""
    status = _launcher_status(view)
    if not view.is_silent or status is None or status.state.running is not None or view.pod.is_deleting:
        return None
    pod, waiting = view.pod.name, status.state.waiting
    if waiting is not None and waiting.reason in (*_PULLING, _BAD_NAME):
        is_name = waiting.reason == _BAD_NAME
        why = waiting.message.rpartition("ErrImagePull: ")[2] or waiting.reason
        text = f"{IMAGE_NOT_PULLED}: the image of {pod} cannot be had. {_last_lines(why)}"
        return LauncherTrouble(IMAGE_NOT_PULLED, text, Cause.CODE if is_name else Cause.INFRA, is_ended=is_name)
    if waiting is not None and waiting.reason in _CREATING:
        text = f"{NOT_CREATED}: the container of {pod} cannot be made. {_last_lines(waiting.message)}"
        return LauncherTrouble(NOT_CREATED, text, Cause.INFRA, is_ended=False)
    ended = status.state.terminated or status.last_state.terminated
    return _ended_launcher_trouble(view, status, ended) if ended is not None and ended.exit_code else None


def _launcher_status(view: PodView) -> ContainerStatus | None:
    containers, found = view.pod.spec.containers, view.pod.status.container_statuses
    return next((s for s in found if containers and s.name == containers[0].name), None)


def _ended_launcher_trouble(
    view: PodView, status: ContainerStatus, ended: ContainerStateTerminated
) -> LauncherTrouble | None:
    said, pod = ended.message, view.pod.name

    def trouble(reason: str, what: str, cause: Cause) -> LauncherTrouble:
        return LauncherTrouble(reason, f"{reason}: {what} {_last_lines(said)}".strip(), cause, is_ended=True)

    if "exec format error" in said and ended.reason in _NOT_RUN:
        return trouble(EXEC_FORMAT, f"the image of {pod} is for another kind of machine.", Cause.CODE)
    if ended.reason in _NOT_RUN and "python3" in said and ("not found" in said or "no such file" in said):
        return trouble(NO_PYTHON, f"the image of {pod} has no python3, which the launcher runs on.", Cause.CODE)
    if ended.reason in _NOT_RUN:
        return trouble(NOT_STARTED, f"the container of {pod} could not be started.", Cause.INFRA)
    if 'File "<string>"' in said and said.rstrip().endswith("No module named 'remuda'"):
        return trouble(MISSING, f"{pod} does not find the launcher that its node's agent brings.", Cause.INFRA)
    # One that was heard of before has ended once more: the start deadline says how long it has to come back.
    if view.report is None and status.restart_count + 1 >= ENDS:
        what = f"the launcher of {pod} ended with code {ended.exit_code} before its agent heard of it."
        return trouble(ENDED, what, Cause.INFRA)
    return None


def _last_lines(text: str) -> str:
    """The end of what was said, on one line and without what would act on a terminal."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    found = "".join(c if c.isprintable() else " " for c in " ".join(lines[-LINES:]))
    return found if len(found) <= WORDS else f"...{found[-WORDS:]}"
