"""The immutable picture one placement decision is made on: nodes, their domains, and a free-device mask per node.

A device is free when the ledger calls it Healthy and no live pod holds it; a pod holds the devices its annotation names from
the moment it is bound (or assumed bound) until it is gone. Bit i of a mask is the node's i-th device. Masks are plain ints:
a trial placement copies one list of ints and throws it away, so trying costs nothing and never needs undoing.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec

from remuda.api.core_v1 import Node, Pod, Toleration
from remuda.api.devices import DeviceState, NodeDevices
from remuda.api.names import ANNOTATION_DEVICES


class NodeView(msgspec.Struct, frozen=True):
    """One node as placement sees it. `devices` gives the mask's bit order; `usable` has a bit per Healthy device."""

    name: str
    labels: Mapping[str, str]
    devices: tuple[str, ...]
    usable: int
    open: bool  # alive, Ready, not cordoned
    taints: tuple[tuple[str, str], ...] = ()  # (key, value) with effect NoSchedule or NoExecute


class Snapshot(msgspec.Struct, frozen=True):
    """Nodes in name order and, per node, the mask of free devices."""

    nodes: tuple[NodeView, ...]
    free: tuple[int, ...]

    def domains(self, key: str) -> dict[str, list[int]]:
        """Node indexes per value of the label; with no key the cluster is one domain called ''."""
        found: dict[str, list[int]] = {}
        for ix, node in enumerate(self.nodes):
            value = node.labels.get(key) if key else ""
            if value is not None:
                found.setdefault(value, []).append(ix)
        return found

    @property
    def largest_node(self) -> int:
        return max((len(n.devices) for n in self.nodes), default=0)

    def releasing(self, uids_devices: Iterable[tuple[str, Iterable[str]]]) -> Snapshot:
        """The picture if those (node, device ids) were given back: what a gang could have if it let go first."""
        at = {node.name: ix for ix, node in enumerate(self.nodes)}
        free = list(self.free)
        for node, ids in uids_devices:
            if node in at:
                view = self.nodes[at[node]]
                free[at[node]] |= mask_of(view.devices, ids) & view.usable
        return Snapshot(self.nodes, tuple(free))


def mask_of(devices: tuple[str, ...], ids: Iterable[str]) -> int:
    wanted = set(ids)
    return sum(1 << bit for bit, device in enumerate(devices) if device in wanted)


def devices_of(pod: Pod) -> tuple[str, ...]:
    """Device ids the pod holds or is about to hold."""
    return tuple(filter(None, pod.annotations.get(ANNOTATION_DEVICES, "").split(",")))


def build_snapshot(
    nodes: Iterable[Node],
    node_devices: Iterable[NodeDevices],
    pods: Iterable[Pod],
    dead: frozenset[str] = frozenset(),
    assumed: Mapping[str, tuple[str, tuple[str, ...]]] | None = None,
) -> Snapshot:
    """`dead`: nodes whose lease ran out. `assumed`: uid -> (node, devices) of bindings not seen back yet."""
    ledger = {nd.name: nd for nd in node_devices}
    views = tuple(
        _view(node, ledger.get(node.name), node.name not in dead) for node in sorted(nodes, key=lambda n: n.name)
    )
    held: dict[str, set[str]] = {}
    pending = dict(assumed or {})
    for pod in pods:
        guess = pending.pop(pod.uid, None)
        if pod.is_terminal:
            continue
        if pod.spec.node_name:
            held.setdefault(pod.spec.node_name, set()).update(devices_of(pod))
        elif guess is not None:
            held.setdefault(guess[0], set()).update(guess[1])
    free = tuple(v.usable & ~mask_of(v.devices, held.get(v.name, ())) for v in views)
    return Snapshot(views, free)


def _view(node: Node, devices: NodeDevices | None, alive: bool) -> NodeView:
    ready = next((c.status for c in node.status.conditions if c.type == "Ready"), "Unknown") == "True"
    ids = tuple(d.id for d in devices.observed.devices) if devices else ()
    bad = {v.device for v in devices.verdicts if v.state is not DeviceState.HEALTHY} if devices else set()
    if devices:
        bad |= set(devices.quarantine)
    return NodeView(
        name=node.name,
        labels=node.labels,
        devices=ids,
        usable=sum(1 << bit for bit, device in enumerate(ids) if device not in bad),
        open=alive and ready and not node.spec.unschedulable,
        taints=tuple((t.key, t.value) for t in node.spec.taints if t.effect in ("NoSchedule", "NoExecute")),
    )


def tolerates(tolerations: Iterable[Toleration], taints: Iterable[tuple[str, str]]) -> bool:
    allowed = list(tolerations)
    return all(
        any((not t.key or t.key == key) and (t.operator == "Exists" or t.value == value) for t in allowed)
        for key, value in taints
    )
