"""Device-annotation controller: `remuda.dev/devices` of a pod names what the pod really holds. One key per node.

The scheduler writes its choice there; the kubelet's calls name no pod, so pods of one shape that start together may get each
other's devices. Whoever reads the annotation (kubectl, dashboards, scripts) is told the truth once the node knows it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence

from remuda.api.devices import NodeDevices
from remuda.api.errors import Conflict, NotFound
from remuda.api.kubernetes.core_v1 import Pod
from remuda.api.meta import JsonObject
from remuda.api.names import ANNOTATION_DEVICES
from remuda.controllers.cluster_view import ClusterView
from remuda.core.health.device_holders import misnamed_pod_devices
from remuda.kube.cluster import Cluster, Preconditions
from remuda.kube.runtime.bulk_writes import write_all_objects
from remuda.kube.runtime.work_queue import WorkQueue

MisnamedPods = Sequence[tuple[Pod, tuple[str, ...]]]


class DeviceAnnotationController:
    """A `Reconciler` keyed by node name."""

    def __init__(self, cluster: Cluster, view: ClusterView, queue: WorkQueue[str]) -> None:
        self._cluster, self._view, self._queue = cluster, view, queue
        view.devices.subscribe(self._on_devices)
        view.pods.subscribe(self._on_pod)

    def _on_devices(self, old: NodeDevices | None, new: NodeDevices | None) -> None:
        if new is not None and (old is None or old.observed.holdings != new.observed.holdings):
            self._queue.add(new.name)

    def _on_pod(self, old: Pod | None, new: Pod | None) -> None:
        """The node may have told of the pod before the informer did."""
        if new is not None and new.spec.node_name and new.uid in self._view.held:
            was = old.annotations.get(ANNOTATION_DEVICES) if old is not None and old.spec.node_name else None
            if was != new.annotations.get(ANNOTATION_DEVICES):
                self._queue.add(new.spec.node_name)

    async def observe(self, key: str) -> tuple[NodeDevices, Sequence[Pod]] | None:
        devices = self._view.devices.get(key)
        return (devices, self._view.pods.by_index("node", key)) if devices is not None else None

    def plan(self, observed: tuple[NodeDevices, Sequence[Pod]] | None, now: float) -> MisnamedPods:
        return misnamed_pod_devices(*observed) if observed is not None else ()

    async def apply(self, plan: MisnamedPods) -> float | None:
        await write_all_objects(lambda told: self._name(*told), plan)
        return None

    async def _name(self, pod: Pod, devices: tuple[str, ...]) -> None:
        patch: JsonObject = {"metadata": {"annotations": {ANNOTATION_DEVICES: ",".join(devices)}}}
        with contextlib.suppress(NotFound, Conflict):  # gone, or another pod of that name
            await self._cluster.patch(Pod, pod.name, patch, pod.namespace, when=Preconditions(uid=pod.uid))
