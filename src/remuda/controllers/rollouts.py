"""Rollout controller: the nodes of a NodeRollout, their ledgers and pods -> its status, cordons, drains and orders.

One key per NodeRollout. The status is written first, guarded by its version; what must stand follows from it, so whatever was not
written after it is written at the next look. The marks of one that is deleted are given back by `abandoned_marks`.
"""

from __future__ import annotations

from collections.abc import Mapping

import structlog

from remuda.api.codec import to_wire
from remuda.api.devices import NodeDevices
from remuda.api.kubernetes.core_v1 import Node, Pod
from remuda.api.meta import JsonObject
from remuda.api.names import LABEL_CLIQUE
from remuda.api.rollouts import NodeRollout, NodeRolloutStatus, RolloutPhase, StepPhase
from remuda.controllers.cluster_view import ClusterView
from remuda.controllers.pod_removal import carry_out_drain_pod_removal
from remuda.controllers.remedy_hooks import ObjectHooks
from remuda.core.remedies.drain import RecycleDomain, domain_recycled_by_remedy
from remuda.core.remedies.hook_kinds import HookKinds
from remuda.core.remedies.rollout import (
    ObservedRollout,
    RolloutPlan,
    is_rollout_order,
    plan_rollout,
    rollout_selects_node,
)
from remuda.kube.cluster import Cluster, Preconditions
from remuda.kube.runtime.events import SILENCE, EventSink
from remuda.kube.runtime.work_queue import WorkQueue

log = structlog.get_logger(__name__)


class RolloutController:
    """A `Reconciler` keyed by the roll-out's name."""

    def __init__(
        self,
        cluster: Cluster,
        view: ClusterView,
        queue: WorkQueue[str],
        *,
        events: EventSink = SILENCE,
        hook_kinds: HookKinds = (),
    ) -> None:
        """`hook_kinds`: that objects of hooks may have."""
        self._cluster = cluster
        self._view = view
        self._queue = queue
        self._events = events
        self._hooks = ObjectHooks(cluster, hook_kinds)
        self._busy: dict[str, str] = {}  # node -> the roll-out it is under
        view.rollouts.subscribe(self._on_rollout)
        view.devices.subscribe(lambda old, new: self._on_node((new or old or NodeDevices()).name))
        view.pods.subscribe(self._on_pod)

    def _on_rollout(self, old: NodeRollout | None, new: NodeRollout | None) -> None:
        rollout = new or old
        if rollout is None:
            return
        self._busy = {node: name for node, name in self._busy.items() if name != rollout.name}
        if new is not None:
            self._busy |= {step.node: new.name for step in new.status.steps if step.phase is not StepPhase.DONE}
        self._queue.add(rollout.name)

    def _on_node(self, node: str) -> None:
        if node in self._busy:
            self._queue.add(self._busy[node])

    def _on_pod(self, old: Pod | None, new: Pod | None) -> None:
        for pod in (old, new):
            if pod is not None and pod.spec.node_name:
                self._on_node(pod.spec.node_name)

    async def observe(self, key: str) -> ObservedRollout | None:
        rollout = self._view.rollouts.get(key)
        if rollout is None or rollout.is_deleting:
            return None  # its marks are given back by `abandoned_marks`
        under = {step.node for step in rollout.status.steps}
        nodes = {n.name: n for n in self._view.nodes.items() if rollout_selects_node(rollout, n) or n.name in under}
        ledgers = {name: found for name in nodes if (found := self._view.devices.get(name)) is not None}
        nodes = {name: node for name, node in nodes.items() if name in ledgers or name in under}
        pods = {name: self._view.pods.by_index("node", name) for name in nodes}
        made = {name: it for name in under if (it := self._hooks.made(f"{key}/{name}")) is not None}
        return ObservedRollout(rollout, nodes, ledgers, pods, made, self._domains(nodes))

    def _domains(self, nodes: Mapping[str, Node]) -> dict[str, RecycleDomain]:
        """Of the nodes that are recycled with others."""
        cliques: dict[str, list[Node]] = {}
        for node in self._view.nodes.items():
            if clique := node.labels.get(LABEL_CLIQUE):
                cliques.setdefault(clique, []).append(node)
        found = {
            name: domain_recycled_by_remedy(
                node, self._view.devices.get(name), cliques.get(node.labels.get(LABEL_CLIQUE, ""), ())
            )
            for name, node in nodes.items()
        }
        return {name: domain for name, domain in found.items() if domain.name}

    def plan(self, observed: ObservedRollout | None, now: float) -> RolloutPlan | None:
        return plan_rollout(observed, now) if observed is not None else None

    async def apply(self, plan: RolloutPlan | None) -> float | None:
        if plan is None:
            return None
        rollout = plan.rollout
        if plan.status != rollout.status:
            await self._write_status(rollout, plan.status)
        await self._mark_nodes(plan.patches)
        for asked in plan.drains:
            await carry_out_drain_pod_removal(self._cluster, asked)
        for node in plan.orders:
            await self._write_orders(plan, node)
        again = plan.look_again_s
        for node, call in plan.calls.items():
            if await self._hooks.call(f"{rollout.name}/{node}", call):
                again = 0.0
        return again

    async def _mark_nodes(self, patches: Mapping[str, JsonObject]) -> None:
        for node, patch in patches.items():
            found = self._view.nodes.get(node)
            if found is not None:
                when = Preconditions(resource_version=found.metadata.resource_version)
                await self._cluster.patch(Node, node, patch, when=when)

    async def _write_status(self, rollout: NodeRollout, status: NodeRolloutStatus) -> None:
        body = to_wire(status)
        for part in ("stoppedBecause", "done", "failed", "waitingFor"):
            body.setdefault(part, None)
        when = Preconditions(resource_version=rollout.metadata.resource_version)
        await self._cluster.patch(NodeRollout, rollout.name, {"status": body}, subresource="status", when=when)
        if status.phase is not rollout.status.phase:
            log.info("rollout", rollout=rollout.name, phase=status.phase, why=status.stopped_because)
            tell = self._events.warning if status.phase is RolloutPhase.STOPPED else self._events.normal
            tell(rollout, f"Rollout{status.phase}", status.stopped_because or f"{status.done} of {status.total} done.")

    async def _write_orders(self, plan: RolloutPlan, node: str) -> None:
        found = self._view.devices.get(node)
        if found is None:
            return
        wanted = plan.orders[node]
        there = {id for id in found.orders if is_rollout_order(id, plan.rollout)}
        patch: JsonObject = dict.fromkeys(there - wanted.keys())
        patch |= {id: to_wire(order) for id, order in wanted.items() if id not in there}
        if patch:
            when = Preconditions(resource_version=found.metadata.resource_version)
            await self._cluster.patch(NodeDevices, node, {"orders": patch}, when=when)
