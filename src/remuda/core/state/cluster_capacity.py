"""How much the cluster has in all, well or not, free or not: an upper bound of what could ever run there at once.

Whatever does not fit into this fits nowhere until nodes come. Nodes that are cordoned, dead or full count, and so do devices that
failed: they may come back, and nobody is to be told that a gang is too large because of a bad hour. Node selectors and taints are
not looked at. Nodes of one make are counted, not listed, so a question costs as much as there are makes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

import msgspec

from remuda.api.devices import NodeDevices
from remuda.api.kubernetes.core_v1 import Node
from remuda.api.names import RESOURCE_GPU
from remuda.core.state.pod_requests import PODS, Amounts, is_extended_resource, resource_amounts

UNBOUNDED = 10**9  # of a pod that asks for nothing a node counts


class NodeMake(msgspec.Struct, frozen=True):
    """Nodes that have the same."""

    nodes: int
    amounts: Amounts


class ClusterCapacity(msgspec.Struct, frozen=True):
    makes: tuple[NodeMake, ...] = ()

    def room_for(self, requests: Amounts) -> int:
        """How many such pods all nodes together could hold if they were empty."""
        return sum(make.nodes * _pods_on_node(make.amounts, requests) for make in self.makes)

    @property
    def nodes(self) -> int:
        return sum(make.nodes for make in self.makes)

    @property
    def gpus(self) -> int:
        return sum(make.nodes * make.amounts.get(RESOURCE_GPU, 0) for make in self.makes)


def _pods_on_node(amounts: Amounts, requests: Amounts) -> int:
    """A resource of a plugin that the node does not name is not there; of a native one nobody says how much there is."""
    fits = amounts.get(PODS, UNBOUNDED)
    for resource, count in requests.items():
        if count > 0 and (resource in amounts or is_extended_resource(resource)):
            fits = min(fits, amounts.get(resource, 0) // count)
    return max(0, fits)


def node_amounts(node: Node, ledger: NodeDevices | None) -> frozenset[tuple[str, int]]:
    """Of each resource the most that anybody says: the node's capacity, what it offers, or the agent's list of devices."""
    rows = Counter(d.resource for d in ledger.observed.devices if d.resource) if ledger is not None else {}
    most: Counter[str] = Counter(rows)
    for amounts in (node.status.capacity, node.status.allocatable):
        most |= Counter(resource_amounts(amounts))
    return frozenset(most.items())


def node_keeps_cluster_capacity(old: Node | None, new: Node | None) -> bool:
    """Nodes change all the time; what they have in all does not."""
    if old is None or new is None:
        return False
    return (old.status.capacity, old.status.allocatable) == (new.status.capacity, new.status.allocatable)


def ledger_keeps_cluster_capacity(old: NodeDevices | None, new: NodeDevices | None) -> bool:
    rows = [[d.resource for d in ledger.observed.devices] if ledger is not None else [] for ledger in (old, new)]
    return rows[0] == rows[1]


def sum_capacity(nodes: Iterable[frozenset[tuple[str, int]]]) -> ClusterCapacity:
    return ClusterCapacity(tuple(NodeMake(count, dict(amounts)) for amounts, count in Counter(nodes).items()))
