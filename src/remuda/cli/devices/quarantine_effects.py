"""Whom a quarantine hits: each pod that holds the device (or a slice of it), and what becomes of it. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from remuda.api.devices import NodeDevices
from remuda.api.kubernetes.core_v1 import Pod
from remuda.api.names import LABEL_GANG
from remuda.api.remedies import Mode, RemedyPolicy
from remuda.api.training import TrainingJob
from remuda.core.foreign.device_failures import DeviceFailureReaction, device_failure_reaction
from remuda.core.foreign.gangs import is_remuda_pod
from remuda.core.health.device_holders import device_holders_on

_FATES = {
    DeviceFailureReaction.IGNORE: "stays where it is and gets the condition DeviceFailed",
    DeviceFailureReaction.DELETE: "is deleted; its owner makes another one elsewhere",
    DeviceFailureReaction.RESTART: "restarts in place, and is deleted when the device is not back in time",
    DeviceFailureReaction.GANG: "is deleted with all pods of its gang",
    DeviceFailureReaction.FAIL: "ends as Failed, with the reason DeviceFailed",
}


def quarantine_effect_lines(
    node: NodeDevices, device: str, pods: Iterable[Pod], jobs: Iterable[TrainingJob], policy: RemedyPolicy
) -> list[str]:
    """`policy`: that of the node. What is on its way out already is left out."""
    here = list(pods)
    by_uid, by_name = {p.uid: p for p in here}, {(j.namespace, j.name): j for j in jobs}
    lines: dict[str, None] = {}
    for uid, name in _pods_that_hold(node, device, here):
        pod = by_uid.get(uid)
        if pod is None:
            lines[f"pod {name} holds it, and is not known to the API."] = None
            continue
        job = by_name.get((pod.namespace, pod.labels.get(LABEL_GANG, "")))
        if is_remuda_pod(pod) or job is not None:
            lines[_gang_line(pod, job)] = None
        else:
            reaction = device_failure_reaction(pod)
            fate = _FATES[reaction]
            if policy.spec.mode is Mode.OBSERVE:
                fate = f"{_FATES[DeviceFailureReaction.IGNORE]}: policy {policy.name} only observes"
            lines[f"pod {name} {fate}."] = None
    return list(lines)


def _pods_that_hold(node: NodeDevices, device: str, pods: list[Pod]) -> Iterator[tuple[str, str]]:
    held = device_holders_on(node, pods)
    rows = [device, *(row.id for row in node.observed.devices if row.parent == device)]
    return ((h.uid, h.pod) for row in rows for h in held.get(row, ()) if not h.draining)


def _gang_line(pod: Pod, job: TrainingJob | None) -> str:
    name = f"{pod.namespace}/{pod.name}"
    gang = f"job {pod.namespace}/{pod.labels.get(LABEL_GANG, '')}"
    member = next((m for m in job.status.members if m.uid == pod.uid), None) if job is not None else None
    if member is None:
        return f"{gang}: pod {name} has no rank now; it is replaced."
    moves = f"rank {member.rank} (pod {name}) moves to other devices"
    return f"{gang}: {moves}. The job stops for it and goes on from its checkpoint."
