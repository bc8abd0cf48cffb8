"""The HTTP face: a raw ASGI app with Kubernetes' URL grammar over a `LocalCluster`.

It parses, calls the same methods the in-process port has, and writes the stored bytes out; no rule lives here. Every answer
that is not a success is a `Status` body.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any
from urllib.parse import parse_qsl

import structlog

from remuda.api.codec import encode
from remuda.api.core_v1 import Pod
from remuda.api.errors import ApiError, BadRequest
from remuda.apiserver.local import LocalCluster
from remuda.apiserver.store.record import ADDED, watch_line
from remuda.apiserver.wire.bodies import (
    MethodNotAllowed,
    RequestTooLarge,
    named,
    parse_binding,
    parse_delete_options,
    parse_object,
    parse_patch,
    render_bookmark,
    render_deleted,
    render_list,
    render_status,
)
from remuda.apiserver.wire.paths import Query, Target, parse_path, parse_query

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]

MAX_BODY_BYTES = 3 * 1024 * 1024  # kube-apiserver's limit
BOOKMARK_EVERY_S = 30.0

log = structlog.get_logger(__name__)


class Request:
    __slots__ = ("_receive", "headers", "method", "path", "query", "send")

    def __init__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.method: str = scope["method"]
        self.path: str = scope["path"]
        self.query = dict(parse_qsl(scope.get("query_string", b"").decode("latin-1"), keep_blank_values=True))
        self.headers: dict[str, str] = {
            name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]
        }
        self._receive = receive
        self.send = send

    @property
    def content_type(self) -> str:
        return self.headers.get("content-type", "")

    async def body(self) -> bytes:
        parts: list[bytes] = []
        size = 0
        while True:
            message = await self._receive()
            if message["type"] == "http.disconnect":
                raise BadRequest("the client went away before its request was whole")
            part = message.get("body", b"")
            parts.append(part)
            size += len(part)
            if size > MAX_BODY_BYTES:
                raise RequestTooLarge(f"the body is larger than {MAX_BODY_BYTES} bytes")
            if not message.get("more_body", False):
                return b"".join(parts)

    async def gone(self) -> None:
        """Returns when the client has hung up."""
        while (await self._receive())["type"] != "http.disconnect":
            pass

    async def answer(self, body: bytes, code: int = 200) -> None:
        headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(body))]
        await self.send({"type": "http.response.start", "status": code, "headers": headers})
        await self.send({"type": "http.response.body", "body": body})


class App:
    """`version` is told at /version. `close` ends every open watch, so that the server can shut down."""

    def __init__(self, cluster: LocalCluster, *, version: str = "", bookmark_every_s: float = BOOKMARK_EVERY_S) -> None:
        self._cluster = cluster
        self._version = version
        self._bookmark_every_s = bookmark_every_s
        self._closing = asyncio.Event()

    def close(self) -> None:
        self._closing.set()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        request = Request(scope, receive, send)
        try:
            await self._route(request)
        except ApiError as error:
            await request.answer(render_status(error.as_status()), error.code)
        except Exception:
            log.exception("api.failed", method=request.method, path=request.path)
            failed = ApiError("the server failed on this request; its log has the details")
            await request.answer(render_status(failed.as_status()), failed.code)

    async def _route(self, request: Request) -> None:
        if request.path in ("/healthz", "/livez", "/readyz"):
            await request.answer(b"ok")
        elif request.path == "/version":
            # kubectl reads major and minor and wants digits there; gitVersion is ours.
            version = {
                "major": "1",
                "minor": "37",
                "gitVersion": f"v1.37.0+remuda-{self._version}",
                "platform": "linux",
            }
            await request.answer(encode(version))
        else:
            await self._dispatch(request, parse_path(request.path))

    async def _dispatch(self, request: Request, target: Target) -> None:
        method, has_name, sub = request.method, bool(target.name), target.subresource
        if method == "GET" and not has_name:
            await self._list(request, target)
        elif method == "GET" and sub in ("", "status"):
            await request.answer(self._cluster.read(target.kind, target.name, target.namespace).raw)
        elif method == "POST" and not has_name:
            await self._create(request, target)
        elif method == "POST" and sub == "binding" and target.kind is Pod:
            await self._bind(request, target)
        elif method == "PUT" and has_name and sub in ("", "status"):
            await self._replace(request, target)
        elif method == "PATCH" and has_name and sub in ("", "status"):
            await self._patch(request, target)
        elif method == "DELETE" and has_name and not sub:
            await self._delete(request, target)
        else:
            raise MethodNotAllowed(f"{method} is not possible on {request.path}")

    async def _create(self, request: Request, target: Target) -> None:
        body = named(parse_object(request.content_type, await request.body()), target.namespace, "")
        record = await self._cluster.create_record(target.kind, body)
        await request.answer(record.raw, 201)

    async def _replace(self, request: Request, target: Target) -> None:
        body = named(parse_object(request.content_type, await request.body()), target.namespace, target.name)
        record = await self._cluster.replace_record(target.kind, body, subresource=target.subresource)
        await request.answer(record.raw)

    async def _patch(self, request: Request, target: Target) -> None:
        patch = parse_patch(request.content_type, await request.body())
        record = await self._cluster.patch_record(
            target.kind, target.name, patch, target.namespace, subresource=target.subresource
        )
        await request.answer(record.raw)

    async def _delete(self, request: Request, target: Target) -> None:
        when, grace_s = parse_delete_options(await request.body(), request.query.get("gracePeriodSeconds", ""))
        record = await self._cluster.delete_record(
            target.kind, target.name, target.namespace, when=when, grace_s=grace_s
        )
        await request.answer(render_deleted(target.kind, record))

    async def _bind(self, request: Request, target: Target) -> None:
        binding = parse_binding(request.content_type, await request.body())
        await self._cluster.bind(target.name, target.namespace, binding)
        await request.answer(encode({"kind": "Status", "apiVersion": "v1", "status": "Success", "code": 201}), 201)

    async def _list(self, request: Request, target: Target) -> None:
        query = parse_query(request.query)
        if query.is_watch:
            await self._watch(request, target, query)
            return
        found = self._cluster.select(target.kind, target.namespace, query.labels, query.fields)
        await request.answer(render_list(target.kind, found, self._cluster.store.revision))

    async def _watch(self, request: Request, target: Target, query: Query) -> None:
        """Streams until the client hangs up, its timeout passes, or the server closes."""
        # Everything that can be refused is refused here, before the stream has begun.
        start = self._cluster.follow(target.kind, query.resource_version, target.namespace, query.labels, query.fields)
        headers = [(b"content-type", b"application/json"), (b"cache-control", b"no-cache")]
        await request.send({"type": "http.response.start", "status": 200, "headers": headers})
        pump = asyncio.create_task(self._pump(request, target, query, start))
        ends = [pump, asyncio.create_task(request.gone()), asyncio.create_task(self._closing.wait())]
        try:
            await asyncio.wait(ends, timeout=query.timeout_s, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in ends:
                task.cancel()
            outcome = (await asyncio.gather(*ends, return_exceptions=True))[0]
            if isinstance(outcome, Exception):
                log.error("api.watch_failed", path=request.path, exc_info=outcome)
        await request.send({"type": "http.response.body", "body": b""})

    async def _pump(self, request: Request, target: Target, query: Query, start: Any) -> None:
        there, cursor = start
        store = self._cluster.store

        async def write(chunk: bytes) -> None:
            await request.send({"type": "http.response.body", "body": chunk, "more_body": True})

        # An empty chunk at once, so that the client knows that the watch stands.
        await write(b"".join(watch_line(ADDED, record.raw) for record in there))
        was_idle = False
        try:
            while True:
                if found := cursor.read():
                    await write(b"".join(event.line(type_, record) for event, type_, record in found))
                elif was_idle:
                    await write(render_bookmark(target.kind, store.revision))
                was_idle = False
                try:
                    async with asyncio.timeout(self._bookmark_every_s if query.has_bookmarks else None):
                        if not await cursor.more():
                            return
                except TimeoutError:
                    was_idle = True
        except ApiError as error:  # fell behind the history
            await write(watch_line("ERROR", render_status(error.as_status())))
