"""Lists in pages and watches over many connections, against a server that misbehaves as told."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager
from typing import Any

import pytest

from remuda.api.errors import ApiError, BadRequest, Conflict, Expired, Invalid, NotFound, Unavailable
from remuda.api.kubernetes.core_v1 import Pod
from remuda.kube.client.http_cluster import HttpCluster
from remuda.kube.client.http_errors import Undecodable
from remuda.kube.client.transport import TransportOptions
from remuda.kube.cluster import Cluster, Preconditions, WatchEvent
from tests.builders.http_server import Answering, Asked, HttpServer, Reply, a_status
from tests.builders.pod_wire import GONE, a_line, a_page, a_pod, added, told
from tests.builders.waiting import PATIENCE_S


@asynccontextmanager
async def a_cluster(
    *answers: Reply | Answering, jitter: float = 0.0, **options: Any
) -> AsyncIterator[tuple[HttpCluster, HttpServer, list[float]]]:
    waits: list[float] = []

    async def sleep(seconds: float) -> None:
        waits.append(seconds)
        await asyncio.sleep(0)

    async with asyncio.timeout(PATIENCE_S), HttpServer(*answers) as server:
        cluster = HttpCluster(base_url=server.url, options=TransportOptions(**options), jitter=lambda: jitter)
        cluster.transport.sleep = sleep
        async with cluster:
            yield cluster, server, waits


async def watched(cluster: Cluster, since: str, count: int) -> list[WatchEvent[Pod]]:
    found: list[WatchEvent[Pod]] = []
    async with aclosing(cluster.watch(Pod, since)) as stream:  # type: ignore[type-var]
        async for event in stream:
            found.append(event)
            if len(found) == count:
                break
    return found


def brief(events: list[WatchEvent[Pod]]) -> list[str]:
    return [f"{event.type} {event.obj.name if event.obj else ''} {event.resource_version}" for event in events]


# Lists.


async def test_a_list_is_fetched_in_pages() -> None:
    pages = (a_page("a", "b", more="t1"), a_page("c", "d", more="t2"), a_page("e"))
    async with a_cluster(*pages, page_size=2) as (cluster, server, _):
        listing = await cluster.list(Pod, "team")
    assert [pod.name for pod in listing.items] == ["a", "b", "c", "d", "e"]
    assert listing.resource_version == "50"
    assert [asked.query for asked in server.asked] == [
        {"limit": "2"},
        {"limit": "2", "continue": "t1"},
        {"limit": "2", "continue": "t2"},
    ]


async def test_a_list_that_expires_halfway_is_begun_anew() -> None:
    pages = (a_page("old", more="t1"), GONE, a_page("a", version=60, more="t2"), a_page("b", version=60))
    async with a_cluster(*pages) as (cluster, server, _):
        listing = await cluster.list(Pod)
    assert ([pod.name for pod in listing.items], listing.resource_version) == (["a", "b"], "60")
    assert "continue" not in server.asked[2].query


async def test_a_list_that_always_expires_is_expired() -> None:
    async def answer(asked: Asked) -> Reply:
        return GONE if "continue" in asked.query else a_page("a", more="t")

    async with a_cluster(answer) as (cluster, server, _):
        with pytest.raises(Expired):
            await cluster.list(Pod)
    assert len(server.asked) == 6


async def test_a_page_that_is_lost_is_fetched_again_and_not_the_whole_list() -> None:
    cut = Reply(body=b"x" * 100, is_cut=True)
    busy = Reply(429, b"", {"Retry-After": "2"})
    async with a_cluster(a_page("a", more="t1"), cut, busy, a_page("b")) as (cluster, server, waits):
        assert [pod.name for pod in (await cluster.list(Pod)).items] == ["a", "b"]
    assert [asked.query.get("continue") for asked in server.asked] == [None, "t1", "t1", "t1"]
    assert waits[1] == 2.0


async def test_an_object_that_cannot_be_read_is_named() -> None:
    bad = a_pod("culprit", spec={"containers": "none"})
    listing = Reply(body={"metadata": {"resourceVersion": "5"}, "items": [a_pod("fine"), bad]})
    async with a_cluster(listing, Reply(body=bad)) as (cluster, _, _):
        with pytest.raises(Undecodable, match=r'Pod "team/culprit" cannot be read: .*containers'):
            await cluster.list(Pod)
        with pytest.raises(Undecodable, match="culprit"):
            await cluster.get(Pod, "culprit", "team")


async def test_a_watch_goes_on_past_an_object_that_cannot_be_read() -> None:
    bad = a_pod("culprit", 11, spec={"containers": "none"})
    lines = (a_line("ADDED", bad), added("fine", 12))
    async with a_cluster(told(*lines, hold=asyncio.Event())) as (cluster, _, _):
        assert brief(await watched(cluster, "10", 2)) == ["BOOKMARK  11", "ADDED fine 12"]
    async with a_cluster(told(a_line("DELETED", bad))) as (cluster, _, _):
        with pytest.raises(Expired, match="culprit"):
            await watched(cluster, "10", 1)


@pytest.mark.parametrize("body", [b"<html>", b"[]", b'{"items": 3}'])
async def test_an_answer_that_is_no_list_is_an_error(body: bytes) -> None:
    async with a_cluster(Reply(body=body)) as (cluster, _, _):
        with pytest.raises(Undecodable, match="the list of pods cannot be read"):
            await cluster.list(Pod)


# Watches.


async def test_a_watch_goes_on_after_the_last_version_when_its_time_is_up() -> None:
    bookmark = a_line("BOOKMARK", {"kind": "Pod", "metadata": {"resourceVersion": "30"}})
    replies = (told(added("a", 11), added("b", 12)), told(bookmark), told(added("c", 31), hold=asyncio.Event()))
    async with a_cluster(*replies, watch_s=100.0, jitter=0.5) as (cluster, server, waits):
        events = await watched(cluster, "10", 4)
    assert brief(events) == ["ADDED a 11", "ADDED b 12", "BOOKMARK  30", "ADDED c 31"]
    assert [asked.query["resourceVersion"] for asked in server.asked] == ["10", "12", "30"]
    assert {asked.query["timeoutSeconds"] for asked in server.asked} == {"150"}
    assert all(asked.query["allowWatchBookmarks"] == "1" for asked in server.asked)
    assert waits == [0, 0]


async def test_a_watch_that_breaks_in_the_middle_of_a_line_loses_and_repeats_nothing() -> None:
    half = added("b", 12)[:20]
    replies = (told(added("a", 11), half, is_cut=True), told(added("b", 12), hold=asyncio.Event()))
    async with a_cluster(*replies) as (cluster, server, _):
        assert brief(await watched(cluster, "10", 2)) == ["ADDED a 11", "ADDED b 12"]
    assert [asked.query["resourceVersion"] for asked in server.asked] == ["10", "11"]


async def test_lost_history_is_expired_wherever_it_is_told() -> None:
    error = a_line("ERROR", a_status(410, "Expired", "too old resource version: 10 (20)"))
    for replies in ((told(error),), (told(added("a", 11)), GONE), (Reply(410, a_status(410, "Gone")),)):
        async with a_cluster(*replies) as (cluster, _, _):
            with pytest.raises(Expired):
                await watched(cluster, "10", 2)


async def test_a_servers_own_failure_is_not_the_end() -> None:
    failure = a_line("ERROR", a_status(500, "InternalError", "etcd has no leader"))
    busy = Reply(429, b"", {"Retry-After": "4"})
    down = Reply(503, a_status(503, "ServiceUnavailable"))
    replies = (told(added("a", 11)), told(failure), busy, down, told(added("b", 12), hold=asyncio.Event()))
    async with a_cluster(*replies) as (cluster, server, waits):
        assert brief(await watched(cluster, "10", 2)) == ["ADDED a 11", "ADDED b 12"]
    assert len(server.asked) == 5
    assert 4.0 in waits


async def test_an_answer_that_will_not_change_ends_a_watch() -> None:
    for code, error in ((404, NotFound), (403, ApiError), (400, BadRequest)):
        async with a_cluster(told(added("a", 11)), Reply(code, b"")) as (cluster, _, _):
            with pytest.raises(error):
                await watched(cluster, "10", 2)


async def test_the_first_connection_is_not_tried_again() -> None:
    async with a_cluster(Reply(500, b"")) as (cluster, server, waits):
        with pytest.raises(ApiError, match="answered 500"):
            await watched(cluster, "10", 1)
    assert len(server.asked) <= 1, "the time may be over before the server has read it"
    assert waits == []


async def test_a_watch_that_nobody_agrees_to_is_unavailable_in_time() -> None:
    async def answer(asked: Asked) -> Reply:
        await asyncio.Event().wait()
        raise AssertionError

    async with a_cluster(answer, timeout_s=0.05) as (cluster, server, _):
        with pytest.raises(Unavailable, match=r"no answer within 0\.05 s"):
            await watched(cluster, "10", 1)
    assert len(server.asked) <= 1, "the time may be over before the server has read it"


async def test_an_api_that_stays_away_is_given_up() -> None:
    down = Reply(500, a_status(500, "InternalError", "no"))
    async with a_cluster(told(added("a", 11), is_cut=True), down, reconnect_s=0.5) as (cluster, server, waits):
        with pytest.raises(ApiError, match="no"):
            await watched(cluster, "10", 2)
    assert len(server.asked) > 2
    assert waits[1:] == sorted(waits[1:])  # ever slower
    async with a_cluster(told(added("a", 11)), down, reconnect_s=0.0) as (cluster, _, _):
        assert len(await watched(cluster, "10", 2)) == 1  # ended in good order: so does the watch


async def test_a_server_that_ends_every_watch_at_once_is_not_hammered() -> None:
    async with a_cluster(told(), told(), told(), told(), told(added("a", 11))) as (cluster, _, waits):
        await watched(cluster, "10", 1)
    assert waits == [0, 0.05, 0.1, 0.2]


async def test_a_watch_from_no_version_begins_with_a_list() -> None:
    replies = (a_page("a", more="t"), a_page("b"), told(added("c", 51), is_cut=True), told(added("d", 52)))
    for since in ("", "0"):
        async with a_cluster(*replies) as (cluster, server, _):
            events = await watched(cluster, since, 4)
        assert [event.obj.name for event in events if event.obj] == ["a", "b", "c", "d"]
        assert [asked.query.get("resourceVersion") for asked in server.asked] == [None, None, "50", "51"]
        replies = (*replies[:2], told(added("c", 51), is_cut=True), told(added("d", 52)))


async def test_a_version_that_is_none_is_refused_without_asking() -> None:
    async with a_cluster(told()) as (cluster, server, _):
        for since in ("yesterday", "-1", "²"):
            with pytest.raises(BadRequest, match="invalid resource version"):
                await watched(cluster, since, 1)
    assert server.asked == []


async def test_a_watch_that_is_closed_hangs_up() -> None:
    hold = asyncio.Event()
    async with a_cluster(told(added("a", 11), hold=hold)) as (cluster, server, _):
        await watched(cluster, "10", 1)
        while server._open:  # the server learns it from the socket
            hold.set()
            await asyncio.sleep(0)


# Writes.


async def test_a_patch_for_another_object_is_a_conflict_only_if_that_was_asked() -> None:
    causes = [{"reason": "FieldValueInvalid", "message": "field is immutable", "field": "metadata.uid"}]
    reply = Reply(422, a_status(422, "Invalid", "metadata.uid: field is immutable", details={"causes": causes}))
    async with a_cluster(reply) as (cluster, server, _):
        with pytest.raises(Conflict):
            await cluster.patch(Pod, "p", {"status": {}}, "team", subresource="status", when=Preconditions(uid="u"))
        with pytest.raises(Invalid):
            await cluster.patch(Pod, "p", {"metadata": {"uid": "u"}}, "team")
    assert json.loads(server.asked[0].body) == {"status": {}, "metadata": {"uid": "u"}}
    assert server.asked[0].headers["content-type"] == "application/merge-patch+json"


async def test_it_is_a_cluster() -> None:
    cluster: Cluster = HttpCluster(base_url="http://127.0.0.1:1")
    with pytest.raises(Unavailable):
        await cluster.delete(Pod, "p", "team")
    await cluster.close()  # type: ignore[attr-defined]
