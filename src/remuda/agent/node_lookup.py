"""What an agent that nobody tells asks of the API about its own node."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from remuda.agent.plugin.published_resources import Capacity
from remuda.agent.plugin.resource_plugin import BoundPods
from remuda.api.kubernetes.core_v1 import Node, Pod
from remuda.api.selectors import FieldSelector
from remuda.kube.cluster import Cluster


def capacity_of(cluster: Cluster, node: str) -> Capacity:
    """What the kubelet counts."""

    async def capacity() -> Mapping[str, int | str]:
        return (await cluster.get(Node, node)).status.capacity

    return capacity


def bound_pods_of(cluster: Cluster, node: str) -> BoundPods:
    async def bound() -> Sequence[Pod]:
        fields = FieldSelector((("spec.nodeName", True, node),))
        return (await cluster.list(Pod, fields=fields)).items

    return bound
