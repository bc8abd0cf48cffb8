"""Gives back what remedies and roll-outs that are gone have left on nodes and in their ledgers.

One key per node. Looked at when the manager begins, when an incident or a roll-out is deleted, and when a mark appears whose
owner is not known here. A copy that lags behind is no proof that an owner is gone: the API is asked for each by name before
anything is given back.
"""

from __future__ import annotations

import msgspec
import structlog

from remuda.api.devices import NodeDevices
from remuda.api.errors import NotFound
from remuda.api.incidents import Incident
from remuda.api.kubernetes.core_v1 import Node
from remuda.api.rollouts import NodeRollout
from remuda.controllers.cluster_view import ClusterView
from remuda.core.remedies.abandoned_marks import ReleasedMarks, mark_owners, release_marks
from remuda.core.remedies.rollout import ROLLOUT_PREFIX, rollout_owner
from remuda.kube.cluster import Cluster, Preconditions
from remuda.kube.runtime.events import SILENCE, EventSink
from remuda.kube.runtime.work_queue import WorkQueue

log = structlog.get_logger(__name__)


class MarkedNode(msgspec.Struct, frozen=True):
    """`gone`: owners that the API does not know."""

    name: str
    node: Node | None
    ledger: NodeDevices | None
    gone: frozenset[str]


class MarksPlan(msgspec.Struct, frozen=True):
    seen: MarkedNode
    marks: ReleasedMarks


class AbandonedMarksController:
    """A `Reconciler` keyed by node name."""

    def __init__(
        self, cluster: Cluster, view: ClusterView, queue: WorkQueue[str], *, events: EventSink = SILENCE
    ) -> None:
        self._cluster = cluster
        self._view = view
        self._queue = queue
        self._events = events
        view.nodes.add_index("mark-owner", lambda node: mark_owners(node, None))
        view.devices.add_index("mark-owner", lambda ledger: mark_owners(None, ledger))
        view.incidents.subscribe(lambda old, new: self._owner_changed(old.name if old is not None else "", new))
        view.rollouts.subscribe(lambda old, new: self._owner_changed(rollout_owner(old.name) if old else "", new))
        view.nodes.subscribe(lambda old, new: self._on_marks(new.name, new, None) if new is not None else None)
        view.devices.subscribe(lambda old, new: self._on_marks(new.name, None, new) if new is not None else None)

    def _owner_changed(self, owner: str, new: Incident | NodeRollout | None) -> None:
        if owner and new is None:
            nodes, ledgers = (each.by_index("mark-owner", owner) for each in (self._view.nodes, self._view.devices))
            for name in {*(node.name for node in nodes), *(ledger.name for ledger in ledgers)}:
                self._queue.add(name)

    def _on_marks(self, name: str, node: Node | None, ledger: NodeDevices | None) -> None:
        if any(not self._is_known(owner) for owner in mark_owners(node, ledger)):
            self._queue.add(name)

    def _is_known(self, owner: str) -> bool:
        if self._view.incidents.get(owner) is not None:
            return True
        rollout = owner.removeprefix(ROLLOUT_PREFIX)
        return rollout != owner and self._view.rollouts.get(rollout) is not None

    async def observe(self, key: str) -> MarkedNode:
        node, ledger = self._view.nodes.get(key), self._view.devices.get(key)
        unknown = [owner for owner in sorted(mark_owners(node, ledger)) if not self._is_known(owner)]
        gone = [owner for owner in unknown if await self._is_gone(owner)]
        return MarkedNode(key, node, ledger, frozenset(gone))

    async def _is_gone(self, owner: str) -> bool:
        rollout = owner.removeprefix(ROLLOUT_PREFIX)
        try:
            if rollout != owner:
                await self._cluster.get(NodeRollout, rollout)
            else:
                await self._cluster.get(Incident, owner)
        except NotFound:
            return True
        return False

    def plan(self, observed: MarkedNode, now: float) -> MarksPlan:
        return MarksPlan(observed, release_marks(observed.node, observed.ledger, observed.gone))

    async def apply(self, planned: MarksPlan) -> float | None:
        seen, marks = planned.seen, planned.marks
        if marks.devices and seen.ledger is not None:
            when = Preconditions(resource_version=seen.ledger.metadata.resource_version)
            await self._cluster.patch(NodeDevices, seen.name, marks.devices, when=when)
        if marks.node and seen.node is not None:
            when = Preconditions(resource_version=seen.node.metadata.resource_version)
            await self._cluster.patch(Node, seen.name, marks.node, when=when)
        if marks.owners:
            log.info("marks.given_back", node=seen.name, owners=marks.owners)
            if seen.node is not None:
                whose = ", ".join(marks.owners)
                self._events.normal(
                    seen.node, "MarksGivenBack", f"Of {whose}, which is gone: cordon, orders, quarantine."
                )
        return None
