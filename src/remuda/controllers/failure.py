"""Failure controller: signals in NodeDevices -> verdicts in NodeDevices. One key per node; writes transitions only."""

from __future__ import annotations

import msgspec
import structlog

from remuda.api.codec import to_wire
from remuda.api.core_v1 import Pod
from remuda.api.devices import DeviceState, NodeDevices, Verdict
from remuda.controllers.view import ClusterView
from remuda.core.failure.ledger import judge_node
from remuda.kube.cluster import Cluster, Preconditions
from remuda.kube.workqueue import WorkQueue

log = structlog.get_logger(__name__)


class Judged(msgspec.Struct, frozen=True):
    node: NodeDevices
    verdicts: list[Verdict]


class FailureController:
    """A `Reconciler` keyed by node name."""

    def __init__(self, cluster: Cluster, view: ClusterView, queue: WorkQueue[str]) -> None:
        self._cluster = cluster
        self._view = view
        self._queue = queue
        view.devices.subscribe(self._on_devices)
        view.pods.subscribe(self._on_pod)

    def _on_devices(self, old: NodeDevices | None, new: NodeDevices | None) -> None:
        if new is not None:
            self._queue.add(new.name)

    def _on_pod(self, old: Pod | None, new: Pod | None) -> None:
        """Holders change when a pod is bound, ends or goes; its other changes do not matter here."""
        before, after = _holds(old), _holds(new)
        if before != after:
            for node in filter(None, (before, after)):
                self._queue.add(node)

    async def observe(self, key: str) -> NodeDevices | None:
        return self._view.devices.get(key)

    def plan(self, observed: NodeDevices | None, now: float) -> Judged | None:
        if observed is None:
            return None
        return Judged(observed, judge_node(observed, self._view.pods.by_index("node", observed.name), now))

    async def apply(self, planned: Judged | None) -> float | None:
        if planned is None:
            return None
        node, verdicts = planned.node, planned.verdicts
        if verdicts == node.verdicts:
            return None
        when = Preconditions(resource_version=node.metadata.resource_version)
        await self._cluster.patch(NodeDevices, node.name, {"verdicts": [to_wire(v) for v in verdicts]}, when=when)
        before = {v.device: v.state for v in node.verdicts}
        for verdict in verdicts:
            if verdict.state is not DeviceState.HEALTHY and before.get(verdict.device) is not verdict.state:
                log.warning(
                    "verdict", node=node.name, device=verdict.device, state=verdict.state, reason=verdict.reason
                )
        return None


def _holds(pod: Pod | None) -> str:
    return pod.spec.node_name if pod is not None and pod.is_live else ""
