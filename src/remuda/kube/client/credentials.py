"""Who we are to the API, at this moment: headers and perhaps a certificate, renewed as their source demands.

Sources, the first that is configured counts: an exec plugin, a token file, a token, a name with a password. Tokens in files
are read again when the file changes; a plugin is run when there is no credential, when the one there is runs out, and when
the API has refused it. However many requests ask at once, a plugin runs once.

Exec plugins (client.authentication.k8s.io) are programs that print a token or a certificate and until when it is good. They have
no terminal: they must not ask questions.

Secrets are never sent unencrypted: without TLS there are no credentials at all, as in kubectl.
"""

from __future__ import annotations

import asyncio
import base64
import os
from collections.abc import Awaitable, Callable
from contextlib import suppress
from datetime import datetime
from pathlib import Path

import msgspec

from remuda.api.codec import decode, encode
from remuda.api.errors import Refusal
from remuda.api.meta import JsonObject, to_seconds
from remuda.kube.client.access import Access, ExecPlugin

PLUGIN_TIMEOUT_S = 60.0
_PLUGIN_EVERY_S = 5.0  # what a plugin has just made and the API refuses will not be better the next moment
_EARLY_S = 10.0  # ask for new credentials this long before the old ones run out
_SHOWN = 300  # characters of what a plugin had to say


class Identity(msgspec.Struct, frozen=True):
    """What a request shows. `cert` and `key` are PEM from a plugin; empty = those of the configuration."""

    headers: tuple[tuple[str, str], ...] = ()
    cert: bytes = b""
    key: bytes = b""


NOBODY = Identity()
FileMark = tuple[int, int, int]


def credential_file_mark(path: Path) -> FileMark | None:
    """Changes whenever the file does: a new file under the name (also behind a link), a new size or time. None: not there."""
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_ino, found.st_size, found.st_mtime_ns


class ReloadedFile:
    """While the file is away or empty (some writers are not atomic) the last good content stands."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._mark: FileMark | None = None
        self._content = b""

    def read(self) -> bytes:
        mark = credential_file_mark(self.path)
        if mark is not None and mark != self._mark:
            try:
                content = self.path.read_bytes()
            except OSError:
                content = b""
            if content:
                # The mark was taken before reading: a change in between is seen by the next look.
                self._mark, self._content = mark, content
        return self._content


class PluginCredential(msgspec.Struct, frozen=True):
    """What an exec plugin printed. `renew_at`: unix seconds from which a new one is wanted; None = it does not run out."""

    token: str = ""
    cert: bytes = b""
    key: bytes = b""
    renew_at: float | None = None


class PluginOutput(msgspec.Struct, frozen=True):
    code: int
    stdout: bytes
    stderr: bytes


PluginRunner = Callable[[list[str], dict[str, str]], Awaitable[PluginOutput]]


class _ExecStatus(msgspec.Struct, frozen=True, rename="camel"):
    token: str = ""
    client_certificate_data: str = ""
    client_key_data: str = ""
    expiration_timestamp: datetime | None = None


class _ExecCredential(msgspec.Struct, frozen=True, rename="camel"):
    api_version: str
    kind: str
    status: _ExecStatus | None = None


async def obtain_plugin_credential(
    plugin: ExecPlugin, access: Access, now: float, run: PluginRunner
) -> PluginCredential:
    """Run the plugin once. Everything that can go wrong is a Refusal with the plugin's own words."""
    env = {**os.environ, **dict(plugin.env), "KUBERNETES_EXEC_INFO": plugin_exec_info(plugin, access)}
    try:
        ran = await run([plugin.command, *plugin.args], env)
    except FileNotFoundError:
        fix = plugin.install_hint.strip() or "Install it or correct exec.command."
        raise _plugin_refused(plugin, access, "is not there", fix) from None
    except TimeoutError:
        fix = "Run it by hand and see what it waits for."
        raise _plugin_refused(plugin, access, f"did not finish within {PLUGIN_TIMEOUT_S:.0f} s", fix) from None
    except OSError as error:
        raise _plugin_refused(plugin, access, f"cannot be run: {error.strerror}", "Correct exec.command.") from None
    if ran.code != 0:
        said = " ".join(ran.stderr.decode(errors="replace").split())[-_SHOWN:]
        fix = "Run it by hand; perhaps you have to log in again."
        raise _plugin_refused(plugin, access, f"ended with {ran.code}" + (f": {said}" if said else ""), fix)
    return parse_exec_plugin_credential(plugin, access, ran.stdout, now)


