"""The listening socket: what accepted connections inherit from it."""

from __future__ import annotations

import socket

from remuda.embedded.apiserver.asgi_server import listen_tcp


def test_accepted_connections_send_at_once_and_probe_dead_peers() -> None:
    """Without the first, a client that delays its acknowledgements waits 40 ms for every answer."""
    with listen_tcp("127.0.0.1", 0) as listening:
        listening.setblocking(True)
        with socket.create_connection(listening.getsockname()):
            accepted, _ = listening.accept()
            with accepted:
                assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
                assert accepted.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
