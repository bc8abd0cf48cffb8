"""Where the API of an embedded cluster is served: a unix socket for the CLI, and TLS on loopback for everyone with the token.

The kubeconfig is written last, when the server answers: whoever finds a fresh one can use it at once.
"""

from __future__ import annotations

import asyncio
import ipaddress

from remuda.api.errors import Refusal
from remuda.embedded.apiserver.app import ApiServerApp
from remuda.embedded.apiserver.asgi_server import listen_asgi_tcp, serve_asgi_socket, serve_asgi_unix
from remuda.embedded.apiserver.security.token_guard import TokenGuard
from remuda.embedded.apiserver.security.tokens import (
    apiserver_port_in_token_kubeconfig,
    load_security_token,
    write_token_kubeconfig,
)
from remuda.link.certificates import LinkCertificates
from remuda.runtime.state_dir import StateDir

LOOPBACK = "127.0.0.1"


class ApiEndpoint:
    """Takes the TCP port at once, so that a port in use is refused before anything has started."""

    def __init__(self, state: StateDir, port: int | None, bind: str, now: float) -> None:
        self._state = state
        address = _bind_address(bind)
        self._token = load_security_token(state.token)
        certificates = LinkCertificates(state.pki)
        self._tls = certificates.prepare([] if address.is_unspecified else [bind], now)
        self._ca = certificates.ca.read_bytes()
        wanted = apiserver_port_in_token_kubeconfig(state.kubeconfig) if port is None else port
        try:
            self._socket = listen_asgi_tcp(bind, wanted)
        except Refusal:
            if port is not None:
                raise
            self._socket = listen_asgi_tcp(bind, 0)
        host = LOOPBACK if address.is_unspecified else bind
        shown = f"[{host}]" if ":" in host else host
        self.url = f"https://{shown}:{self._socket.getsockname()[1]}"

    async def serve(self, app: ApiServerApp, ready: asyncio.Event) -> None:
        """Until cancelled. `ready` is set once both sockets answer and the kubeconfig is written."""
        on_unix, on_tcp = asyncio.Event(), asyncio.Event()
        async with asyncio.TaskGroup() as group:
            group.create_task(serve_asgi_unix(app, self._state.socket, ready=on_unix), name="api-unix")
            guarded = TokenGuard(app, self._token)
            group.create_task(serve_asgi_socket(guarded, self._socket, tls=self._tls, ready=on_tcp), name="api-tcp")
            await on_unix.wait()
            await on_tcp.wait()
            write_token_kubeconfig(self._state.kubeconfig, server=self.url, ca=self._ca, token=self._token)
            ready.set()


def _bind_address(bind: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address:
    try:
        return ipaddress.ip_address(bind)
    except ValueError:
        raise Refusal("InvalidAddress", f"--bind is `{bind}`.", "Give an IP address, such as 127.0.0.1.") from None
