"""Watch streams. A watcher has no queue: it holds a place in the store's history and is cut off when it falls behind, or when
it does not take what was written to it for `STALLED_AFTER_S`.

A write to a socket is what an event costs, not its encoding, which is shared. So watchers take turns, a few in each turn of
the event loop, with requests in between: an idle server tells everyone at once, a busy one tells everyone less often and
then several events in one write.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import nullcontext

import structlog

from remuda.api.errors import ApiError
from remuda.embedded.apiserver.local_cluster import LocalCluster
from remuda.embedded.apiserver.store.collection import Waiter, WatchCursor, wake_store_waiter_now
from remuda.embedded.apiserver.store.record import ADDED, StoredObject, encode_store_event_line
from remuda.embedded.apiserver.stream_seats import StreamSeats
from remuda.embedded.apiserver.wire.answer_forms import (
    AnswerView,
    bookmark_in_answer_form,
    negotiate_form,
    object_in_answer_form,
    watch_event_in_answer_form,
)
from remuda.embedded.apiserver.wire.bodies import encode_status_answer_body
from remuda.embedded.apiserver.wire.http_exchange import HttpRequest
from remuda.embedded.apiserver.wire.url_paths import ReadQuery, UrlTarget

BOOKMARK_EVERY_S = 30.0
STALLED_AFTER_S = 30.0
AT_ONCE = 2  # watchers woken in one turn of the loop ...
LATE_S = 0.02  # ... and more, by the square of how late the first in line is: 25 after a tenth of a second, as turns may be long
# Never so many that requests wait for them: with thousands of watchers, those are late, and nobody else.
MOST_AT_ONCE = 64
PIECE_BYTES = 256 * 1024  # of one write: what a watcher far behind has missed is not copied into its buffer at once

log = structlog.get_logger(__name__)


class WatchTurns:
    """Wakes in the order of asking."""

    def __init__(self) -> None:
        self._line: deque[tuple[float, Waiter]] = deque()  # with the time of asking

    def wake(self, waiter: Waiter) -> None:
        loop = waiter.get_loop()
        if not self._line:
            loop.call_soon(self._next, loop)
        self._line.append((loop.time(), waiter))

    def _next(self, loop: asyncio.AbstractEventLoop) -> None:
        line = self._line
        waited_s = loop.time() - line[0][0]
        for _ in range(min(AT_ONCE + int((waited_s / LATE_S) ** 2), MOST_AT_ONCE, len(line))):
            wake_store_waiter_now(line.popleft()[1])
        if line:
            loop.call_soon(self._next, loop)


def served_watch_pieces(lines: Iterable[bytes]) -> Iterator[bytes]:
    """The lines in their order, joined until there are `PIECE_BYTES`; one empty piece when there are none."""
    held: list[bytes] = []
    size = 0
    for line in lines:
        if size >= PIECE_BYTES:
            yield b"".join(held)
            held, size = [], 0
        held.append(line)
        size += len(line)
    yield b"".join(held)


class WatchStreams:
    def __init__(
        self, cluster: LocalCluster, closing: asyncio.Event, bookmark_every_s: float, seats: StreamSeats
    ) -> None:
        self._cluster = cluster
        self._seats = seats
        self._closing = closing
        self._bookmark_every_s = bookmark_every_s
        self._turns = WatchTurns()

    async def watch(self, request: HttpRequest, target: UrlTarget, query: ReadQuery) -> None:
        """Until the client hangs up, its timeout passes, or the server closes."""
        with self._seats.seat(request, target.namespace):
            await self._watch(request, target, query)

    async def _watch(self, request: HttpRequest, target: UrlTarget, query: ReadQuery) -> None:
        # Everything that can be refused is refused here, before the stream has begun.
        view = negotiate_form(request.accept, request.query.get("includeObject", ""))
        since = "0" if query.sends_initial else query.resource_version
        found = self._cluster.follow_records(target.served, since, target.namespace, query.labels, query.fields)
        start = (*found, self._cluster.store.revision)  # before anything is awaited: what is written next is not in it
        headers = [(b"content-type", b"application/json"), (b"cache-control", b"no-cache, private")]
        await request.send({"type": "http.response.start", "status": 200, "headers": headers})
        request.becomes_stream()
        pump = asyncio.create_task(self._pump(request, target, query, view, start))
        ends = [pump, asyncio.create_task(request.gone()), asyncio.create_task(self._closing.wait())]
        try:
            await asyncio.wait(ends, timeout=query.timeout_s, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in ends:
                task.cancel()
            outcome = (await asyncio.gather(*ends, return_exceptions=True))[0]
            if isinstance(outcome, Exception) and not isinstance(outcome, TimeoutError):
                log.error("api.watch_failed", path=request.path, exc_info=outcome)
        if isinstance(outcome, TimeoutError):
            log.warning("api.watcher_cut_off", path=request.path)
            request.abort()
            return
        await request.send({"type": "http.response.body", "body": b""})

    async def _pump(
        self,
        request: HttpRequest,
        target: UrlTarget,
        query: ReadQuery,
        view: AnswerView,
        start: tuple[list[StoredObject], WatchCursor, int],
    ) -> None:
        there, cursor, began = start
        served, store, clock = target.served, self._cluster.store, self._cluster.clock
        idle_s = self._bookmark_every_s if query.has_bookmarks else 0.0

        async def write(lines: Iterable[bytes]) -> None:
            for piece in served_watch_pieces(lines):
                # A timer costs as much as a TLS record, so there is one only when there is something to wait for.
                async with asyncio.timeout(STALLED_AFTER_S) if request.is_full() else nullcontext():
                    await request.send({"type": "http.response.body", "body": piece, "more_body": True})

        # An empty chunk at once, so that the client knows that the watch stands.
        await write(
            encode_store_event_line(ADDED, object_in_answer_form(view, served, record, clock())) for record in there
        )
        if query.sends_initial and query.has_bookmarks:
            await write([bookmark_in_answer_form(view, served, began, ends_initial=True)])
        was_idle = False
        try:
            while True:
                if found := cursor.read():
                    now = clock()
                    await write(watch_event_in_answer_form(view, served, event, now) for event in found)
                elif was_idle:
                    await write([bookmark_in_answer_form(view, served, store.revision)])
                was_idle = False
                try:
                    async with asyncio.timeout(idle_s) if idle_s else nullcontext():
                        if not await cursor.more(self._turns.wake):
                            return
                except TimeoutError:
                    was_idle = True
        except ApiError as error:  # fell behind the history
            await write([encode_store_event_line("ERROR", encode_status_answer_body(error.as_status()))])
