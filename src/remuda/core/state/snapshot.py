"""The immutable picture one placement decision is made on: nodes, their domains, and what each has free.

A device (or slice) is free when the ledger calls it Healthy (one that was never judged is not) and nobody holds it. A pod holds
the devices its annotation names from the moment it is bound (or assumed bound); from then on the node's own report of who
holds what is the truth, also after the pod's object is gone: a device is free when its node says so, not when somebody removed
an object by force. Bit i of a mask is the node's i-th row; `resources` says which rows count for which resource.

Degraded devices are kept apart (`worn`): only a pod that says it tolerates them gets one, and Healthy ones come first.
`penalty` is what speaks against a node without closing it, its failures and those of its domain: within a domain the nodes with
the least come first.

Resources no ledger row stands for (cpu, memory, another vendor's plugin) are counted: what the node offers less what its pods
ask. A resource of the ledger is offered only as far as the node's status does: a plugin that is lost offers nothing. One that
is withheld on a node (`NodeDevices.withheld`) is offered there as none, and so are all devices of a node whose agent is there and
has not reported yet. A pod that was bound there before counts as having all of them until the node says which it has.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import msgspec

from remuda.api.conditions import is_condition_true
from remuda.api.devices import DeviceState, NodeDevices, Observed
from remuda.api.kubernetes.core_v1 import Node, Pod, Taint, Toleration
from remuda.api.names import ANNOTATION_DEVICES, RESOURCE_GPU
from remuda.core.state.leaving_nodes import leaving_state_of_node
from remuda.core.state.pod_requests import (
    PODS,
    Amounts,
    is_extended_resource,
    requests_of_pod,
    resource_amount,
    resource_amounts,
)
from remuda.core.state.reservations import (
    PodOnReservedNode,
    Reservation,
    ReservedPlaces,
    add_reserved_amounts,
    lone_pod_reservation_key,
    reserved_places_by_asker,
    subtract_amounts,
    unused_reserved_amounts,
)

SUSPECT = 100  # penalty of a node in a suspect domain; what its own failures add stays below


class NodeView(msgspec.Struct, frozen=True):
    """One node as placement sees it. `devices` gives the mask's bit order; `usable` has a bit per Healthy device, `worn` one
    per Degraded device."""

    name: str
    labels: Mapping[str, str]
    devices: tuple[str, ...]
    usable: int
    closed: str = ""  # why nothing may be placed here: dead, not ready, cordoned, about to go; "" = open
    taints: tuple[Taint, ...] = ()  # those that keep pods away: effect NoSchedule or NoExecute
    resources: Mapping[
        str, int
    ] = {}  # per resource of the ledger: the mask of its rows; one shared in time is counted only
    offered: Amounts = {}  # the node's allocatable
    model: str = ""
    observed: Observed | None = None  # what the node shows of itself: how its devices are joined
    withheld: frozenset[str] = frozenset()  # resources nothing of which is to be placed here
    worn: int = 0
    penalty: int = 0
    has_agent: bool = True  # a live one, that has reported


@dataclass(frozen=True)
class Snapshot:
    """Nodes in name order and, per node, the mask of free devices and how much is left of what is counted.

    What is asked of it again and again in one plan is worked out once."""

    nodes: tuple[NodeView, ...]
    free: tuple[int, ...]
    left: tuple[Amounts, ...]
    worn: tuple[int, ...] = ()  # per node: the mask of free Degraded devices; empty = none anywhere
    reserved: Mapping[str, ReservedPlaces] = field(
        default_factory=dict
    )  # by asker: what is free for it alone, and in no mask or count

    def domains(self, key: str) -> Mapping[str, list[int]]:
        """Node indexes per value of the label, least penalty first; with no key the cluster is one domain called ''."""
        found = self._domains.get(key)
        if found is None:
            found = self._domains[key] = {}
            for ix in self._order:
                node = self.nodes[ix]
                value = node.labels.get(key) if key else ""
                if value is not None:
                    found.setdefault(value, []).append(ix)
        return found

    @cached_property
    def _domains(self) -> dict[str, dict[str, list[int]]]:
        return {}

    @cached_property
    def _order(self) -> Sequence[int]:
        places = range(len(self.nodes))
        is_flat = not any(node.penalty for node in self.nodes)
        return places if is_flat else sorted(places, key=lambda ix: (self.nodes[ix].penalty, ix))

    @cached_property
    def index(self) -> Mapping[str, int]:
        """Node name -> its place in `nodes`."""
        return {node.name: ix for ix, node in enumerate(self.nodes)}

    @cached_property
    def offered(self) -> Sequence[str]:
        """Extended resources that some node names."""
        return sorted({r for view in self.nodes for r in view.offered if is_extended_resource(r)})

    @cached_property
    def largest_node(self) -> int:
        """GPUs of the node that has most, well or not; a shared one counts as often as it is offered."""
        return max(map(self.gpus_of_node, range(len(self.nodes))), default=0)

    def gpus_of_node(self, ix: int) -> int:
        """Well or not, held or not; a shared one counts as often as it is offered."""
        view = self.nodes[ix]
        rows = view.resources.get(RESOURCE_GPU)
        return view.offered.get(RESOURCE_GPU, 0) if rows is None else rows.bit_count()

    def is_suspect(self, nodes: Sequence[int]) -> bool:
        """Whether what they share is suspected of failing."""
        return sum(self.nodes[ix].penalty >= SUSPECT for ix in nodes) * 2 > len(nodes)

    def domain_of(self, node: str, key: str) -> str:
        """The node's value of the label; '' when it has none, is unknown, or there is no key."""
        return self.nodes[self.index[node]].labels.get(key, "") if key and node in self.index else ""

    def is_usable(self, node: str, device: str) -> bool:
        view = next((n for n in self.nodes if n.name == node), None)
        return view is not None and bool(snapshot_device_mask(view.devices, (device,)) & (view.usable | view.worn))

    def outside(self, key: str, domain: str) -> Snapshot:
        """The picture without one domain."""
        kept = [ix for ix, node in enumerate(self.nodes) if node.labels.get(key) != domain] if key else []
        return Snapshot(
            tuple(self.nodes[ix] for ix in kept),
            tuple(self.free[ix] for ix in kept),
            tuple(self.left[ix] for ix in kept),
            tuple(self.worn[ix] for ix in kept) if self.worn else (),
        )

    def opened_to(self, asker: str) -> Snapshot:
        """The picture for one that places are reserved for."""
        mine = self.reserved.get(asker, ())
        if not mine:
            return self
        free, left = list(self.free), list(self.left)
        for place in mine:
            free[place.ix] |= place.rows
            left[place.ix] = add_reserved_amounts(left[place.ix], place.amounts)
        return Snapshot(self.nodes, tuple(free), tuple(left), self.worn)

    def releasing(self, held: Iterable[tuple[str, Iterable[str], Amounts]]) -> Snapshot:
        """The picture if those (node, device ids, requests) were given back: what a gang could have if it let go first."""
        at = self.index
        free, left = list(self.free), list(self.left)
        worn = list(self.worn or [0] * len(free))
        for node, ids, requests in held:
            if node in at:
                ix = at[node]
                view = self.nodes[ix]
                back = snapshot_device_mask(view.devices, ids)
                free[ix] |= back & view.usable
                worn[ix] |= back & view.worn
                left[ix] = {r: n + (1 if r == PODS else requests.get(r, 0)) for r, n in left[ix].items()}
        return Snapshot(self.nodes, tuple(free), tuple(left), tuple(worn))


