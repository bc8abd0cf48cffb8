"""HTTP to one API: connections, credentials, patience. Knows requests and answers, nothing about objects.

Model: a request is one or more attempts. Before each, the rate limit is kept and the current credentials and TLS context are
fetched; after each, `request_pacing` decides whether there is another. A refused credential (401) is renewed and tried once more.
All errors leave as `ApiError`: `Unavailable` when nobody answers in time.

Bounds: `in_flight` calls at once (the rest queue here, where it costs nothing), `timeout_s` per attempt, a stream's buffer.
Watches do not count as calls: they last, and a queue of them would never move.
"""

from __future__ import annotations

import asyncio
import io
import random
import socket
import ssl
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import ExitStack, asynccontextmanager
from pathlib import Path
from typing import Any, TypeVar
from weakref import WeakSet

import aiohttp
import msgspec
import structlog

from remuda import __version__
from remuda.api.errors import ApiError, Refusal, Unavailable
from remuda.kube.client.access import Access
from remuda.kube.client.credentials import Credentials, Identity
from remuda.kube.client.http_errors import (
    Unauthorized,
    api_error_of_answer,
    api_warning_of_answer_header,
    retry_after_s,
)
from remuda.kube.client.request_pacing import (
    Patience,
    Rate,
    RequestFailure,
    RequestTokenBucket,
    http_request_retry_wait,
)
from remuda.kube.client.rest_paths import JSON, rest_socket_path_within_limit
from remuda.kube.client.tls import TlsContexts
from remuda.kube.runtime.backoff import Jitter

_CONNECT_TIMEOUT_S = 5.0
_BUFFER_BYTES = 256 * 1024  # of one response; the sender is held back beyond twice that
_LARGE_BODY_BYTES = 512 * 1024  # above that aiohttp wants a stream, so as not to block the loop
_LATE_S = 10.0  # a watch that its server should have ended this long ago is dead

# A peer that vanished without a word is noticed after about a minute, also by a watch that is waiting for nothing.
_KEEPALIVE = (("TCP_KEEPIDLE", 30), ("TCP_KEEPINTVL", 10), ("TCP_KEEPCNT", 3))
_IDLE_S = 60.0  # an unused connection is kept this long: a TLS handshake costs more than a socket
_NO_ANSWER = (aiohttp.ClientError, TimeoutError, OSError)

T = TypeVar("T")

log = structlog.get_logger(__name__)


class TransportOptions(msgspec.Struct, frozen=True, kw_only=True):
    """`rate`: None = as fast as the server lets us. `page_size`: objects a list asks for at once.

    `watch_s`: the server is asked to end a watch after one to two times this, so that watches spread over servers anew.
    `reconnect_s`: how long a broken watch tries to be taken up again; None = 30 s, but 0 on a unix socket, whose server is
    either there or not. `has_compression` costs both sides more than a fast network does; for slow ones.
    """

    timeout_s: float = 30.0
    in_flight: int = 64
    rate: Rate | None = None
    patience: Patience = Patience()
    page_size: int = 500
    watch_s: float = 300.0
    reconnect_s: float | None = None
    has_compression: bool = False


class Request(msgspec.Struct, frozen=True, kw_only=True):
    method: str
    path: str
    query: dict[str, str] = {}
    body: bytes | None = None
    type: str = JSON
    is_patient: bool = True  # False: a 429 is the answer, not a reason to wait


class _RememberingConnector(aiohttp.TCPConnector):
    """aiohttp forgets a connection once it has begun to close it; `made` does not."""

    def __init__(self, made: WeakSet[asyncio.Transport], **options: Any) -> None:
        super().__init__(**options)
        self._made = made

    async def connect(
        self, req: aiohttp.ClientRequest, traces: list[Any], timeout: aiohttp.ClientTimeout
    ) -> aiohttp.connector.Connection:
        connection = await super().connect(req, traces, timeout)
        if connection.transport is not None:
            self._made.add(connection.transport)
        return connection


