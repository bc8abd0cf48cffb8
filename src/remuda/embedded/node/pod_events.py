"""What a node tells of a pod: the difference between two of its statuses, as events in the kubelet's words. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from remuda.api.kubernetes.core_v1 import ContainerStatus, Pod, PodStatus
from remuda.embedded.node.runtime_port import NO_LOCAL_COMMAND
from remuda.kube.runtime.events import EventSink

_CANNOT_START = ("CreateContainerConfigError", "CreateContainerError")


def emit_container_status_events(events: EventSink, pod: Pod, before: PodStatus, after: PodStatus) -> None:
    """Of a status that was written."""
    if after.phase == "Failed" and before.phase != "Failed" and after.reason:
        events.warning(pod, after.reason, after.message or "The node refused the pod.")
    elif after.reason == NO_LOCAL_COMMAND != before.reason:
        events.warning(pod, after.reason, after.message)
    known = {status.name: status for status in before.container_statuses}
    for status in after.container_statuses:
        for reason, message, is_warning in _container_events(known.get(status.name), status):
            if not (is_warning and pod.is_deleting):  # told to end, it ended: no failure
                (events.warning if is_warning else events.normal)(pod, reason, message)


def emit_stop_event(events: EventSink, pod: Pod) -> None:
    for container in pod.spec.containers:
        events.normal(pod, "Killing", f"Stopping container {container.name}")


def _container_events(before: ContainerStatus | None, after: ContainerStatus) -> Iterator[tuple[str, str, bool]]:
    was = before.state if before is not None else None
    now = after.state
    if now.running is not None and (
        before is None or before.state.running is None or before.restart_count != after.restart_count
    ):
        yield "Started", f"Started container {after.name}", False
    ended = now.terminated or after.last_state.terminated
    told = (was.terminated if was else None) or (before.last_state.terminated if before else None)
    if ended is not None and ended != told and ended.exit_code:
        end = f"signal {ended.signal}" if ended.signal else f"exit code {ended.exit_code}"
        yield (
            "Failed",
            f"Container {after.name} ended with {end}" + (f": {ended.message}" if ended.message else ""),
            True,
        )
    waits = now.waiting
    if waits is not None and waits.reason in _CANNOT_START and (was is None or was.waiting != waits):
        yield "Failed", f"Error: {waits.message}", True
    if _is_backing_off(after) and not (before is not None and _is_backing_off(before)):
        yield "BackOff", f"Back-off restarting failed container {after.name}", True


def _is_backing_off(status: ContainerStatus) -> bool:
    return status.state.waiting is not None and status.state.waiting.reason == "CrashLoopBackOff"
