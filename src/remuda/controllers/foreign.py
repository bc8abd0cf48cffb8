"""Foreign-workload controller: pods that are not of a TrainingJob, on nodes whose devices, plugins or leases fail.

One key per node. A look plans four things, each pure and in its own module, and carries them out in this order:

1. rejections are noted in NodeDevices, and a resource that the node goes on refusing is withheld (`rejections`, `withheld`);
2. refused pods get their number and the condition AdmissionRejected; the oldest of too many go; bare ones are made again;
3. holders of failed devices get the condition DeviceFailed, and then go, as their own policy says (`foreign`);
4. pods on a node that does not answer are marked Failed (`foreign_unreachable`).

Every write is guarded by uid or version and safe to repeat. A condition is always there before the pod it explains goes.
Only the port and the stock API are used, so it is the same on a real cluster.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import structlog

from remuda.api.batch_v1 import Job
from remuda.api.codec import to_wire
from remuda.api.conditions import find_condition, with_condition
from remuda.api.core_v1 import Node, Pod
from remuda.api.devices import NodeDevices, QuarantineOrder, Rejection
from remuda.api.errors import AlreadyExists, Conflict, NotFound, TooManyRequests
from remuda.api.meta import JsonObject, KObject, OwnerReference, to_time
from remuda.api.names import ANNOTATION_DEVICE_FAILED, ANNOTATION_REJECTIONS
from remuda.api.remedies import Mode
from remuda.controllers.view import ClusterView
from remuda.core.failure import rejections as refusing
from remuda.core.failure.foreign import ForeignPlan, Mark, Reaction, Removal, plan_foreign
from remuda.core.failure.foreign_gangs import is_ours
from remuda.core.failure.foreign_unreachable import fail_unreachable
from remuda.core.failure.policy import policy_for
from remuda.core.failure.withheld import WithheldPlan, plan_withheld
from remuda.kube.cluster import Cluster, Preconditions
from remuda.kube.events import SILENCE, EventSink
from remuda.kube.workqueue import WorkQueue
from remuda.kube.writes import write_all

log = structlog.get_logger(__name__)

WORKERS = 4  # nodes looked at together


class WholePod(KObject, frozen=True, rename="camel", omit_defaults=True, kw_only=True):
    """A pod with all its fields: what is made again must not lose those that we never read."""

    resource = Pod.resource

    spec: JsonObject = {}


class Settings(msgspec.Struct, frozen=True):
    """`unreachable_s`: see `foreign_unreachable`; None where only the pod's own annotation counts. `forgives`: Jobs get the tries
    back that refused pods cost them, because their controller is Kubernetes' own."""

    limits: refusing.Limits = refusing.DEFAULT
    kept_pods: int = refusing.KEPT_PODS
    unreachable_s: float | None = 60.0
    forgives: bool = False


class Seen(msgspec.Struct, frozen=True):
    name: str
    devices: NodeDevices | None
    node: Node | None
    pods: tuple[Pod, ...]
    refused: tuple[Pod, ...]  # also those that are gone by now and were not noted
    expiry: float | None  # of the node's lease


class Refusals(msgspec.Struct, frozen=True):
    notes: dict[str, list[Rejection]] = {}
    withhold: dict[str, QuarantineOrder] = {}
    tell: tuple[tuple[Pod, int], ...] = ()
    prune: tuple[Pod, ...] = ()
    again: tuple[tuple[Pod, int], ...] = ()  # bare pods to make anew
    look_again_s: float | None = None


