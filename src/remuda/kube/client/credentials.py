"""Who we are to the API, at this moment: headers and perhaps a certificate, renewed as their source demands.

Sources, the first that is configured counts: an exec plugin, a token file, a token, a name with a password. Tokens in files
are read again when the file changes; a plugin is run when there is no credential, when the one there is runs out, and when
the API has refused it. However many requests ask at once, a plugin runs once.

Secrets are never sent unencrypted: without TLS there are no credentials at all, as in kubectl.
"""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Callable

import msgspec

from remuda.api.errors import Refusal
from remuda.kube.client.access import Access
from remuda.kube.client.exec_credentials import Credential, Runner, obtain, run_plugin
from remuda.kube.client.reloaded_file import ReloadedFile


class Identity(msgspec.Struct, frozen=True):
    """What a request shows. `cert` and `key` are PEM from a plugin; empty = those of the configuration."""

    headers: tuple[tuple[str, str], ...] = ()
    cert: bytes = b""
    key: bytes = b""


NOBODY = Identity()
_PLUGIN_EVERY_S = 5.0  # what a plugin has just made and the API refuses will not be better the next moment


class Credentials:
    """`clock`: unix seconds, because plugins tell the time at which their credential runs out."""

    def __init__(self, access: Access, *, clock: Callable[[], float], run: Runner = run_plugin) -> None:
        self._access = access
        self._clock = clock
        self._run = run
        self._file = ReloadedFile(access.auth.token_file) if access.auth.token_file is not None else None
        self._credential: Credential | None = None
        self._asked_at = 0.0
        self._lock = asyncio.Lock()

    async def current(self) -> Identity:
        """Raises Refusal when there is no way to have one."""
        auth = self._access.auth
        if not self._access.is_encrypted:
            return NOBODY
        if auth.plugin is not None:
            credential = await self._from_plugin()
            return Identity(_bearer(credential.token) + auth.impersonate, credential.cert, credential.key)
        token = self._token()
        if not token and auth.username:
            secret = base64.b64encode(f"{auth.username}:{auth.password}".encode()).decode()
            return Identity((("Authorization", f"Basic {secret}"), *auth.impersonate))
        return Identity(_bearer(token) + auth.impersonate)

    async def has_other(self, refused: Identity) -> bool:
        """The API has refused this one: is there another to try? A plugin is asked anew."""
        if await self.current() != refused:
            return True
        if self._access.auth.plugin is None or self._clock() - self._asked_at < _PLUGIN_EVERY_S:
            return False
        self._credential = None
        return True

    def _token(self) -> str:
        auth = self._access.auth
        if self._file is None:
            return auth.token
        token = self._file.read().decode(errors="replace").strip()
        if not token and not auth.token:
            raise Refusal("NoToken", f"The token file {self._file.path} is empty or gone.", "Write the token there.")
        return token or auth.token

    async def _from_plugin(self) -> Credential:
        plugin = self._access.auth.plugin
        assert plugin is not None
        async with self._lock:
            now = self._clock()
            found = self._credential
            if found is None or (found.renew_at is not None and now >= found.renew_at):
                self._asked_at = now
                found = self._credential = await obtain(plugin, self._access, now, self._run)
            return found


def _bearer(token: str) -> tuple[tuple[str, str], ...]:
    if not (token.isascii() and token.isprintable()):
        raise Refusal(
            "InvalidToken", "The token holds characters no token has, such as a line break.", "Write it anew."
        )
    return (("Authorization", f"Bearer {token}"),) if token else ()
