"""`Cluster`: the one port through which everything above talks to a Kubernetes API.

Two transports implement it: in process over the embedded store (`apiserver.local_cluster`), and HTTP
(`client.http_cluster`). Nothing above the port may know which one it has, so the port speaks Kubernetes' own rules:

- a write is acknowledged only when it is durable;
- `resourceVersion` grows with every write; a stale precondition raises `Conflict`;
- a watch delivers every change after `since` in order, or raises `Expired` when history no longer reaches back;
- delete of a pod with a grace period only marks it; its node removes it once the processes are gone;
- binding copies the Binding's annotations onto the pod and fails with `Conflict` when the pod is bound already.

Errors are `remuda.api.errors.ApiError`s. Objects are values and must not be mutated.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Generic, Protocol, TypeVar, runtime_checkable

import msgspec

from remuda.api.kubernetes.core_v1 import Binding
from remuda.api.meta import JsonObject, KObject
from remuda.api.selectors import EVERYTHING, FieldSelector, Selector

K = TypeVar("K", bound=KObject)

NO_FIELDS = FieldSelector()


class Preconditions(msgspec.Struct, frozen=True):
    """The write applies only to exactly this object: the same uid and, when given, the same version."""

    uid: str = ""
    resource_version: str = ""


ANY = Preconditions()


class Listing(msgspec.Struct, Generic[K], frozen=True):
    """`unreadable`: (namespace, name) of objects that are there and do not fit their kind. Pages have them; a list raises."""

    items: list[K]
    resource_version: str
    unreadable: tuple[tuple[str, str], ...] = ()


class WatchEvent(msgspec.Struct, Generic[K], frozen=True):
    """`type` is ADDED, MODIFIED, DELETED, or BOOKMARK (then `obj` is None)."""

    type: str
    resource_version: str
    obj: K | None


class Cluster(Protocol):
    async def get(self, kind: type[K], name: str, namespace: str = "") -> K: ...

    async def list(
        self,
        kind: type[K],
        namespace: str = "",
        *,
        labels: Selector = EVERYTHING,
        fields: FieldSelector = NO_FIELDS,
    ) -> Listing[K]:
        """Every object of the kind, in all namespaces when none is named, and the version the list stands for."""
        ...

    def watch(
        self,
        kind: type[K],
        since: str,
        namespace: str = "",
        *,
        labels: Selector = EVERYTHING,
        fields: FieldSelector = NO_FIELDS,
    ) -> AsyncIterator[WatchEvent[K]]:
        """Changes after version `since`, until the iterator is closed."""
        ...

    async def create(self, kind: type[K], body: K | JsonObject) -> K:
        """`body` may be a wire dict, so that fields our projections do not know are kept."""
        ...

    async def replace(self, kind: type[K], body: K | JsonObject, *, subresource: str = "") -> K:
        """Needs metadata.resourceVersion in `body` unless last-writer-wins is meant."""
        ...

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
        """JSON merge patch (RFC 7386) of the object, or of its status with subresource="status"."""
        ...

    async def delete(
        self, kind: type[K], name: str, namespace: str = "", *, when: Preconditions = ANY, grace_s: int | None = None
    ) -> None:
        """`grace_s=0` removes at once; None takes the pod's own grace period.

        Other kinds go at once, unless finalizers hold them.
        """
        ...

    async def bind(self, name: str, namespace: str, binding: Binding) -> None: ...

    async def evict(self, name: str, namespace: str, *, when: Preconditions = ANY) -> None:
        """A pod's deletion that asks its PodDisruptionBudget first; `TooManyRequests` when that does not allow it now."""
        ...


@runtime_checkable
class PagedCluster(Protocol):
    """A transport that fetches a long list piece by piece."""

    def pages(
        self,
        kind: type[K],
        namespace: str = "",
        *,
        labels: Selector = EVERYTHING,
        fields: FieldSelector = NO_FIELDS,
    ) -> AsyncIterator[Listing[K]]:
        """The pages of one list, all of the same version. Raises `Expired` when the server forgets it halfway: begin anew.
        An object that cannot be read is named in its page instead of failing it."""
        ...


async def list_pages_of_any_cluster(
    cluster: Cluster,
    kind: type[K],
    namespace: str = "",
    *,
    labels: Selector = EVERYTHING,
    fields: FieldSelector = NO_FIELDS,
) -> AsyncIterator[Listing[K]]:
    """A list for those who need not have it whole: in pages where the transport knows them, else in one."""
    if isinstance(cluster, PagedCluster):
        async for page in cluster.pages(kind, namespace, labels=labels, fields=fields):
            yield page
    else:
        yield await cluster.list(kind, namespace, labels=labels, fields=fields)