class Transport:
    """To a unix socket (`uds`), or to what `access` describes. `jitter` draws from [0, 1); `clock`: unix seconds."""

    def __init__(
        self,
        access: Access,
        *,
        uds: Path | None = None,
        options: TransportOptions,
        jitter: Jitter = random.random,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.access = access
        self.options = options
        self.jitter = jitter
        self.sleep: Callable[[float], Awaitable[object]] = asyncio.sleep
        self.warn: Callable[[str], None] = lambda text: None  # told what the server warns of
        self._uds = uds
        self._credentials = Credentials(access, clock=clock)
        self._tls = TlsContexts(access.tls) if access.is_encrypted else None
        self._bucket = RequestTokenBucket(options.rate) if options.rate is not None else None
        self._slots = asyncio.Semaphore(options.in_flight)
        self._resources = ExitStack()
        self._session: aiohttp.ClientSession | None = None
        self._connections: WeakSet[asyncio.Transport] = WeakSet()

    @property
    def where(self) -> str:
        return str(self._uds or self.access.server)

    async def close(self) -> None:
        session, self._session = self._session, None
        if session is not None:
            await session.close()
            self._abort_connections()
            await asyncio.sleep(0)  # the turn of the loop in which their sockets are closed
        self._resources.close()

    async def call(self, request: Request) -> bytes:
        """The body of the answer."""
        timeout = aiohttp.ClientTimeout(total=self.options.timeout_s, sock_connect=_CONNECT_TIMEOUT_S)

        async def attempt(identity: Identity) -> bytes:
            async with self._slots:
                response = await self._send(request, identity, timeout)
                async with response:
                    return await response.read()

        return await self._persist(request, attempt)

    @asynccontextmanager
    async def stream(self, request: Request, lasting_s: float) -> AsyncIterator[AsyncIterator[bytes]]:
        """The body as it comes, for at most so long. The context is entered once the server has agreed."""
        timeout = aiohttp.ClientTimeout(total=lasting_s + _LATE_S, sock_connect=_CONNECT_TIMEOUT_S)

        async def attempt(identity: Identity) -> aiohttp.ClientResponse:
            async with asyncio.timeout(self.options.timeout_s):  # to agree; then it may last
                return await self._send(request, identity, timeout)

        response = await self._persist(request, attempt)
        try:
            _set_tcp_keep_alive(response)
            yield self._chunks(response)
        finally:
            # Not asking the other side for a farewell in TLS: it may be long gone, and nobody would wait for it.
            if response.connection is not None and response.connection.transport is not None:
                response.connection.transport.abort()
            response.close()

    async def _chunks(self, response: aiohttp.ClientResponse) -> AsyncIterator[bytes]:
        try:
            async for chunk in response.content.iter_any():
                yield chunk
        except _NO_ANSWER as error:
            raise self._unreachable(error) from error

    async def _persist(self, request: Request, attempt: Callable[[Identity], Awaitable[T]]) -> T:
        failures, has_renewed = 0, False
        while True:
            await self._turn()
            identity = await self._identity()
            try:
                return await attempt(identity)
            except _Refused as refused:
                if refused.code == 401 and not has_renewed and await self._has_other(identity):
                    has_renewed = True
                    continue
                failure, error = RequestFailure(refused.code, refused.asked_s), self._explained(refused)
            except aiohttp.ClientConnectorCertificateError as cause:
                raise self._untrusted(cause) from cause
            except TimeoutError as cause:  # it has had its time; another attempt would double what the caller waits
                raise self._unreachable(cause) from cause
            except _NO_ANSWER as cause:
                failure, error = RequestFailure(), self._unreachable(cause)
            if failure.code == 429 and not request.is_patient:
                raise error
            failures += 1
            is_repeatable = request.method == "GET" and self._uds is None
            wait_s = http_request_retry_wait(
                self.options.patience, failure, failures, is_read=is_repeatable, jitter=self.jitter
            )
            if wait_s is None:
                raise error
            log.debug("kube.again", method=request.method, path=request.path, code=failure.code, wait_s=wait_s)
            await self.sleep(wait_s)

    async def _turn(self) -> None:
        if self._bucket is None:
            return
        wait_s = self._bucket.reserve(asyncio.get_running_loop().time())
        if wait_s > 0:
            try:
                await self.sleep(wait_s)
            except asyncio.CancelledError:
                self._bucket.give_back()
                raise

    async def _identity(self) -> Identity:
        try:
            return await self._credentials.current()
        except Refusal as refusal:
            raise Unauthorized(refusal.message, reason=refusal.reason, fix=refusal.fix) from None

    async def _has_other(self, refused: Identity) -> bool:
        try:
            return await self._credentials.has_other(refused)
        except Refusal as refusal:
            raise Unauthorized(refusal.message, reason=refusal.reason, fix=refusal.fix) from None

    async def _send(
        self, request: Request, identity: Identity, timeout: aiohttp.ClientTimeout
    ) -> aiohttp.ClientResponse:
        """One attempt; the answer is a good one and not read yet."""
        body = request.body
        encoding = "gzip" if self.options.has_compression and self.access.can_compress else "identity"
        headers = [*identity.headers, ("Accept", JSON), ("Accept-Encoding", encoding)]
        if body is not None:
            headers.append(("Content-Type", request.type))
        response = await self._open().request(
            request.method,
            self.access.server + request.path,
            data=body if body is None or len(body) <= _LARGE_BODY_BYTES else io.BytesIO(body),
            params=request.query,
            headers=headers,
            timeout=timeout,
            ssl=self._context(identity),
            server_hostname=self.access.tls.server_name or None,
            allow_redirects=False,  # credentials are for this server alone
        )
        if response.status >= 300:
            async with response:
                asked_s = retry_after_s(response.status, response.headers)
                raise _Refused(response.status, await response.read(), asked_s)
        for header in response.headers.getall("Warning", ()):
            if text := api_warning_of_answer_header(header):
                self.warn(text)
        return response

    def _abort_connections(self) -> None:
        """Those of calls that were given up wait for the other side's farewell in TLS, and nobody would wait for it."""
        for connection in list(self._connections):
            connection.abort()
        self._connections.clear()

    def _open(self) -> aiohttp.ClientSession:
        if self._session is None:
            connector: aiohttp.BaseConnector
            if self._uds is None:
                connector = _RememberingConnector(self._connections, limit=0, keepalive_timeout=_IDLE_S)
            else:
                connector = aiohttp.UnixConnector(
                    self._resources.enter_context(rest_socket_path_within_limit(self._uds)), limit=0
                )
            self._session = aiohttp.ClientSession(
                connector=connector,
                read_bufsize=_BUFFER_BYTES,
                cookie_jar=aiohttp.DummyCookieJar(),
                headers={"User-Agent": f"remuda/{__version__}"},
            )
        return self._session

    def _context(self, identity: Identity) -> ssl.SSLContext | bool:
        if self._tls is None:
            return True  # plain HTTP: not looked at
        try:
            return self._tls.context(identity.cert, identity.key)
        except Refusal as refusal:
            raise Unauthorized(refusal.message, reason=refusal.reason, fix=refusal.fix) from None

    # Words.

    def _explained(self, refused: _Refused) -> ApiError:
        error = api_error_of_answer(refused.code, refused.body)
        if not isinstance(error, Unauthorized):
            return error
        who = f"the credentials of user `{self.access.user}`" if self.access.user else "a request without credentials"
        context = f" (context `{self.access.context}`)" if self.access.context else ""
        origin = f" in {self.access.origin}" if self.access.origin else ""
        return Unauthorized(
            f"the API at {self.where} does not accept {who}{context}: {error.message}",
            fix=f"Check the token or certificate{origin}: it is wrong or has expired.",
        )

    def _unreachable(self, error: BaseException) -> Unavailable:
        cause = getattr(error, "os_error", None) or error
        fix = "" if self._uds else "Check that the cluster runs, or choose another with --kubeconfig or --context."
        if isinstance(cause, ConnectionRefusedError) and not self._uds:
            return Unavailable(f"Nothing answers at {self.where} (connection refused).", fix=fix)
        text = str(cause)
        if isinstance(error, TimeoutError) and not text:
            text = f"no answer within {self.options.timeout_s:g} s"
        return Unavailable(f"cannot reach the API at {self.where}: {text or type(error).__name__}", fix=fix)

    def _untrusted(self, error: aiohttp.ClientConnectorCertificateError) -> Unavailable:
        return Unavailable(
            f"no trusted connection to the API at {self.where}: {error.certificate_error}",
            reason="CertificateNotTrusted",
            fix="certificate-authority must be the CA that signed the server's certificate, for the name in the URL.",
        )


class _Refused(Exception):
    def __init__(self, code: int, body: bytes, asked_s: float | None) -> None:
        super().__init__(code)
        self.code = code
        self.body = body
        self.asked_s = asked_s


def _set_tcp_keep_alive(response: aiohttp.ClientResponse) -> None:
    transport = response.connection.transport if response.connection is not None else None
    sock = transport.get_extra_info("socket") if transport is not None else None
    if sock is None or sock.family not in (socket.AF_INET, socket.AF_INET6):
        return
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in _KEEPALIVE:
        if hasattr(socket, name):  # not every system has them
            sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
