"""Watch streams. A watcher has no queue: it holds a place in the store's history and is cut off when it falls behind, or when
it does not take what was written to it for `STALLED_AFTER_S`."""

from __future__ import annotations

import asyncio

import structlog

from remuda.api.errors import ApiError
from remuda.apiserver.local import LocalCluster
from remuda.apiserver.store.collection import Cursor
from remuda.apiserver.store.record import ADDED, Record, watch_line
from remuda.apiserver.wire.bodies import render_status
from remuda.apiserver.wire.http import Request
from remuda.apiserver.wire.paths import Query, Target
from remuda.apiserver.wire.views import View, negotiate, render_bookmark, render_event, render_one

BOOKMARK_EVERY_S = 30.0
STALLED_AFTER_S = 30.0

log = structlog.get_logger(__name__)


class Watching:
    def __init__(self, cluster: LocalCluster, closing: asyncio.Event, bookmark_every_s: float) -> None:
        self._cluster = cluster
        self._closing = closing
        self._bookmark_every_s = bookmark_every_s

    async def watch(self, request: Request, target: Target, query: Query) -> None:
        """Until the client hangs up, its timeout passes, or the server closes."""
        # Everything that can be refused is refused here, before the stream has begun.
        view = negotiate(request.accept, request.query.get("includeObject", ""))
        since = "0" if query.sends_initial else query.resource_version
        start = self._cluster.follow_records(target.served, since, target.namespace, query.labels, query.fields)
        headers = [(b"content-type", b"application/json"), (b"cache-control", b"no-cache, private")]
        await request.send({"type": "http.response.start", "status": 200, "headers": headers})
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
        self, request: Request, target: Target, query: Query, view: View, start: tuple[list[Record], Cursor]
    ) -> None:
        there, cursor = start
        served, store, clock = target.served, self._cluster.store, self._cluster.clock

        async def write(chunk: bytes) -> None:
            async with asyncio.timeout(STALLED_AFTER_S):
                await request.send({"type": "http.response.body", "body": chunk, "more_body": True})

        # An empty chunk at once, so that the client knows that the watch stands.
        first = [watch_line(ADDED, render_one(view, served, record, clock())) for record in there]
        if query.sends_initial and query.has_bookmarks:
            first.append(render_bookmark(view, served, store.revision, ends_initial=True))
        await write(b"".join(first))
        was_idle = False
        try:
            while True:
                if found := cursor.read():
                    now = clock()
                    lines = [render_event(view, served, event, type_, record, now) for event, type_, record in found]
                    await write(b"".join(lines))
                elif was_idle:
                    await write(render_bookmark(view, served, store.revision))
                was_idle = False
                try:
                    async with asyncio.timeout(self._bookmark_every_s if query.has_bookmarks else None):
                        if not await cursor.more():
                            return
                except TimeoutError:
                    was_idle = True
        except ApiError as error:  # fell behind the history
            await write(watch_line("ERROR", render_status(error.as_status())))
