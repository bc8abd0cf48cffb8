"""How to reach an API and as whom, as values. `kubeconfig` makes them, `tls` and `credentials` act on them.

Of a file and inline data for the same thing the data wins, as in kubectl. Files are named, not read: they are read when they
are needed and again whenever they change, because clusters rotate them.
"""

from __future__ import annotations

from pathlib import Path

import msgspec


class Tls(msgspec.Struct, frozen=True, kw_only=True):
    """Whom to trust, and the certificate to show. Nothing given: the machine's own trust store, no certificate."""

    ca_data: bytes = b""
    ca_file: Path | None = None
    server_name: str = ""  # the name to verify, when it is not the URL's host
    is_insecure: bool = False
    cert_data: bytes = b""
    cert_file: Path | None = None
    key_data: bytes = b""
    key_file: Path | None = None


class ExecPlugin(msgspec.Struct, frozen=True, kw_only=True):
    """A program that prints credentials (client.authentication.k8s.io)."""

    command: str
    args: tuple[str, ...] = ()
    env: tuple[tuple[str, str], ...] = ()
    api_version: str = "client.authentication.k8s.io/v1"
    install_hint: str = ""
    wants_cluster: bool = False


class Auth(msgspec.Struct, frozen=True, kw_only=True):
    """`token_file` beats `token`, which serves while the file cannot be read."""

    token: str = ""
    token_file: Path | None = None
    username: str = ""
    password: str = ""
    plugin: ExecPlugin | None = None
    impersonate: tuple[tuple[str, str], ...] = ()  # headers


class Access(msgspec.Struct, frozen=True, kw_only=True):
    """`namespace`: what the context says to use where none is named. `origin`: where this was read, for messages."""

    server: str
    namespace: str = ""
    tls: Tls = Tls()
    auth: Auth = Auth()
    context: str = ""
    user: str = ""
    origin: str = ""
    can_compress: bool = True

    @property
    def is_encrypted(self) -> bool:
        return self.server.startswith("https://")
