"""Exec plugins (client.authentication.k8s.io): a program prints a token or a certificate, which is good until it says.

`parse_credential` and `exec_info` are pure; `run_plugin` is the only part that starts a process. The plugin has no terminal:
it must not ask questions.
"""

from __future__ import annotations

import asyncio
import base64
import os
from collections.abc import Awaitable, Callable
from contextlib import suppress
from datetime import datetime

import msgspec

from remuda.api.codec import decode, encode
from remuda.api.errors import Refusal
from remuda.api.meta import JsonObject, to_seconds
from remuda.kube.client.access import Access, ExecPlugin

PLUGIN_TIMEOUT_S = 60.0
_EARLY_S = 10.0  # ask for new credentials this long before the old ones run out
_SHOWN = 300  # characters of what a plugin had to say


class Credential(msgspec.Struct, frozen=True):
    """`renew_at`: unix seconds from which a new one is wanted; None = it does not run out."""

    token: str = ""
    cert: bytes = b""
    key: bytes = b""
    renew_at: float | None = None


class Ran(msgspec.Struct, frozen=True):
    code: int
    stdout: bytes
    stderr: bytes


Runner = Callable[[list[str], dict[str, str]], Awaitable[Ran]]


class _Status(msgspec.Struct, frozen=True, rename="camel"):
    token: str = ""
    client_certificate_data: str = ""
    client_key_data: str = ""
    expiration_timestamp: datetime | None = None


class _ExecCredential(msgspec.Struct, frozen=True, rename="camel"):
    api_version: str
    kind: str
    status: _Status | None = None


async def obtain(plugin: ExecPlugin, access: Access, now: float, run: Runner) -> Credential:
    """Run the plugin once. Everything that can go wrong is a Refusal with the plugin's own words."""
    env = {**os.environ, **dict(plugin.env), "KUBERNETES_EXEC_INFO": exec_info(plugin, access)}
    try:
        ran = await run([plugin.command, *plugin.args], env)
    except FileNotFoundError:
        fix = plugin.install_hint.strip() or "Install it or correct exec.command."
        raise _refused(plugin, access, "is not there", fix) from None
    except TimeoutError:
        fix = "Run it by hand and see what it waits for."
        raise _refused(plugin, access, f"did not finish within {PLUGIN_TIMEOUT_S:.0f} s", fix) from None
    except OSError as error:
        raise _refused(plugin, access, f"cannot be run: {error.strerror}", "Correct exec.command.") from None
    if ran.code != 0:
        said = " ".join(ran.stderr.decode(errors="replace").split())[-_SHOWN:]
        fix = "Run it by hand; perhaps you have to log in again."
        raise _refused(plugin, access, f"ended with {ran.code}" + (f": {said}" if said else ""), fix)
    return parse_credential(plugin, access, ran.stdout, now)


def parse_credential(plugin: ExecPlugin, access: Access, output: bytes, now: float) -> Credential:
    try:
        found = decode(_ExecCredential, output)
    except msgspec.MsgspecError as error:
        raise _refused(plugin, access, f"printed no ExecCredential: {error}", "Update the plugin.") from None
    if found.kind != "ExecCredential" or found.api_version != plugin.api_version:
        said = f"printed a {found.kind} of {found.api_version}, not an ExecCredential of {plugin.api_version}"
        raise _refused(plugin, access, said, "Set exec.apiVersion to what the plugin speaks.")
    status = found.status or _Status()
    cert, key = status.client_certificate_data, status.client_key_data
    if bool(cert) != bool(key):
        raise _refused(plugin, access, "printed a certificate or a key without the other", "Update the plugin.")
    if not status.token and not cert:
        raise _refused(plugin, access, "printed neither a token nor a certificate", "Update the plugin.")
    renew_at = None
    if status.expiration_timestamp is not None:
        expires_at = to_seconds(status.expiration_timestamp)
        # A short life must not make us run the plugin for every request.
        renew_at = expires_at - min(_EARLY_S, max(0.0, expires_at - now) / 10)
    return Credential(status.token, cert.encode(), key.encode(), renew_at)


def exec_info(plugin: ExecPlugin, access: Access) -> str:
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


async def run_plugin(command: list[str], env: dict[str, str]) -> Ran:
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
    return Ran(process.returncode or 0, stdout, stderr)


def _refused(plugin: ExecPlugin, access: Access, what: str, fix: str) -> Refusal:
    who = f" of user `{access.user}`" if access.user else ""
    return Refusal("ExecPluginFailed", f"The credential plugin `{plugin.command}`{who} {what}.", fix)
