"""`HttpCluster`: the `Cluster` port over HTTP, to the embedded server's unix socket or to any Kubernetes API.

It raises exactly what the in-process one does. A list is fetched in pages, each decoded straight from its bytes into the
projection, so that no more than one page is held besides the result; when the server forgets the list halfway (410), it is
begun anew. A watch outlives its connections: it goes on after the last version it told, and ends only with `Expired`
(history is gone), with an answer that will not change (404, 403, ...), or when the API stays away for longer than
`TransportOptions.reconnect_s`: then it raises `Unavailable`, or just ends if the server had closed it in good order.

Use it as an async context manager: it holds connections.
"""

from __future__ import annotations

import gc
import random
from collections.abc import AsyncGenerator
from contextlib import aclosing
from pathlib import Path
from types import TracebackType
from typing import Self, TypeVar

import msgspec
import structlog

from remuda.api.codec import decode, encode
from remuda.api.errors import ApiError, BadRequest, Conflict, Expired
from remuda.api.kubernetes.core_v1 import Binding, Pod
from remuda.api.meta import JsonObject, KObject
from remuda.api.selectors import EVERYTHING, FieldSelector, Selector
from remuda.kube.client.access import Access
from remuda.kube.client.http_errors import Replaced, Undecodable
from remuda.kube.client.rest_paths import (
    JSON,
    MERGE_PATCH,
    DeleteOptions,
    DeletePreconditions,
    ListBody,
    Untyped,
    render_rest_binding,
    render_rest_eviction,
    rest_object_path,
    rest_path,
)
from remuda.kube.client.transport import Request, Transport, TransportOptions
from remuda.kube.client.watch import follow_watch, read_rest_object, read_rest_object_meta
from remuda.kube.cluster import ANY, NO_FIELDS, Listing, Preconditions, WatchEvent
from remuda.kube.runtime.backoff import Jitter

K = TypeVar("K", bound=KObject)
Objects = list[K]  # `list` is a method in the class below
Names = list[tuple[str, str]]

log = structlog.get_logger(__name__)

_LIST_ATTEMPTS = 3  # history lasts minutes and a list seconds: losing it three times in a row is no accident
_RECONNECT_S = 30.0


