"""`Informer`: a local copy of one kind, kept current by list + watch, that tells its subscribers what changed.

Invariants: the copy only moves forward; a handler is called once per real difference, with the copy and its indexes already
updated; after a lost watch history the difference to a fresh list is delivered, not the list. Handlers are plain
functions that must not block (typically: put a key on a queue); one that raises is logged and the informer goes on.

Time is the loop's (`asyncio.sleep`), chance is an argument, so an informer runs the same under virtual time.
"""

from __future__ import annotations

import asyncio
import gc
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from typing import Any, Generic, TypeVar

import structlog

from remuda.api.errors import ApiError, Expired
from remuda.api.meta import KObject
from remuda.api.selectors import EVERYTHING, FieldSelector, Selector
from remuda.kube.cluster import NO_FIELDS, Cluster, list_pages_of_any_cluster
from remuda.kube.runtime.backoff import Backoff, Jitter, no_jitter

K = TypeVar("K", bound=KObject)

InformerHandler = Callable[[K | None, K | None], None]
Name = tuple[str, str]  # (namespace, name); the namespace of a cluster-scoped object is ""

# Whenever a copy has grown by so many objects, they are taken out of the garbage collector's sight: a full collection over them
# is a pause one would notice (100,000 pods: a second; in one process with their server and nodes, 8,000 of them), and they stay
# anyway. What replaces them later is freed by its reference count like everything here.
_LARGE = 2_000

log = structlog.get_logger(__name__)


def informer_key(obj: KObject) -> Name:
    return obj.metadata.namespace, obj.metadata.name


class _Index(Generic[K]):
    def __init__(self, keys: Callable[[K], Iterable[str]]) -> None:
        self.keys = keys
        self.found: dict[str, dict[Name, K]] = {}

    def put(self, name: Name, obj: K) -> None:
        for key in self.keys(obj):
            self.found.setdefault(key, {})[name] = obj

    def drop(self, name: Name, obj: K) -> None:
        for key in self.keys(obj):
            self._drop(name, key)

    def replace(self, name: Name, old: K, new: K) -> None:
        """An object that changed keeps its place: what is found is in the order in which it came."""
        keys = list(self.keys(new))
        for key in self.keys(old):
            if key not in keys:
                self._drop(name, key)
        for key in keys:
            self.found.setdefault(key, {})[name] = new

    def _drop(self, name: Name, key: str) -> None:
        entries = self.found.get(key)
        if entries is not None and entries.pop(name, None) is not None and not entries:
            del self.found[key]


