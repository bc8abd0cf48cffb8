"""ReplicaSet and Deployment controllers: the shells around `plan_replica_set` and `plan_deployment`."""

from __future__ import annotations

from collections.abc import Callable

from remuda.api.codec import to_wire
from remuda.api.conditions import find_condition, with_condition
from remuda.api.errors import AlreadyExists, ApiError, Conflict, NotFound
from remuda.api.kubernetes.apps_v1 import REPLICA_FAILURE, REVISION, Deployment, ReplicaSet
from remuda.api.kubernetes.core_v1 import Pod
from remuda.api.meta import JsonObject, to_time
from remuda.api.selectors import from_label_selector
from remuda.embedded.builtin.informers import BuiltinView
from remuda.embedded.builtin.planners.deployments import (
    DeploymentObserved,
    DeploymentPlan,
    ReplicaSetScale,
    deployment_revision,
    plan_deployment,
    template_without_hash,
)
from remuda.embedded.builtin.planners.pod_state import has_no_replica_controller, owner_reference_for_planned_object
from remuda.embedded.builtin.planners.replicasets import ReplicaSetObserved, ReplicaSetPlan, plan_replica_set
from remuda.embedded.builtin.status_patch import write_builtin_status
from remuda.kube.cluster import Cluster, Preconditions
from remuda.kube.runtime.bulk_writes import write_all_objects, write_objects_from_few
from remuda.kube.runtime.work_queue import WorkQueue

Key = tuple[str, str]


class ReplicaSetController:
    """A `Reconciler` keyed by (namespace, name)."""

    def __init__(self, cluster: Cluster, view: BuiltinView, queue: WorkQueue[Key], clock: Callable[[], float]) -> None:
        self._cluster, self._view, self._queue, self._clock = cluster, view, queue, clock
        view.replica_sets.subscribe(self._on_set)
        view.pods.subscribe(self._on_pod)

    def _on_set(self, old: ReplicaSet | None, new: ReplicaSet | None) -> None:
        if new is not None:
            self._queue.add((new.namespace, new.name))

    def _on_pod(self, old: Pod | None, new: Pod | None) -> None:
        if not len(self._view.replica_sets):
            return
        for pod in (old, new):
            owner = pod.owner("ReplicaSet") if pod is not None else None
            if pod is not None and owner is not None:
                self._queue.add((pod.namespace, owner.name))
        if old is None and new is not None and has_no_replica_controller(new) and new.labels:
            for found in self._view.replica_sets.by_index("namespace", new.namespace):
                if from_label_selector(found.spec.selector).matches(new.labels):
                    self._queue.add((found.namespace, found.name))

    async def observe(self, key: Key) -> ReplicaSetObserved | None:
        found = self._view.replica_sets.get(key[1], key[0])
        if found is None:
            return None
        selector = from_label_selector(found.spec.selector)
        orphans = [p for p in self._view.pods_in(key[0]) if has_no_replica_controller(p) and selector.matches(p.labels)]
        return ReplicaSetObserved(found, (*self._view.pods_of(found.uid), *orphans))

    def plan(self, observed: ReplicaSetObserved | None, now: float) -> tuple[ReplicaSet, ReplicaSetPlan] | None:
        return None if observed is None else (observed.replica_set, plan_replica_set(observed, now))

    async def apply(self, planned: tuple[ReplicaSet, ReplicaSetPlan] | None) -> float | None:
        if planned is None:
            return None
        own, plan = planned
        await write_builtin_status(self._cluster, own, own.status, plan.status, ("replicas",))
        await write_all_objects(lambda pod: self._adopt(own, pod), plan.adopt)
        await write_all_objects(lambda pod: delete_pod_for_builtin(self._cluster, pod), plan.delete)
        try:
            await write_objects_from_few(self._create, plan.create)
        except ApiError as error:
            await self._tell(own, error)
            raise
        return plan.look_again_s

    async def _create(self, body: JsonObject) -> None:
        self._view.made_pod(await self._cluster.create(Pod, body))

    async def _tell(self, own: ReplicaSet, error: ApiError) -> None:
        """Say on the set why it has too few pods, say because of a quota. Once: each try names another pod, and to say so
        again would be a change of the set, which asks for the next try at once."""
        newest = await self._cluster.get(ReplicaSet, own.name, own.namespace)
        at = to_time(int(self._clock()))
        old = newest.status.conditions
        said = find_condition(old, REPLICA_FAILURE)
        if said is not None and (said.status, said.reason) == ("True", "FailedCreate"):
            return
        told = with_condition(old, REPLICA_FAILURE, True, "FailedCreate", error.message, at)
        if told is not old:
            status: JsonObject = {"status": {"conditions": [to_wire(c) for c in told]}}
            await self._cluster.patch(ReplicaSet, own.name, status, own.namespace, subresource="status")

    async def _adopt(self, own: ReplicaSet, pod: Pod) -> None:
        when = Preconditions(uid=pod.uid, resource_version=pod.metadata.resource_version)
        owners: JsonObject = {"metadata": {"ownerReferences": [owner_reference_for_planned_object(own)]}}
        try:
            await self._cluster.patch(Pod, pod.name, owners, pod.namespace, when=when)
        except NotFound:
            pass


