from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any, TypeVar

import pytest

from remuda.api.errors import Expired, Unavailable
from remuda.api.kubernetes.core_v1 import Pod
from remuda.api.meta import KObject
from remuda.embedded.apiserver.local_cluster import LocalCluster
from remuda.embedded.apiserver.store import MemoryJournal, ObjectStore
from remuda.kube.cluster import Listing, WatchEvent
from remuda.kube.runtime.backoff import Backoff
from remuda.kube.runtime.informer import Informer
from tests.builders.waiting import PATIENCE_S

K = TypeVar("K", bound=KObject)

QUICK = Backoff(base_s=0.0001, max_s=0.001)


class Lossy(LocalCluster):
    """A cluster whose connection can be cut: lists and watches fail as told while it is, and open watches end."""

    def __init__(self) -> None:
        uids = itertools.count()
        super().__init__(ObjectStore(MemoryJournal()), clock=lambda: 0.0, new_uid=lambda: f"u{next(uids)}")
        self.lists = 0
        self.watches: list[str] = []
        self.failures: list[Exception] = []
        self._is_up = asyncio.Event()
        self._is_up.set()
        self._cut = asyncio.Event()

    def cut(self, *failures: Exception) -> None:
        self.failures = list(failures)
        self._is_up.clear()
        self._cut.set()

    def mend(self) -> None:
        self._cut = asyncio.Event()
        self._is_up.set()

    async def list(self, *args: Any, **options: Any) -> Listing[Any]:
        await self._is_up.wait()
        if self.failures:
            raise self.failures.pop(0)
        self.lists += 1
        return await super().list(*args, **options)

    async def watch(self, kind: type[K], since: str, *args: Any, **options: Any) -> AsyncIterator[WatchEvent[K]]:  # type: ignore[override]
        await self._is_up.wait()
        if self.failures:
            raise self.failures.pop(0)
        self.watches.append(since)
        stream = super().watch(kind, since, *args, **options)
        is_cut = self._cut
        cut = asyncio.create_task(is_cut.wait())
        try:
            while True:
                coming = asyncio.create_task(stream.__anext__())
                await asyncio.wait({coming, cut}, return_when=asyncio.FIRST_COMPLETED)
                if is_cut.is_set():  # also when an event came at the same moment: it is lost
                    coming.cancel()
                    await asyncio.wait({coming})
                    return
                yield coming.result()
        finally:
            cut.cancel()


