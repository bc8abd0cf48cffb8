"""The status of a pod as its node tells it: rendered from the record, and the smallest patch that says it. Pure.

The node owns phase, reason, message, podIP(s), startTime, the statuses of containers and init containers, and four conditions;
conditions of others are carried along word for word, because a merge patch replaces the whole list.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec

from remuda.api.codec import to_wire
from remuda.api.conditions import find_condition, with_condition
from remuda.api.kubernetes.core_v1 import (
    Container,
    ContainerState,
    ContainerStateRunning,
    ContainerStateWaiting,
    ContainerStatus,
    Pod,
    PodIP,
    PodStatus,
    ResourceHealth,
    ResourceStatus,
)
from remuda.api.meta import Condition, JsonObject, to_time
from remuda.embedded.node.container_record import (
    ContainerPhase,
    ContainerRecord,
    is_sidecar_container,
    kubelet_sidecar_container_names,
    terminated_state,
)
from remuda.embedded.node.devices.cdi import UNRESOLVABLE as CDI_WORDS
from remuda.embedded.node.devices.device_ledger import DeviceHealth
from remuda.embedded.node.pod_lifecycle import (
    DeviceAdmission,
    PodRecord,
    are_init_containers_done,
    is_pod_record_over,
    is_pod_restarting,
    pod_outcome_from_container_exits,
)
from remuda.embedded.node.restart_rules import RESTARTING, container_comes_back
from remuda.embedded.node.runtime_port import NO_LOCAL_COMMAND

OWN_CONDITIONS = ("PodScheduled", "Initialized", "ContainersReady", "Ready", RESTARTING)

DEADLINE_EXCEEDED = "DeadlineExceeded"
_NOTICES = {
    NO_LOCAL_COMMAND: "A container names no command and images are not run here: the pod is simulated. Give it a command.",
}
_PATCHED = (
    "phase",
    "reason",
    "message",
    "podIP",
    "podIPs",
    "startTime",
    "conditions",
    "containerStatuses",
    "initContainerStatuses",
)
_MAX_MESSAGE = 1024  # of a device's health

HealthOf = Callable[[str], Sequence[DeviceHealth]]  # by container name


def pod_status_of(
    pod: Pod, record: PodRecord, known: PodStatus, now: float, health: HealthOf = lambda container: ()
) -> PodStatus:
    """`known` is the status last written or read: its conditions keep their transition times."""
    statuses = [_container_status(pod, spec, record, health) for spec in pod.spec.containers]
    inits = [_container_status(pod, spec, record, health) for spec in pod.spec.init_containers]
    is_ready = bool(statuses) and all(s.ready for s in (*statuses, *_sidecar_statuses(pod, inits)))
    phase = _pod_phase(pod, record, known)
    reason, message = _pod_reason(record, known, phase)
    address = record.address or known.pod_ip
    return PodStatus(
        phase=phase,
        reason=reason,
        message=message,
        pod_ip=address,
        pod_ips=[PodIP(address)] if address else [],
        start_time=to_time(record.start_time) if record.start_time else known.start_time,
        conditions=_pod_conditions(
            _restarting_condition(pod, record, known.conditions, now),
            phase,
            [*inits, *statuses],
            is_ready,
            are_init_containers_done(pod, record),
            now,
        ),
        container_statuses=statuses,
        init_container_statuses=inits,
    )


def _sidecar_statuses(pod: Pod, inits: list[ContainerStatus]) -> list[ContainerStatus]:
    return [status for status in inits if status.name in kubelet_sidecar_container_names(pod)]


def kubelet_pod_status_patch(known: PodStatus, new: PodStatus) -> JsonObject:
    """Merge patch of the status from `known` to `new`; empty when they say the same."""
    old_wire, new_wire = _pod_status_wire(known), _pod_status_wire(new)
    return {key: new_wire.get(key) for key in _PATCHED if old_wire.get(key) != new_wire.get(key)}


def _pod_status_wire(status: PodStatus) -> JsonObject:
    return {**to_wire(status), "phase": status.phase}  # the default phase must reach the API as well


def _pod_phase(pod: Pod, record: PodRecord, known: PodStatus) -> str:
    if known.phase in ("Succeeded", "Failed"):
        return known.phase  # a finished pod never comes back to life
    if record.admission is DeviceAdmission.REFUSED:
        return "Failed"
    if record.expired and not record.is_live:
        return "Failed"
    final = pod_outcome_from_container_exits(pod, record)
    if final is not None and not record.is_live:  # sidecars are stopped first
        return final
    ended = [c.exit for c in record.containers if c.exit is not None]
    if (record.vanished or pod.is_deleting) and record.containers and len(ended) == len(record.containers):
        return "Failed" if any(end.code for end in ended) else "Succeeded"
    if not record.containers or any(c.phase is ContainerPhase.WAITING for c in record.containers):
        return "Pending"
    return "Running"


def _pod_reason(record: PodRecord, known: PodStatus, phase: str) -> tuple[str, str]:
    if record.admission is DeviceAdmission.REFUSED:
        return record.refused_as, record.refusal
    if known.phase in ("Succeeded", "Failed"):
        return known.reason, known.message
    if record.expired and phase == "Failed":
        return DEADLINE_EXCEEDED, "Pod was active on the node longer than the specified deadline"
    if record.notice and phase in ("Pending", "Running"):
        return record.notice, _NOTICES.get(record.notice, "")
    return "", ""


def _container_status(pod: Pod, spec: Container, record: PodRecord, health: HealthOf) -> ContainerStatus:
    container = record.container(spec.name)
    last = container.last
    if container.phase is ContainerPhase.RUNNING:
        state = ContainerState(running=ContainerStateRunning(started_at=to_time(container.started_at)))
    elif container.phase is ContainerPhase.EXITED and not _container_waits_to_restart(pod, spec, record):
        state = ContainerState(terminated=terminated_state(container))
    else:
        last = terminated_state(container) or last
        state = ContainerState(waiting=_container_waiting(pod, spec, record, container))
    is_init = any(c.name == spec.name for c in pod.spec.init_containers)
    done = container.exit is not None and container.exit.code == 0
    return ContainerStatus(
        name=spec.name,
        ready=done if is_init and not is_sidecar_container(spec) else container.is_live,
        restart_count=container.run,
        image=spec.image,
        container_id=_container_id(pod, container),
        state=state,
        last_state=ContainerState(terminated=last) if last is not None else ContainerState(),
        allocated_resources_status=_resource_statuses(health(spec.name)),
    )


def _container_id(pod: Pod, container: ContainerRecord) -> str:
    """Of the newest run that began; nothing before the first."""
    return "" if container.phase is ContainerPhase.WAITING else f"remuda://{pod.uid}/{container.name}/{container.run}"


def device_health_in_status(status: PodStatus) -> dict[str, tuple[DeviceHealth, ...]]:
    """What the API says of the devices of each container: the other way round."""
    return {
        container.name: tuple(
            DeviceHealth(resource.name, device.resource_id, device.health == "Healthy", device.message)
            for resource in container.allocated_resources_status
            for device in resource.resources
        )
        for container in (*status.init_container_statuses, *status.container_statuses)
        if container.allocated_resources_status
    }


def _resource_statuses(health: Sequence[DeviceHealth]) -> list[ResourceStatus]:
    """Named as upstream does it for device plugins: the resource, and the plugin's own id."""
    found: dict[str, list[ResourceHealth]] = {}
    for device in health:
        word = "Healthy" if device.healthy else "Unhealthy"
        entry = ResourceHealth(device.device, word, device.message[:_MAX_MESSAGE])
        found.setdefault(device.resource, []).append(entry)
    return [ResourceStatus(name, resources) for name, resources in found.items()]


