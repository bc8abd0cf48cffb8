"""Where a world listens and strikes: the journal every commit goes through, and the port the control plane writes through."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from typing import Any, TypeVar

from remuda.api.devices import NodeDevices
from remuda.api.errors import ApiError, Unavailable
from remuda.api.kubernetes.core_v1 import Binding, Lease
from remuda.api.meta import JsonObject, KObject
from remuda.api.selectors import EVERYTHING, FieldSelector, Selector
from remuda.embedded.apiserver.store.journal import CommitDone, LoadedState, MemoryJournal
from remuda.embedded.apiserver.store.record import StoreEvent
from remuda.kube.cluster import ANY, NO_FIELDS, Cluster, Listing, Preconditions, WatchEvent
from remuda.kube.runtime.stall_watch import PREFIX

K = TypeVar("K", bound=KObject)
T = TypeVar("T")


class WatchedJournal(MemoryJournal):
    """Shows every event to `see`, in the order of the commits. `is_dead`: the power is off; what still comes in is lost.
    `trouble`: what the disk refuses every write with."""

    def __init__(self, see: Callable[[StoreEvent], None], rows: LoadedState | None = None) -> None:
        super().__init__(rows)
        self.is_dead = False
        self.trouble: ApiError | None = None
        self.captured = asyncio.Event()
        self._see = see
        self._capture_at = 0
        self._captured: LoadedState | None = None

    @property
    def is_armed(self) -> bool:
        return self._capture_at > 0

    def capture_after(self, commits: int) -> None:
        self._capture_at = self.commits + commits

    def disarm(self) -> None:
        self._capture_at = 0

    def last_rows(self) -> LoadedState:
        """The bytes on the disk: as of the capture, when there was one."""
        return self._captured if self._captured is not None else self.rows()

    def commit(self, group: Sequence[StoreEvent], compact_to: int, done: CommitDone) -> None:
        if self.is_dead:
            done(None)
            return
        if self.trouble is not None:
            done(self.trouble)
            return
        super().commit(group, compact_to, done)
        for event in group:
            self._see(event)
        if self._capture_at and self.commits >= self._capture_at:
            self._captured = self.rows()
            self.is_dead = True
            self.captured.set()


class Kill:
    """When to kill a control plane: `after` so many of its writes. `deaf`: kinds of which it hears nothing new. `cut_off`:
    nodes whose leases and reports do not get through, `api_cut` likewise, though these hear the manager. `away`: the API cannot
    be reached at all. `stopped`: the API's process is: what is asked of it waits until it runs again."""

    def __init__(self) -> None:
        self.away = False
        self.stopped = False
        self.api_cut: set[str] = set()
        self.cut_off: set[str] = set()
        self.deaf: set[type[KObject]] = set()
        self.dead = asyncio.Event()
        self.writes = 0
        self._at: int | None = None

    def after(self, writes: int) -> None:
        self._at = self.writes + writes
        if not writes:
            self.dead.set()

    def disarm(self) -> None:
        self._at = None

    async def write(self, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
        if self.dead.is_set():
            await _for_ever()
        answer = await work()
        self.writes += 1
        if self._at is not None and self.writes >= self._at:
            self.dead.set()
        if self.dead.is_set():
            await _for_ever()  # the answer is never seen
        return answer


async def _for_ever() -> None:
    """What a dead process does."""
    await asyncio.get_running_loop().create_future()


class RelayedCluster:
    """The `Cluster` port, passed on. Whoever derives from it says what becomes of a write, by its name ("patch
    Pod/default/p/status"), of a read, and of the events of a watch."""

    def __init__(self, inner: Cluster) -> None:
        self._inner = inner

    async def _write(self, what: str, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
        return await work()

    def _read(self, what: str) -> None:
        pass

    def _deliver(self, kind: type[K], stream: AsyncIterator[WatchEvent[K]]) -> AsyncIterator[WatchEvent[K]]:
        return stream

    async def get(self, kind: type[K], name: str, namespace: str = "") -> K:
        self._read(f"get {object_name(kind, name, namespace)}")
        return await self._inner.get(kind, name, namespace)

    async def list(
        self, kind: type[K], namespace: str = "", *, labels: Selector = EVERYTHING, fields: FieldSelector = NO_FIELDS
    ) -> Listing[K]:
        self._read(f"list {kind.resource.kind}")
        return await self._inner.list(kind, namespace, labels=labels, fields=fields)

    def watch(
        self,
        kind: type[K],
        since: str,
        namespace: str = "",
        *,
        labels: Selector = EVERYTHING,
        fields: FieldSelector = NO_FIELDS,
    ) -> AsyncIterator[WatchEvent[K]]:
        return self._deliver(kind, self._inner.watch(kind, since, namespace, labels=labels, fields=fields))

    async def create(self, kind: type[K], body: K | JsonObject) -> K:
        return await self._write(f"create {_body_name(kind, body)}", lambda: self._inner.create(kind, body))

    async def replace(self, kind: type[K], body: K | JsonObject, *, subresource: str = "") -> K:
        what = f"replace {_body_name(kind, body, subresource)}"
        return await self._write(what, lambda: self._inner.replace(kind, body, subresource=subresource))

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
        return await self._write(
            f"patch {object_name(kind, name, namespace, subresource)}",
            lambda: self._inner.patch(kind, name, patch, namespace, subresource=subresource, when=when),
        )

    async def delete(
        self, kind: type[K], name: str, namespace: str = "", *, when: Preconditions = ANY, grace_s: int | None = None
    ) -> None:
        what = f"delete {object_name(kind, name, namespace)}"
        await self._write(what, lambda: self._inner.delete(kind, name, namespace, when=when, grace_s=grace_s))

    async def bind(self, name: str, namespace: str, binding: Binding) -> None:
        what = f"bind Pod/{namespace}/{name} to {binding.target}"
        await self._write(what, lambda: self._inner.bind(name, namespace, binding))

    async def evict(self, name: str, namespace: str, *, when: Preconditions = ANY) -> None:
        await self._write(f"evict Pod/{namespace}/{name}", lambda: self._inner.evict(name, namespace, when=when))


def object_name(kind: type[KObject], name: str, namespace: str = "", subresource: str = "") -> str:
    return "/".join(filter(None, (kind.resource.kind, namespace, name, subresource)))


def _body_name(kind: type[KObject], body: KObject | JsonObject, subresource: str = "") -> str:
    if isinstance(body, KObject):
        return object_name(kind, body.name, body.namespace, subresource)
    return object_name(kind, body["metadata"]["name"], body["metadata"].get("namespace", ""), subresource)


class MortalCluster(RelayedCluster):
    """The port of somebody who may be killed at any of their writes, and who is far away: `write_lag` seconds, drawn for
    every write before and after it, and `lag` for events on their way here."""

    def __init__(
        self, inner: Cluster, kill: Kill, lag: Callable[[], float], write_lag: Callable[[], float] | None = None
    ) -> None:
        super().__init__(inner)
        self._kill = kill
        self._lag = lag
        self._write_lag = write_lag or lag

    async def _write(self, what: str, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
        async def delayed() -> T:
            await self._wait()
            await self._answering()
            self._read(what)
            return await work()

        self._read(what)
        if f"Lease/kube-system/{PREFIX}" in what:
            return await delayed()  # the proof that the API takes writes; a crash at it would be one between two writes
        answer = await self._kill.write(delayed)
        await self._wait()
        return answer

    async def _wait(self) -> None:
        if delay := self._write_lag():
            await asyncio.sleep(delay)

    def _read(self, what: str) -> None:
        if self._kill.away:
            raise Unavailable("the API is away")

    async def _answering(self) -> None:
        while self._kill.stopped:  # noqa: ASYNC110 - virtual time, and nobody to set an event
            await asyncio.sleep(0.1)

    async def get(self, kind: type[K], name: str, namespace: str = "") -> K:
        await self._answering()
        return await super().get(kind, name, namespace)

    async def list(
        self, kind: type[K], namespace: str = "", *, labels: Selector = EVERYTHING, fields: FieldSelector = NO_FIELDS
    ) -> Listing[K]:
        await self._answering()
        return await super().list(kind, namespace, labels=labels, fields=fields)

    async def _deliver(self, kind: type[K], stream: AsyncIterator[WatchEvent[K]]) -> AsyncIterator[WatchEvent[K]]:
        async for event in _late(stream, self._lag):
            while kind in self._kill.deaf or self._kill.away or self._kill.stopped:  # noqa: ASYNC110 - virtual time, and nobody to set an event
                await asyncio.sleep(1.0)
            yield event

    async def patch(self, kind: type[K], name: str, patch: JsonObject, namespace: str = "", **how: Any) -> K:
        if name in self._kill.cut_off | self._kill.api_cut and kind in (Lease, NodeDevices):
            raise Unavailable(f"{name} is cut off")
        return await super().patch(kind, name, patch, namespace, **how)


async def _late(stream: AsyncIterator[T], lag: Callable[[], float]) -> AsyncIterator[T]:
    """Each item `lag()` seconds after it came, in order: late, but not slow, however many there are."""
    loop = asyncio.get_running_loop()
    on_the_way: asyncio.Queue[tuple[float, T | None]] = asyncio.Queue()

    async def send() -> None:
        try:
            async for item in stream:
                on_the_way.put_nowait((loop.time() + lag(), item))
        finally:
            on_the_way.put_nowait((0.0, None))

    sending = asyncio.create_task(send())
    try:
        while True:
            due, item = await on_the_way.get()
            if item is None:
                await sending  # raises what it ended of
                return
            if due > loop.time():
                await asyncio.sleep(due - loop.time())
            yield item
    finally:
        sending.cancel()
        await asyncio.gather(sending, return_exceptions=True)