def snapshot_device_mask(devices: tuple[str, ...], ids: Iterable[str]) -> int:
    wanted = set(ids)
    return sum(1 << bit for bit, device in enumerate(devices) if device in wanted)


def snapshot_devices_of_pod(pod: Pod) -> tuple[str, ...]:
    """Device ids the pod holds or is about to hold."""
    return tuple(filter(None, pod.annotations.get(ANNOTATION_DEVICES, "").split(",")))


def build_snapshot(
    nodes: Iterable[Node],
    node_devices: Iterable[NodeDevices],
    pods: Iterable[Pod],
    dead: frozenset[str] = frozenset(),
    assumed: Mapping[str, tuple[str, tuple[str, ...]]] | None = None,
    penalties: Mapping[str, int] | None = None,
    reserved: Iterable[Reservation] = (),
    unreported: frozenset[str] = frozenset(),
    agentless: frozenset[str] = frozenset(),
) -> Snapshot:
    """`dead`: nodes whose lease ran out. `assumed`: uid -> (node, devices) of bindings not seen back yet. `penalties`: by
    node. `reserved`: places that only some may have. `unreported`: nodes whose agent has yet to say what is there. `agentless`:
    nodes without an agent that lives and has reported."""
    against = penalties or {}
    ledger = {nd.name: nd for nd in node_devices}
    views = tuple(
        _node_view(
            node,
            ledger.get(node.name),
            node.name not in dead,
            against.get(node.name, 0),
            node.name in unreported,
            node.name not in agentless,
        )
        for node in sorted(nodes, key=lambda n: n.name)
    )
    by_name = {view.name: view for view in views}
    held = {view.name: set(_reported_holdings(ledger.get(view.name))) for view in views}
    left = {view.name: {r: n for r, n in view.offered.items() if r not in view.resources} for view in views}
    is_reported = {h.uid for nd in ledger.values() for h in nd.observed.holdings if h.uid}
    pending = dict(assumed or {})
    reservations = list(reserved)
    lent_on: dict[str, list[PodOnReservedNode]] = {r.node: [] for r in reservations}
    for pod in pods:
        guess = pending.pop(pod.uid, None)
        if pod.is_terminal:
            continue
        node, ids = (pod.spec.node_name, snapshot_devices_of_pod(pod)) if pod.spec.node_name else guess or ("", ())
        if node in held:
            if pod.uid not in is_reported:
                held[node].update(ids or _unnamed_devices(by_name[node], pod))
            _spend_pod_requests(left[node], pod)
            if node in lent_on:
                lent_on[node].append(
                    PodOnReservedNode(lone_pod_reservation_key(pod.namespace, pod.name), ids, requests_of_pod(pod))
                )
    taken = [snapshot_device_mask(v.devices, held[v.name]) for v in views]
    free = tuple(v.usable & ~mask for v, mask in zip(views, taken, strict=True))
    worn = tuple(v.worn & ~mask for v, mask in zip(views, taken, strict=True))
    picture = Snapshot(views, free, tuple(left[v.name] for v in views), worn)
    return _snapshot_without_reserved(picture, reservations, lent_on)


