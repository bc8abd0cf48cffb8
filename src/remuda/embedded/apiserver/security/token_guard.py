"""In front of the app on TCP: without the token there is nothing to see but whether the server lives.

A request without credentials gets an answer from /healthz, /livez and /readyz; everything else, and every request with a
wrong token, is 401, before its body is read and without a hint of what exists.
"""

from __future__ import annotations

import hmac

from remuda.api.errors import ApiError
from remuda.embedded.apiserver.app import ApiServerApp, answer_error
from remuda.embedded.apiserver.health_answers import HEALTH_PATHS
from remuda.embedded.apiserver.wire.http_exchange import Receive, Scope, Send


class Unauthorized(ApiError):
    code, reason = 401, "Unauthorized"


class TokenGuard:
    def __init__(self, app: ApiServerApp, token: str) -> None:
        self._app = app
        self._token = token.encode()

    def close(self) -> None:
        self._app.close()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        given = [value for name, value in scope["headers"] if name == b"authorization"]
        if not given and scope["path"] in HEALTH_PATHS and scope["method"] in ("GET", "HEAD"):
            await self._app(scope, receive, send)
            return
        if len(given) != 1 or not self._is_right(given[0]):
            await answer_error(scope, receive, send, Unauthorized("Unauthorized"))
            return
        await self._app(scope, receive, send)

    def _is_right(self, header: bytes) -> bool:
        scheme, _, token = header.partition(b" ")
        return scheme.lower() == b"bearer" and hmac.compare_digest(token.strip(), self._token)