class DeploymentController:
    """A `Reconciler` keyed by (namespace, name)."""

    def __init__(self, cluster: Cluster, view: BuiltinView, queue: WorkQueue[Key]) -> None:
        self._cluster, self._view, self._queue = cluster, view, queue
        view.deployments.subscribe(self._on_deployment)
        view.replica_sets.subscribe(self._on_set)
        view.pods.subscribe(self._on_pod)

    def _on_deployment(self, old: Deployment | None, new: Deployment | None) -> None:
        if new is not None:
            self._queue.add((new.namespace, new.name))

    def _on_set(self, old: ReplicaSet | None, new: ReplicaSet | None) -> None:
        found = new or old
        owner = found.owner("Deployment") if found is not None else None
        if found is not None and owner is not None:
            self._queue.add((found.namespace, owner.name))

    def _on_pod(self, old: Pod | None, new: Pod | None) -> None:
        """A recreated Deployment waits for the last old pod to be gone; nothing of its sets changes then."""
        if new is not None or old is None or not len(self._view.deployments):
            return
        owner = old.owner("ReplicaSet")
        if owner is not None:
            self._on_set(None, self._view.replica_sets.get(owner.name, old.namespace))

    async def observe(self, key: Key) -> DeploymentObserved | None:
        found = self._view.deployments.get(key[1], key[0])
        if found is None:
            return None
        sets = self._view.sets_of(found.uid)
        old_pods = 0
        if found.spec.strategy.type == "Recreate":
            wanted = template_without_hash(found)
            old = [s for s in sets if template_without_hash(s) != wanted]
            old_pods = sum(not p.is_terminal for s in old for p in self._view.pods_of(s.uid))
        return DeploymentObserved(found, tuple(sets), old_pods)

    def plan(self, observed: DeploymentObserved | None, now: float) -> tuple[Deployment, DeploymentPlan] | None:
        return None if observed is None else (observed.deployment, plan_deployment(observed, now))

    async def apply(self, planned: tuple[Deployment, DeploymentPlan] | None) -> float | None:
        if planned is None:
            return None
        own, plan = planned
        own = await write_builtin_status(self._cluster, own, own.status, plan.status)
        if plan.revision:
            await self._number(own, plan.new, plan.revision)
        if plan.create is not None:
            await self._create(own, plan.create)
        await write_all_objects(self._scale, plan.scale)
        await write_all_objects(self._delete, plan.delete)
        return plan.look_again_s

    async def _number(self, own: Deployment, new: ReplicaSet | None, revision: int) -> None:
        patch: JsonObject = {"metadata": {"annotations": {REVISION: str(revision)}}}
        if new is not None and deployment_revision(new) != revision:
            await self._cluster.patch(ReplicaSet, new.name, patch, new.namespace, when=Preconditions(uid=new.uid))
        if deployment_revision(own) != revision:
            await self._cluster.patch(Deployment, own.name, patch, own.namespace, when=Preconditions(uid=own.uid))

    async def _create(self, own: Deployment, body: JsonObject) -> None:
        try:
            self._view.made_set(await self._cluster.create(ReplicaSet, body))
        except AlreadyExists:
            found = await self._cluster.get(ReplicaSet, body["metadata"]["name"], own.namespace)
            owner = found.owner("Deployment")
            if owner is not None and owner.uid == own.uid:
                return  # made by an earlier look
            # Somebody else's set has the name: another hash next time.
            count: JsonObject = {"status": {"collisionCount": own.status.collision_count + 1}}
            await self._cluster.patch(Deployment, own.name, count, own.namespace, subresource="status")

    async def _scale(self, scale: ReplicaSetScale) -> None:
        found = scale.replica_set
        when = Preconditions(uid=found.uid, resource_version=found.metadata.resource_version)
        patch: JsonObject = {"spec": {"replicas": scale.replicas}}
        try:
            await self._cluster.patch(ReplicaSet, found.name, patch, found.namespace, when=when)
        except NotFound:
            pass

    async def _delete(self, found: ReplicaSet) -> None:
        try:
            await self._cluster.delete(ReplicaSet, found.name, found.namespace, when=Preconditions(uid=found.uid))
        except (NotFound, Conflict):
            pass


async def delete_pod_for_builtin(cluster: Cluster, pod: Pod) -> None:
    try:
        await cluster.delete(Pod, pod.name, pod.namespace, when=Preconditions(uid=pod.uid))
    except (NotFound, Conflict):
        pass  # gone already, or another pod of that name
