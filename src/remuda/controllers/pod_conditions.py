"""Conditions on pods that are not ours: written on the version that was looked at, for the list is replaced whole and others
write into it, too."""

from __future__ import annotations

from collections.abc import Sequence

from remuda.api.codec import to_wire
from remuda.api.errors import NotFound
from remuda.api.kubernetes.core_v1 import Pod
from remuda.api.meta import Condition, JsonObject
from remuda.kube.cluster import Cluster, Preconditions


async def write_pod_conditions(
    cluster: Cluster, pod: Pod, conditions: Sequence[Condition], beside: JsonObject | None = None
) -> bool:
    """False when the pod is gone. `beside`: other fields of its status, in the same write."""
    status: JsonObject = {"conditions": [to_wire(c) for c in conditions], **(beside or {})}
    when = Preconditions(uid=pod.uid, resource_version=pod.metadata.resource_version)
    try:
        await cluster.patch(Pod, pod.name, {"status": status}, pod.namespace, subresource="status", when=when)
    except NotFound:
        return False
    return True
