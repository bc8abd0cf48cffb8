"""The server on TCP: TLS, token, and clients that do not behave."""

from __future__ import annotations

import asyncio
import json
import ssl
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from remuda.api.errors import Refusal
from remuda.api.kubernetes.core_v1 import Pod
from remuda.embedded.apiserver import asgi_server, watch_streams
from remuda.embedded.apiserver.asgi_server import listen_asgi_tcp
from tests.builders.tls_api import HEAD, TlsApi
from tests.builders.waiting import PATIENCE_S


@pytest_asyncio.fixture
async def server(tmp_path: Path) -> AsyncIterator[TlsApi]:
    server = TlsApi(tmp_path)
    await server.start()
    yield server
    await server.stop()


async def test_with_tls_and_token_it_is_the_same_server(server: TlsApi) -> None:
    answer = await server.get("/api/v1/pods")
    head, _, body = answer.partition(b"\r\n\r\n")
    assert b"200 OK" in head
    assert json.loads(body)["kind"] == "PodList"
    answer = await server.ask("GET /api/v1/pods HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n")
    assert b" 401 " in answer


async def test_without_tls_there_is_no_answer(server: TlsApi) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    writer.write(f"GET /healthz HTTP/1.1\r\n{HEAD}\r\n".encode())
    assert b"200" not in await asyncio.wait_for(reader.read(), PATIENCE_S)
    writer.close()


async def test_a_stranger_is_refused_before_the_body_is_read(server: TlsApi) -> None:
    """A body of any length is announced and never sent; the answer comes all the same."""
    reader, writer = await server.connect()
    writer.write(b"POST /api/v1/namespaces/x/pods HTTP/1.1\r\nhost: x\r\ncontent-length: 999999999\r\n\r\n")
    assert b" 401 " in await asyncio.wait_for(reader.readline(), PATIENCE_S)
    writer.close()


@pytest.mark.parametrize("sent", [b"", b"GET /healthz HTTP/1.1\r\nhost: x\r\nslow: "])
async def test_a_head_that_never_ends_is_given_up(server: TlsApi, monkeypatch: pytest.MonkeyPatch, sent: bytes) -> None:
    monkeypatch.setattr(asgi_server, "HEAD_WITHIN_S", 0.1)
    reader, writer = await server.connect()
    writer.write(sent)
    with pytest.raises((ConnectionError, asyncio.IncompleteReadError, ssl.SSLError)):
        await asyncio.wait_for(reader.readexactly(1), PATIENCE_S)
    writer.close()


async def test_a_head_that_is_too_large_is_refused(server: TlsApi) -> None:
    reader, writer = await server.connect()
    writer.write(b"GET /healthz HTTP/1.1\r\nhost: x\r\n")
    try:
        for number in range(400):
            writer.write(b"x-%d: " % number + b"y" * 1000 + b"\r\n")
            await writer.drain()
        answer = await asyncio.wait_for(reader.read(), PATIENCE_S)
    except ConnectionError:
        answer = b""  # the refusal may be lost when we go on writing into a closed connection
    assert b" 200 " not in answer
    writer.close()
    assert b" 200 " in await server.ask(f"GET /healthz HTTP/1.1\r\n{HEAD}connection: close\r\n\r\n")


async def test_a_body_larger_than_allowed_is_refused(server: TlsApi) -> None:
    size = 3 * 1024 * 1024 + 1
    reader, writer = await server.connect()
    head = f"POST /api/v1/namespaces/x/configmaps HTTP/1.1\r\n{HEAD}content-length: {size}\r\nconnection: close\r\n\r\n"
    writer.write(head.encode() + b" " * size)
    assert b" 413 " in await asyncio.wait_for(reader.readline(), PATIENCE_S)
    writer.close()


async def test_a_watcher_that_does_not_read_is_cut_off(server: TlsApi, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watch_streams, "STALLED_AFTER_S", 0.2)
    reader, writer = await server.connect()
    writer.write(f"GET /api/v1/pods?watch=1 HTTP/1.1\r\n{HEAD}\r\n".encode())
    await asyncio.wait_for(reader.readline(), PATIENCE_S)
    waiting = server.local.store._collection(Pod.resource.prefix)._waiting
    async with asyncio.timeout(PATIENCE_S):
        while not waiting:  # noqa: ASYNC110 - the server has no event to tell this by
            await asyncio.sleep(0)
        # More than all the buffers between the two hold, while nobody reads. The watcher leaves the waiting room at once,
        # and must not come back to it.
        transport: Any = writer.transport
        transport.pause_reading()
        for number in range(40):
            big = {"metadata": {"name": f"p{number}", "namespace": "x", "annotations": {"a": "y" * 500_000}}}
            await server.local.create(Pod, big)
            await asyncio.sleep(0)
        while any("_pump" in repr(task.get_coro()) for task in asyncio.all_tasks()):  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    writer.close()


async def test_a_port_in_use_is_refused(server: TlsApi) -> None:
    with pytest.raises(Refusal) as caught:
        listen_asgi_tcp("127.0.0.1", server.port)
    assert caught.value.reason == "AddressNotUsable"