class Heard:
    """Every call of a handler, as ("+name", "-name", "~name")."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self._changed = asyncio.Event()

    def __call__(self, old: Pod | None, new: Pod | None) -> None:
        obj = new or old
        assert obj is not None
        self.calls.append(("~" if old and new else "+" if new else "-") + obj.name)
        self._changed.set()

    async def until(self, count: int) -> list[str]:
        async with asyncio.timeout(PATIENCE_S):
            while len(self.calls) < count:
                self._changed.clear()
                await self._changed.wait()
        return self.calls


@asynccontextmanager
async def running(informer: Informer[Any]) -> AsyncIterator[None]:
    task = asyncio.create_task(informer.run())
    try:
        yield
    finally:
        task.cancel()
        await asyncio.wait([task])
        assert task.cancelled()


async def make(cluster: LocalCluster, name: str, **meta: Any) -> Pod:
    return await cluster.create(Pod, {"metadata": {"name": name, "namespace": "team", **meta}})


async def change(cluster: LocalCluster, name: str, phase: str) -> Pod:
    return await cluster.patch(Pod, name, {"status": {"phase": phase}}, "team", subresource="status")


async def test_it_lists_then_follows() -> None:
    cluster = Lossy()
    await make(cluster, "a")
    informer = Informer(cluster, Pod)
    heard = Heard()
    informer.subscribe(heard)
    async with running(informer):
        await asyncio.wait_for(informer.synced(), PATIENCE_S)
        assert heard.calls == ["+a"]
        await make(cluster, "b")
        changed = await change(cluster, "a", "Running")
        await cluster.delete(Pod, "b", "team")
        assert await heard.until(4) == ["+a", "+b", "~a", "-b"]
        assert informer.items() == [changed]
        assert informer.get("a", "team") is changed  # the very object the store handed out
        assert informer.get("b", "team") is None
        late = Heard()
        informer.subscribe(late)
        assert late.calls == ["+a"]
        assert (cluster.lists, informer.relists) == (1, 1)


async def test_after_lost_history_only_the_differences_are_told() -> None:
    cluster = Lossy()
    for name in ("same", "changed", "gone", "reborn"):
        await make(cluster, name)
    informer = Informer(cluster, Pod, backoff=QUICK)
    heard = Heard()
    informer.subscribe(heard)
    async with running(informer):
        await heard.until(4)
        cluster.cut(Expired("too old"))
        await change(cluster, "changed", "Running")
        await cluster.delete(Pod, "gone", "team")
        await cluster.delete(Pod, "reborn", "team")
        await make(cluster, "reborn")
        await make(cluster, "new")
        del heard.calls[:]
        cluster.mend()
        await heard.until(5)
        await make(cluster, "last")
        calls = await heard.until(6)
        assert calls[0] == "-gone"
        assert sorted(calls[1:5]) == ["+new", "+reborn", "-reborn", "~changed"]
        assert calls.index("-reborn") < calls.index("+reborn")
        assert calls[5] == "+last"
        assert cluster.lists == 2


async def test_a_bug_makes_it_doubt_what_it_has_and_list_again() -> None:
    cluster = Lossy()
    informer = Informer(cluster, Pod, backoff=QUICK)
    heard = Heard()
    informer.subscribe(heard)
    async with running(informer):
        await asyncio.wait_for(informer.synced(), PATIENCE_S)
        await make(cluster, "a")
        await heard.until(1)
        cluster.cut(RuntimeError("a bug"))
        await make(cluster, "b")
        cluster.mend()
        assert await heard.until(2) == ["+a", "+b"]
        assert cluster.lists == 2


async def test_a_refused_watch_resumes_from_the_last_version_seen() -> None:
    cluster = Lossy()
    informer = Informer(cluster, Pod, backoff=QUICK)
    heard = Heard()
    informer.subscribe(heard)
    async with running(informer):
        await asyncio.wait_for(informer.synced(), PATIENCE_S)
        pod = await make(cluster, "a")
        await heard.until(1)
        cluster.cut(Unavailable("no route"), Unavailable("no route"))
        await make(cluster, "b")
        cluster.mend()
        assert await heard.until(2) == ["+a", "+b"]
        assert cluster.lists == 1
        assert cluster.watches == ["1", pod.metadata.resource_version]


async def test_it_keeps_trying_to_list() -> None:
    cluster = Lossy()
    await make(cluster, "a")
    cluster.failures = [Unavailable("not yet")] * 5
    drawn = itertools.count()
    informer = Informer(cluster, Pod, backoff=QUICK, jitter=lambda: next(drawn) * 0.0)
    async with running(informer):
        await asyncio.wait_for(informer.synced(), PATIENCE_S)
    assert len(informer) == 1
    assert next(drawn) == 5  # every wait was spread by the given source of chance


async def test_indexes_follow_the_objects() -> None:
    cluster = Lossy()
    informer = Informer(cluster, Pod)
    informer.add_index("gang", lambda pod: [pod.labels["gang"]] if "gang" in pod.labels else [])
    heard = Heard()
    informer.subscribe(heard)

    def gang(name: str) -> list[str]:
        return sorted(pod.name for pod in informer.by_index("gang", name))

    seen: list[list[str]] = []
    informer.subscribe(lambda old, new: seen.append(gang("g")))
    async with running(informer):
        await asyncio.wait_for(informer.synced(), PATIENCE_S)
        await make(cluster, "a", labels={"gang": "g"})
        await make(cluster, "b", labels={"gang": "g"})
        await make(cluster, "c")
        await cluster.patch(Pod, "a", {"metadata": {"labels": {"gang": "h"}}}, "team")
        await cluster.delete(Pod, "b", "team")
        await heard.until(5)
        assert (gang("g"), gang("h"), gang("none")) == ([], ["a"], [])
        assert seen == [["a"], ["a", "b"], ["a", "b"], ["b"], []]  # indexes are current when a handler is called
        informer.add_index("phase", lambda pod: [pod.status.phase])
        assert len(informer.by_index("phase", "Pending")) == 2


async def test_what_an_index_finds_keeps_its_order_when_it_changes() -> None:
    cluster = Lossy()
    informer = Informer(cluster, Pod)
    informer.add_index("gang", lambda pod: [pod.labels["gang"]] if "gang" in pod.labels else [])
    heard = Heard()
    informer.subscribe(heard)
    async with running(informer):
        await asyncio.wait_for(informer.synced(), PATIENCE_S)
        for name in ("c", "a", "b"):
            await make(cluster, name, labels={"gang": "g"})
        await cluster.patch(Pod, "c", {"metadata": {"labels": {"more": "x"}}}, "team")
        await heard.until(4)
        found = informer.by_index("gang", "g")
    assert [pod.name for pod in found] == ["c", "a", "b"]
    assert found[0].labels["more"] == "x"


async def test_a_failing_handler_stops_neither_the_informer_nor_the_others() -> None:
    cluster = Lossy()
    informer = Informer(cluster, Pod)

    def bad(old: Pod | None, new: Pod | None) -> None:
        raise ValueError("a bug")

    heard = Heard()
    informer.subscribe(bad)
    informer.subscribe(heard)
    async with running(informer):
        await make(cluster, "a")
        await make(cluster, "b")
        assert await heard.until(2) == ["+a", "+b"]


@pytest.mark.parametrize(
    ("failures", "jitter", "delay"),
    [
        (1, lambda: 0.0, 1.0),
        (2, lambda: 0.0, 2.0),
        (4, lambda: 0.5, 10.0),
        (9, lambda: 1.0, 15.0),
        (10**6, lambda: 0.0, 10.0),
    ],
)
def test_backoff_doubles_up_to_its_limit(failures: int, jitter: Callable[[], float], delay: float) -> None:
    assert Backoff(base_s=1.0, max_s=10.0).delay(failures, jitter) == delay
