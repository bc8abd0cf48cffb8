"""Accepts connections on a listening socket, within the bounds of a `ConnectionTable`.

asyncio's own server takes whatever comes, gives a handshake a minute, and when the descriptors are used up sleeps for a second
at a time, during which nobody gets in. Here a connection has a place before it has anything else, a handshake has
`HANDSHAKE_WITHIN_S`, strangers cost at most `HANDSHAKES_PER_S`, and running out of descriptors closes whoever is silent.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import socket
import ssl
from collections.abc import Callable

import structlog

from remuda.embedded.apiserver.connections import Connection, ConnectionTable

HANDSHAKE_WITHIN_S = 5.0
HANDSHAKES_PER_S = 200  # with TLS; each costs a millisecond or two
_AT_ONCE = 16  # connections taken in one turn of the event loop
_RETRY_S = 0.05
_NO_DESCRIPTORS = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)

log = structlog.get_logger(__name__)


class ConnectionGate:
    """`make` gives the protocol of a new connection. `close` and `wait_closed` are as those of asyncio's servers."""

    def __init__(
        self,
        sock: socket.socket,
        table: ConnectionTable,
        make: Callable[[Connection], asyncio.Protocol],
        tls: ssl.SSLContext | None,
    ) -> None:
        self._socket = sock
        self._table = table
        self._make = make
        self._tls = tls
        self._loop = asyncio.get_running_loop()
        self._tasks: set[asyncio.Task[None]] = set()
        self._later: asyncio.TimerHandle | None = None
        self._allowance = float(HANDSHAKES_PER_S)
        self._counted_at = self._loop.time()
        self._is_closed = False
        self._listen()

    def _listen(self) -> None:
        self._later = None
        if not self._is_closed:
            self._loop.add_reader(self._socket.fileno(), self._accept)

    def _rest(self, for_s: float) -> None:
        self._loop.remove_reader(self._socket.fileno())
        self._later = self._loop.call_later(for_s, self._listen)

    def _accept(self) -> None:
        for _ in range(_AT_ONCE):
            if self._tls is not None and not self._has_allowance():
                self._rest(1 / HANDSHAKES_PER_S)
                return
            try:
                sock, address = self._socket.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                if error.errno not in _NO_DESCRIPTORS:
                    raise
                has_room = self._table.make_room()
                log.warning("api.no_descriptors", connections=len(self._table), closed_one=has_room)
                self._rest(_RETRY_S)
                return
            self._allowance -= 1
            sock.setblocking(False)
            connection = self._table.admit(str(address[0]) if isinstance(address, tuple) else "")
            if connection is None:
                log.warning("api.connections_full", connections=len(self._table))
                sock.close()
                continue
            self._begin(sock, connection)

    def _begin(self, sock: socket.socket, connection: Connection) -> None:
        task = self._loop.create_task(self._shake_hands(sock, connection))

        def end() -> None:
            task.cancel()

        def ended(_: object) -> None:
            self._tasks.discard(task)
            if task.cancelled():  # before it had begun; else the socket is its transport's to close
                sock.close()
                connection.leave()

        connection.close = end
        self._tasks.add(task)
        task.add_done_callback(ended)

    def _has_allowance(self) -> bool:
        now = self._loop.time()
        self._allowance = min(HANDSHAKES_PER_S, self._allowance + (now - self._counted_at) * HANDSHAKES_PER_S)
        self._counted_at = now
        return self._allowance >= 1

    async def _shake_hands(self, sock: socket.socket, connection: Connection) -> None:
        protocol = self._make(connection)
        limit = HANDSHAKE_WITHIN_S if self._tls is not None else None
        try:
            transport, _ = await self._loop.connect_accepted_socket(
                lambda: protocol, sock, ssl=self._tls, ssl_handshake_timeout=limit, ssl_shutdown_timeout=limit
            )
        except (OSError, asyncio.CancelledError):  # a stranger, or told to make room
            connection.leave()
        else:
            connection.close = transport.abort

    def close(self) -> None:
        self._is_closed = True
        if self._later is not None:
            self._later.cancel()
        with contextlib.suppress(ValueError, OSError):
            self._loop.remove_reader(self._socket.fileno())
        for task in self._tasks:
            task.cancel()

    async def wait_closed(self) -> None:
        if self._tasks:
            await asyncio.wait(self._tasks)
