"""A resource withheld on a node, given back by an operator: `remuda release NODE --resource X`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from remuda.cli.lookup import find_node

if TYPE_CHECKING:
    from remuda.kube.cluster import Cluster


async def release_resource(cluster: Cluster, node: str, resource: str) -> str:
    """What became of it. Refused when it is not withheld there."""
    from remuda.api.devices import NodeDevices
    from remuda.core.foreign.withheld_resources import release_withheld_resource
    from remuda.kube.cluster import Preconditions

    found = await find_node(cluster, node)
    patch = release_withheld_resource(found, resource)
    when = Preconditions(resource_version=found.metadata.resource_version)
    await cluster.patch(NodeDevices, node, patch, when=when)
    return f"{resource} may be placed on {node} again. What was refused there before counts no more."
