"""Failure controller: what agents observed and nodes offer -> verdicts, notices and quarantine orders in NodeDevices.

One key per node; writes transitions only. Looks again by itself when a debounce or a hold-down ends.
"""

from __future__ import annotations

import msgspec
import structlog

from remuda.api.codec import to_wire
from remuda.api.core_v1 import Node, Pod
from remuda.api.devices import DeviceState, NodeDevices, Notice, QuarantineOrder, Signal, Verdict
from remuda.api.meta import JsonObject
from remuda.controllers.view import ClusterView
from remuda.core.failure.ledger import judge_node
from remuda.core.failure.notices import holds_until, judge_notices
from remuda.core.failure.overlay import SignalOverlay
from remuda.core.failure.timers import DEFAULT, Timers, flapping, settles_at
from remuda.kube.cluster import Cluster, Preconditions
from remuda.kube.workqueue import WorkQueue

log = structlog.get_logger(__name__)


class Seen(msgspec.Struct, frozen=True):
    devices: NodeDevices
    node: Node | None


class Judged(msgspec.Struct, frozen=True):
    node: NodeDevices
    verdicts: list[Verdict]
    notices: list[Notice]
    orders: dict[str, QuarantineOrder]
    look_again_s: float | None = None


class FailureController:
    """A `Reconciler` keyed by node name."""

    def __init__(self, cluster: Cluster, view: ClusterView, queue: WorkQueue[str], timers: Timers = DEFAULT) -> None:
        self._cluster = cluster
        self._view = view
        self._queue = queue
        self._timers = timers
        self._overlay = SignalOverlay()
        view.devices.subscribe(self._on_devices)
        view.pods.subscribe(self._on_pod)
        view.nodes.subscribe(self._on_node)

    def hear(self, node: str, device: str, signal: Signal, now: float) -> None:
        """A signal from the node's stream, ahead of the agent's own write."""
        self._overlay.hear(node, device, signal, now)
        self._queue.add(node)

    def _on_devices(self, old: NodeDevices | None, new: NodeDevices | None) -> None:
        if new is not None:
            self._queue.add(new.name)
        elif old is not None:
            self._overlay.forget(old.name)

    def _on_pod(self, old: Pod | None, new: Pod | None) -> None:
        """Holders change when a pod is bound, ends or goes; its other changes do not matter here."""
        before, after = _holds(old), _holds(new)
        if before != after:
            for node in filter(None, (before, after)):
                self._queue.add(node)

    def _on_node(self, old: Node | None, new: Node | None) -> None:
        """Of the node itself only what it offers matters here."""
        if new is not None and (old is None or old.status.allocatable != new.status.allocatable):
            self._queue.add(new.name)

    async def observe(self, key: str) -> Seen | None:
        devices = self._view.devices.get(key)
        return Seen(devices, self._view.nodes.get(key)) if devices is not None else None

    def plan(self, observed: Seen | None, now: float) -> Judged | None:
        if observed is None:
            return None
        devices, pods = observed.devices, self._view.pods.by_index("node", observed.devices.name)
        newest = self._overlay.merged(devices, now)
        verdicts = judge_node(newest, pods, now, self._timers)
        judged = msgspec.structs.replace(newest, verdicts=verdicts)
        notices = judge_notices(judged, observed.node, pods, now, self._timers)
        judged = msgspec.structs.replace(judged, notices=notices)
        ends = [e for e in (settles_at(judged, now, self._timers), holds_until(judged, now)) if e is not None]
        again = min(ends) - now + 0.001 if ends else None
        return Judged(devices, verdicts, notices, flapping(devices, now, self._timers), again)

    async def apply(self, planned: Judged | None) -> float | None:
        if planned is None:
            return None
        node, patch = planned.node, _patch(planned)
        if not patch:
            return planned.look_again_s
        when = Preconditions(resource_version=node.metadata.resource_version)
        await self._cluster.patch(NodeDevices, node.name, patch, when=when)
        before = {v.device: v.state for v in node.verdicts}
        for verdict in planned.verdicts:
            if verdict.state is not DeviceState.HEALTHY and before.get(verdict.device) is not verdict.state:
                log.warning(
                    "verdict", node=node.name, device=verdict.device, state=verdict.state, reason=verdict.reason
                )
        return planned.look_again_s


def _patch(planned: Judged) -> JsonObject:
    """Only the parts that changed."""
    patch: JsonObject = {}
    if planned.verdicts != planned.node.verdicts:
        patch["verdicts"] = [to_wire(v) for v in planned.verdicts]
    if planned.notices != planned.node.notices:
        patch["notices"] = [to_wire(n) for n in planned.notices]
    if planned.orders:
        patch["quarantine"] = {device: to_wire(order) for device, order in planned.orders.items()}
    return patch


def _holds(pod: Pod | None) -> str:
    return pod.spec.node_name if pod is not None and pod.is_live else ""
