"""One watch over as many connections as it takes: every change after a version, in order, each told once.

A connection ends because the server's time is up (the usual case), because it broke, or with an ERROR event. Whenever the
cause may pass, the watch is taken up again after the last version told, at once if it had stood for a while, else after a
wait that grows. It is given up when the API stays away for longer than `reconnect_s`: silently, if the server had ended the
last connection in good order, else with the error. The first connection is not tried again: whoever asks has a plan for
that, and `Expired` (410) is for them, too.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from typing import TypeVar

import msgspec
import structlog

from remuda.api.codec import decode
from remuda.api.errors import ApiError, Expired, Status
from remuda.api.meta import KObject, ObjectMeta
from remuda.kube.client.http_errors import Undecodable, api_error_of_status
from remuda.kube.client.rest_paths import HttpStreamLines, Named, WatchLine
from remuda.kube.client.transport import Request, Transport
from remuda.kube.cluster import WatchEvent
from remuda.kube.runtime.backoff import Backoff

log = structlog.get_logger(__name__)

K = TypeVar("K", bound=KObject)

_STEADY_S = 5.0  # a connection that lasted this long was a good one
_AGAIN = Backoff(base_s=0.05, max_s=5.0)


async def follow_watch(
    transport: Transport,
    kind: type[K],
    path: str,
    query: dict[str, str],
    since: str,
    *,
    reconnect_s: float,
    there: list[K],
) -> AsyncGenerator[WatchEvent[K], None]:
    """`there`: told first, as ADDED, once the watch stands, and forgotten."""
    loop = asyncio.get_running_loop()
    good_at: float | None = None  # when it was last known to work; None: never yet
    parting: ApiError | None = None  # how the last good connection ended
    tries = 0
    while True:
        lasting_s = int(transport.options.watch_s * (1 + transport.jitter()))
        asked = {**query, "resourceVersion": since, "timeoutSeconds": str(lasting_s)}
        began, has_told, error = loop.time(), False, None
        try:
            async with transport.stream(Request(method="GET", path=path, query=asked), lasting_s) as chunks:
                lines, began = HttpStreamLines(), loop.time()
                good_at = began if good_at is None else good_at
                for obj in there:
                    yield WatchEvent("ADDED", obj.metadata.resource_version, obj)
                there.clear()
                async for chunk in chunks:
                    for line in lines.feed(chunk):
                        event = read_watch_event(kind, line)
                        since, has_told = event.resource_version, True
                        yield event
        except ApiError as caught:
            if good_at is None or not is_passing_http_error(caught):
                raise
            error = caught
        now = loop.time()
        if error is None or has_told or now - began >= _STEADY_S:
            good_at, parting = now, error
            tries = 0 if has_told or now - began >= _STEADY_S else tries
        elif now - good_at >= reconnect_s:
            if parting is None:
                return
            raise error
        tries += 1
        await transport.sleep(0 if tries == 1 else _AGAIN.delay(tries - 1, transport.jitter))


def is_passing_http_error(error: ApiError) -> bool:
    """The next try may end differently: nobody answered, too busy, or the server itself failed."""
    return error.code == 429 or error.code >= 500


def read_watch_event(kind: type[K], line: bytes) -> WatchEvent[K]:
    """One line of the stream; an ERROR event is raised as what it stands for."""
    try:
        event = decode(WatchLine, line)
        body = bytes(event.object)
        if event.type == "ERROR":
            raise api_error_of_status(decode(Status, body))
        if event.type == "BOOKMARK":
            return WatchEvent("BOOKMARK", decode(Named, body).metadata.resource_version, None)
    except msgspec.MsgspecError as error:
        raise Undecodable(f"the watch of {kind.resource.plural} cannot be read: {error}") from None
    try:
        obj = read_rest_object(kind, body)
    except Undecodable as culprit:
        return _unreadable_watch_event(kind, event.type, body, culprit)
    return WatchEvent(event.type, obj.metadata.resource_version, obj)


def _unreadable_watch_event(kind: type[K], type_: str, body: bytes, culprit: Undecodable) -> WatchEvent[K]:
    """The watch goes on past an object that does not fit its kind: whoever follows keeps what could be read of it last. When
    it is deleted there is nothing to tell it by, so they have to list anew."""
    meta = read_rest_object_meta(body)
    if meta is None or not meta.resource_version:
        raise culprit
    log.error("api.unreadable", kind=kind.resource.kind, message=culprit.message)
    if type_ == "DELETED":
        raise Expired(f"{culprit.message}; it was deleted: list again")
    return WatchEvent("BOOKMARK", meta.resource_version, None)


def read_rest_object_meta(body: bytes) -> ObjectMeta | None:
    """Who an object is, when at least that can be read."""
    try:
        meta = decode(Named, body).metadata
    except msgspec.MsgspecError:
        return None
    return meta if meta.name else None


def read_rest_object(kind: type[K], body: bytes) -> K:
    try:
        return decode(kind, body)
    except msgspec.MsgspecError as error:
        raise _undecodable_object(kind, body, error) from None


def _undecodable_object(kind: type[KObject], body: bytes, error: Exception) -> Undecodable:
    meta = read_rest_object_meta(body)
    if meta is None:
        return Undecodable(f"a {kind.resource.kind} cannot be read: {error}")
    place = f"{meta.namespace}/{meta.name}" if meta.namespace else meta.name
    return Undecodable(f'the {kind.resource.kind} "{place}" cannot be read: {error}', fix="Correct or delete it.")
