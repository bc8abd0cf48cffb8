"""The informers the small controllers share, and the few indexes over them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from remuda.api.kubernetes.apps_v1 import Deployment, ReplicaSet
from remuda.api.kubernetes.batch_v1 import Job
from remuda.api.kubernetes.core_v1 import NODE_LEASE_NAMESPACE, Lease, Namespace, Node, Pod
from remuda.api.kubernetes.policy_v1 import EndpointSlice, PodDisruptionBudget, ResourceQuota, Service
from remuda.api.meta import KObject
from remuda.kube.cluster import Cluster
from remuda.kube.runtime.informer import Informer

K = TypeVar("K", bound=KObject)


class BuiltinView:
    """Objects made by a controller are put down with `made`, and count as seen from then on: the informers lag behind."""

    def __init__(self, cluster: Cluster, *, jitter: Callable[[], float]) -> None:
        def informer(kind: type[K], namespace: str = "") -> Informer[K]:
            found = Informer(cluster, kind, namespace, jitter=jitter)
            self.informers.append(found)
            return found

        self.informers: list[Informer[Any]] = []
        self.pods = informer(Pod)
        self.nodes = informer(Node)
        self.leases = informer(Lease, NODE_LEASE_NAMESPACE)
        self.namespaces = informer(Namespace)
        self.deployments = informer(Deployment)
        self.replica_sets = informer(ReplicaSet)
        self.jobs = informer(Job)
        self.budgets = informer(PodDisruptionBudget)
        self.quotas = informer(ResourceQuota)
        self.services = informer(Service)
        self.slices = informer(EndpointSlice)
        self.pods.add_index("owner", _controller_uids)
        self.pods.add_index("node", lambda p: [p.spec.node_name] if p.spec.node_name else [])
        self.pods.add_index("namespace", lambda p: [p.namespace])
        self.replica_sets.add_index("owner", _controller_uids)
        for kind in (self.deployments, self.replica_sets, self.jobs, self.budgets, self.quotas, self.services):
            kind.add_index("namespace", lambda obj: [obj.namespace])
        self._made_pods = BuiltinMadeObjects(self.pods)
        self._made_sets = BuiltinMadeObjects(self.replica_sets)

    def made_pod(self, pod: Pod) -> None:
        self._made_pods.add(pod)

    def made_set(self, replica_set: ReplicaSet) -> None:
        self._made_sets.add(replica_set)

    def pods_of(self, owner_uid: str) -> list[Pod]:
        return [*self.pods.by_index("owner", owner_uid), *self._made_pods.of(owner_uid)]

    def sets_of(self, owner_uid: str) -> list[ReplicaSet]:
        return [*self.replica_sets.by_index("owner", owner_uid), *self._made_sets.of(owner_uid)]

    def pods_in(self, namespace: str) -> list[Pod]:
        return self.pods.by_index("namespace", namespace)


class BuiltinMadeObjects:
    """Created objects that the informer has not shown yet, by owner."""

    def __init__(self, informer: Informer[Any]) -> None:
        self._informer = informer
        self._by_owner: dict[str, dict[str, Any]] = {}
        informer.subscribe(self._seen)

    def add(self, obj: KObject) -> None:
        known = self._informer.get(obj.name, obj.namespace)
        if known is not None and known.uid == obj.uid:
            return
        for uid in _controller_uids(obj):
            self._by_owner.setdefault(uid, {})[obj.uid] = obj

    def of(self, owner_uid: str) -> list[Any]:
        return list(self._by_owner.get(owner_uid, {}).values())

    def _seen(self, old: KObject | None, new: KObject | None) -> None:
        if not self._by_owner:
            return
        obj = new or old
        if obj is not None:
            for uid in _controller_uids(obj):
                waiting = self._by_owner.get(uid)
                if waiting is not None and waiting.pop(obj.uid, None) is not None and not waiting:
                    del self._by_owner[uid]


def _controller_uids(obj: KObject) -> list[str]:
    return [ref.uid for ref in obj.metadata.owner_references if ref.controller]
