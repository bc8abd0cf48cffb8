"""Idle-device controller: the shell around `core.remedies.idle_devices`. One key per node; looks again when a pod's time is
over."""

from __future__ import annotations

import contextlib

import msgspec

from remuda.api.conditions import is_condition_true
from remuda.api.devices import NodeDevices
from remuda.api.errors import Conflict, NotFound
from remuda.api.kubernetes.core_v1 import Pod
from remuda.api.meta import Condition, JsonObject, OwnerReference
from remuda.api.remedies import RemedyPolicy
from remuda.api.training import TrainingJob
from remuda.controllers.cluster_view import ClusterView
from remuda.controllers.pod_conditions import write_pod_conditions
from remuda.controllers.pod_removal import evict_pod
from remuda.core.remedies.idle_devices import DEVICE_IDLE, IdlePlan, idle_pods, plan_idle_pods
from remuda.kube.cluster import Cluster, Preconditions
from remuda.kube.runtime.bulk_writes import write_all_objects
from remuda.kube.runtime.events import SILENCE, EventSink
from remuda.kube.runtime.work_queue import WorkQueue


class IdleNodeView(msgspec.Struct, frozen=True):
    devices: NodeDevices
    labels: dict[str, str]
    pods: tuple[Pod, ...]


class IdleController:
    """A `Reconciler` keyed by node name."""

    def __init__(
        self, cluster: Cluster, view: ClusterView, queue: WorkQueue[str], *, events: EventSink = SILENCE
    ) -> None:
        self._cluster, self._view, self._queue, self._events = cluster, view, queue, events
        view.devices.subscribe(self._on_devices)
        view.pods.subscribe(self._on_pod)
        view.policies.subscribe(self._on_policy)

    def _on_devices(self, old: NodeDevices | None, new: NodeDevices | None) -> None:
        if new is not None and (old is None or _idle_times_of_devices(old) != _idle_times_of_devices(new)):
            self._queue.add(new.name)

    def _on_pod(self, old: Pod | None, new: Pod | None) -> None:
        """Only what was told matters: whether it still holds anything is the node's word."""
        if new is not None and new.spec.node_name and is_condition_true(new.status.conditions, DEVICE_IDLE):
            self._queue.add(new.spec.node_name)

    def _on_policy(self, old: RemedyPolicy | None, new: RemedyPolicy | None) -> None:
        if old is None or new is None or old.spec != new.spec:
            for node in self._view.devices.items():
                if any(_idle_times_of_devices(node)):
                    self._queue.add(node.name)

    async def observe(self, key: str) -> IdleNodeView | None:
        devices, node = self._view.devices.get(key), self._view.nodes.get(key)
        if devices is None:
            return None
        return IdleNodeView(
            devices, node.labels if node is not None else {}, tuple(self._view.pods.by_index("node", key))
        )

    def plan(self, observed: IdleNodeView | None, now: float) -> IdlePlan:
        if observed is None:
            return IdlePlan()
        policies = self._view.policies_in_force
        found = idle_pods(observed.devices, observed.pods, observed.labels, policies, self._job, now)
        return plan_idle_pods(found, observed.pods, now)

    def _job(self, namespace: str, name: str) -> TrainingJob | None:
        return self._view.jobs.get(name, namespace)

    async def apply(self, plan: IdlePlan) -> float | None:
        await write_all_objects(lambda told: self._tell(*told), plan.tell)
        await write_all_objects(lambda due: self._reclaim(*due), plan.reclaim)
        for namespace, owner, why in plan.suspend:
            await self._suspend(namespace, owner, why)
        return plan.look_again_s

    async def _tell(self, pod: Pod, conditions: list[Condition], why: str) -> None:
        if not await write_pod_conditions(self._cluster, pod, conditions):
            return
        is_idle = is_condition_true(conditions, DEVICE_IDLE)
        (self._events.warning if is_idle else self._events.normal)(pod, DEVICE_IDLE if is_idle else "DeviceUsed", why)

    async def _reclaim(self, pod: Pod, why: str) -> None:
        with contextlib.suppress(Conflict):  # another pod of that name: it has held nothing yet
            if await evict_pod(self._cluster, pod, self._events):
                self._events.warning(pod, "DeviceReclaimed", why)

    async def _suspend(self, namespace: str, owner: OwnerReference, why: str) -> None:
        """Kept, without its pods: whoever needs it resumes it."""
        job = self._view.jobs.get(owner.name, namespace)
        if job is None or job.uid != owner.uid or job.spec.suspend:
            return
        patch: JsonObject = {"spec": {"suspend": True}}
        try:
            await self._cluster.patch(TrainingJob, owner.name, patch, namespace, when=Preconditions(uid=owner.uid))
        except (NotFound, Conflict):
            return
        self._events.warning(job, "DeviceReclaimed", f"Suspended. {why}")


def _idle_times_of_devices(node: NodeDevices) -> list[object]:
    return [row.idle_since for row in node.observed.devices if row.idle_since is not None]