class Planned(msgspec.Struct, frozen=True):
    seen: Seen
    now: float
    refusals: Refusals
    withheld: WithheldPlan
    foreign: ForeignPlan
    unreachable: tuple[Mark, ...] = ()
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
        settings: Settings = Settings(),  # noqa: B008 - an immutable value
        events: EventSink = SILENCE,
    ) -> None:
        self._cluster, self._view, self._queue, self._clock = cluster, view, queue, clock
        self._settings = settings
        self._events = events
        # A refused pod of a gang is gone a moment later: kept here by node until it is noted.
        self._fresh: dict[str, dict[str, Pod]] = {}
        view.devices.subscribe(self._on_devices)
        view.pods.subscribe(self._on_pod)
        view.nodes.subscribe(self._on_node)

    def _on_devices(self, old: NodeDevices | None, new: NodeDevices | None) -> None:
        if new is None:
            if old is not None:
                self._fresh.pop(old.name, None)
        elif old is None or _of_interest(old) != _of_interest(new):
            self._queue.add(new.name)

    def _on_pod(self, old: Pod | None, new: Pod | None) -> None:
        pod = new or old
        if pod is None or not pod.spec.node_name:
            return
        if new is not None and refusing.is_rejection(new):
            if not refusing.is_told(new):
                self._fresh.setdefault(new.spec.node_name, {})[new.uid] = new
            self._queue.add(new.spec.node_name)
        elif not is_ours(pod):
            self._queue.add(pod.spec.node_name)

    def _on_node(self, old: Node | None, new: Node | None) -> None:
        if new is not None and (old is None or _readiness(old) != _readiness(new)):
            self._queue.add(new.name)

    async def observe(self, key: str) -> Seen:
        now = self._clock()
        if self._view.is_dead(key, now):
            await self._view.confirm_dead([key], now)
        pods = tuple(self._view.pods.by_index("node", key))
        refused = {p.uid: p for p in pods if refusing.is_rejection(p)}
        for uid, pod in self._fresh.get(key, {}).items():
            refused.setdefault(uid, pod)
        devices, node = self._view.devices.get(key), self._view.nodes.get(key)
        return Seen(key, devices, node, pods, tuple(refused.values()), self._view.lease_expiry(key))

    def plan(self, observed: Seen, now: float) -> Planned:
        seen, devices = observed, observed.devices
        refusals = self._refusals(seen, now)
        withheld, foreign = WithheldPlan(), ForeignPlan()
        if devices is not None:
            withheld = plan_withheld(devices, seen.node, now)
            members = self._members
            foreign = plan_foreign(devices, seen.pods, members, now, acts=self._acts(seen))
        marks, wait = fail_unreachable(seen.name, seen.pods, seen.expiry, now, self._settings.unreachable_s)
        waits = [refusals.look_again_s, withheld.look_again_s, foreign.look_again_s, wait]
        again = min((w for w in waits if w is not None), default=None)
        return Planned(seen, now, refusals, withheld, foreign, tuple(marks), again)

    def _members(self, gang: str) -> list[Pod]:
        return self._view.pods.by_index("foreign-gang", gang)

    def _rejected(self, owner: str) -> list[Pod]:
        return self._view.pods.by_index("rejected", owner)

    def _acts(self, seen: Seen) -> bool:
        """Where a policy only observes, nobody is sent away. A pause is of remedies on devices, not of what workloads need."""
        rows = seen.devices.observed.devices if seen.devices is not None else []
        labels = seen.node.labels if seen.node is not None else {}
        policy = policy_for(rows[0].type if rows else "", labels, self._view.policies_in_force)
        return policy.spec.mode is not Mode.OBSERVE

    def _refusals(self, seen: Seen, now: float) -> Refusals:
        limits, devices = self._settings.limits, seen.devices
        notes = refusing.note_rejections(devices, seen.refused, now, limits) if devices is not None else {}
        orders = refusing.withhold(devices, notes, now, limits) if devices is not None else {}
        there = {p.uid for p in seen.pods}
        kept = [p for p in seen.refused if p.uid in there]
        tell = refusing.numbered((p for p in kept if not is_ours(p)), self._rejected, now)
        again: list[tuple[Pod, int]] = []
        waits: list[float] = []
        for pod in kept:
            if refusing.is_retried(pod) and refusing.is_told(pod) and not pod.is_deleting:
                n = max(1, refusing.count_on(pod))
                left = refusing.rejected_at(pod) + refusing.retry_after(n) - now
                if left <= 0:
                    again.append((pod, n))
                else:
                    waits.append(left + 0.001)
        prune = refusing.to_prune(kept, self._settings.kept_pods)
        return Refusals(notes, orders, tuple(tell), tuple(prune), tuple(again), min(waits, default=None))

    # --- carrying out ---------------------------------------------------------------------------------------------------

    async def apply(self, planned: Planned) -> float | None:
        await self._note(planned)
        refusals = planned.refusals
        await write_all(lambda told: self._tell_refused(*told, planned.now), refusals.tell)
        await write_all(self._delete, refusals.prune)
        await write_all(lambda due: self._make_again(*due), refusals.again)
        foreign = planned.foreign
        for pod, word in foreign.unknown:
            known = ", ".join(Reaction)
            text = f"{ANNOTATION_DEVICE_FAILED}: {word} is not known; taken as not given. Known: {known}."
            self._events.warning(pod, "UnknownDevicePolicy", text)
        # All of them before anyone goes: what a crash leaves behind says on its own who was to go.
        await write_all(self._mark, foreign.marks)
        for namespace, job, why in foreign.jobs:
            await self._fail_job(namespace, job, why)
        await write_all(self._remove, foreign.removals)
        await write_all(self._mark, planned.unreachable)
        return planned.look_again_s

    async def _note(self, planned: Planned) -> None:
        seen, refusals, withheld = planned.seen, planned.refusals, planned.withheld
        patch: JsonObject = {}
        if refusals.notes:
            patch["rejections"] = {r: [to_wire(e) for e in entries] for r, entries in refusals.notes.items()}
        if refusals.withhold or withheld.lift:
            patch["withheld"] = {r: to_wire(order) for r, order in refusals.withhold.items()}
            patch["withheld"] |= dict.fromkeys(withheld.lift)
            patch["rejections"] = {**patch.get("rejections", {}), **dict.fromkeys(withheld.lift)}
        if withheld.orders:
            patch["orders"] = {id: None if o is None else to_wire(o) for id, o in withheld.orders.items()}
        if patch and seen.devices is not None:
            when = Preconditions(resource_version=seen.devices.metadata.resource_version)
            await self._cluster.patch(NodeDevices, seen.name, patch, when=when)
        self._forget_noted(seen)
        for resource, order in refusals.withhold.items():
            log.warning("withheld", node=seen.name, resource=resource)
            if seen.node is not None:
                self._events.warning(seen.node, "ResourceWithheld", order.message)
        for resource, why in withheld.lift.items():
            if seen.node is not None:
                self._events.normal(seen.node, "ResourceReleased", f"{resource} may be placed here again. {why}")

    def _forget_noted(self, seen: Seen) -> None:
        fresh = self._fresh.get(seen.name, {})
        for pod in seen.refused:
            fresh.pop(pod.uid, None)
        if not fresh:
            self._fresh.pop(seen.name, None)

    async def _tell_refused(self, pod: Pod, number: int, now: float) -> None:
        """First the number, then the condition that says it is there. What is done for a pod once is done before that."""
        if self._settings.forgives and (owner := pod.owner("Job")) is not None:
            await self._forgive(pod, owner)
        count: JsonObject = {"metadata": {"annotations": {ANNOTATION_REJECTIONS: str(number)}}}
        try:
            newest = await self._cluster.patch(Pod, pod.name, count, pod.namespace, when=Preconditions(uid=pod.uid))
        except (NotFound, Conflict):
            return
        why = f"{pod.spec.node_name} refused the pod ({pod.status.reason}): {pod.status.message}"[:1024]
        told = with_condition(
            newest.status.conditions, refusing.ADMISSION_REJECTED, True, pod.status.reason, why, to_time(int(now))
        )
        await self._mark(Mark(newest, told))
        self._events.warning(pod, refusing.ADMISSION_REJECTED, f"Number {number} in a row. {why}")

    async def _forgive(self, pod: Pod, owner: OwnerReference) -> None:
        try:
            job = await self._cluster.get(Job, owner.name, pod.namespace)
            patch = refusing.forgiveness(job, pod.uid) if job.uid == owner.uid else {}
            if patch:
                when = Preconditions(uid=job.uid, resource_version=job.metadata.resource_version)
                await self._cluster.patch(Job, job.name, patch, job.namespace, when=when)
        except NotFound:
            pass

    async def _make_again(self, pod: Pod, number: int) -> None:
        try:
            whole = await self._cluster.get(WholePod, pod.name, pod.namespace)
            if whole.uid != pod.uid:
                return
            body = refusing.made_again({"metadata": to_wire(whole.metadata), "spec": whole.spec}, number)
            await self._cluster.create(Pod, body)
            self._events.normal(pod, "MadeAgain", f"{body['metadata']['name']} was made for it.")
        except AlreadyExists:
            pass  # made before, and then somebody ended
        except NotFound:
            return
        await self._delete(pod)

    async def _mark(self, mark: Mark) -> None:
        """On the version that was looked at: the list of conditions is replaced whole, and others write into it, too."""
        pod = mark.pod
        status: JsonObject = {"conditions": [to_wire(c) for c in mark.conditions]}
        if mark.phase:
            status |= {"phase": mark.phase, "reason": mark.reason, "message": mark.message}
        when = Preconditions(uid=pod.uid, resource_version=pod.metadata.resource_version)
        try:
            await self._cluster.patch(Pod, pod.name, {"status": status}, pod.namespace, subresource="status", when=when)
        except NotFound:
            return
        if mark.reason:
            is_good = mark.reason == "DeviceHealthy"
            kind = next((c.type for c in mark.conditions if find_condition(pod.status.conditions, c.type) != c), "")
            (self._events.normal if is_good else self._events.warning)(pod, kind or mark.reason, mark.message)

    async def _remove(self, removal: Removal) -> None:
        pod = removal.pod
        when = Preconditions(uid=pod.uid)
        try:
            if removal.evict:
                await self._cluster.evict(pod.name, pod.namespace, when=when)
            else:
                await self._cluster.delete(Pod, pod.name, pod.namespace, when=when)
        except TooManyRequests as refused:
            self._events.normal(pod, "EvictionHeldUp", f"{refused.message} It is asked again.")
            return
        except (NotFound, Conflict):
            return  # gone already, or another pod of that name
        log.info("foreign.removed", pod=f"{pod.namespace}/{pod.name}", node=pod.spec.node_name, evicted=removal.evict)
        self._events.normal(pod, "DeviceFailedRemoved", f"The pod goes because of a failed device. {removal.why}")

    async def _delete(self, pod: Pod) -> None:
        try:
            await self._cluster.delete(Pod, pod.name, pod.namespace, when=Preconditions(uid=pod.uid))
        except (NotFound, Conflict):
            pass

    async def _fail_job(self, namespace: str, job: OwnerReference, why: str) -> None:
        """No further tries: the pod that failed is then one too many."""
        patch: JsonObject = {
            "spec": {"backoffLimit": 0},
            "metadata": {"annotations": {"remuda.dev/failed-because": why[:1024]}},
        }
        try:
            await self._cluster.patch(Job, job.name, patch, namespace, when=Preconditions(uid=job.uid))
        except (NotFound, Conflict):
            pass


def _of_interest(node: NodeDevices) -> tuple[object, ...]:
    seen = node.observed
    return node.verdicts, node.withheld, node.rejections, node.orders, seen.holdings, seen.plugins, seen.answers


def _readiness(node: Node) -> tuple[object, ...]:
    ready = find_condition(node.status.conditions, "Ready")
    return ready.status if ready is not None else "", node.status.allocatable
