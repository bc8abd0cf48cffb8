"""Foreign-workload controller: pods that are not of a TrainingJob, on nodes whose devices, plugins or leases fail.

One key per node. A look plans four things, each pure and in its own module, and carries them out in this order:

1. refusals are noted in NodeDevices, and a resource that the node goes on refusing is withheld (`withheld_resources`);
2. refused pods get their number and the condition AdmissionRejected; the oldest of too many go; bare ones are made again
   (`refused_pods`, here and in core);
3. holders of failed devices get the condition DeviceFailed, and then go, as their own policy says (`device_failures`);
4. pods on a node that does not answer are marked Failed (`unreachable`).

While the breaker of a node's policy is open, so much fails at once that the fault is hardly the devices': holders get their
condition and stay until it closes. What a job of ours needs is decided elsewhere, and goes on.

Every write is guarded by uid or version and safe to repeat. A condition is always there before the pod it explains goes.
Only the port and the stock API are used, so it is the same on a real cluster.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import structlog

from remuda.api.conditions import find_condition
from remuda.api.devices import DeviceState, NodeDevices
from remuda.api.errors import Conflict, NotFound
from remuda.api.kubernetes.batch_v1 import Job
from remuda.api.kubernetes.core_v1 import Node, Pod
from remuda.api.meta import JsonObject, OwnerReference
from remuda.api.names import ANNOTATION_DEVICE_FAILED, ANNOTATION_FAILED_BECAUSE
from remuda.api.remedies import Mode
from remuda.controllers.cluster_view import ClusterView
from remuda.controllers.pod_conditions import write_pod_conditions
from remuda.controllers.pod_removal import delete_pod, evict_pod
from remuda.controllers.refused_pods import RefusedPods
from remuda.core.foreign.device_failures import (
    DeviceFailureReaction,
    ForeignPodMark,
    ForeignPodRemoval,
    ForeignPodsPlan,
    plan_foreign_pods,
)
from remuda.core.foreign.gangs import is_remuda_pod
from remuda.core.foreign.refused_pods import (
    RefusedPodsPlan,
    is_foreign_pod_refusal_recorded,
    is_pod_refused_by_node,
    plan_refused_pods,
)
from remuda.core.foreign.unreachable import fail_unreachable_pods
from remuda.core.foreign.withheld_resources import WithheldResourcesPlan, plan_withheld_resources
from remuda.core.remedies.policies import remedy_policy_for
from remuda.kube.cluster import Cluster, Preconditions
from remuda.kube.runtime.bulk_writes import write_all_objects
from remuda.kube.runtime.events import SILENCE, EventSink
from remuda.kube.runtime.work_queue import WorkQueue

log = structlog.get_logger(__name__)

WORKERS = 4  # nodes looked at together


class ForeignSettings(msgspec.Struct, frozen=True):
    """`unreachable_s`: see `core.foreign.unreachable`; None where only the pod's own annotation counts. `forgives`: Jobs get
    the tries back that refused pods cost them, because their controller is Kubernetes' own."""

    unreachable_s: float | None = 60.0
    forgives: bool = False


HELD_S = 5.0


class ForeignNodeView(msgspec.Struct, frozen=True):
    name: str
    devices: NodeDevices | None
    node: Node | None
    pods: tuple[Pod, ...]
    refused: tuple[Pod, ...]  # also those that are gone by now and were not noted
    expiry: float | None  # of the node's lease
    is_held: bool = False  # silent together with most others: nothing there is ended for it


class ForeignNodePlan(msgspec.Struct, frozen=True):
    seen: ForeignNodeView
    now: float
    refused: RefusedPodsPlan
    withheld: WithheldResourcesPlan
    foreign: ForeignPodsPlan
    unreachable: tuple[ForeignPodMark, ...] = ()
    look_again_s: float | None = None


