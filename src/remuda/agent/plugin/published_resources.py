"""When the Node came to name a resource: the step between a plugin's registration and a pod that can be bound.

A kubelet publishes its devices with its next status, seconds after it took the plugin, and tells nobody. So while a registered
resource is not known to be named the Node is read again, less and less often; once it is, nothing is read. Losing the answer
costs a time in `remuda explain pod`, never a pod.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping

import structlog

from remuda.api.kubernetes.core_v1 import Node
from remuda.kube.cluster import Cluster

log = structlog.get_logger(__name__)

Capacity = Callable[[], Awaitable[Mapping[str, int | str]]]

FIRST_S, MAX_S = 0.25, 10.0


class PublishedResources:
    """`found(resource)` is called once for each resource that was wanted and is there."""

    def __init__(self, capacity: Capacity, found: Callable[[str], None]) -> None:
        self._capacity = capacity
        self._found = found
        self._wanted: set[str] = set()
        self._task: asyncio.Task[None] | None = None

    def want(self, resources: set[str]) -> None:
        self._wanted = set(resources)
        if self._wanted and self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._look(), name="published")

    def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()

    async def _look(self) -> None:
        delay = FIRST_S
        try:
            while self._wanted:
                await asyncio.sleep(delay)
                delay = min(delay * 2, MAX_S)
                try:
                    has = await self._capacity()
                except Exception as error:  # the API is away, or the node is not there yet
                    log.debug("published.unknown", error=str(error))
                    continue
                for resource in sorted(self._wanted & has.keys()):
                    self._wanted.discard(resource)
                    self._found(resource)
        finally:
            self._task = None


def published_resource_capacity_reader(cluster: Cluster, node: str) -> Capacity:
    """What the kubelet counts."""

    async def capacity() -> Mapping[str, int | str]:
        return (await cluster.get(Node, node)).status.capacity

    return capacity
