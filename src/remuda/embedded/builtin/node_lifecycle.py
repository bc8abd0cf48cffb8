"""Node lifecycle controller: the shell around `plan_node_lifecycle`.

A lease is renewed every few seconds and almost never runs out, so a renewal wakes nobody: each node has one timer, set to the
moment its lease would expire, and looks at the newest lease when it fires.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from remuda.api.codec import to_wire
from remuda.api.conditions import is_condition_true
from remuda.api.errors import Conflict, NotFound
from remuda.api.kubernetes.core_v1 import NODE_LEASE_NAMESPACE, Lease, Node, Pod
from remuda.api.meta import JsonObject
from remuda.core.health.mass_silence import MassSilenceRule, MassSilences, NodeSilence, node_silence_of
from remuda.core.health.own_stalls import NO_STALLS, StallHistory
from remuda.embedded.builtin.deployments import delete_pod_for_builtin
from remuda.embedded.builtin.informers import BuiltinView
from remuda.embedded.builtin.planners.node_lifecycle import (
    NodeLifecycleObserved,
    NodeLifecyclePlan,
    node_lease_expiry,
    plan_node_lifecycle,
)
from remuda.kube.cluster import Cluster, Preconditions
from remuda.kube.runtime.bulk_writes import write_all_objects
from remuda.kube.runtime.work_queue import WorkQueue


class NodeLifecycleController:
    """A `Reconciler` keyed by node name."""

    def __init__(
        self,
        cluster: Cluster,
        view: BuiltinView,
        queue: WorkQueue[str],
        stalls: Callable[[], StallHistory] = lambda: NO_STALLS,
        mass_silence: MassSilenceRule = MassSilenceRule(),  # noqa: B008 - an immutable value
    ) -> None:
        """`stalls`: our own, as of now. `mass_silence`: when most nodes fall silent at once, nobody is evicted for it."""
        self._silences = MassSilences(mass_silence)
        self._cluster, self._view, self._queue = cluster, view, queue
        self._stalls = stalls
        view.nodes.subscribe(self._on_node)
        view.leases.subscribe(self._on_lease)
        view.pods.subscribe(self._on_pod)

    def _on_node(self, old: Node | None, new: Node | None) -> None:
        if new is not None:
            self._queue.add(new.name)

    def _on_lease(self, old: Lease | None, new: Lease | None) -> None:
        if old is None and new is not None:
            self._queue.add(new.name)

    def _on_pod(self, old: Pod | None, new: Pod | None) -> None:
        """A pod that arrives on a tainted node; on a healthy one there is nothing to evict."""
        if new is None or not new.spec.node_name or (old is not None and old.spec.node_name):
            return
        node = self._view.nodes.get(new.spec.node_name)
        if node is not None and any(t.effect == "NoExecute" for t in node.spec.taints):
            self._queue.add(node.name)

    async def observe(self, key: str) -> NodeLifecycleObserved | None:
        node = self._view.nodes.get(key)
        if node is None:
            return None
        lease = self._view.leases.get(key, NODE_LEASE_NAMESPACE)
        return NodeLifecycleObserved(node, lease, tuple(self._view.pods.by_index("node", key)), self._stalls())

    def plan(self, observed: NodeLifecycleObserved | None, now: float) -> NodeLifecyclePlan | None:
        if observed is None:
            return None
        expiry = node_lease_expiry(observed.lease, observed.stalls)
        if expiry is not None and now > expiry:
            held = self._silences.look(self._node_silences(observed.stalls), now)
            observed = msgspec.structs.replace(observed, is_held=observed.node.name in held)
        return plan_node_lifecycle(observed, now)

    def _node_silences(self, stalls: StallHistory) -> list[NodeSilence]:
        found: list[NodeSilence] = []
        for node in self._view.nodes.items():
            lease = self._view.leases.get(node.name, NODE_LEASE_NAMESPACE)
            ends_at = node_lease_expiry(lease, stalls)
            if lease is not None and ends_at is not None:
                found.append(node_silence_of(node, ends_at, lease))
        return found

    async def apply(self, plan: NodeLifecyclePlan | None) -> float | None:
        if plan is None:
            return None
        node = plan.node
        try:
            if plan.conditions is not None:
                node = await self._mark(node, plan)
            if plan.taints is not None:
                taints: JsonObject = {"spec": {"taints": [to_wire(t) for t in plan.taints] or None}}
                when = Preconditions(uid=node.uid, resource_version=node.metadata.resource_version)
                await self._cluster.patch(Node, node.name, taints, when=when)
        except NotFound:
            return None
        await write_all_objects(lambda pod: delete_pod_for_builtin(self._cluster, pod), plan.evict)
        return plan.look_again_s

    async def _mark(self, node: Node, plan: NodeLifecyclePlan) -> Node:
        when = Preconditions(uid=node.uid, resource_version=node.metadata.resource_version)
        status: JsonObject = {"status": {"conditions": [to_wire(c) for c in plan.conditions or ()]}}
        marked = await self._cluster.patch(Node, node.name, status, subresource="status", when=when)
        # Services must not send anybody to the pods of a node that is not heard of.
        await write_all_objects(self._unready, self._view.pods.by_index("node", node.name))
        return marked

    async def _unready(self, pod: Pod) -> None:
        if pod.owner("TrainingJob") is not None or not is_condition_true(pod.status.conditions, "Ready"):
            return
        conditions = [
            {**to_wire(c), **({"status": "False", "reason": "NodeNotReady"} if c.type == "Ready" else {})}
            for c in pod.status.conditions
        ]
        when = Preconditions(uid=pod.uid, resource_version=pod.metadata.resource_version)
        try:
            await self._cluster.patch(
                Pod, pod.name, {"status": {"conditions": conditions}}, pod.namespace, subresource="status", when=when
            )
        except (NotFound, Conflict):
            pass