class ForeignController:
    """A `Reconciler` keyed by node name."""

    def __init__(
        self,
        cluster: Cluster,
        view: ClusterView,
        queue: WorkQueue[str],
        clock: Callable[[], float],
        *,
        settings: ForeignSettings = ForeignSettings(),  # noqa: B008 - an immutable value
        events: EventSink = SILENCE,
        shut_until: Callable[[str, float], float | None] = lambda node, now: None,
    ) -> None:
        """`shut_until`: until when the breaker over that node is open; None when it is not."""
        self._cluster, self._view, self._queue, self._clock = cluster, view, queue, clock
        self._settings = settings
        self._shut_until = shut_until
        self._events = events
        self._refused = RefusedPods(cluster, events, forgives=settings.forgives)
        # A refused pod of a gang is gone a moment later: kept here by node until it is noted.
        self._fresh: dict[str, dict[str, Pod]] = {}
        view.devices.subscribe(self._on_devices)
        view.pods.subscribe(self._on_pod)
        view.nodes.subscribe(self._on_node)

    def _on_devices(self, old: NodeDevices | None, new: NodeDevices | None) -> None:
        if new is None:
            if old is not None:
                self._fresh.pop(old.name, None)
        elif old is None or _what_foreign_pods_read(old) != _what_foreign_pods_read(new):
            self._queue.add(new.name)

    def _on_pod(self, old: Pod | None, new: Pod | None) -> None:
        pod = new or old
        if pod is None or not pod.spec.node_name:
            return
        if new is not None and is_pod_refused_by_node(new):
            if not is_foreign_pod_refusal_recorded(new):
                self._fresh.setdefault(new.spec.node_name, {})[new.uid] = new
            self._queue.add(new.spec.node_name)
        elif not is_remuda_pod(pod):
            self._queue.add(pod.spec.node_name)

    def _on_node(self, old: Node | None, new: Node | None) -> None:
        if new is not None and (old is None or _readiness_of_node(old) != _readiness_of_node(new)):
            self._queue.add(new.name)

    async def observe(self, key: str) -> ForeignNodeView:
        now = self._clock()
        if self._view.is_dead(key, now):
            await self._view.confirm_dead([key], now)
        pods = tuple(self._view.pods.by_index("node", key))
        refused = {p.uid: p for p in pods if is_pod_refused_by_node(p)}
        for uid, pod in self._fresh.get(key, {}).items():
            refused.setdefault(uid, pod)
        devices, node = self._view.devices.get(key), self._view.nodes.get(key)
        is_held = self._view.is_held(key, now)
        expiry = None if is_held else self._view.lease_expiry(key)
        return ForeignNodeView(key, devices, node, pods, tuple(refused.values()), expiry, is_held)

    def plan(self, observed: ForeignNodeView, now: float) -> ForeignNodePlan:
        seen, devices = observed, observed.devices
        refused = plan_refused_pods(seen.pods, self._refused_of_owner, now)
        withheld, foreign = WithheldResourcesPlan(), ForeignPodsPlan()
        if devices is not None:
            withheld = plan_withheld_resources(devices, seen.refused, seen.node, now)
            members = self._members
            shut = self._shut_until(seen.name, now)
            foreign = plan_foreign_pods(
                devices, seen.pods, members, now, acts=shut is None and self._may_remove_pods(seen)
            )
            if shut is not None and any(v.state is not DeviceState.HEALTHY for v in devices.verdicts):
                foreign = msgspec.structs.replace(foreign, look_again_s=shut - now + 0.01)
        marks, wait = fail_unreachable_pods(seen.name, seen.pods, seen.expiry, now, self._settings.unreachable_s)
        waits = [refused.look_again_s, withheld.look_again_s, foreign.look_again_s, wait]
        waits.append(HELD_S if seen.is_held else None)
        again = min((w for w in waits if w is not None), default=None)
        return ForeignNodePlan(seen, now, refused, withheld, foreign, tuple(marks), again)

    def _members(self, gang: str) -> list[Pod]:
        return self._view.pods.by_index("foreign-gang", gang)

    def _refused_of_owner(self, owner: str) -> list[Pod]:
        return self._view.pods.by_index("rejected", owner)

    def _may_remove_pods(self, seen: ForeignNodeView) -> bool:
        """Where a policy only observes, nobody is sent away. A pause is of remedies on devices, not of what workloads need."""
        rows = seen.devices.observed.devices if seen.devices is not None else []
        labels = seen.node.labels if seen.node is not None else {}
        policy = remedy_policy_for(rows[0].type if rows else "", labels, self._view.policies_in_force)
        return policy.spec.mode is not Mode.OBSERVE

    # --- carrying out ---------------------------------------------------------------------------------------------------

    async def apply(self, planned: ForeignNodePlan) -> float | None:
        await self._write_refusals(planned)
        refused = planned.refused
        await write_all_objects(lambda due: self._refused.record(*due, planned.now), refused.record)
        await write_all_objects(self._refused.delete, refused.prune)
        await write_all_objects(lambda due: self._refused.retry(*due), refused.retry)
        foreign = planned.foreign
        for pod, word in foreign.unknown:
            known = ", ".join(DeviceFailureReaction)
            text = f"{ANNOTATION_DEVICE_FAILED}: `{word}` is not known and is ignored. Known: {known}."
            self._events.warning(pod, "UnknownDevicePolicy", text)
        # All of them before anyone goes: what a crash leaves behind says on its own who was to go.
        await write_all_objects(self._mark_pod, foreign.marks)
        for namespace, job, why in foreign.jobs:
            await self._fail_job(namespace, job, why)
        await write_all_objects(self._remove_pod, foreign.removals)
        await write_all_objects(self._mark_pod, planned.unreachable)
        return planned.look_again_s

    async def _write_refusals(self, planned: ForeignNodePlan) -> None:
        seen, withheld = planned.seen, planned.withheld
        patch = withheld.patch()
        if patch and seen.devices is not None:
            when = Preconditions(resource_version=seen.devices.metadata.resource_version)
            await self._cluster.patch(NodeDevices, seen.name, patch, when=when)
        self._forget_noted(seen)
        for resource, order in withheld.withhold.items():
            log.warning("withheld", node=seen.name, resource=resource)
            if seen.node is not None:
                self._events.warning(seen.node, "ResourceWithheld", order.message)
        for resource, why in withheld.lift.items():
            if seen.node is not None:
                self._events.normal(seen.node, "ResourceReleased", f"{resource} may be placed here again. {why}")

    def _forget_noted(self, seen: ForeignNodeView) -> None:
        fresh = self._fresh.get(seen.name, {})
        for pod in seen.refused:
            fresh.pop(pod.uid, None)
        if not fresh:
            self._fresh.pop(seen.name, None)

    async def _mark_pod(self, mark: ForeignPodMark) -> None:
        pod = mark.pod
        ended = {"phase": mark.phase, "reason": mark.reason, "message": mark.message} if mark.phase else None
        if not await write_pod_conditions(self._cluster, pod, mark.conditions, ended):
            return
        if mark.reason:
            is_good = mark.reason == "DeviceHealthy"
            kind = next((c.type for c in mark.conditions if find_condition(pod.status.conditions, c.type) != c), "")
            (self._events.normal if is_good else self._events.warning)(pod, kind or mark.reason, mark.message)

    async def _remove_pod(self, removal: ForeignPodRemoval) -> None:
        pod = removal.pod
        try:
            is_going = (
                await evict_pod(self._cluster, pod, self._events)
                if removal.evict
                else await delete_pod(self._cluster, pod)
            )
        except Conflict:
            return  # another pod of that name
        if not is_going:
            return
        log.info("foreign.removed", pod=f"{pod.namespace}/{pod.name}", node=pod.spec.node_name, evicted=removal.evict)
        self._events.normal(pod, "DeviceFailedRemoved", f"Removed because of a failed device. {removal.why}")

    async def _fail_job(self, namespace: str, job: OwnerReference, why: str) -> None:
        """No further tries: the pod that failed is then one too many."""
        patch: JsonObject = {
            "spec": {"backoffLimit": 0},
            "metadata": {"annotations": {ANNOTATION_FAILED_BECAUSE: why[:1024]}},
        }
        try:
            await self._cluster.patch(Job, job.name, patch, namespace, when=Preconditions(uid=job.uid))
        except (NotFound, Conflict):
            pass


def _what_foreign_pods_read(node: NodeDevices) -> tuple[object, ...]:
    seen = node.observed
    return node.verdicts, node.withheld, node.rejections, node.orders, seen.holdings, seen.plugins, seen.answers


def _readiness_of_node(node: Node) -> tuple[object, ...]:
    ready = find_condition(node.status.conditions, "Ready")
    return ready.status if ready is not None else "", node.status.allocatable
