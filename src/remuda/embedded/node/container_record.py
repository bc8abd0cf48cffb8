"""What a node remembers of one container, and how long it waits before it starts it again. Pure values.

A container is *waiting* (never started), *running*, or *exited*. `run` counts its starts before the current one, so it is
both Kubernetes' restartCount and the number of the run's directory on disk.

Back-off follows the kubelet: the first death is restarted at once, the next after `base_s`, then doubling to `cap_s`; a run
of `good_s` or longer starts over. Times are Unix seconds.
"""

from __future__ import annotations

from enum import StrEnum

import msgspec

from remuda.api.kubernetes.core_v1 import Container, ContainerStateTerminated, ContainerStatus, Pod
from remuda.api.meta import to_seconds, to_time
from remuda.api.names import ANNOTATION_LAUNCH

STATUS_UNKNOWN = "ContainerStatusUnknown"


class ContainerExit(msgspec.Struct, frozen=True):
    """How a run ended. `code` is the exit code, or 128 + signal."""

    code: int
    time: float
    signal: int = 0
    reason: str = ""
    message: str = ""


def lost_container_exit(time: float, message: str) -> ContainerExit:
    """The end of a run nobody recorded: its shim was killed, or the machine lost power."""
    return ContainerExit(137, time, 9, STATUS_UNKNOWN, message)


class RestartBackoff(msgspec.Struct, frozen=True):
    base_s: float
    cap_s: float
    good_s: float

    def delay(self, crashes: int) -> float:
        """Seconds to wait after the n-th death in a row."""
        if crashes <= 1:
            return 0.0
        return float(min(self.cap_s, self.base_s * 2.0 ** min(crashes - 2, 30)))


KUBELET_BACKOFF = RestartBackoff(10.0, 300.0, 600.0)
# A launcher that died takes its whole gang to the barrier, and the gang's own budget decides how often that may happen:
# waiting minutes in a crash loop here would keep every other member's devices idle on top of it.
LAUNCHER_BACKOFF = RestartBackoff(0.2, 5.0, 60.0)


def node_runs_pod_under_launcher(pod: Pod) -> bool:
    """The pod's containers run under remuda-launch; init containers and sidecars never do."""
    return pod.annotations.get(ANNOTATION_LAUNCH) == "true"


def node_runs_container_under_launcher(pod: Pod, container: Container) -> bool:
    return node_runs_pod_under_launcher(pod) and all(c.name != container.name for c in pod.spec.init_containers)


def is_sidecar_container(init: Container) -> bool:
    """An init container that does not end: it is up before the next one starts, and stays as long as the pod."""
    return init.restart_policy == "Always"


def kubelet_sidecar_container_names(pod: Pod) -> frozenset[str]:
    return frozenset(c.name for c in pod.spec.init_containers if is_sidecar_container(c))


def restart_backoff_of(pod: Pod) -> RestartBackoff:
    return LAUNCHER_BACKOFF if node_runs_pod_under_launcher(pod) else KUBELET_BACKOFF


class ContainerPhase(StrEnum):
    WAITING = "waiting"
    RUNNING = "running"
    EXITED = "exited"


class ContainerRecord(msgspec.Struct, frozen=True):
    name: str
    phase: ContainerPhase = ContainerPhase.WAITING
    run: int = 0
    started_at: float = 0.0
    exit: ContainerExit | None = None  # of this run, when exited
    last: ContainerStateTerminated | None = None  # of the run before
    crashes: int = 0  # deaths in a row, for the back-off
    not_before: float = 0.0  # when a container that exited, or could not be prepared, may start (again)
    problem: str = ""  # why it could not be prepared for its next start

    @property
    def is_live(self) -> bool:
        return self.phase is ContainerPhase.RUNNING

    @property
    def next_run(self) -> int:
        return self.run if self.phase is ContainerPhase.WAITING else self.run + 1


def container_started(record: ContainerRecord, run: int, at: float) -> ContainerRecord:
    last = terminated_state(record) or record.last
    return msgspec.structs.replace(
        record, phase=ContainerPhase.RUNNING, run=run, started_at=at, exit=None, last=last, not_before=0.0, problem=""
    )


def container_exited(record: ContainerRecord, end: ContainerExit, backoff: RestartBackoff) -> ContainerRecord:
    good = end.time - record.started_at >= backoff.good_s
    crashes = 1 if good else record.crashes + 1
    return msgspec.structs.replace(
        record, phase=ContainerPhase.EXITED, exit=end, crashes=crashes, not_before=end.time + backoff.delay(crashes)
    )


def terminated_state(record: ContainerRecord) -> ContainerStateTerminated | None:
    end = record.exit
    if end is None:
        return None
    return ContainerStateTerminated(
        exit_code=end.code,
        signal=end.signal,
        reason=end.reason or ("Completed" if end.code == 0 else "Error"),
        message=end.message,
        started_at=to_time(record.started_at) if record.started_at else None,
        finished_at=to_time(end.time),
    )


def remembered_container(name: str, status: ContainerStatus | None, now: float) -> ContainerRecord:
    """A record from what the API says, for a node that starts and finds no trace of the container on the machine.

    A container the API calls running is then gone for good: the record says so, and the restart policy decides.
    """
    if status is None:
        return ContainerRecord(name)
    state, last = status.state, status.last_state.terminated
    record = ContainerRecord(name, run=status.restart_count, last=last, crashes=status.restart_count)
    if state.running is not None:
        begun = to_seconds(state.running.started_at) if state.running.started_at else now
        end = lost_container_exit(now, "The container was gone when its node started again.")
        running = msgspec.structs.replace(record, phase=ContainerPhase.RUNNING, started_at=begun)
        # The node died, not the program: that is no crash of the container and must not add to its back-off.
        return msgspec.structs.replace(running, phase=ContainerPhase.EXITED, exit=end, not_before=now)
    if state.terminated is not None:
        over = state.terminated
        finished = to_seconds(over.finished_at) if over.finished_at else now
        end = ContainerExit(over.exit_code, finished, over.signal, over.reason, over.message)
        begun = to_seconds(over.started_at) if over.started_at else finished
        return msgspec.structs.replace(
            record, phase=ContainerPhase.EXITED, exit=end, started_at=begun, not_before=finished
        )
    if last is not None:  # it was waiting out a back-off: the run before is the last one there was
        finished = to_seconds(last.finished_at) if last.finished_at else now
        end = ContainerExit(last.exit_code, finished, last.signal, last.reason, last.message)
        begun = to_seconds(last.started_at) if last.started_at else finished
        return msgspec.structs.replace(
            record, phase=ContainerPhase.EXITED, exit=end, started_at=begun, last=None, not_before=finished
        )
    return record
