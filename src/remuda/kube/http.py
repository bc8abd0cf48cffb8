"""`HttpCluster`: the `Cluster` port over HTTP, on a unix socket or a base URL. Raises exactly what the in-process one does.

Use it as an async context manager: it holds a connection pool. A server that cannot be reached is `Unavailable`.
"""

from __future__ import annotations

import io
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import ExitStack, asynccontextmanager
from pathlib import Path
from types import TracebackType
from typing import TypeVar

import aiohttp
import msgspec

from remuda.api.codec import decode, encode
from remuda.api.core_v1 import Binding, Pod
from remuda.api.errors import ApiError, BadRequest, Status, Unavailable, from_status
from remuda.api.meta import JsonObject, KObject
from remuda.api.selectors import EVERYTHING, FieldSelector, Selector
from remuda.kube.cluster import ANY, NO_FIELDS, Listing, Preconditions, WatchEvent
from remuda.kube.rest import (
    JSON,
    MERGE_PATCH,
    Bookmark,
    DeleteOptions,
    DeletePreconditions,
    ListBody,
    WatchLine,
    object_path,
    path_of,
    reachable,
    render_binding,
)

K = TypeVar("K", bound=KObject)

# aiohttp refuses lines longer than twice its buffer, and one watch event is one line; the API's own limit of a body is 3 MiB.
_READ_BUFFER_BYTES = 2 * 1024 * 1024
_CONNECT_TIMEOUT_S = 5.0
_LARGE_BODY_BYTES = 512 * 1024  # above that aiohttp wants a stream, so as not to block the loop


