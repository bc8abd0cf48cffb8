"""Bare TLS connections, for what no client library would send: halves of requests, silence, and watches that nobody reads."""

from __future__ import annotations

import re
import socket
import ssl
from urllib.parse import urlsplit

from tests.builders.waiting import PATIENCE_S
from tests.conformance.servers import Server


def connect(server: Server, *, buffer: int = 0) -> ssl.SSLSocket:
    """`buffer`: bytes that the kernel takes in for us before the peer has to wait."""
    address = urlsplit(server.url)
    assert address.hostname is not None
    assert address.port is not None
    plain = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    if buffer:
        plain.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, buffer)
    plain.settimeout(PATIENCE_S)
    plain.connect((address.hostname, address.port))
    context = ssl.create_default_context(cafile=str(server.ca_file))
    return context.wrap_socket(plain, server_hostname=address.hostname)


def head(server: Server, method: str, path: str, *lines: str) -> bytes:
    given = (f"{method} {path} HTTP/1.1", "Host: it", f"Authorization: Bearer {server.token}", *lines)
    return "".join(f"{line}\r\n" for line in (*given, "")).encode()


def half_close(sock: ssl.SSLSocket) -> None:
    """Nothing more comes from us, but we still listen."""
    socket.socket.shutdown(sock, socket.SHUT_WR)


def outcome(sock: ssl.SSLSocket, within_s: float = PATIENCE_S) -> tuple[str, bytes]:
    """The code of the answer, or "closed", or "open" when there is neither in time; and all that came."""
    sock.settimeout(within_s)
    came = b""
    try:
        while not _is_whole(came) and (data := sock.recv(65536)):
            came += data
    except TimeoutError:
        return "open", came
    except OSError:
        pass  # reset: also an end
    return (came.split(b" ", 2)[1].decode() if came.startswith(b"HTTP/") else "closed"), came


def _is_whole(came: bytes) -> bool:
    """A head, and as much of a body as it announces."""
    before, end, after = came.partition(b"\r\n\r\n")
    length = re.search(rb"(?i)\r\ncontent-length: *(\d+)", before)
    return bool(end) and len(after) >= (int(length[1]) if length else 0)


def is_cut_off(sock: ssl.SSLSocket, within_s: float = PATIENCE_S) -> bool:
    """Reads whatever is there to the end."""
    sock.settimeout(within_s)
    try:
        while sock.recv(65536):
            pass
    except TimeoutError:
        return False
    except OSError:
        pass
    return True
