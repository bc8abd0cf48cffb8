"""Watches without a network: whose turn it is, how much goes into one write, and where a watch says that it begins."""

from __future__ import annotations

import asyncio
import itertools
import json
from typing import Any

import pytest

from remuda.api.kubernetes.core_v1 import Pod
from remuda.embedded.apiserver import watch_streams
from remuda.embedded.apiserver.app import ApiServerApp
from remuda.embedded.apiserver.local_cluster import LocalCluster
from remuda.embedded.apiserver.store import MemoryJournal, ObjectStore
from remuda.embedded.apiserver.watch_streams import MOST_AT_ONCE, WatchTurns, served_watch_pieces
from tests.builders.waiting import PATIENCE_S


def waiters(count: int) -> list[asyncio.Future[None]]:
    loop = asyncio.get_running_loop()
    return [loop.create_future() for _ in range(count)]


def woken(line: list[asyncio.Future[None]]) -> list[int]:
    return [number for number, waiter in enumerate(line) if waiter.done() and not waiter.cancelled()]


async def test_watchers_are_woken_in_order_a_few_in_each_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watch_streams, "LATE_S", 1e9)
    turns, line = WatchTurns(), waiters(5)
    for waiter in line:
        turns.wake(waiter)
    seen = [woken(line)]
    for _ in range(3):
        await asyncio.sleep(0)
        seen.append(woken(line))
    assert seen == [[], [0, 1], [0, 1, 2, 3], [0, 1, 2, 3, 4]]


async def test_the_longer_the_turns_the_more_are_woken_in_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watch_streams, "LATE_S", 1e-12)  # as if they had waited for hours
    turns, line = WatchTurns(), waiters(MOST_AT_ONCE + 10)
    for waiter in line:
        turns.wake(waiter)
    await asyncio.sleep(0)
    assert woken(line) == list(
        range(MOST_AT_ONCE)
    )  # however late: 6,000 in one turn stop everybody else for half a second
    await asyncio.sleep(0)
    assert woken(line) == list(range(MOST_AT_ONCE + 10))


async def test_a_watcher_that_left_the_line_is_passed_over_and_a_later_one_is_still_woken() -> None:
    turns, (gone, there, late) = WatchTurns(), waiters(3)
    turns.wake(gone)
    turns.wake(there)
    gone.cancel()
    await asyncio.sleep(0)
    assert gone.cancelled()
    assert there.done()
    turns.wake(late)  # the line was empty
    await asyncio.sleep(0)
    assert late.done()


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        ([], [b""]),
        ([b"a\n"], [b"a\n"]),
        ([b"aaa\n", b"bbb\n", b"c\n"], [b"aaa\nbbb\n", b"c\n"]),
        ([b"a" * 20, b"b"], [b"a" * 20, b"b"]),
        ([b"aaaa", b"bbbb"], [b"aaaabbbb"]),
    ],
)
def test_lines_are_written_in_pieces(
    monkeypatch: pytest.MonkeyPatch, lines: list[bytes], expected: list[bytes]
) -> None:
    monkeypatch.setattr(watch_streams, "PIECE_BYTES", 8)
    assert list(served_watch_pieces(lines)) == expected


class Client:
    """An ASGI client of one watch. `hold` stops it from taking what is sent."""

    def __init__(self) -> None:
        uids = itertools.count()
        self.local = LocalCluster(ObjectStore(MemoryJournal()), clock=lambda: 1.7e9, new_uid=lambda: f"u{next(uids)}")
        self.app = ApiServerApp(self.local)
        self.sent: list[bytes] = []
        self.arrived = asyncio.Condition()
        self.hold = asyncio.Event()
        self.hold.set()

    async def create(self, name: str, size: int = 0) -> int:
        made = await self.local.create(
            Pod, {"metadata": {"name": name, "namespace": "team", "annotations": {"a": "x" * size}}}
        )
        return int(made.metadata.resource_version)

    def watch(self, query: str, on_start: Any = None) -> asyncio.Task[None]:
        async def receive() -> dict[str, Any]:
            await asyncio.Event().wait()
            raise AssertionError

        async def send(message: Any) -> None:
            if message["type"] == "http.response.start":
                if on_start is not None:
                    await on_start()
                return
            await self.hold.wait()
            async with self.arrived:
                self.sent.append(message["body"])
                self.arrived.notify_all()

        scope = {"type": "http", "method": "GET", "path": "/api/v1/pods", "query_string": query, "headers": []}
        return asyncio.create_task(self.app({**scope, "query_string": query.encode()}, receive, send))

    def events(self) -> list[tuple[str, int]]:
        lines = [json.loads(line) for line in b"".join(self.sent).splitlines()]
        return [(line["type"], int(line["object"]["metadata"]["resourceVersion"])) for line in lines]

    async def until(self, count: int) -> list[tuple[str, int]]:
        async with self.arrived:
            await self.arrived.wait_for(lambda: len(self.events()) >= count)
        return self.events()


async def test_the_bookmark_after_the_initial_events_does_not_cover_a_later_write() -> None:
    client = Client()
    there = await client.create("there")

    async def meanwhile() -> None:
        await client.create("meanwhile")

    task = client.watch(
        "watch=1&sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true", meanwhile
    )
    async with asyncio.timeout(PATIENCE_S):
        assert await client.until(3) == [("ADDED", there), ("BOOKMARK", there), ("ADDED", there + 1)]
        client.app.close()
        await task


async def test_what_happens_while_a_watcher_is_busy_comes_in_few_writes_and_in_order(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(watch_streams, "PIECE_BYTES", 10_000)
    client = Client()
    first = await client.create("p")
    task = client.watch(f"watch=1&resourceVersion={first}")
    async with asyncio.timeout(PATIENCE_S):
        async with client.arrived:
            await client.arrived.wait_for(lambda: bool(client.sent))  # the empty chunk: the watch stands
        client.hold.clear()
        made = [await client.create("p0")]
        for _ in range(5):
            await asyncio.sleep(0)  # the watcher is now in the middle of its first write
        made += [await client.create(f"p{number}", size=1_000) for number in range(1, 41)]
        client.hold.set()
        assert await client.until(41) == [("ADDED", version) for version in made]
        client.app.close()
        await task
    sizes = [len(chunk) for chunk in client.sent]
    assert len([size for size in sizes if size]) < 10  # 41 events
    assert max(sizes) < 10_000 + 2_000