class HttpCluster:
    """`HttpCluster(uds=path)` or `HttpCluster(base_url="http://host:port")`. `timeout_s` bounds everything but watches."""

    def __init__(
        self, *, uds: str | Path | None = None, base_url: str = "http://remuda", timeout_s: float = 30.0
    ) -> None:
        self._uds = None if uds is None else Path(uds)
        self._base = base_url.rstrip("/")
        self._timeout_s = timeout_s
        self._resources = ExitStack()
        self._session: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> HttpCluster:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        session, self._session = self._session, None
        if session is not None:
            await session.close()
        self._resources.close()

    def _open(self) -> aiohttp.ClientSession:
        if self._session is None:
            connector: aiohttp.BaseConnector
            if self._uds is None:
                connector = aiohttp.TCPConnector(limit=0)
            else:
                try:
                    path = self._resources.enter_context(reachable(self._uds))
                except OSError as error:
                    raise Unavailable(f"cannot reach the API at {self._uds}: {error.strerror}") from error
                connector = aiohttp.UnixConnector(path, limit=0)
            self._session = aiohttp.ClientSession(
                connector=connector,
                read_bufsize=_READ_BUFFER_BYTES,
                timeout=aiohttp.ClientTimeout(total=None, sock_connect=_CONNECT_TIMEOUT_S),
            )
        return self._session

    # Reading.

    async def get(self, kind: type[K], name: str, namespace: str = "") -> K:
        return decode(kind, await self._call("GET", object_path(kind.resource, namespace, name)))

    async def list(
        self,
        kind: type[K],
        namespace: str = "",
        *,
        labels: Selector = EVERYTHING,
        fields: FieldSelector = NO_FIELDS,
    ) -> Listing[K]:
        body = await self._call("GET", path_of(kind.resource, namespace), query=_query(labels, fields))
        found: ListBody[K] = decode(ListBody[kind], body)  # type: ignore[valid-type]
        return Listing(found.items, found.metadata.resource_version)

    async def watch(
        self,
        kind: type[K],
        since: str,
        namespace: str = "",
        *,
        labels: Selector = EVERYTHING,
        fields: FieldSelector = NO_FIELDS,
    ) -> AsyncGenerator[WatchEvent[K], None]:
        query = {**_query(labels, fields), "watch": "1", "allowWatchBookmarks": "1", "resourceVersion": since}
        async with self._request("GET", path_of(kind.resource, namespace), query=query, is_watch=True) as response:
            async for line in response.content:
                yield _event(kind, line)

    # Writing.

    async def create(self, kind: type[K], body: K | JsonObject) -> K:
        namespace, _ = _place(body)
        if kind.resource.namespaced and not namespace:
            raise BadRequest("an empty namespace may not be set during creation; set metadata.namespace")
        return decode(kind, await self._call("POST", path_of(kind.resource, namespace), encode(body)))

    async def replace(self, kind: type[K], body: K | JsonObject, *, subresource: str = "") -> K:
        path = object_path(kind.resource, *_place(body), subresource)
        return decode(kind, await self._call("PUT", path, encode(body)))

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
        if not isinstance(patch, dict):
            raise BadRequest("a merge patch must be an object")
        path = object_path(kind.resource, namespace, name, subresource)
        return decode(kind, await self._call("PATCH", path, encode(_guarded(patch, when)), type_=MERGE_PATCH))

    async def delete(
        self, kind: type[K], name: str, namespace: str = "", *, when: Preconditions = ANY, grace_s: int | None = None
    ) -> None:
        preconditions = None if when == ANY else DeletePreconditions(when.uid, when.resource_version)
        options = DeleteOptions("DeleteOptions", "v1", grace_s, preconditions)
        await self._call("DELETE", object_path(kind.resource, namespace, name), encode(options))

    async def bind(self, name: str, namespace: str, binding: Binding) -> None:
        body = encode(render_binding(name, namespace, binding))
        await self._call("POST", object_path(Pod.resource, namespace, name, "binding"), body)

    # Transport.

    async def _call(
        self,
        method: str,
        path: str,
        body: bytes | None = None,
        *,
        type_: str = JSON,
        query: dict[str, str] | None = None,
    ) -> bytes:
        async with self._request(method, path, body, type_=type_, query=query) as response:
            return await response.read()

    @asynccontextmanager
    async def _request(
        self,
        method: str,
        path: str,
        body: bytes | None = None,
        *,
        type_: str = JSON,
        query: dict[str, str] | None = None,
        is_watch: bool = False,
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        total = None if is_watch else self._timeout_s
        headers = {"Accept": JSON} if body is None else {"Accept": JSON, "Content-Type": type_}
        try:
            async with self._open().request(
                method,
                self._base + path,
                data=body if body is None or len(body) <= _LARGE_BODY_BYTES else io.BytesIO(body),
                params=query,
                headers=headers,
                timeout=aiohttp.ClientTimeout(total=total, sock_connect=_CONNECT_TIMEOUT_S),
            ) as response:
                if response.status >= 400:
                    raise _error(response.status, await response.read())
                yield response
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            where = self._uds or self._base
            raise Unavailable(f"cannot reach the API at {where}: {str(error) or type(error).__name__}") from error


def _query(labels: Selector, fields: FieldSelector) -> dict[str, str]:
    query = {"labelSelector": str(labels), "fieldSelector": str(fields)}
    return {name: value for name, value in query.items() if value}


def _place(body: KObject | JsonObject) -> tuple[str, str]:
    if isinstance(body, KObject):
        return body.namespace, body.name
    meta = body.get("metadata")
    if not isinstance(meta, dict):
        return "", ""
    return str(meta.get("namespace") or ""), str(meta.get("name") or "")


def _guarded(patch: JsonObject, when: Preconditions) -> JsonObject:
    """A merge patch states its preconditions in the metadata it patches."""
    guards = {"uid": when.uid, "resourceVersion": when.resource_version}
    asked = {name: value for name, value in guards.items() if value}
    return {**patch, "metadata": {**(patch.get("metadata") or {}), **asked}} if asked else patch


def _event(kind: type[K], line: bytes) -> WatchEvent[K]:
    event = decode(WatchLine, line)
    if event.type == "ERROR":
        raise from_status(decode(Status, bytes(event.object)))
    if event.type == "BOOKMARK":
        return WatchEvent("BOOKMARK", decode(Bookmark, bytes(event.object)).metadata.resource_version, None)
    obj = decode(kind, bytes(event.object))
    return WatchEvent(event.type, obj.metadata.resource_version, obj)


def _error(code: int, body: bytes) -> ApiError:
    try:
        return from_status(decode(Status, body))
    except msgspec.MsgspecError:
        return ApiError(f"the API answered {code}: {body[:200].decode(errors='replace')}", code=code)
