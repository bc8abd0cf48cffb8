"""PodDisruptionBudget status, ResourceQuota status and EndpointSlices: three shells that watch pods and write one object."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec

from remuda.api.codec import to_wire
from remuda.api.errors import AlreadyExists, NotFound
from remuda.api.kubernetes.apps_v1 import Deployment, ReplicaSet
from remuda.api.kubernetes.batch_v1 import Job
from remuda.api.kubernetes.core_v1 import Pod
from remuda.api.kubernetes.policy_v1 import DisruptionStatus, EndpointSlice, PodDisruptionBudget, ResourceQuota, Service
from remuda.api.kubernetes.quantity import canonical_quantities, format_quantity
from remuda.api.meta import JsonObject, KObject
from remuda.api.selectors import from_label_selector
from remuda.embedded.builtin.informers import BuiltinView
from remuda.embedded.builtin.planners.disruption_budgets import plan_disruption_budget
from remuda.embedded.builtin.planners.endpoints import endpoint_slice_name, plan_endpoint_slice
from remuda.embedded.builtin.planners.quotas import GroupPlural, NamespaceUse, kinds_counted_by_quota
from remuda.embedded.builtin.status_patch import builtin_merge_patch, write_builtin_status
from remuda.kube.cluster import Cluster, Preconditions
from remuda.kube.runtime.bulk_writes import write_all_objects
from remuda.kube.runtime.work_queue import WorkQueue

Key = tuple[str, str]

COUNTS = ("disruptionsAllowed", "currentHealthy", "desiredHealthy", "expectedPods")


def wake_builtin_summaries(queue: WorkQueue[Key], objects: Iterable[KObject]) -> None:
    for obj in objects:
        queue.add((obj.namespace, obj.name))


class DisruptionBudgetController:
    """A `Reconciler` keyed by (namespace, name)."""

    def __init__(self, cluster: Cluster, view: BuiltinView, queue: WorkQueue[Key]) -> None:
        self._cluster, self._view, self._queue = cluster, view, queue
        view.budgets.subscribe(lambda old, new: wake_builtin_summaries(queue, [new] if new is not None else []))
        view.pods.subscribe(self._on_pod)

    def _on_pod(self, old: Pod | None, new: Pod | None) -> None:
        pod = new or old
        if len(self._view.budgets) and pod is not None:
            wake_builtin_summaries(self._queue, self._view.budgets.by_index("namespace", pod.namespace))

    async def observe(self, key: Key) -> tuple[PodDisruptionBudget, tuple[Pod, ...], int] | None:
        budget = self._view.budgets.get(key[1], key[0])
        if budget is None:
            return None
        if budget.spec.selector is None:
            return budget, (), 0
        selector = from_label_selector(budget.spec.selector)
        pods = tuple(p for p in self._view.pods_in(key[0]) if selector.matches(p.labels))
        return budget, pods, self._expected(pods)

    def _expected(self, pods: tuple[Pod, ...]) -> int:
        """What the controllers of the pods want; pods without one count for themselves."""
        total, seen = 0, set()
        for pod in pods:
            owner = next((ref for ref in pod.metadata.owner_references if ref.controller), None)
            if owner is None:
                total += not pod.is_terminal
            elif owner.uid not in seen:
                seen.add(owner.uid)
                found = self._view.replica_sets.get(owner.name, pod.namespace) if owner.kind == "ReplicaSet" else None
                mine = sum(any(r.uid == owner.uid for r in p.metadata.owner_references) for p in pods)
                total += found.spec.replicas if found is not None else mine
        return total

    def plan(
        self, observed: tuple[PodDisruptionBudget, tuple[Pod, ...], int] | None, now: float
    ) -> tuple[PodDisruptionBudget, DisruptionStatus] | None:
        if observed is None:
            return None
        budget, pods, expected = observed
        return budget, plan_disruption_budget(budget, pods, expected, now)

    async def apply(self, planned: tuple[PodDisruptionBudget, DisruptionStatus] | None) -> float | None:
        if planned is not None:
            await write_builtin_status(self._cluster, planned[0], planned[0].status, planned[1], COUNTS)
        return None


class CountedNamespace(msgspec.Struct, frozen=True):
    quotas: list[ResourceQuota]
    objects: dict[GroupPlural, list[JsonObject]]  # of the kinds that they count


class QuotaController:
    """`status.hard` and `status.used`, for users to read. A `Reconciler` keyed by namespace: its objects are counted once for all
    of its quotas."""

    def __init__(self, cluster: Cluster, view: BuiltinView, queue: WorkQueue[str], kinds: Kinds) -> None:
        self._cluster, self._view, self._queue, self._kinds = cluster, view, queue, kinds
        view.quotas.subscribe(lambda old, new: queue.add(new.namespace) if new is not None else None)
        for informer in (view.pods, view.services, view.jobs, view.deployments, view.replica_sets):
            informer.subscribe(self._on_change)

    def _on_change(self, old: Any, new: Any) -> None:
        found = new or old
        if len(self._view.quotas) and found is not None and self._view.quotas.by_index("namespace", found.namespace):
            self._queue.add(found.namespace)

    async def observe(self, key: str) -> CountedNamespace:
        quotas = self._view.quotas.by_index("namespace", key)
        objects: dict[GroupPlural, list[JsonObject]] = {}
        for counted in sorted(
            kinds_counted_by_quota(name for quota in quotas for name in quota.spec.get("hard") or {})
        ):
            kind = self._kinds.get(counted)
            if kind is not None:
                objects[counted] = [to_wire(obj) for obj in (await self._cluster.list(kind, key)).items]
        return CountedNamespace(quotas, objects)

    def plan(self, observed: CountedNamespace, now: float) -> list[tuple[ResourceQuota, JsonObject]]:
        use = NamespaceUse(lambda kind: observed.objects.get(kind, ()))
        return [(quota, _quota_status(quota, use)) for quota in observed.quotas]

    async def apply(self, planned: list[tuple[ResourceQuota, JsonObject]]) -> float | None:
        await write_all_objects(self._write, planned)
        # Kinds without an informer (say config maps) are counted again now and then, as Kubernetes does.
        counted = kinds_counted_by_quota(name for quota, _ in planned for name in quota.spec.get("hard") or {})
        return _RECOUNT_S if counted - _WATCHED else None

    async def _write(self, planned: tuple[ResourceQuota, JsonObject]) -> None:
        quota, status = planned
        patch = builtin_merge_patch({field: quota.status.get(field) or {} for field in status}, status)
        if patch:
            when = Preconditions(uid=quota.uid, resource_version=quota.metadata.resource_version)
            await self._cluster.patch(
                ResourceQuota, quota.name, {"status": patch}, quota.namespace, subresource="status", when=when
            )


def _quota_status(quota: ResourceQuota, use: NamespaceUse) -> JsonObject:
    hard = canonical_quantities(quota.spec.get("hard") or {})
    used = use.used(to_wire(quota), hard)
    return {
        "hard": hard,
        "used": {name: format_quantity(value, binary=str(hard[name]).endswith("i")) for name, value in used.items()},
    }


_RECOUNT_S = 30.0
_WATCHED: set[GroupPlural] = {
    ("", "pods"),
    ("", "services"),
    ("batch", "jobs"),
    ("apps", "deployments"),
    ("apps", "replicasets"),
}
Kinds = dict[GroupPlural, type[KObject]]


class EndpointsController:
    """A `Reconciler` keyed by a Service's (namespace, name)."""

    def __init__(self, cluster: Cluster, view: BuiltinView, queue: WorkQueue[Key]) -> None:
        self._cluster, self._view, self._queue = cluster, view, queue
        view.services.subscribe(lambda old, new: wake_builtin_summaries(queue, [new] if new is not None else []))
        view.pods.subscribe(self._on_pod)

    def _on_pod(self, old: Pod | None, new: Pod | None) -> None:
        pod = new or old
        if len(self._view.services) and pod is not None:
            wake_builtin_summaries(self._queue, self._view.services.by_index("namespace", pod.namespace))

    async def observe(self, key: Key) -> tuple[Service, tuple[Pod, ...]] | None:
        service = self._view.services.get(key[1], key[0])
        if service is None or not service.spec.selector or service.spec.type == "ExternalName":
            return None
        wanted = service.spec.selector.items()
        return service, tuple(p for p in self._view.pods_in(key[0]) if wanted <= p.labels.items())

    def plan(self, observed: tuple[Service, tuple[Pod, ...]] | None, now: float) -> tuple[Service, JsonObject] | None:
        return None if observed is None else (observed[0], plan_endpoint_slice(*observed))

    async def apply(self, planned: tuple[Service, JsonObject] | None) -> float | None:
        if planned is None:
            return None
        service, body = planned
        there = self._view.slices.get(endpoint_slice_name(service), service.namespace)
        try:
            if there is None:
                await self._cluster.create(EndpointSlice, body)
            elif (there.endpoints, there.ports) != (body["endpoints"], body["ports"]):
                patch: JsonObject = {"endpoints": body["endpoints"], "ports": body["ports"]}
                await self._cluster.patch(EndpointSlice, there.name, patch, there.namespace)
        except (AlreadyExists, NotFound):
            return 1.0  # our copy is a moment old
        return None


WATCHED_KINDS: tuple[type[KObject], ...] = (Pod, Service, Job, Deployment, ReplicaSet)
