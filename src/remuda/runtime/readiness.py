"""What a running cluster says of itself at /readyz, asked over the socket in its state directory."""

from __future__ import annotations

import http.client
import socket

from remuda.embedded.apiserver.health_answers import READY, storage_trouble_told
from remuda.kube.client.rest_paths import reachable_http_socket_path
from remuda.runtime.state_dir import StateDir

_ANSWER_WITHIN_S = 10.0


def ask_storage_trouble(state: StateDir) -> str:
    """`Reason: sentence` while the cluster cannot write; "" when it can, or when nobody answers (others say so)."""
    try:
        with reachable_http_socket_path(state.socket) as path, socket.socket(socket.AF_UNIX) as sock:
            sock.settimeout(_ANSWER_WITHIN_S)
            sock.connect(path)
            sock.sendall(f"GET {READY} HTTP/1.1\r\nhost: remuda\r\nconnection: close\r\n\r\n".encode())
            response = http.client.HTTPResponse(sock)
            response.begin()
            return storage_trouble_told(response.read(64 * 1024).decode(errors="replace"))
    except (OSError, http.client.HTTPException):
        return ""
