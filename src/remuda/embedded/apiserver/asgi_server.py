"""Serves an app on a socket, as a task inside a loop that belongs to somebody else: no signal handlers, no logging set-up, and
cancelling the task shuts down cleanly even while watches are open.

Clients are not trusted to behave: connections have places that can run out (`connections`), one has to make its request within
`HEAD_WITHIN_S` and `MAX_HEAD_BYTES`, a peer that answers no probes or acknowledges nothing is cut off by the kernel, and idle
connections are closed.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import ssl
from collections.abc import Generator
from pathlib import Path
from typing import Any, Protocol

import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from remuda.api.errors import Refusal
from remuda.embedded.apiserver.connection_gate import ConnectionGate
from remuda.embedded.apiserver.connections import (
    Connection,
    ConnectionLimits,
    ConnectionTable,
    descriptor_limit,
    local_apiserver_connection_limits,
    remote_apiserver_connection_limits,
)
from remuda.embedded.apiserver.freed_memory import give_freed_blocks_back
from remuda.embedded.apiserver.wire.http_exchange import ABORT, FULL, Receive, Scope, Send
from remuda.kube.client.rest_paths import rest_socket_path_within_limit

_BACKLOG = 512
_SHUTDOWN_S = 5  # for requests under way; watches end at once
_IDLE_S = 90  # between two requests of one connection
HEAD_WITHIN_S = 10.0
MAX_HEAD_BYTES = 64 * 1024
_DEAD_AFTER_MS = 30_000


class Closable(Protocol):
    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None: ...

    def close(self) -> None: ...


class _Protocol(HttpToolsProtocol):
    """uvicorn's, with limits on the head of a request: it has none of its own."""

    _head_bytes = 0
    _timer: asyncio.TimerHandle | None = None
    connection: Connection

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self._expect()

    def connection_lost(self, exc: Exception | None) -> None:
        """Nothing of it may stay behind: with TLS it holds 256 KiB to read into. uvicorn lets go of the timer only when the
        client said goodbye, and the scope of the last request leads back here: garbage that is found much later."""
        self._relax()
        self.connection.leave()
        super().connection_lost(exc)
        self._unset_keepalive_if_required()
        gone: Any = None  # whatever their types say; a request under way has its own
        self.scope = self.cycle = gone

    def data_received(self, data: bytes) -> None:
        cycle: Any = self.cycle  # None before the first request, whatever its type says
        if self._timer is None and cycle is not None and cycle.response_complete:
            self._expect()  # the next request of a kept connection begins
        if self._timer is not None:
            self._head_bytes += len(data)
            if self._head_bytes > MAX_HEAD_BYTES and not self._is_head_done(data):
                self.transport.write(b"HTTP/1.1 431 Request Header Fields Too Large\r\nconnection: close\r\n\r\n")
                self.transport.close()
                return
        super().data_received(data)

    def on_message_begin(self) -> None:
        super().on_message_begin()
        extra: Any = self.scope
        extra[ABORT] = self.transport.abort
        extra[FULL] = self._is_full

    def on_headers_complete(self) -> None:
        self._relax()
        self.connection.is_busy()
        super().on_headers_complete()

    def on_response_complete(self) -> None:
        self.connection.is_idle()
        super().on_response_complete()

    def _is_full(self) -> bool:
        return self.flow.write_paused

    def _is_head_done(self, data: bytes) -> bool:
        """A large body may come in one piece with a small head."""
        head, found, _ = data.partition(b"\r\n\r\n")
        return bool(found) and self._head_bytes - len(data) + len(head) <= MAX_HEAD_BYTES

    def _expect(self) -> None:
        self._head_bytes = 0
        self._timer = asyncio.get_running_loop().call_later(HEAD_WITHIN_S, self._give_up)

    def _relax(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _give_up(self) -> None:
        self._timer = None
        if not self.transport.is_closing():
            self.transport.abort()


class _ApiServer(uvicorn.Server):
    """uvicorn without what belongs to a process of its own: signals, and a clock that ticks ten times a second."""

    def __init__(self, config: uvicorn.Config, limits: ConnectionLimits, ready: asyncio.Event) -> None:
        super().__init__(config)
        self._limits = limits
        self._ready = ready
        self._stopped = asyncio.Event()

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup([])
        gates: list[Any] = [
            ConnectionGate(sock, ConnectionTable(self._limits), self._protocol, self.config.ssl)
            for sock in sockets or ()
        ]
        self.servers = gates
        self._ready.set()

    def _protocol(self, connection: Connection) -> _Protocol:
        protocol = _Protocol(self.config, self.server_state, self.lifespan.state)
        protocol.connection = connection
        return protocol

    async def main_loop(self) -> None:
        await self._stopped.wait()

    def stop(self) -> None:
        self.should_exit = True
        self._stopped.set()


def listen_asgi_unix(path: Path) -> socket.socket:
    """A listening socket only its owner can connect to. A stale file of a dead server is replaced, a live one refused."""
    with rest_socket_path_within_limit(path) as short:
        if os.path.lexists(short):
            with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
                if probe.connect_ex(short) == 0:
                    raise Refusal(
                        "SocketInUse",
                        f"a server listens at {path} already.",
                        "Stop it (remuda down) or use another state directory.",
                    )
            os.unlink(short)
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            sock.bind(short)
            os.chmod(short, 0o600)  # before listen: until then nobody can connect
            sock.listen(_BACKLOG)
            sock.setblocking(False)
        except BaseException:
            sock.close()
            raise
    return sock


def listen_asgi_tcp(host: str, port: int) -> socket.socket:
    """`port` 0: any free one. Accepted connections inherit the options: no delay, and the probes that find dead peers."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    sock = socket.socket(family, socket.SOCK_STREAM)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        # asyncio does this itself only for sockets that name their protocol. Without it an answer of two writes waits for
        # the client's delayed acknowledgement: 40 ms for every request.
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for name, value in (("TCP_KEEPIDLE", 15), ("TCP_KEEPINTVL", 5), ("TCP_KEEPCNT", 3)):
            if hasattr(socket, name):
                sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
        if hasattr(socket, "TCP_USER_TIMEOUT"):  # also ends a peer that is there but never reads
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, _DEAD_AFTER_MS)
        sock.bind((host, port))
        sock.listen(_BACKLOG)
        sock.setblocking(False)
    except OSError as error:
        sock.close()
        raise Refusal(
            "AddressNotUsable",
            f"the API cannot listen at {host} port {port}: {error.strerror}.",
            "Give another port with --port (0 = any free one) or another address with --bind.",
        ) from None
    return sock


async def serve_asgi_unix(app: Closable, uds_path: str | Path, *, ready: asyncio.Event | None = None) -> None:
    """On a unix socket, until cancelled. `ready` is set once requests are answered."""
    path = Path(uds_path)
    sock = listen_asgi_unix(path)
    try:
        await serve_asgi_socket(app, sock, ready=ready)
    finally:
        with contextlib.suppress(OSError), rest_socket_path_within_limit(path) as short:
            os.unlink(short)


async def serve_asgi_socket(
    app: Closable,
    sock: socket.socket,
    *,
    tls: ssl.SSLContext | None = None,
    ready: asyncio.Event | None = None,
    limits: ConnectionLimits | None = None,
) -> None:
    """On a listening socket, which is closed at the end; with `tls` nobody gets further without it."""
    if limits is None:
        limits = (
            local_apiserver_connection_limits if sock.family == socket.AF_UNIX else remote_apiserver_connection_limits
        )(descriptor_limit())
    give_freed_blocks_back()
    config = uvicorn.Config(
        app,
        lifespan="off",
        ws="none",
        proxy_headers=False,  # nothing stands before us that could know better than the socket who calls
        http=_Protocol,
        log_config=None,
        access_log=False,
        server_header=False,
        date_header=False,  # kept current by the tick
        timeout_keep_alive=_IDLE_S,
        timeout_graceful_shutdown=_SHUTDOWN_S,
    )
    config.load()
    config.ssl = tls
    server = _ApiServer(config, limits, ready or asyncio.Event())
    task = asyncio.create_task(server.serve(sockets=[sock]), name="apiserver-http")
    try:
        await asyncio.shield(task)
    finally:
        app.close()
        server.stop()
        await asyncio.gather(task, return_exceptions=True)
        sock.close()
