"""The informer over HTTP: pages, bookmarks, and a list anew that tells only what is different."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from remuda.api.kubernetes.core_v1 import Pod
from remuda.kube.client.http_cluster import HttpCluster
from remuda.kube.client.transport import TransportOptions
from remuda.kube.runtime import informer as informer_module
from remuda.kube.runtime.backoff import Backoff
from remuda.kube.runtime.informer import Informer
from tests.builders.http_server import HttpServer, Reply, a_status
from tests.builders.pod_wire import GONE, a_line, a_page, a_pod, added, told
from tests.builders.waiting import PATIENCE_S


class Heard:
    def __init__(self) -> None:
        self.calls: list[str] = []

    def __call__(self, old: Pod | None, new: Pod | None) -> None:
        obj = new or old
        assert obj is not None
        self.calls.append(("~" if old and new else "+" if new else "-") + obj.name)


@asynccontextmanager
async def informed(*replies: Reply, **options: Any) -> AsyncIterator[tuple[Informer[Pod], Heard, HttpServer]]:
    async with asyncio.timeout(PATIENCE_S), HttpServer(*replies) as server:
        cluster = HttpCluster(base_url=server.url, options=TransportOptions(**options), jitter=lambda: 0.0)
        informer = Informer(cluster, Pod, backoff=Backoff(0.0001, 0.001))
        heard = Heard()
        informer.subscribe(heard)
        task = asyncio.create_task(informer.run())
        try:
            yield informer, heard, server
        finally:
            task.cancel()
            await asyncio.wait([task])
            await cluster.close()


async def until(server: HttpServer, requests: int) -> None:
    while len(server.asked) < requests:  # noqa: ASYNC110 - what the client asks is all there is to wait for
        await asyncio.sleep(0.001)


def page(version: int, more: str, **versions: int) -> Reply:
    items = [a_pod(name, each) for name, each in versions.items()]
    meta = {"resourceVersion": str(version), **({"continue": more} if more else {})}
    return Reply(body={"metadata": meta, "items": items})


async def test_a_list_anew_tells_only_what_is_different() -> None:
    expired = a_line("ERROR", a_status(410, "Expired", "too old resource version"))
    replies = (
        page(20, "t", same=1, gone=2),
        page(20, "", changed=3),
        told(expired),
        page(40, "u", same=1),
        GONE,  # and the second list is lost halfway, too
        page(50, "u", same=1, new=45),
        page(50, "", changed=44),
        told(hold=asyncio.Event()),
    )
    async with informed(*replies) as (informer, heard, server):
        await informer.synced()
        before = informer.get("same", "team")
        assert sorted(heard.calls) == ["+changed", "+gone", "+same"]
        del heard.calls[:]
        await until(server, 8)
        assert sorted(heard.calls) == ["+new", "-gone", "~changed"]
        assert heard.calls[0] == "-gone"
        assert informer.get("same", "team") is before  # what did not change is not even replaced
        assert informer.relists == 2
        assert server.asked[7].query["resourceVersion"] == "50"


async def test_nobody_sees_half_a_list() -> None:
    replies = (page(20, "t", a=1), page(20, "", b=2), told(hold=asyncio.Event()))
    sizes: list[int] = []
    async with informed(*replies) as (informer, _, server):
        while not informer._synced.is_set():
            sizes.append(len(informer))
            await asyncio.sleep(0)
        assert set(sizes) == {0}
        assert len(informer) == 2
        await until(server, 3)


async def test_a_bookmark_is_a_place_to_go_on_from() -> None:
    bookmark = a_line("BOOKMARK", {"metadata": {"resourceVersion": "90"}})
    down = Reply(500, a_status(500, "InternalError", "restarting"))
    replies = (a_page("a"), told(bookmark), down, told(added("b", 91), hold=asyncio.Event()))
    async with informed(*replies, reconnect_s=0.0) as (informer, heard, server):
        await informer.synced()
        await until(server, 4)
        while len(heard.calls) < 2:  # noqa: ASYNC110
            await asyncio.sleep(0.001)
        assert heard.calls == ["+a", "+b"]
        assert server.asked[3].query["resourceVersion"] == "90"
        assert informer.relists == 1


@pytest.mark.parametrize(("large", "froze"), [(1, 3), (2, 1), (3, 1), (4, 0)])
async def test_a_copy_that_has_grown_is_taken_out_of_the_collectors_sight(
    monkeypatch: pytest.MonkeyPatch, large: int, froze: int
) -> None:
    frozen: list[None] = []
    monkeypatch.setattr(informer_module, "_LARGE", large)
    monkeypatch.setattr(gc, "freeze", lambda: frozen.append(None))
    expired = a_line("ERROR", a_status(410, "Expired", "too old"))
    replies = (a_page("a", "b"), told(expired), a_page("c", "d", "e"), told(hold=asyncio.Event()))
    async with informed(*replies) as (informer, _, server):
        await until(server, 4)
        assert len(informer) == 3
    assert len(frozen) == froze


async def test_one_object_that_cannot_be_read_costs_nobody_the_others() -> None:
    bad = a_pod("bad", 3, spec={"containers": "none"})
    first = Reply(body={"metadata": {"resourceVersion": "20"}, "items": [a_pod("a", 1), bad, a_pod("b", 2)]})
    turns_bad = a_line("MODIFIED", a_pod("a", 21, spec={"containers": "none"}))
    expired = a_line("ERROR", a_status(410, "Expired", "too old resource version"))
    again = Reply(body={"metadata": {"resourceVersion": "40"}, "items": [a_pod("a", 21, spec={"containers": "none"})]})
    deleted = a_line("DELETED", a_pod("a", 41, spec={"containers": "none"}))
    replies = (first, told(turns_bad, added("c", 22), expired), again, told(deleted), page(50, "", d=45), told())
    async with informed(*replies) as (informer, heard, server):
        await until(server, 6)
        assert heard.calls[:3] == ["+a", "+b", "+c"]
        assert sorted(heard.calls[3:5]) == ["-b", "-c"], "what could be read of a last stays"
        assert heard.calls[5:] == ["-a", "+d"]
        assert [pod.name for pod in informer.items()] == ["d"]
