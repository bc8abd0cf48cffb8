"""Serves an `App` on a unix socket, as a task inside a loop that belongs to somebody else: no signal handlers, no logging
set-up, and cancelling the task shuts down cleanly even while watches are open."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
from collections.abc import Generator
from pathlib import Path

import uvicorn

from remuda.api.errors import Refusal
from remuda.apiserver.app import App
from remuda.kube.rest import reachable

_BACKLOG = 512
_SHUTDOWN_S = 5  # for requests under way; watches end at once


class _Server(uvicorn.Server):
    """uvicorn without what belongs to a process of its own: signals, and a clock that ticks ten times a second."""

    def __init__(self, config: uvicorn.Config, ready: asyncio.Event) -> None:
        super().__init__(config)
        self._ready = ready
        self._stopped = asyncio.Event()

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self._ready.set()

    async def main_loop(self) -> None:
        await self._stopped.wait()

    def stop(self) -> None:
        self.should_exit = True
        self._stopped.set()


def listen(path: Path) -> socket.socket:
    """A listening socket only its owner can connect to. A stale file of a dead server is replaced, a live one refused."""
    with reachable(path) as short:
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


async def serve(app: App, uds_path: str | Path, *, ready: asyncio.Event | None = None) -> None:
    """Until cancelled. `ready` is set once requests are answered."""
    path = Path(uds_path)
    sock = listen(path)
    config = uvicorn.Config(
        app,
        lifespan="off",
        ws="none",
        http="httptools",
        log_config=None,
        access_log=False,
        server_header=False,
        date_header=False,  # kept current by the tick
        timeout_graceful_shutdown=_SHUTDOWN_S,
    )
    server = _Server(config, ready or asyncio.Event())
    task = asyncio.create_task(server.serve(sockets=[sock]), name="apiserver-http")
    try:
        await asyncio.shield(task)
    finally:
        app.close()
        server.stop()
        await asyncio.gather(task, return_exceptions=True)
        sock.close()
        with contextlib.suppress(OSError), reachable(path) as short:
            os.unlink(short)
