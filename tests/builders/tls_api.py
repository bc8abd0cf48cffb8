"""`TlsApi`: the API server on a TCP port of this machine, with TLS and a token, as whoever is not on the machine meets it."""

from __future__ import annotations

import asyncio
import itertools
import socket
import ssl
import time
from pathlib import Path
from typing import Any

from remuda.embedded.apiserver.app import ApiServerApp
from remuda.embedded.apiserver.asgi_server import listen_asgi_tcp, serve_asgi_socket
from remuda.embedded.apiserver.connections import ConnectionLimits
from remuda.embedded.apiserver.local_cluster import LocalCluster
from remuda.embedded.apiserver.security.token_guard import TokenGuard
from remuda.embedded.apiserver.store import MemoryJournal, ObjectStore
from remuda.link.certificates import LinkCertificates
from tests.builders.waiting import PATIENCE_S

TOKEN = "right"
HEAD = f"host: x\r\nauthorization: Bearer {TOKEN}\r\n"

Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class TlsApi:
    """`limits`: of connections; None = as `remuda up` has them. `sock`: to listen on, instead of one of its own."""

    def __init__(
        self, directory: Path, limits: ConnectionLimits | None = None, sock: socket.socket | None = None
    ) -> None:
        uids = itertools.count()
        self.local = LocalCluster(ObjectStore(MemoryJournal()), clock=lambda: 0.0, new_uid=lambda: f"u{next(uids)}")
        self.app = ApiServerApp(self.local)
        certificates = LinkCertificates(directory)
        self._tls = certificates.prepare([], time.time())
        self._trust = ssl.create_default_context(cafile=str(certificates.ca))
        self._limits = limits
        self._socket = sock or listen_asgi_tcp("127.0.0.1", 0)
        self.port = int(self._socket.getsockname()[1])

    async def start(self) -> None:
        ready = asyncio.Event()
        guarded = TokenGuard(self.app, TOKEN)
        served = serve_asgi_socket(guarded, self._socket, tls=self._tls, ready=ready, limits=self._limits)
        self._task = asyncio.create_task(served)
        await asyncio.wait_for(ready.wait(), PATIENCE_S)

    async def stop(self) -> None:
        self._task.cancel()
        await asyncio.wait([self._task], timeout=PATIENCE_S)

    async def connect(self, **options: Any) -> Streams:
        return await asyncio.open_connection("127.0.0.1", self.port, ssl=self._trust, **options)

    async def ask(self, text: str) -> bytes:
        """One request on a connection of its own; everything that is answered until the server closes it."""
        async with asyncio.timeout(PATIENCE_S):
            reader, writer = await self.connect()
            writer.write(text.encode())
            answer = await reader.read()
            writer.close()
            return answer

    async def get(self, path: str) -> bytes:
        return await self.ask(f"GET {path} HTTP/1.1\r\n{HEAD}connection: close\r\n\r\n")
