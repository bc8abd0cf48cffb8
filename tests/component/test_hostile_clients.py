"""The server beside clients that open connections and watches without end."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import gc
import socket
import struct
import weakref
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, ClassVar

import pytest
import pytest_asyncio

from remuda.api.kubernetes.core_v1 import Pod
from remuda.embedded.apiserver import asgi_server, connection_gate
from remuda.embedded.apiserver.asgi_server import listen_asgi_tcp
from remuda.embedded.apiserver.connections import ConnectionLimits
from remuda.embedded.apiserver.lanes import LaneName
from remuda.embedded.apiserver.stream_seats import StreamSeats
from remuda.embedded.apiserver.wire import http_exchange
from tests.builders.tls_api import HEAD, TlsApi
from tests.builders.waiting import PATIENCE_S

LIMITS = ConnectionLimits(most=24, of_address=24, new=8, streams=12, of_tenant=6)


@pytest_asyncio.fixture
async def server(tmp_path: Path) -> AsyncIterator[TlsApi]:
    server = TlsApi(tmp_path, LIMITS)
    await server.start()
    yield server
    await server.stop()


class Bare:
    """Connections that say nothing."""

    def __init__(self, port: int) -> None:
        self._port = port
        self.sockets: list[socket.socket] = []

    async def open(self, count: int) -> None:
        loop = asyncio.get_running_loop()
        for _ in range(count):
            sock = socket.socket()
            sock.setblocking(False)
            self.sockets.append(sock)
            await asyncio.wait_for(loop.sock_connect(sock, ("127.0.0.1", self._port)), PATIENCE_S)

    def close(self) -> None:
        for sock in self.sockets:
            sock.close()


async def closed(sock: socket.socket) -> None:
    """Until the server has hung up on it."""
    with contextlib.suppress(ConnectionError):
        while await asyncio.wait_for(asyncio.get_running_loop().sock_recv(sock, 1000), PATIENCE_S):
            pass


async def test_bare_connections_do_not_keep_others_out(server: TlsApi) -> None:
    """More than there are places for, and none of them times out meanwhile. Somebody who speaks is answered."""
    bare = Bare(server.port)
    await bare.open(150)
    for _ in range(3):
        assert b" 200 OK" in await server.get("/api/v1/pods")
    await closed(bare.sockets[0])  # they give way, the oldest first
    bare.close()


async def test_a_handshake_that_does_not_come_is_given_up(server: TlsApi, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection_gate, "HANDSHAKE_WITHIN_S", 0.1)
    bare = Bare(server.port)
    await bare.open(1)
    await closed(bare.sockets[0])
    bare.close()


async def test_a_stranger_is_told_once_and_not_kept(server: TlsApi) -> None:
    reader, writer = await server.connect()
    writer.write(b"GET /api/v1/pods HTTP/1.1\r\nhost: x\r\n\r\n")
    assert b" 401 " in await asyncio.wait_for(reader.read(), PATIENCE_S)  # to its end: the server hangs up
    writer.close()


class NoDescriptors(socket.socket):
    """As if the process had used up its descriptors, `times` times."""

    times = 3

    def accept(self) -> Any:
        if self.times:
            self.times -= 1
            raise OSError(errno.EMFILE, "Too many open files")
        return super().accept()


async def test_running_out_of_descriptors_stops_nothing_for_long(tmp_path: Path) -> None:
    listening = NoDescriptors(fileno=listen_asgi_tcp("127.0.0.1", 0).detach())
    listening.setblocking(False)
    server = TlsApi(tmp_path, LIMITS, listening)
    await server.start()
    assert b" 200 OK" in await server.get("/api/v1/pods")
    assert listening.times == 0
    await server.stop()


async def test_watches_have_places_and_who_gets_none_is_told_when_to_come_back(server: TlsApi) -> None:
    server.app._watching._seats = seats = StreamSeats(64)
    tenant = seats._remote.of_tenant
    streams = []
    try:
        for number in range(tenant):
            streams.append(await server.connect())
            reader, writer = streams[number]
            writer.write(f"GET /api/v1/namespaces/team/pods?watch=1 HTTP/1.1\r\n{HEAD}\r\n".encode())
            assert b" 200 OK" in await asyncio.wait_for(reader.readline(), PATIENCE_S)
        answer = await server.get("/api/v1/namespaces/team/pods?watch=1")
        assert b" 429 " in answer.splitlines()[0]
        assert b"retry-after: 5" in answer.lower()
        assert b"TooManyRequests" in answer
        assert b"end some" in answer
        # Another tenant's watch, and everything that ends, are as before.
        assert b" 200 OK" in await server.get("/api/v1/namespaces/other/pods?watch=1&timeoutSeconds=0")
        assert b" 200 OK" in await server.get("/api/v1/namespaces/team/pods")
    finally:
        for _, writer in streams:
            writer.transport.abort()
    async with asyncio.timeout(PATIENCE_S):
        while seats._remote._sum:  # noqa: ASYNC110 - places come back when the server has seen the end of a stream
            await asyncio.sleep(0.01)
    assert b" 200 OK" in await server.get("/api/v1/namespaces/team/pods?watch=1&timeoutSeconds=0")


class Remembered(asgi_server._Protocol):
    """As the server makes them, and which of them are still there."""

    there: ClassVar[weakref.WeakSet[Remembered]]

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self.timeout_keep_alive = 10**6
        self.there.add(self)


@pytest.mark.parametrize("path", ["/api/v1/pods", "/api/v1/pods?watch=1"])
@pytest.mark.parametrize("is_rude", [True, False], ids=["reset", "closed"])
async def test_a_connection_that_ended_leaves_nothing_behind(
    server: TlsApi, monkeypatch: pytest.MonkeyPatch, path: str, is_rude: bool
) -> None:
    """Not even until the time of an idle connection is over, or the garbage collector comes: each would hold 256 KiB."""
    monkeypatch.setattr(Remembered, "there", weakref.WeakSet(), raising=False)
    monkeypatch.setattr(asgi_server, "_Protocol", Remembered)
    gc.disable()
    try:
        for _ in range(3):
            reader, writer = await server.connect()
            writer.write(f"GET {path} HTTP/1.1\r\n{HEAD}\r\n".encode())
            assert b" 200 OK" in await asyncio.wait_for(reader.readline(), PATIENCE_S)
            assert len(Remembered.there) == 1
            if is_rude:
                reset = struct.pack("ii", 1, 0)
                writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, reset)
            writer.transport.abort()
            async with asyncio.timeout(PATIENCE_S):
                while Remembered.there:  # noqa: ASYNC110 - the server has to see the end
                    await asyncio.sleep(0.01)
    finally:
        gc.enable()


POST = "POST /api/v1/namespaces/{}/configmaps?dryRun=All HTTP/1.1\r\n"


async def test_bodies_that_come_slowly_keep_no_seat_from_others(server: TlsApi) -> None:
    """More of them than there are seats, small and large."""
    streams = []
    for number in range(20):
        reader, writer = await server.connect()
        size = 100 if number % 2 else 200_000
        writer.write(f"{POST.format('team')}{HEAD}content-length: {size}\r\n\r\n".encode() + b" " * (size - 10))
        streams.append((reader, writer))
    lanes = server.app._lanes._lanes
    for lane in lanes.values():
        lane._free = min(lane._free, 2)
    assert b" 200 OK" in await server.get("/api/v1/namespaces/team/pods")
    for _, writer in streams:
        writer.transport.abort()


async def test_who_finds_no_place_in_line_is_told_to_come_back(server: TlsApi) -> None:
    lane = server.app._lanes._lanes[LaneName.TENANTS]
    lane._free, lane._of_tenant = 0, 0
    answer = await server.get("/api/v1/namespaces/team/pods")
    assert b" 429 " in answer.splitlines()[0]
    assert b"retry-after: 1" in answer.lower()
    # Leases and the question whether we live have lanes of their own.
    assert b" 200 OK" in await server.get("/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases")
    assert b" 200 OK" in await server.get("/healthz")


async def test_a_client_that_does_not_take_a_large_answer_holds_little_of_it(
    server: TlsApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The answer goes out in pieces; who takes none is cut off."""
    monkeypatch.setattr(http_exchange, "STALLED_AFTER_S", 0.2)
    for number in range(40):
        big = {"metadata": {"name": f"p{number}", "namespace": "x", "annotations": {"a": "y" * 500_000}}}
        await server.local.create(Pod, big)
    reader, writer = await server.connect(limit=1000)
    transport: Any = writer.transport
    writer.write(f"GET /api/v1/pods HTTP/1.1\r\n{HEAD}\r\n".encode())
    await asyncio.wait_for(reader.readline(), PATIENCE_S)
    transport.pause_reading()
    lanes = server.app._lanes
    async with asyncio.timeout(PATIENCE_S):
        while lanes.under_way:  # noqa: ASYNC110 - the server has no event to tell this by
            await asyncio.sleep(0.01)
    writer.transport.abort()
    assert len(await server.get("/api/v1/pods")) > 20_000_000  # who takes it gets all
