"""Pods as an incident tells of them: whose they are, how their containers ended, and when they were over.

A pod belongs to its gang (TrainingJob, JobSet, Job, any owner). Exits count when the container ended by itself: what ends because
the pod was told to go is the remedy's doing and no evidence of a failure.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

import msgspec

from remuda.api.devices import DeviceState, LauncherReport, NodeDevices
from remuda.api.incidents import Affected, Evidence
from remuda.api.kubernetes.core_v1 import ContainerStateTerminated, Pod
from remuda.api.meta import to_seconds, to_time
from remuda.api.names import LABEL_GANG
from remuda.core.health.device_holders import DeviceHolder, HoldersByDevice
from remuda.core.incidents.evidence import affected_pod_ended
from remuda.core.state.snapshot import snapshot_devices_of_pod

_JOBSET = "jobset.sigs.k8s.io/jobset-name"


class NodeIncidentView(msgspec.Struct, frozen=True):
    """What one look at a node's incidents is made of."""

    name: str
    devices: NodeDevices | None = None
    node_uid: str = ""  # "" = there is no such node
    pods: tuple[Pod, ...] = ()  # of the node, and those that went a moment ago
    present: frozenset[str] = frozenset()  # uids of pods that are still there
    ranks: Mapping[str, int] = {}  # of gang members, by uid
    dead_since: float | None = None  # when its lease ran out


def owner_of_incident_pod(pod: Pod) -> str:
    """The TrainingJob's name, or the owner as `Kind/name`; "" for a pod of its own."""
    if pod.owner("TrainingJob") is not None and (gang := pod.labels.get(LABEL_GANG)):
        return gang
    if jobset := pod.labels.get(_JOBSET):
        return f"JobSet/{jobset}"
    owner = next((o for o in pod.metadata.owner_references if o.controller), None)
    return f"{owner.kind}/{owner.name}" if owner is not None else ""


def affected_pods(
    sight: NodeIncidentView, device_of: Mapping[str, list[str]], holders: Iterable[DeviceHolder]
) -> list[Affected]:
    """`device_of`: uid -> the devices that concern it."""
    by_uid = {p.uid: p for p in sight.pods}
    found: dict[str, Affected] = {}
    for holder in holders:
        pod = by_uid.get(holder.uid)
        known = found.get(holder.uid or holder.pod)
        if known is not None:
            continue
        found[holder.uid or holder.pod] = Affected(
            pod=holder.pod,
            uid=holder.uid,
            node=sight.name,
            devices=device_of.get(holder.uid, []),
            container=holder.container,
            gang=owner_of_incident_pod(pod) if pod is not None else "",
            rank=sight.ranks.get(holder.uid),
            restarts=_affected_pod_restarts(pod) if pod is not None else 0,
        )
    return list(found.values())


def follow_affected_pods(
    known: Iterable[Affected], sight: NodeIncidentView, held: HoldersByDevice, state: DeviceState | None, now: float
) -> list[Affected]:
    """As they are now: restarts, exit codes, and the device's state once they are over. A pod that nobody shows is gone when it
    was seen to go, or its node has let go of it, or never will."""
    by_uid = {p.uid: p for p in sight.pods}
    holding = set() if sight.dead_since is not None else {h.uid for some in held.values() for h in some}
    found: list[Affected] = []
    for one in known:
        pod = by_uid.get(one.uid)
        if pod is not None:
            code = one.exit_code if one.exit_code is not None else _affected_pod_exit_code(pod)
            one = msgspec.structs.replace(one, restarts=max(one.restarts, _affected_pod_restarts(pod)), exit_code=code)
        if pod is not None and pod.is_terminal:
            one = affected_pod_ended(one, pod.status.phase, to_time(now), state)
        elif one.uid and one.uid not in sight.present and (pod is not None or one.uid not in holding):
            one = affected_pod_ended(one, "Deleted", to_time(now), state)
        found.append(one)
    return found


def incident_evidence_of_container_exit(
    pods: Iterable[Pod], uids: set[str], since: float, ranks: Mapping[str, int]
) -> list[Evidence]:
    """How containers of these pods ended by themselves, at `since` or later, with something else than success."""
    return [piece for pod in pods if pod.uid in uids for piece in _pod_exits(pod, since, ranks.get(pod.uid))]


def _pod_exits(pod: Pod, since: float, rank: int | None) -> Iterator[Evidence]:
    for status in (*pod.status.init_container_statuses, *pod.status.container_statuses):
        for state in (status.last_state.terminated, status.state.terminated):
            if state is None or state.exit_code == 0:
                continue
            if state.finished_at is not None and to_seconds(state.finished_at) < since:
                continue
            if _was_ended_by_deletion(pod, state):
                continue
            why = state.reason if state.reason not in ("", "Error") else ""
            words = f"{pod.name}: container {status.name} ended with code {state.exit_code}"
            yield Evidence(
                kind="exit",
                message=f"{words} ({why})." if why else f"{words}.",
                time=state.finished_at,
                source="kubelet",
                code=state.reason,
                node=pod.spec.node_name,
                pod=f"{pod.namespace}/{pod.name}",
                container=status.name,
                exit_code=state.exit_code,
                rank=rank,
            )


def crashed_pods_in_incident(
    sight: NodeIncidentView, devices: Iterable[str], since: float
) -> list[tuple[str, DeviceHolder]]:
    """(device, pod) of pods that had one of the devices and crashed at `since` or later: they hold nothing any more, and may
    be gone."""
    wanted = set(devices)
    return [
        (device, DeviceHolder(f"{pod.namespace}/{pod.name}", pod.uid))
        for pod in sight.pods
        if (pod.is_terminal or pod.uid not in sight.present) and any(_pod_exits(pod, since, None))
        for device in snapshot_devices_of_pod(pod)
        if device in wanted
    ]


def incident_evidence_of_launcher_exit(
    reports: Iterable[LauncherReport], uids: set[str], since: float, node: str
) -> list[Evidence]:
    """The same of processes under a launcher, whose container goes on."""
    found: list[Evidence] = []
    for report in reports:
        if report.uid not in uids or report.state != "exited" or not report.code:
            continue
        if report.time is not None and to_seconds(report.time) < since:
            continue
        found.append(
            Evidence(
                kind="exit",
                message=report.message or f"{report.pod}: its process ended with code {report.code}.",
                time=report.time,
                source="launcher",
                node=node,
                pod=report.pod,
                exit_code=report.code,
            )
        )
    return found


def _affected_pod_restarts(pod: Pod) -> int:
    return sum(s.restart_count for s in pod.status.container_statuses)


def _affected_pod_exit_code(pod: Pod) -> int | None:
    """Of the first container that ended by itself and not well."""
    states = (s.state.terminated or s.last_state.terminated for s in pod.status.container_statuses)
    return next(
        (s.exit_code for s in states if s is not None and s.exit_code and not _was_ended_by_deletion(pod, s)), None
    )


def _was_ended_by_deletion(pod: Pod, state: ContainerStateTerminated) -> bool:
    """It ended because the pod has to go."""
    told, at = pod.metadata.deletion_timestamp, state.finished_at
    if told is None or at is None:
        return told is not None
    return to_seconds(at) >= to_seconds(told) - (pod.metadata.deletion_grace_period_seconds or 0)
