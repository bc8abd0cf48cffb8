"""Who has which device of a node, and how many are left. Both follow from the record; nothing is counted up or down.

The node's own report (`observed.holdings`) is the truth of a pod it names: the kubelet may have given other devices than the
scheduler chose, a sidecar has its own, and a pod that was removed by force holds on until its node says otherwise. Of a pod the
node has not named yet, the annotation says what it is about to get.

A device is *draining* while its holder is on its way out: deleted, ended, or gone from the API and not yet from the node.
Free = healthy and held by nobody, as sets, so a device that is both held and unhealthy is missing once and no count is ever
negative.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec

from remuda.api.devices import DeviceState, NodeDevices
from remuda.api.kubernetes.core_v1 import Pod
from remuda.api.names import LABEL_GANG
from remuda.core.state.snapshot import snapshot_devices_of_pod


class DeviceHolder(msgspec.Struct, frozen=True):
    """`container`: "" until the node has told which."""

    pod: str  # namespace/name
    uid: str = ""
    container: str = ""
    draining: bool = False


class DeviceCounts(msgspec.Struct, frozen=True):
    """Of one resource on one node. `unfit`: whatever is not Healthy, held or not."""

    total: int = 0
    healthy: int = 0
    unfit: int = 0
    held: int = 0
    free: int = 0


HoldersByDevice = Mapping[str, list[DeviceHolder]]  # by device


def misnamed_pod_devices(node: NodeDevices, pods: Iterable[Pod]) -> list[tuple[Pod, tuple[str, ...]]]:
    """Pods of the node whose annotation names other devices than they hold, and what they hold.

    Only once the node has told of all that the annotation names, and of the whole gang: until then its agent tells by the
    annotations whether pods of a gang were mixed up or got what nobody chose."""
    held: dict[str, dict[str, None]] = {}
    for holding in node.observed.holdings:
        held.setdefault(holding.uid, {}).update(dict.fromkeys(holding.devices))
    here = [pod for pod in pods if pod.is_live and pod.spec.node_name == node.name and snapshot_devices_of_pod(pod)]
    gangs = {
        (pod.namespace, pod.labels[LABEL_GANG]) for pod in here if LABEL_GANG in pod.labels and pod.uid not in held
    }
    found: list[tuple[Pod, tuple[str, ...]]] = []
    for pod in here:
        named, has = set(snapshot_devices_of_pod(pod)), held.get(pod.uid, {})
        is_told = len(named) == len(has) and (pod.namespace, pod.labels.get(LABEL_GANG)) not in gangs
        if is_told and named != has.keys():
            found.append((pod, tuple(has)))
    return found


def device_holders_on(node: NodeDevices, pods: Iterable[Pod]) -> HoldersByDevice:
    """Device -> who has it. Two pods are the error this project exists to prevent; two containers of one pod are not."""
    here = [pod for pod in pods if pod.spec.node_name == node.name]
    by_uid = {pod.uid: pod for pod in here}
    by_name = {f"{pod.namespace}/{pod.name}": pod for pod in here}
    found: dict[str, list[DeviceHolder]] = {}
    reported: set[str] = set()
    for holding in node.observed.holdings:
        pod = by_uid.get(holding.uid) if holding.uid else by_name.get(holding.pod)
        uid = holding.uid or (pod.uid if pod is not None else "")
        if uid:
            reported.add(uid)
        is_leaving = pod is None or pod.is_deleting or pod.is_terminal
        for device in holding.devices:
            found.setdefault(device, []).append(DeviceHolder(holding.pod, uid, holding.container, is_leaving))
    for pod in here:
        if pod.is_live and pod.uid not in reported:
            for device in snapshot_devices_of_pod(pod):
                holder = DeviceHolder(f"{pod.namespace}/{pod.name}", pod.uid, draining=pod.is_deleting)
                found.setdefault(device, []).append(holder)
    return found


def device_health_counts(node: NodeDevices, pods: Iterable[Pod]) -> dict[str, DeviceCounts]:
    """By resource. A device that was never judged is not healthy; one under a quarantine order is not either."""
    held = device_holders_on(node, pods)
    good = {v.device for v in node.verdicts if v.state is DeviceState.HEALTHY} - set(node.quarantine)
    rows: dict[str, set[str]] = {}
    for device in node.observed.devices:
        if device.resource:
            rows.setdefault(device.resource, set()).add(device.id)
    return {
        resource: DeviceCounts(
            total=len(ids),
            healthy=len(ids & good),
            unfit=len(ids - good),
            held=len(ids & held.keys()),
            free=len((ids & good) - held.keys()),
        )
        for resource, ids in sorted(rows.items())
    }
