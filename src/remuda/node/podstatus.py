"""The status of a pod as its node tells it: rendered from the record, and the smallest patch that says it. Pure.

The node owns phase, reason, message, podIP, startTime, containerStatuses and four conditions; conditions of others are
carried along word for word, because a merge patch replaces the whole list.
"""

from __future__ import annotations

import msgspec

from remuda.api.codec import to_wire
from remuda.api.conditions import with_condition
from remuda.api.core_v1 import (
    Container,
    ContainerState,
    ContainerStateRunning,
    ContainerStateWaiting,
    ContainerStatus,
    Pod,
    PodStatus,
)
from remuda.api.meta import Condition, JsonObject, to_time
from remuda.node.containers import ContainerRecord, Phase, terminated
from remuda.node.lifecycle import Admission, PodRecord, outcome, restarts
from remuda.node.runtime import NO_LOCAL_COMMAND

OWN_CONDITIONS = ("PodScheduled", "Initialized", "ContainersReady", "Ready")
ADMISSION_ERROR = "UnexpectedAdmissionError"

_NOTICES = {
    NO_LOCAL_COMMAND: "A container names no command and images are not run here: the pod is simulated. Give it a command.",
}
_PATCHED = ("phase", "reason", "message", "podIP", "startTime", "conditions", "containerStatuses")


def render_status(pod: Pod, record: PodRecord, known: PodStatus, now: float) -> PodStatus:
    """`known` is the status last written or read: its conditions keep their transition times."""
    statuses = [_container_status(pod, spec, record) for spec in pod.spec.containers]
    phase = _phase(pod, record, known)
    reason, message = _reason(record, known, phase)
    return PodStatus(
        phase=phase,
        reason=reason,
        message=message,
        pod_ip=record.address or known.pod_ip,
        start_time=to_time(record.start_time) if record.start_time else known.start_time,
        conditions=_conditions(known.conditions, phase, statuses, now),
        container_statuses=statuses,
    )


def status_patch(known: PodStatus, new: PodStatus) -> JsonObject:
    """Merge patch of the status from `known` to `new`; empty when they say the same."""
    old_wire, new_wire = _wire(known), _wire(new)
    return {key: new_wire.get(key) for key in _PATCHED if old_wire.get(key) != new_wire.get(key)}


def _wire(status: PodStatus) -> JsonObject:
    return {**to_wire(status), "phase": status.phase}  # the default phase must reach the API as well


def _phase(pod: Pod, record: PodRecord, known: PodStatus) -> str:
    if known.phase in ("Succeeded", "Failed"):
        return known.phase  # a finished pod never comes back to life
    if record.admission is Admission.REFUSED:
        return "Failed"
    final = outcome(pod, record)
    if final is not None:
        return final
    ended = [c.exit for c in record.containers if c.exit is not None]
    if (record.vanished or pod.is_deleting) and record.containers and len(ended) == len(record.containers):
        return "Failed" if any(end.code for end in ended) else "Succeeded"
    if not record.containers or any(c.phase is Phase.WAITING for c in record.containers):
        return "Pending"
    return "Running"


def _reason(record: PodRecord, known: PodStatus, phase: str) -> tuple[str, str]:
    if record.admission is Admission.REFUSED:
        return ADMISSION_ERROR, record.refusal
    if known.phase in ("Succeeded", "Failed"):
        return known.reason, known.message
    if record.notice and phase in ("Pending", "Running"):
        return record.notice, _NOTICES.get(record.notice, "")
    return "", ""


def _container_status(pod: Pod, spec: Container, record: PodRecord) -> ContainerStatus:
    container = record.container(spec.name)
    last = container.last
    if container.phase is Phase.RUNNING:
        state = ContainerState(running=ContainerStateRunning(started_at=to_time(container.started_at)))
    elif container.phase is Phase.EXITED and not _waits_to_restart(pod, record, container):
        state = ContainerState(terminated=terminated(container))
    else:
        last = terminated(container) or last
        state = ContainerState(waiting=_waiting(spec, record, container))
    return ContainerStatus(
        name=spec.name,
        ready=container.is_live,
        restart_count=container.run,
        image=spec.image,
        state=state,
        last_state=ContainerState(terminated=last) if last is not None else ContainerState(),
    )


def _waits_to_restart(pod: Pod, record: PodRecord, container: ContainerRecord) -> bool:
    end = container.exit
    over = record.vanished or pod.is_deleting or pod.is_terminal or record.admission is Admission.REFUSED
    return end is not None and not over and restarts(pod.spec.restart_policy, end.code)


def _waiting(spec: Container, record: PodRecord, container: ContainerRecord) -> ContainerStateWaiting:
    if spec.image in record.pulling:
        return ContainerStateWaiting("Pulling", f"Pulling image {spec.image}.")
    end = container.exit
    if end is not None and container.not_before > end.time:
        delay = container.not_before - end.time
        return ContainerStateWaiting("CrashLoopBackOff", f"Back-off {delay:g} s before the container starts again.")
    return ContainerStateWaiting("ContainerCreating")


def _conditions(known: list[Condition], phase: str, statuses: list[ContainerStatus], now: float) -> list[Condition]:
    at = to_time(now)
    ready = bool(statuses) and all(s.ready for s in statuses)
    reason, message = "", ""
    if not ready:
        reason = {"Succeeded": "PodCompleted", "Failed": "PodFailed"}.get(phase, "ContainersNotReady")
        names = ", ".join(s.name for s in statuses if not s.ready)
        message = f"Containers not ready: {names}." if reason == "ContainersNotReady" else ""
    conditions = known
    for type_ in ("PodScheduled", "Initialized"):
        conditions = with_condition(conditions, type_, True, "", "", at)
    for type_ in ("ContainersReady", "Ready"):
        conditions = with_condition(conditions, type_, ready, reason, message, at)
    return conditions


def merged_conditions(theirs: list[Condition], ours: list[Condition]) -> list[Condition]:
    """Our conditions over the newest list of the API: what others wrote meanwhile stays."""
    own = {c.type: c for c in ours if c.type in OWN_CONDITIONS}
    kept = [own.pop(c.type, c) for c in theirs]
    return [*kept, *own.values()]


def own_conditions(status: PodStatus) -> PodStatus:
    """The status without the conditions of others, so that their changes are not ours to write."""
    mine = [c for c in status.conditions if c.type in OWN_CONDITIONS]
    return status if len(mine) == len(status.conditions) else msgspec.structs.replace(status, conditions=mine)