class HttpCluster:
    """`HttpCluster(uds=path)`, `HttpCluster(access=load_kubeconfig())`, or `HttpCluster(base_url="http://host:port")`."""

    def __init__(
        self,
        *,
        uds: str | Path | None = None,
        base_url: str = "http://remuda",
        access: Access | None = None,
        options: TransportOptions = TransportOptions(),  # noqa: B008 - an immutable value
        jitter: Jitter = random.random,
    ) -> None:
        socket = None if uds is None else Path(uds)
        access = access or Access(server=base_url.rstrip("/"))
        self.transport = Transport(access, uds=socket, options=options, jitter=jitter)
        patient_s = _RECONNECT_S if socket is None else 0.0
        self._reconnect_s = patient_s if options.reconnect_s is None else options.reconnect_s

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        await self.transport.close()

    # Reading.

    async def get(self, kind: type[K], name: str, namespace: str = "") -> K:
        return read_rest_object(kind, await self._call("GET", rest_object_path(kind.resource, namespace, name)))

    async def list(
        self,
        kind: type[K],
        namespace: str = "",
        *,
        labels: Selector = EVERYTHING,
        fields: FieldSelector = NO_FIELDS,
    ) -> Listing[K]:
        for attempt in range(1, _LIST_ATTEMPTS + 1):
            found: Objects[K] = []
            version = ""
            try:
                async for page in self._bodies(kind, namespace, labels=labels, fields=fields):
                    found += page.items
                    version = page.metadata.resource_version
                return Listing(found, version)
            except Expired:
                if attempt == _LIST_ATTEMPTS:
                    raise
        raise AssertionError("unreachable")

    async def pages(
        self,
        kind: type[K],
        namespace: str = "",
        *,
        labels: Selector = EVERYTHING,
        fields: FieldSelector = NO_FIELDS,
    ) -> AsyncGenerator[Listing[K], None]:
        """One list, a page at a time; `Expired` when the server forgets it halfway. Who keeps a copy of a whole kind reads
        it like this: one object that somebody wrote past all checks must not cost everybody all the others."""
        unreadable: Names = []
        bodies = self._bodies(kind, namespace, labels=labels, fields=fields, unreadable=unreadable)
        async with aclosing(bodies):
            async for page in bodies:
                yield Listing(page.items, page.metadata.resource_version, tuple(unreadable))
                unreadable.clear()

    async def _bodies(
        self,
        kind: type[K],
        namespace: str,
        *,
        labels: Selector,
        fields: FieldSelector,
        unreadable: Names | None = None,
    ) -> AsyncGenerator[ListBody[K], None]:
        """`unreadable`: gets the names of objects that cannot be read; without it they raise."""
        query = {**_selector_query(labels, fields), "limit": str(self.transport.options.page_size)}
        while True:
            body = await self._call("GET", rest_path(kind.resource, namespace), query=query)
            page = read_list_page(kind, body, unreadable)
            yield page
            if not page.metadata.continue_:
                return
            query["continue"] = page.metadata.continue_

    async def watch(
        self,
        kind: type[K],
        since: str,
        namespace: str = "",
        *,
        labels: Selector = EVERYTHING,
        fields: FieldSelector = NO_FIELDS,
    ) -> AsyncGenerator[WatchEvent[K], None]:
        there: Objects[K] = []
        if since in ("", "0"):
            # Objects that were there before have versions in no order, so a watch that starts with them could not be taken
            # up again after a break. A list has one version.
            listing = await self.list(kind, namespace, labels=labels, fields=fields)
            there, since = listing.items, listing.resource_version
        elif not (since.isascii() and since.isdigit()):
            raise BadRequest(f"invalid resource version `{since}`: it must be one that a list or an object gave")
        query = {**_selector_query(labels, fields), "watch": "1", "allowWatchBookmarks": "1"}
        path = rest_path(kind.resource, namespace)
        events = follow_watch(self.transport, kind, path, query, since, reconnect_s=self._reconnect_s, there=there)
        async with aclosing(events):
            async for event in events:
                yield event

    # Writing.

    async def create(self, kind: type[K], body: K | JsonObject) -> K:
        namespace, _ = _rest_object_address(body)
        if kind.resource.namespaced and not namespace:
            raise BadRequest("an empty namespace may not be set during creation; set metadata.namespace")
        return read_rest_object(
            kind, await self._call("POST", rest_path(kind.resource, namespace), _body_with_type(kind, body))
        )

    async def replace(self, kind: type[K], body: K | JsonObject, *, subresource: str = "") -> K:
        path = rest_object_path(kind.resource, *_rest_object_address(body), subresource)
        return read_rest_object(kind, await self._call("PUT", path, _body_with_type(kind, body)))

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
        path = rest_object_path(kind.resource, namespace, name, subresource)
        try:
            answer = await self._call(
                "PATCH", path, encode(_http_patch_with_preconditions(patch, when)), type_=MERGE_PATCH
            )
        except Replaced as error:
            if when.uid:
                raise Conflict(f"{error.message}: the object was replaced meanwhile") from error
            raise
        return read_rest_object(kind, answer)

    async def delete(
        self, kind: type[K], name: str, namespace: str = "", *, when: Preconditions = ANY, grace_s: int | None = None
    ) -> None:
        preconditions = None if when == ANY else DeletePreconditions(when.uid, when.resource_version)
        options = DeleteOptions("DeleteOptions", "v1", grace_s, preconditions)
        await self._call("DELETE", rest_object_path(kind.resource, namespace, name), encode(options))

    async def bind(self, name: str, namespace: str, binding: Binding) -> None:
        body = encode(render_rest_binding(name, namespace, binding))
        await self._call("POST", rest_object_path(Pod.resource, namespace, name, "binding"), body)

    async def evict(self, name: str, namespace: str, *, when: Preconditions = ANY) -> None:
        preconditions = None if when == ANY else DeletePreconditions(when.uid, when.resource_version)
        body = encode(render_rest_eviction(name, namespace, DeleteOptions("", "", None, preconditions)))
        path = rest_object_path(Pod.resource, namespace, name, "eviction")
        # A budget says 429 for as long as it is used up: that is an answer, and whoever asked decides what to make of it.
        await self.transport.call(Request(method="POST", path=path, body=body, is_patient=False))

    async def _call(
        self,
        method: str,
        path: str,
        body: bytes | None = None,
        *,
        type_: str = JSON,
        query: dict[str, str] | None = None,
    ) -> bytes:
        return await self.transport.call(Request(method=method, path=path, query=query or {}, body=body, type=type_))


