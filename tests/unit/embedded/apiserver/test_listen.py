"""The listening socket: what accepted connections inherit from it, and whose address a request is said to come from."""

from __future__ import annotations

import asyncio
import socket

from remuda.embedded.apiserver.asgi_server import listen_asgi_tcp, serve_asgi_socket
from remuda.embedded.apiserver.wire.http_exchange import HttpRequest, Receive, Scope, Send


def test_accepted_connections_send_at_once_and_probe_dead_peers() -> None:
    """Without the first, a client that delays its acknowledgements waits 40 ms for every answer."""
    with listen_asgi_tcp("127.0.0.1", 0) as listening:
        listening.setblocking(True)
        with socket.create_connection(listening.getsockname()):
            accepted, _ = listening.accept()
            with accepted:
                assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
                assert accepted.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)


class AddressTeller:
    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = HttpRequest(scope, receive, send)
        await request.answer(request.client.encode())

    def close(self) -> None:
        pass


async def test_a_client_cannot_say_that_it_is_at_another_address() -> None:
    """Lanes and streams are shared out by address: with one for each request, somebody on this machine would have every turn."""
    ready = asyncio.Event()
    listening = listen_asgi_tcp("127.0.0.1", 0)
    serving = asyncio.create_task(serve_asgi_socket(AddressTeller(), listening, ready=ready))
    try:
        await ready.wait()
        reader, writer = await asyncio.open_connection(*listening.getsockname())
        writer.write(b"GET / HTTP/1.1\r\nhost: a\r\nx-forwarded-for: 10.1.2.3\r\nconnection: close\r\n\r\n")
        answer = await reader.read()
        writer.close()
        await writer.wait_closed()
    finally:
        serving.cancel()
        await asyncio.gather(serving, return_exceptions=True)
    assert answer.endswith(b"\r\n\r\n127.0.0.1")