def _snapshot_without_reserved(
    picture: Snapshot, reserved: Iterable[Reservation], there: Mapping[str, Sequence[PodOnReservedNode]]
) -> Snapshot:
    """The picture without what is reserved. A Degraded device in such a place is nobody's."""
    free, worn, left = list(picture.free), list(picture.worn), list(picture.left)
    found: list[tuple[Reservation, int, int, Amounts]] = []
    for reservation in reserved:
        if (ix := picture.index.get(reservation.node)) is not None:
            rows = snapshot_device_mask(picture.nodes[ix].devices, reservation.devices)
            amounts = unused_reserved_amounts(reservation, there[reservation.node], left[ix])
            found.append((reservation, ix, rows & picture.free[ix], amounts))
            free[ix] &= ~rows
            worn[ix] &= ~rows
            left[ix] = subtract_amounts(left[ix], amounts)
    if not found:
        return picture
    return Snapshot(picture.nodes, tuple(free), tuple(left), tuple(worn), reserved_places_by_asker(found))


def _reported_holdings(devices: NodeDevices | None) -> Iterable[str]:
    """What the node says is held, by pods that are still in the API or not."""
    return (device for h in devices.observed.holdings for device in h.devices) if devices else ()


def _unnamed_devices(view: NodeView, pod: Pod) -> list[str]:
    """Of a pod bound before the node's devices were known: it has some, and until the node says which, any may be its."""
    requests = requests_of_pod(pod) if view.resources else {}
    mask = 0
    for resource, rows in view.resources.items():
        mask |= rows if requests.get(resource, 0) else 0
    return [device for ix, device in enumerate(view.devices) if mask >> ix & 1]


