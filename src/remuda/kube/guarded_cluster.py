"""`GuardedCluster`: a `Cluster` that asks before each call whether it may be made.

Two guards are known. `FencedCluster` reads freely and writes only while a term lasts: cancelling the work of a leader that lost
its lease is enough as long as its process runs, but one that was frozen may wake in the middle of a function, long after another
has taken over; its next write ends here, before it is sent. `SeverableCluster` does neither while its `ClusterGate` is shut: a
node that cannot reach the API.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from typing import TypeVar

from remuda.api.errors import ApiError, Unavailable
from remuda.api.kubernetes.core_v1 import Binding
from remuda.api.meta import JsonObject, KObject
from remuda.api.selectors import EVERYTHING, FieldSelector, Selector
from remuda.kube.cluster import ANY, NO_FIELDS, Cluster, Listing, Preconditions, WatchEvent, list_pages_of_any_cluster
from remuda.kube.runtime.leader import LeaderTerm

K = TypeVar("K", bound=KObject)


class NotLeading(ApiError):
    """The term is over; another may be at work."""

    code, reason = 409, "NotLeading"


def _always_allowed(*_: object) -> None:
    """Always."""


class GuardedCluster:
    """`reading` and `writing` are called first and raise what the caller is to see."""

    def __init__(
        self,
        cluster: Cluster,
        reading: Callable[[], None] = _always_allowed,
        writing: Callable[[], None] = _always_allowed,
    ) -> None:
        self._cluster = cluster
        self._reading = reading
        self._writing = writing

    async def get(self, kind: type[K], name: str, namespace: str = "") -> K:
        self._reading()
        return await self._cluster.get(kind, name, namespace)

    async def list(
        self,
        kind: type[K],
        namespace: str = "",
        *,
        labels: Selector = EVERYTHING,
        fields: FieldSelector = NO_FIELDS,
    ) -> Listing[K]:
        self._reading()
        return await self._cluster.list(kind, namespace, labels=labels, fields=fields)

    def pages(
        self,
        kind: type[K],
        namespace: str = "",
        *,
        labels: Selector = EVERYTHING,
        fields: FieldSelector = NO_FIELDS,
    ) -> AsyncIterator[Listing[K]]:
        self._reading()
        return list_pages_of_any_cluster(self._cluster, kind, namespace, labels=labels, fields=fields)

    def watch(
        self,
        kind: type[K],
        since: str,
        namespace: str = "",
        *,
        labels: Selector = EVERYTHING,
        fields: FieldSelector = NO_FIELDS,
    ) -> AsyncIterator[WatchEvent[K]]:
        self._reading()
        return self._cluster.watch(kind, since, namespace, labels=labels, fields=fields)

    async def create(self, kind: type[K], body: K | JsonObject) -> K:
        self._writing()
        return await self._cluster.create(kind, body)

    async def replace(self, kind: type[K], body: K | JsonObject, *, subresource: str = "") -> K:
        self._writing()
        return await self._cluster.replace(kind, body, subresource=subresource)

    async def patch(
        self,
        kind: type[K],
        name: str,
        patch: JsonObject,
        namespace: str = "",
        *,
        subresource: str = "",
        when: Preconditions = ANY,
    ) -> K:
        self._writing()
        return await self._cluster.patch(kind, name, patch, namespace, subresource=subresource, when=when)

    async def delete(
        self, kind: type[K], name: str, namespace: str = "", *, when: Preconditions = ANY, grace_s: int | None = None
    ) -> None:
        self._writing()
        await self._cluster.delete(kind, name, namespace, when=when, grace_s=grace_s)

    async def bind(self, name: str, namespace: str, binding: Binding) -> None:
        self._writing()
        await self._cluster.bind(name, namespace, binding)

    async def evict(self, name: str, namespace: str, *, when: Preconditions = ANY) -> None:
        self._writing()
        await self._cluster.evict(name, namespace, when=when)


class FencedCluster(GuardedCluster):
    def __init__(self, cluster: Cluster, term: LeaderTerm) -> None:
        def check() -> None:
            if not term.is_valid:
                raise NotLeading(f"term {term.token} is over: this process does not lead any more, nothing was written")

        super().__init__(cluster, writing=check)


class ClusterGate:
    """Open, or shut: then nothing passes."""

    def __init__(self, what: str = "the API") -> None:
        self._what = what
        self.is_shut = False

    def check(self) -> None:
        if self.is_shut:
            raise Unavailable(f"cannot reach {self._what}: cut off")


class SeverableCluster(GuardedCluster):
    def __init__(self, cluster: Cluster, gate: ClusterGate) -> None:
        super().__init__(cluster, gate.check, gate.check)
