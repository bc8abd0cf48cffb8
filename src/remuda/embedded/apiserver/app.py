"""The HTTP face: a raw ASGI app with Kubernetes' URL grammar over a `LocalCluster`.

It parses, calls the same methods the in-process port has, and writes the stored bytes out; no rule lives here. Every answer
that is not a success is a `Status` body.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping

import structlog

from remuda.api.codec import encode
from remuda.api.errors import ApiError
from remuda.api.meta import JsonObject
from remuda.embedded.apiserver.connections import descriptor_limit
from remuda.embedded.apiserver.health_answers import HEALTH_PATHS, apiserver_health_answer
from remuda.embedded.apiserver.lanes import RequestLanes
from remuda.embedded.apiserver.local_cluster import LocalCluster
from remuda.embedded.apiserver.log_source import ApiLogSource
from remuda.embedded.apiserver.object_handlers import ObjectHandlers
from remuda.embedded.apiserver.self_reviews import answer_self_review
from remuda.embedded.apiserver.stream_seats import StreamSeats
from remuda.embedded.apiserver.subresources import Subresources
from remuda.embedded.apiserver.watch_streams import BOOKMARK_EVERY_S, WatchStreams
from remuda.embedded.apiserver.wire import discovery, openapi
from remuda.embedded.apiserver.wire.bodies import MethodNotAllowed, encode_status_answer_body, parse_object_body
from remuda.embedded.apiserver.wire.http_exchange import HttpRequest, Receive, Scope, Send
from remuda.embedded.apiserver.wire.url_paths import UrlTarget, parse_url_path, unknown_url_path

KUBERNETES = ("1", "37")  # the API version whose behaviour this server follows

Extra = Callable[[HttpRequest], Awaitable[None]]

log = structlog.get_logger(__name__)


class ApiServerApp:
    """`version` is told at /version. `close` ends every open watch, so that the server can shut down."""

    def __init__(
        self,
        cluster: LocalCluster,
        *,
        version: str = "",
        bookmark_every_s: float = BOOKMARK_EVERY_S,
        logs: ApiLogSource | None = None,
        extra: Mapping[str, Extra] | None = None,
    ) -> None:
        """`extra`: more paths, outside of Kubernetes' grammar, and who answers them."""
        self._cluster = cluster
        self._version = version
        self._extra = extra or {}
        self._closing = asyncio.Event()
        self._lanes = RequestLanes()
        seats = StreamSeats(descriptor_limit())
        self._watching = WatchStreams(cluster, self._closing, bookmark_every_s, seats)
        self._handlers = ObjectHandlers(cluster)
        self._subresources = Subresources(cluster, self._handlers, logs, self._closing, seats)

    def close(self) -> None:
        self._closing.set()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        request: HttpRequest | None = None
        try:
            request = HttpRequest(scope, receive, send)
            if request.path in HEALTH_PATHS:  # whoever asks whether we live does not stand in line
                await self._route(request)
                return
            request.seat = seat = self._lanes.ticket(request.path, request.client)
            if request.method not in ("GET", "HEAD"):
                await request.body()
            await seat.sit_down()
            await self._route(request)
        except ApiError as error:
            # Its frames hold all that was made of the request, and decisions that remember why they refused hold it in turn.
            error.__traceback__ = None
            await answer_error(scope, receive, send, error, request)
        except Exception:
            log.exception("api.failed", method=scope["method"], path=scope["path"])
            failed = ApiError("the server failed on this request; its log has the details")
            await answer_error(scope, receive, send, failed, request)
        finally:
            if request is not None and request.seat is not None:
                request.seat.leave()

    async def _route(self, request: HttpRequest) -> None:
        path = request.path.rstrip("/")
        if path in HEALTH_PATHS:
            told = apiserver_health_answer(path, self._cluster.store.trouble, verbose="verbose" in request.query)
            await request.answer(told.text.encode(), told.code, media="text/plain; charset=utf-8")
            return
        if path == "/openapi/v2" and request.method == "GET":
            # An empty document: kubectl looks here for kinds it did not find in v3, and then knows that there are none.
            await request.answer(b"", media="application/com.github.proto-openapi.spec.v2.v1.0+protobuf")
            return
        if path in self._extra:
            await self._extra[path](request)
            return
        body = self._described(path, request.headers.get("host", ""))
        if body is not None:
            if request.method not in ("GET", "HEAD"):
                raise MethodNotAllowed(f"{request.method} is not possible on {request.path}")
            await request.answer(encode(body))
            return
        await self._dispatch(request, parse_url_path(request.path, self._cluster.registry))

    def _described(self, path: str, host: str) -> JsonObject | None:
        """What the server says about itself."""
        registry = self._cluster.registry
        parts = path.strip("/").split("/")
        match parts:
            case ["version"]:
                major, minor = KUBERNETES
                # kubectl reads major and minor and wants digits there; gitVersion is ours.
                version = f"v{major}.{minor}.0+remuda-{self._version}"
                unknown = ("gitCommit", "gitTreeState", "buildDate", "goVersion", "compiler")  # clients want them there
                told = {"major": major, "minor": minor, "gitVersion": version, "platform": "linux"}
                return {**dict.fromkeys(unknown, ""), **told}
            case ["api"]:
                return discovery.discover_core_versions(host)
            case ["apis"]:
                return discovery.discover_groups(registry)
            case ["apis", group] if group:
                found = discovery.discover_group(registry, group)
            case ["api", version]:
                found = discovery.discover_resources(registry, "", version)
            case ["apis", group, version]:
                found = discovery.discover_resources(registry, group, version)
            case ["openapi", "v3"]:
                return openapi.openapi_index(registry)
            case ["openapi", "v3", "api", version]:
                found = openapi.openapi_document(registry, "", version)
            case ["openapi", "v3", "apis", group, version]:
                found = openapi.openapi_document(registry, group, version)
            case _:
                return None
        if found is None:
            raise unknown_url_path(path)
        return found

    async def _dispatch(self, request: HttpRequest, target: UrlTarget) -> None:
        method, sub = request.method, target.subresource
        if target.served.is_virtual:
            await self._virtual(request, target)
        elif sub not in ("", "status", "finalize"):
            await self._subresources.handle(request, target)
        elif not target.name:
            if method == "GET":
                await self._read_many(request, target)
            elif method == "POST":
                await self._handlers.create(request, target)
            elif method == "DELETE":
                await self._handlers.delete_many(request, target)
            else:
                raise _method_not_allowed(request)
        elif method == "GET" and sub != "finalize":
            await self._handlers.get(request, target)
        elif method == "PUT":
            await self._handlers.replace(request, target)
        elif method == "PATCH" and sub != "finalize":
            await self._handlers.patch(request, target)
        elif method == "DELETE" and not sub:
            await self._handlers.delete(request, target)
        else:
            raise _method_not_allowed(request)

    async def _read_many(self, request: HttpRequest, target: UrlTarget) -> None:
        query = self._handlers.query(request, target)
        if query.is_watch:
            await self._watching.watch(request, target, query)
        else:
            await self._handlers.list(request, target, query)

    async def _virtual(self, request: HttpRequest, target: UrlTarget) -> None:
        if request.method != "POST" or target.name:
            raise _method_not_allowed(request)
        if target.resource.kind == "Binding":
            await self._subresources.bind(request, target)
            return
        body = parse_object_body(request.content_type, await request.body())
        await request.answer(encode(answer_self_review(target.resource, body)), 201)


def _method_not_allowed(request: HttpRequest) -> MethodNotAllowed:
    return MethodNotAllowed(f"{request.method} is not possible on {request.path}")


async def answer_error(
    scope: Scope, receive: Receive, send: Send, error: ApiError, request: HttpRequest | None = None
) -> None:
    if request is None:
        request = HttpRequest({**scope, "query_string": b""}, receive, send)
    retry_s = error.details.retry_after_seconds if error.details is not None else 0
    await request.answer(encode_status_answer_body(error.as_status()), error.code, retry_s=retry_s)