class Informer(Generic[K]):
    """Make it, subscribe, add indexes, then run `run()` as a task and `await synced()`."""

    def __init__(
        self,
        cluster: Cluster,
        kind: type[K],
        namespace: str = "",
        *,
        labels: Selector = EVERYTHING,
        fields: FieldSelector = NO_FIELDS,
        jitter: Jitter = no_jitter,
        backoff: Backoff = Backoff(),  # noqa: B008 - an immutable value
    ) -> None:
        self.kind = kind
        self._cluster = cluster
        self._namespace = namespace
        self._labels = labels
        self._fields = fields
        self._jitter = jitter
        self._backoff = backoff
        self._cache: dict[Name, K] = {}
        self._indexes: dict[str, _Index[K]] = {}
        self._handlers: list[InformerHandler[K]] = []
        self._synced = asyncio.Event()
        self._since = ""  # "" = list first
        self._failures = 0
        self._frozen = 0  # how large the copy was when it was last taken out of the garbage collector's sight
        self.relists = 0

    # The copy.

    def get(self, name: str, namespace: str = "") -> K | None:
        return self._cache.get((namespace, name))

    def items(self) -> list[K]:
        return list(self._cache.values())

    def __len__(self) -> int:
        return len(self._cache)

    def add_index(self, name: str, keys: Callable[[K], Iterable[str]]) -> None:
        """`by_index(name, k)` finds the objects for which `keys(obj)` contains k."""
        index = self._indexes[name] = _Index(keys)
        for key, obj in self._cache.items():
            index.put(key, obj)

    def by_index(self, name: str, key: str) -> list[K]:
        return list(self._indexes[name].found.get(key, {}).values())

    def subscribe(self, handler: InformerHandler[K]) -> None:
        """`handler(old, new)`: old is None for a new object, new is None for one that is gone. Told of what is here now."""
        self._handlers.append(handler)
        for obj in list(self._cache.values()):
            self._tell([handler], None, obj)

    async def synced(self) -> None:
        """Returns once the copy stands for a whole list."""
        await self._synced.wait()

    # Keeping it current.

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            try:
                if not self._since:
                    await self._list()
                await self._watch()
                # A server may end a watch at any time; one that ends it at once, again and again, is not worth hammering.
                self._failures += 1
            except Expired:
                self._since = ""
                self._failures += 1
                if self._failures == 1:
                    continue
            except ApiError as error:
                self._failures += 1
                log.warning("informer.retry", kind=self.kind.resource.kind, reason=error.reason, message=error.message)
            except Exception:
                self._failures += 1
                self._since = ""
                log.exception("informer.failed", kind=self.kind.resource.kind)
            await asyncio.sleep(self._backoff.delay(self._failures, self._jitter))

    async def _list(self) -> None:
        # Of each page only what is new is kept, so that listing anew does not take the memory of a second copy; and all of it
        # is applied at one moment, so that nobody sees half of it.
        here: set[Name] = set()
        changed: dict[Name, K] = {}
        since = ""
        cluster, labels, fields = self._cluster, self._labels, self._fields
        async for page in list_pages_of_any_cluster(cluster, self.kind, self._namespace, labels=labels, fields=fields):
            for obj in page.items:
                name = informer_key(obj)
                old = self._cache.get(name)
                if old is not None and old.metadata.resource_version == obj.metadata.resource_version:
                    here.add(informer_key(old))
                else:
                    changed[name] = obj
            here |= set(page.unreadable)  # what could be read of them last stays
            since = page.resource_version
        self.relists += 1
        for name in [name for name in self._cache if name not in here and name not in changed]:
            self._forget(name)
        for name, obj in changed.items():
            self._store(name, obj)
        self._since = since
        self._synced.set()

    async def _watch(self) -> None:
        stream = self._cluster.watch(self.kind, self._since, self._namespace, labels=self._labels, fields=self._fields)
        async with _closing_informer_stream(stream):
            async for event in stream:
                if event.obj is not None:
                    name = informer_key(event.obj)
                    if event.type == "DELETED":
                        self._forget(name)
                    else:
                        self._store(name, event.obj)
                self._since = event.resource_version
                self._failures = 0

    def _store(self, name: Name, obj: K) -> None:
        old = self._cache.get(name)
        if old is not None:
            if old.metadata.resource_version == obj.metadata.resource_version:
                return
            if old.metadata.uid != obj.metadata.uid:  # deleted and created anew while we were not looking
                self._forget(name)
                old = None
        self._cache[name] = obj
        if len(self._cache) >= self._frozen + _LARGE:
            self._frozen = len(self._cache)
            gc.freeze()
        for index in self._indexes.values():
            if old is not None:
                index.replace(name, old, obj)
            else:
                index.put(name, obj)
        self._tell(self._handlers, old, obj)

    def _forget(self, name: Name) -> None:
        old = self._cache.pop(name, None)
        if old is None:
            return
        for index in self._indexes.values():
            index.drop(name, old)
        self._tell(self._handlers, old, None)

    def _tell(self, handlers: Iterable[InformerHandler[K]], old: K | None, new: K | None) -> None:
        for handler in handlers:
            try:
                handler(old, new)
            except Exception:
                log.exception("informer.handler_failed", kind=self.kind.resource.kind)


@asynccontextmanager
async def _closing_informer_stream(stream: Any) -> AsyncIterator[None]:
    try:
        yield
    finally:
        close = getattr(stream, "aclose", None)
        if close is not None:
            await close()
