"""An HTTP(S) server on loopback whose every answer a test writes itself, and that remembers what it was asked."""

from __future__ import annotations

import asyncio
import json
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any
from urllib.parse import parse_qsl, urlsplit

from tests.builders.certificates import Pair


@dataclass(frozen=True)
class Asked:
    method: str
    path: str
    query: dict[str, str]
    headers: dict[str, str]
    body: bytes
    client: str = ""  # the name in the client's certificate

    @property
    def token(self) -> str:
        return self.headers.get("authorization", "").removeprefix("Bearer ")


@dataclass
class Reply:
    """`stream`: chunks instead of a body. `is_cut`: hang up in the middle instead of ending in good order."""

    code: int = 200
    body: Any = b"{}"
    headers: dict[str, str] = field(default_factory=dict)
    stream: AsyncIterator[bytes] | None = None
    is_cut: bool = False


Answering = Callable[[Asked], Awaitable[Reply]]


class HttpServer:
    """`answers` for each request in turn, the last one for all that follow; or one function for all."""

    def __init__(self, *answers: Reply | Answering, tls: ssl.SSLContext | None = None) -> None:
        self._answers = list(answers)
        self._tls = tls
        self.asked: list[Asked] = []
        self.connections = 0
        self._open: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> HttpServer:
        self._server = await asyncio.start_server(self._connected, "127.0.0.1", 0, ssl=self._tls)
        self.port = int(self._server.sockets[0].getsockname()[1])
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.close()
        for task in self._open:
            task.cancel()
        await asyncio.gather(*self._open, return_exceptions=True)

    @property
    def url(self) -> str:
        return f"{'https' if self._tls else 'http'}://127.0.0.1:{self.port}"

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._open.add(task)
        self.connections += 1
        try:
            while await self._serve_one(reader, writer):
                pass
        except (asyncio.IncompleteReadError, ConnectionError, ssl.SSLError, asyncio.CancelledError):
            pass  # asyncio's streams complain about a handler that ends as cancelled
        finally:
            self._open.discard(task)
            writer.close()

    async def _serve_one(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
        method, target, _ = head[0].split(" ", 2)
        headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in head[1:]) if name}
        body = b""
        if headers.get("transfer-encoding") == "chunked":
            while size := int(await reader.readuntil(b"\r\n"), 16):
                body += (await reader.readexactly(size + 2))[:-2]
            await reader.readuntil(b"\r\n")
        else:
            body = await reader.readexactly(int(headers.get("content-length", "0")))
        url = urlsplit(target)
        asked = Asked(method, url.path, dict(parse_qsl(url.query)), headers, body, _client_name(writer))
        self.asked.append(asked)
        answer = self._answers.pop(0) if len(self._answers) > 1 else self._answers[0]
        reply = answer if isinstance(answer, Reply) else await answer(asked)
        return await self._send(writer, reply)

    async def _send(self, writer: asyncio.StreamWriter, reply: Reply) -> bool:
        body = reply.body if isinstance(reply.body, bytes) else json.dumps(reply.body).encode()
        headers = {"Content-Type": "application/json", **reply.headers}
        if reply.stream is not None:
            headers["Transfer-Encoding"] = "chunked"
        else:
            headers["Content-Length"] = str(len(body))
        lines = [f"HTTP/1.1 {reply.code} X", *(f"{name}: {value}" for name, value in headers.items()), "", ""]
        writer.write("\r\n".join(lines).encode())
        if reply.stream is None:
            writer.write(body[: len(body) // 2] if reply.is_cut else body)
        else:
            async for chunk in reply.stream:
                writer.write(b"%x\r\n%b\r\n" % (len(chunk), chunk))
                await writer.drain()
            if not reply.is_cut:
                writer.write(b"0\r\n\r\n")
        await writer.drain()
        if reply.is_cut:
            writer.close()
        return not reply.is_cut


def server_context(pair: Pair, directory: Path, *, client_ca: bytes = b"") -> ssl.SSLContext:
    """TLS for a server; with `client_ca` it asks for a certificate and accepts clients without one."""
    (directory / "server.pem").write_bytes(pair.cert + pair.key)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(directory / "server.pem")
    if client_ca:
        context.load_verify_locations(cadata=client_ca.decode())
        context.verify_mode = ssl.CERT_OPTIONAL
    return context


def _client_name(writer: asyncio.StreamWriter) -> str:
    found = writer.get_extra_info("peercert") or {}
    return next((value for part in found.get("subject", ()) for key, value in part if key == "commonName"), "")


def a_status(code: int, reason: str = "", message: str = "no", **more: Any) -> dict[str, Any]:
    body = {"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": code, "message": message}
    return {**body, **({"reason": reason} if reason else {}), **more}