def read_list_page(kind: type[K], body: bytes, unreadable: Names | None = None) -> ListBody[K]:
    """All of a page's objects stay, so looking for garbage among them while they come is in vain. It would take longer than
    decoding them: 100,000 pods take 1.7 s of CPU like this and 4.4 s otherwise."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        page: ListBody[K] = decode(ListBody[kind], body)  # type: ignore[valid-type]
        return page
    except msgspec.MsgspecError as error:
        if unreadable is None:
            raise _undecodable_item_error(kind, body, error) from None
        return _readable_rest_of_page(kind, body, error, unreadable)
    finally:
        if was_enabled:
            gc.enable()


def _readable_rest_of_page(kind: type[K], body: bytes, error: Exception, unreadable: Names) -> ListBody[K]:
    """A page without the objects that cannot be read."""
    try:
        page = decode(Untyped, body)
    except msgspec.MsgspecError:
        raise _undecodable_item_error(kind, body, error) from None
    found: Objects[K] = []
    for item in page.items:
        try:
            found.append(read_rest_object(kind, bytes(item)))
        except Undecodable as culprit:
            meta = read_rest_object_meta(bytes(item))
            if meta is None:
                raise
            log.error("api.unreadable", kind=kind.resource.kind, message=culprit.message)
            unreadable.append((meta.namespace, meta.name))
    return ListBody(found, page.metadata)


def _undecodable_item_error(kind: type[KObject], body: bytes, error: Exception) -> ApiError:
    """The exception that names the object at fault."""
    try:
        for item in decode(Untyped, body).items:
            read_rest_object(kind, bytes(item))
    except Undecodable as found:
        return found
    except msgspec.MsgspecError:
        pass  # not even a list
    return Undecodable(f"the list of {kind.resource.plural} cannot be read: {error}")


def _selector_query(labels: Selector, fields: FieldSelector) -> dict[str, str]:
    query = {"labelSelector": str(labels), "fieldSelector": str(fields)}
    return {name: value for name, value in query.items() if value}


def _rest_object_address(body: KObject | JsonObject) -> tuple[str, str]:
    if isinstance(body, KObject):
        return body.namespace, body.name
    meta = body.get("metadata")
    if not isinstance(meta, dict):
        return "", ""
    return str(meta.get("namespace") or ""), str(meta.get("name") or "")


def _body_with_type(kind: type[KObject], body: KObject | JsonObject) -> bytes:
    """Servers read built-in kinds without a name from where they are sent; of a custom resource they want it in the body."""
    if isinstance(body, dict):
        body = {"apiVersion": kind.resource.api_version, "kind": kind.resource.kind, **body}
    return encode(body)


def _http_patch_with_preconditions(patch: JsonObject, when: Preconditions) -> JsonObject:
    """A merge patch states its preconditions in the metadata it patches."""
    guards = {"uid": when.uid, "resourceVersion": when.resource_version}
    asked = {name: value for name, value in guards.items() if value}
    return {**patch, "metadata": {**(patch.get("metadata") or {}), **asked}} if asked else patch
