"""Streams with a small read buffer carry whatever others carry."""

from __future__ import annotations

import asyncio
import ssl
import time
from pathlib import Path

from remuda.link.certificates import LinkCertificates
from remuda.link.stream_server import TLS_BUFFER, shrink_stream_tls_buffer
from tests.builders.waiting import PATIENCE_S


async def test_a_slim_stream_keeps_little_and_loses_nothing(tmp_path: Path) -> None:
    certificates = LinkCertificates(tmp_path)
    tls = certificates.prepare([], time.time())
    got: list[bytes] = []
    kept: list[int] = []
    done = asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        assert shrink_stream_tls_buffer(writer)
        got.append(await reader.read(-1))
        kept.append(len(writer.transport._ssl_protocol._ssl_buffer))  # type: ignore[attr-defined]
        writer.close()
        await writer.wait_closed()
        done.set()

    server = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=tls)
    trust = ssl.create_default_context(cafile=str(certificates.ca))
    port = server.sockets[0].getsockname()[1]
    message = bytes(range(256)) * 4096  # a megabyte
    async with asyncio.timeout(PATIENCE_S):
        _, writer = await asyncio.open_connection("127.0.0.1", port, ssl=trust, server_hostname="localhost")
        writer.write(message)
        await writer.drain()
        writer.close()
        await writer.wait_closed()
        await done.wait()
    server.close()
    await server.wait_closed()
    assert got == [message]
    assert kept == [TLS_BUFFER]


async def test_a_stream_without_tls_stays_as_it_is(tmp_path: Path) -> None:
    path = str(tmp_path / "s")
    ended = asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(-1)
        writer.close()
        await writer.wait_closed()
        ended.set()

    server = await asyncio.start_unix_server(serve, path)
    async with asyncio.timeout(PATIENCE_S):
        _, writer = await asyncio.open_unix_connection(path)
        assert not shrink_stream_tls_buffer(writer)
        writer.close()
        await writer.wait_closed()
        await ended.wait()
    server.close()
    await server.wait_closed()