def _spend_pod_requests(left: dict[str, int], pod: Pod) -> None:
    if not left:
        return
    requests = requests_of_pod(pod)
    for resource in left:
        left[resource] -= 1 if resource == PODS else requests.get(resource, 0)


def _node_view(
    node: Node,
    devices: NodeDevices | None,
    alive: bool,
    penalty: int,
    is_unreported: bool = False,
    has_agent: bool = True,
) -> NodeView:
    rows = devices.observed.devices if devices else []
    ids = tuple(d.id for d in rows)
    healthy, degraded = _placeable_snapshot_devices(devices)
    resources: dict[str, int] = {}
    for bit, row in enumerate(rows):
        if row.resource:
            resources[row.resource] = resources.get(row.resource, 0) | 1 << bit
    capacity = node.status.capacity
    for resource in [r for r, mask in resources.items() if resource_amount(r, capacity.get(r, 0)) > mask.bit_count()]:
        del resources[resource]  # each device is offered several times: which share a pod gets is the plugin's choice
    allocatable = resource_amounts(node.status.allocatable)
    # A kubelet may offer devices before the agent has named them. Which of them a pod got, nobody would know.
    hidden = [r for r in allocatable if is_unreported and is_extended_resource(r)]
    return NodeView(
        name=node.name,
        labels=node.labels,
        devices=ids,
        usable=snapshot_device_mask(ids, healthy),
        closed=_why_snapshot_closes_node(node, alive),
        taints=tuple(t for t in node.spec.taints if t.effect in ("NoSchedule", "NoExecute")),
        resources=resources,
        offered={**allocatable, **dict.fromkeys([*hidden, *(devices.withheld if devices else ())], 0)},
        model=devices.observed.model if devices else "",
        observed=devices.observed if devices else None,
        withheld=frozenset(devices.withheld) if devices else frozenset(),
        worn=snapshot_device_mask(ids, degraded) if degraded else 0,
        penalty=penalty,
        has_agent=has_agent,
    )


def _placeable_snapshot_devices(devices: NodeDevices | None) -> tuple[set[str], set[str]]:
    """(Healthy, Degraded), as far as no order keeps them out of use."""
    healthy: set[str] = set()
    degraded: set[str] = set()
    if devices is not None:
        for verdict in devices.verdicts:
            if verdict.device in devices.quarantine:
                continue
            if verdict.state is DeviceState.HEALTHY:
                healthy.add(verdict.device)
            elif verdict.state is DeviceState.DEGRADED:
                degraded.add(verdict.device)
    return healthy, degraded


def _why_snapshot_closes_node(node: Node, alive: bool) -> str:
    if not alive:
        return "dead"
    if not is_condition_true(node.status.conditions, "Ready"):
        return "not ready"
    if node.spec.unschedulable:
        return "cordoned"
    return "about to go" if leaving_state_of_node(node) is not None else ""


def tolerates_taints(tolerations: Iterable[Toleration], taints: Iterable[Taint]) -> bool:
    """Kubernetes' rule: every taint needs a toleration that matches its key, its value and its effect."""
    allowed = list(tolerations)
    return all(any(tolerates_taint(toleration, taint) for toleration in allowed) for taint in taints)


def tolerates_taint(toleration: Toleration, taint: Taint) -> bool:
    if toleration.effect and toleration.effect != taint.effect:
        return False
    if toleration.operator == "Exists":
        return not toleration.key or toleration.key == taint.key
    return toleration.key == taint.key and toleration.value == taint.value