def _container_waits_to_restart(pod: Pod, spec: Container, record: PodRecord) -> bool:
    end = record.container(spec.name).exit
    return end is not None and not is_pod_record_over(pod, record) and container_comes_back(pod, spec, end.code)


def _container_waiting(
    pod: Pod, spec: Container, record: PodRecord, container: ContainerRecord
) -> ContainerStateWaiting:
    if container.problem:
        # What the kubelet finds wrong itself is the container's configuration; this one is the runtime's refusal.
        is_runtimes = container.problem.startswith(CDI_WORDS)
        word = "CreateContainerError" if is_runtimes else "CreateContainerConfigError"
        return ContainerStateWaiting(word, container.problem)
    if spec.image in record.pulling:
        return ContainerStateWaiting("Pulling", f"Pulling image {spec.image}.")
    end = container.exit
    if end is not None and container.not_before > end.time:
        delay = container.not_before - end.time
        return ContainerStateWaiting("CrashLoopBackOff", f"Back-off {delay:g} s before the container starts again.")
    return ContainerStateWaiting("ContainerCreating" if are_init_containers_done(pod, record) else "PodInitializing")


def _restarting_condition(pod: Pod, record: PodRecord, known: list[Condition], now: float) -> list[Condition]:
    """Shown once it has happened: most pods never have it."""
    is_so = is_pod_restarting(pod, record)
    if not is_so and find_condition(known, RESTARTING) is None:
        return known
    reason = "ContainerExited" if is_so else "RestartCompleted"
    return with_condition(known, RESTARTING, is_so, reason, "", to_time(now))


def _pod_conditions(
    known: list[Condition], phase: str, statuses: list[ContainerStatus], ready: bool, initialized: bool, now: float
) -> list[Condition]:
    at = to_time(now)
    reason, message = "", ""
    if not ready:
        reason = {"Succeeded": "PodCompleted", "Failed": "PodFailed"}.get(phase, "ContainersNotReady")
        names = ", ".join(s.name for s in statuses if not s.ready)
        message = f"Containers not ready: {names}." if reason == "ContainersNotReady" else ""
    why = "" if initialized else "ContainersNotInitialized"
    conditions = with_condition(known, "PodScheduled", True, "", "", at)
    conditions = with_condition(conditions, "Initialized", initialized, why, "", at)
    for type_ in ("ContainersReady", "Ready"):
        conditions = with_condition(conditions, type_, ready, reason, message, at)
    return conditions


def merge_pod_conditions(theirs: list[Condition], ours: list[Condition]) -> list[Condition]:
    """Our conditions over the newest list of the API: what others wrote meanwhile stays."""
    own = {c.type: c for c in ours if c.type in OWN_CONDITIONS}
    kept = [own.pop(c.type, c) for c in theirs]
    return [*kept, *own.values()]


def with_kubelet_conditions_only(status: PodStatus) -> PodStatus:
    """The status without the conditions of others, so that their changes are not ours to write."""
    mine = [c for c in status.conditions if c.type in OWN_CONDITIONS]
    return status if len(mine) == len(status.conditions) else msgspec.structs.replace(status, conditions=mine)
