"""What a running cluster says of itself at /readyz, asked over the socket in its state directory."""

from __future__ import annotations

import http.client
import socket

from remuda.embedded.apiserver.health_answers import READY, storage_trouble_in_health_answer
from remuda.kube.client.rest_paths import rest_socket_path_within_limit
from remuda.runtime.state_dir import StateDir

_ANSWER_WITHIN_S = 10.0


def ask_readiness_for_storage_trouble(state: StateDir) -> str:
    """`Reason: sentence` while the cluster cannot write; "" when it can, or when nobody answers (others say so)."""
    try:
        with rest_socket_path_within_limit(state.socket) as path, socket.socket(socket.AF_UNIX) as sock:
            sock.settimeout(_ANSWER_WITHIN_S)
            sock.connect(path)
            sock.sendall(f"GET {READY} HTTP/1.1\r\nhost: remuda\r\nconnection: close\r\n\r\n".encode())
            response = http.client.HTTPResponse(sock)
            response.begin()
            return storage_trouble_in_health_answer(response.read(64 * 1024).decode(errors="replace"))
    except (OSError, http.client.HTTPException):
        return ""
