"""One HTTP request as an ASGI server hands it over: its parts, its body within bounds, its answers."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, MutableMapping, Sequence
from typing import Any
from urllib.parse import parse_qsl

from remuda.api.errors import ApiError, BadRequest
from remuda.embedded.apiserver.lanes import RequestSeat

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]

ABORT = "remuda.abort"  # in the scope: how to drop the connection
FULL = "remuda.full"  # in the scope: whether the client has yet to take what was sent, so that sending more has to wait
MAX_BODY_BYTES = 3 * 1024 * 1024  # kube-apiserver's limit
MAX_QUERY_FIELDS = 100
BODY_WITHIN_S = 30.0
LARGE_BYTES = 64 * 1024  # from here on a request is large: few of them are worked on at a time
PIECE_BYTES = 256 * 1024  # of one write: what a client does not take stays out of the buffers of its connection
STALLED_AFTER_S = 30.0  # a client that takes nothing for so long is cut off


class RequestTooLarge(ApiError):
    code, reason = 413, "RequestEntityTooLarge"


class RequestTooSlow(ApiError):
    code, reason = 408, "Timeout"


class HttpRequest:
    __slots__ = (
        "_body",
        "_receive",
        "abort",
        "client",
        "headers",
        "is_full",
        "method",
        "path",
        "query",
        "seat",
        "send",
        "warnings",
    )

    def __init__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.method: str = scope["method"]
        self.path: str = scope["path"]
        given_client = scope.get("client")
        self.client: str = given_client[0] if given_client else ""  # its address; of a unix socket none
        try:
            given = scope.get("query_string", b"").decode("latin-1")
            self.query = dict(parse_qsl(given, keep_blank_values=True, max_num_fields=MAX_QUERY_FIELDS))
        except ValueError as error:
            raise BadRequest(f"the query cannot be read: {error}") from None
        self.headers: dict[str, str] = {
            name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]
        }
        self.warnings: Sequence[str] = ()
        self.seat: RequestSeat | None = None  # in a lane of the server
        self._body: bytes | None = None
        self._receive = receive
        self.send = send
        self.abort: Callable[[], None] = scope.get(ABORT, lambda: None)  # drops the connection and what is unsent
        self.is_full: Callable[[], bool] = scope.get(FULL, lambda: True)

    @property
    def content_type(self) -> str:
        return self.headers.get("content-type", "")

    @property
    def accept(self) -> str:
        return self.headers.get("accept", "")

    async def body(self) -> bytes:
        if self._body is None:
            try:
                async with asyncio.timeout(BODY_WITHIN_S):
                    self._body = await self._read_body()
            except TimeoutError:
                raise RequestTooSlow(f"the body was not complete after {BODY_WITHIN_S:g} seconds") from None
        return self._body

    async def _read_body(self) -> bytes:
        parts: list[bytes] = []
        size = 0
        while True:
            message = await self._receive()
            if message["type"] == "http.disconnect":
                raise BadRequest("the client disconnected before its request was complete")
            part = message.get("body", b"")
            parts.append(part)
            if size <= LARGE_BYTES < size + len(part) and self.seat is not None:
                await self.seat.take_memory()  # until there is some the rest is not read, and the client has to wait
            size += len(part)
            if size > MAX_BODY_BYTES:
                raise RequestTooLarge(f"the body is larger than {MAX_BODY_BYTES} bytes")
            if not message.get("more_body", False):
                return b"".join(parts)

    async def become_large(self) -> None:
        """Wait for a seat among the large requests; raises TooManyRequests."""
        if self.seat is not None:
            await self.seat.become_large()

    @property
    def is_large(self) -> bool:
        return self.seat is not None and self.seat.is_large

    def becomes_stream(self) -> None:
        """The answer has begun and will not end soon: it holds no seat."""
        if self.seat is not None:
            self.seat.leave()

    async def gone(self) -> None:
        """Returns when the client has hung up."""
        while (await self._receive())["type"] != "http.disconnect":
            pass

    async def answer(self, body: bytes, code: int = 200, *, media: str = "application/json", retry_s: int = 0) -> None:
        headers = [(b"content-type", media.encode()), (b"content-length", b"%d" % len(body))]
        headers += [(b"warning", b'299 - "%b"' % _quote_header(text)) for text in self.warnings]
        if code in (RequestTooLarge.code, RequestTooSlow.code, 401):
            # The rest of the body is not waited for, and a stranger is not kept.
            headers.append((b"connection", b"close"))
        if retry_s:
            headers.append((b"retry-after", b"%d" % retry_s))
        await self.send({"type": "http.response.start", "status": code, "headers": headers})
        if len(body) <= PIECE_BYTES:
            await self.send({"type": "http.response.body", "body": body})
            return
        try:
            for at in range(0, len(body), PIECE_BYTES):
                async with asyncio.timeout(STALLED_AFTER_S):
                    piece = {"body": body[at : at + PIECE_BYTES], "more_body": at + PIECE_BYTES < len(body)}
                    await self.send({"type": "http.response.body", **piece})
        except TimeoutError:
            self.abort()


def _quote_header(text: str) -> bytes:
    """The text inside a quoted header: no control characters, quotes and backslashes escaped."""
    clean = "".join(c if c.isprintable() else " " for c in text)
    return clean.replace("\\", "\\\\").replace('"', '\\"').encode("ascii", "replace")