def parse_exec_plugin_credential(plugin: ExecPlugin, access: Access, output: bytes, now: float) -> PluginCredential:
    try:
        found = decode(_ExecCredential, output)
    except msgspec.MsgspecError as error:
        raise _plugin_refused(plugin, access, f"printed no ExecCredential: {error}", "Update the plugin.") from None
    if found.kind != "ExecCredential" or found.api_version != plugin.api_version:
        said = f"printed a {found.kind} of {found.api_version}, not an ExecCredential of {plugin.api_version}"
        raise _plugin_refused(plugin, access, said, "Set exec.apiVersion to the version that the plugin speaks.")
    status = found.status or _ExecStatus()
    cert, key = status.client_certificate_data, status.client_key_data
    if bool(cert) != bool(key):
        raise _plugin_refused(plugin, access, "printed a certificate or a key without the other", "Update the plugin.")
    if not status.token and not cert:
        raise _plugin_refused(plugin, access, "printed neither a token nor a certificate", "Update the plugin.")
    renew_at = None
    if status.expiration_timestamp is not None:
        expires_at = to_seconds(status.expiration_timestamp)
        # A short life must not make us run the plugin for every request.
        renew_at = expires_at - min(_EARLY_S, max(0.0, expires_at - now) / 10)
    return PluginCredential(status.token, cert.encode(), key.encode(), renew_at)


def plugin_exec_info(plugin: ExecPlugin, access: Access) -> str:
    """The KUBERNETES_EXEC_INFO variable: what the plugin may know."""
    spec: JsonObject = {"interactive": False}
    if plugin.wants_cluster:
        tls = access.tls
        ca = tls.ca_data or (tls.ca_file.read_bytes() if tls.ca_file is not None else b"")
        cluster = {
            "server": access.server,
            "tls-server-name": tls.server_name,
            "insecure-skip-tls-verify": tls.is_insecure,
            "certificate-authority-data": base64.b64encode(ca).decode(),
        }
        spec["cluster"] = {name: value for name, value in cluster.items() if value}
    return encode({"apiVersion": plugin.api_version, "kind": "ExecCredential", "spec": spec}).decode()


async def run_exec_plugin(command: list[str], env: dict[str, str]) -> PluginOutput:
    pipe, null = asyncio.subprocess.PIPE, asyncio.subprocess.DEVNULL
    process = await asyncio.create_subprocess_exec(*command, stdin=null, stdout=pipe, stderr=pipe, env=env)
    try:
        async with asyncio.timeout(PLUGIN_TIMEOUT_S):
            stdout, stderr = await process.communicate()
    except BaseException:
        with suppress(ProcessLookupError):
            process.kill()
        await process.wait()
        raise
    return PluginOutput(process.returncode or 0, stdout, stderr)


def _plugin_refused(plugin: ExecPlugin, access: Access, what: str, fix: str) -> Refusal:
    who = f" of user `{access.user}`" if access.user else ""
    return Refusal("ExecPluginFailed", f"The credential plugin `{plugin.command}`{who} {what}.", fix)


class Credentials:
    """`clock`: unix seconds, because plugins tell the time at which their credential runs out."""

    def __init__(self, access: Access, *, clock: Callable[[], float], run: PluginRunner = run_exec_plugin) -> None:
        self._access = access
        self._clock = clock
        self._run = run
        self._file = ReloadedFile(access.auth.token_file) if access.auth.token_file is not None else None
        self._plugin_credential: PluginCredential | None = None
        self._asked_at = 0.0
        self._lock = asyncio.Lock()

    async def current(self) -> Identity:
        """Raises Refusal when there is no way to have one."""
        auth = self._access.auth
        if not self._access.is_encrypted:
            return NOBODY
        if auth.plugin is not None:
            credential = await self._credential_from_plugin()
            return Identity(_bearer_header(credential.token) + auth.impersonate, credential.cert, credential.key)
        token = self._current_token()
        if not token and auth.username:
            secret = base64.b64encode(f"{auth.username}:{auth.password}".encode()).decode()
            return Identity((("Authorization", f"Basic {secret}"), *auth.impersonate))
        return Identity(_bearer_header(token) + auth.impersonate)

    async def has_other(self, refused: Identity) -> bool:
        """The API has refused this one: is there another to try? A plugin is asked anew."""
        if await self.current() != refused:
            return True
        if self._access.auth.plugin is None or self._clock() - self._asked_at < _PLUGIN_EVERY_S:
            return False
        self._plugin_credential = None
        return True

    def _current_token(self) -> str:
        auth = self._access.auth
        if self._file is None:
            return auth.token
        token = self._file.read().decode(errors="replace").strip()
        if not token and not auth.token:
            raise Refusal("NoToken", f"The token file {self._file.path} is empty or gone.", "Write the token there.")
        return token or auth.token

    async def _credential_from_plugin(self) -> PluginCredential:
        plugin = self._access.auth.plugin
        assert plugin is not None
        async with self._lock:
            now = self._clock()
            found = self._plugin_credential
            if found is None or (found.renew_at is not None and now >= found.renew_at):
                self._asked_at = now
                found = self._plugin_credential = await obtain_plugin_credential(plugin, self._access, now, self._run)
            return found


def _bearer_header(token: str) -> tuple[tuple[str, str], ...]:
    if not (token.isascii() and token.isprintable()):
        raise Refusal(
            "InvalidToken", "The token holds characters no token has, such as a line break.", "Write it anew."
        )
    return (("Authorization", f"Bearer {token}"),) if token else ()
