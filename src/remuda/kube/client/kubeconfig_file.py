"""One kubeconfig file: its text into entries, and an entry into values. Whatever cannot work is refused by its place."""

from __future__ import annotations

import base64
import binascii
import re
from pathlib import Path
from typing import TypeVar

import msgspec
import yaml

from remuda.api.errors import Refusal
from remuda.kube.client.access import Auth, ExecPlugin, Tls

T = TypeVar("T")

EXEC_VERSIONS = ("client.authentication.k8s.io/v1", "client.authentication.k8s.io/v1beta1")


class ClusterEntry(msgspec.Struct, frozen=True, rename="kebab"):
    server: str | None = None
    certificate_authority: str | None = None
    certificate_authority_data: str | None = None
    insecure_skip_tls_verify: bool | None = None
    tls_server_name: str | None = None
    proxy_url: str | None = None
    disable_compression: bool | None = None


class EnvEntry(msgspec.Struct, frozen=True):
    name: str
    value: str = ""


class ExecEntry(msgspec.Struct, frozen=True, rename="camel"):
    command: str | None = None
    args: list[str] | None = None
    env: list[EnvEntry] | None = None
    api_version: str | None = None
    install_hint: str | None = None
    provide_cluster_info: bool | None = None
    interactive_mode: str | None = None


class UserEntry(msgspec.Struct, frozen=True, rename="kebab"):
    client_certificate: str | None = None
    client_certificate_data: str | None = None
    client_key: str | None = None
    client_key_data: str | None = None
    token: str | None = None
    token_file: str | None = msgspec.field(name="tokenFile", default=None)
    username: str | None = None
    password: str | None = None
    exec: ExecEntry | None = None
    auth_provider: dict[str, object] | None = None
    as_: str | None = msgspec.field(name="as", default=None)
    as_uid: str | None = None
    as_groups: list[str] | None = None
    as_user_extra: dict[str, list[str]] | None = None


class ContextEntry(msgspec.Struct, frozen=True):
    cluster: str | None = None
    user: str | None = None
    namespace: str | None = None


class NamedCluster(msgspec.Struct, frozen=True):
    name: str
    cluster: ClusterEntry = ClusterEntry()


class NamedUser(msgspec.Struct, frozen=True):
    name: str
    user: UserEntry = UserEntry()


class NamedContext(msgspec.Struct, frozen=True):
    name: str
    context: ContextEntry = ContextEntry()


class ConfigFile(msgspec.Struct, frozen=True, rename="kebab"):
    clusters: list[NamedCluster] | None = None
    users: list[NamedUser] | None = None
    contexts: list[NamedContext] | None = None
    current_context: str | None = None


class _Loader(yaml.SafeLoader):
    """Only null, true and false are not text, so that a name or a token may look like a number or a date."""

    yaml_implicit_resolvers = {}


_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:bool", re.compile(r"(?:true|True|TRUE|false|False|FALSE)$"), list("tTfF")
)
_Loader.add_implicit_resolver("tag:yaml.org,2002:null", re.compile(r"(?:~|null|Null|NULL|)$"), ["~", "n", "N", ""])
_Loader.add_implicit_resolver("tag:yaml.org,2002:merge", re.compile(r"<<$"), ["<"])


def parse(text: str, path: Path) -> ConfigFile:
    try:
        body = yaml.load(text, _Loader)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f" at line {mark.line + 1}" if mark is not None else ""
        problem = getattr(error, "problem", None) or "it cannot be read"
        raise Refusal("InvalidKubeconfig", f"{path} is not YAML{where}: {problem}.", "Correct the file.") from None
    if body is None:
        return ConfigFile()
    try:
        found = msgspec.convert(body, ConfigFile)
    except msgspec.ValidationError as error:
        raise Refusal("InvalidKubeconfig", f"{path} is not a kubeconfig: {error}.", "Correct that field.") from None
    for what, names in (
        ("clusters", [entry.name for entry in found.clusters or ()]),
        ("users", [entry.name for entry in found.users or ()]),
        ("contexts", [entry.name for entry in found.contexts or ()]),
    ):
        twice = next((name for name in names if names.count(name) > 1), None)
        if twice is not None:
            raise Refusal(
                "InvalidKubeconfig", f"{path} has two {what} with the name `{twice}`.", "Rename or remove one of them."
            )
    return found


def tls_of(name: str, cluster: ClusterEntry, user_name: str, user: UserEntry, cluster_at: Path, user_at: Path) -> Tls:
    """`..._at`: the files the two entries came from."""
    where, who = f"cluster `{name}` in {cluster_at}", f"user `{user_name}` in {user_at}"
    ca_data = _decoded(cluster.certificate_authority_data, "certificate-authority-data", where)
    ca_file = None if ca_data else _existing(cluster.certificate_authority, "certificate-authority", cluster_at, where)
    is_insecure = bool(cluster.insecure_skip_tls_verify)
    if is_insecure and (ca_data or ca_file):
        raise Refusal(
            "InsecureWithAuthority",
            f"The {where} both skips verification and names a certificate authority.",
            "Remove insecure-skip-tls-verify (or the authority).",
        )
    cert_data = _decoded(user.client_certificate_data, "client-certificate-data", who)
    key_data = _decoded(user.client_key_data, "client-key-data", who)
    cert_file = None if cert_data else _existing(user.client_certificate, "client-certificate", user_at, who)
    key_file = None if key_data else _existing(user.client_key, "client-key", user_at, who)
    if bool(cert_data or cert_file) != bool(key_data or key_file):
        missing = "client-key" if cert_data or cert_file else "client-certificate"
        raise Refusal("IncompleteCertificate", f"The {who} has no {missing}.", f"Add {missing} or {missing}-data.")
    return Tls(
        ca_data=ca_data,
        ca_file=ca_file,
        server_name=cluster.tls_server_name or "",
        is_insecure=is_insecure,
        cert_data=cert_data,
        cert_file=cert_file,
        key_data=key_data,
        key_file=key_file,
    )


def auth_of(name: str, user: UserEntry, at: Path) -> Auth:
    who = f"user `{name}` in {at}"
    if user.auth_provider:
        provider = user.auth_provider.get("name", "")
        raise Refusal(
            "AuthProviderNotSupported",
            f"The {who} uses the auth-provider `{provider}`, which Kubernetes has removed.",
            "Use an exec plugin of your provider instead.",
        )
    impersonate = [("Impersonate-User", user.as_ or ""), ("Impersonate-Uid", user.as_uid or "")]
    impersonate += [("Impersonate-Group", group) for group in user.as_groups or ()]
    for key, values in (user.as_user_extra or {}).items():
        impersonate += [(f"Impersonate-Extra-{key}", value) for value in values]
    return Auth(
        token=(user.token or "").strip(),
        token_file=_existing(user.token_file, "tokenFile", at, who),
        username=user.username or "",
        password=user.password or "",
        plugin=None if user.exec is None else _plugin(user.exec, at, who),
        impersonate=tuple((header, value) for header, value in impersonate if value),
    )


def _plugin(entry: ExecEntry, at: Path, who: str) -> ExecPlugin:
    command = entry.command or ""
    if not command:
        raise Refusal("InvalidExecPlugin", f"The exec plugin of {who} names no command.", "Add exec.command.")
    if entry.api_version not in EXEC_VERSIONS:
        raise Refusal(
            "InvalidExecPlugin",
            f"The exec plugin of {who} has apiVersion `{entry.api_version or ''}`.",
            f"Use one of {', '.join(EXEC_VERSIONS)}.",
        )
    if entry.interactive_mode == "Always":
        raise Refusal(
            "ExecPluginNeedsTerminal",
            f"The exec plugin of {who} wants to ask questions, and nobody is there to answer.",
            "Use a plugin with interactiveMode Never or IfAvailable, or a token.",
        )
    if "/" in command and not Path(command).is_absolute():
        command = str(at.parent / command)
    return ExecPlugin(
        command=command,
        args=tuple(entry.args or ()),
        env=tuple((each.name, each.value) for each in entry.env or ()),
        api_version=entry.api_version,
        install_hint=entry.install_hint or "",
        wants_cluster=bool(entry.provide_cluster_info),
    )


def _decoded(text: str | None, field: str, where: str) -> bytes:
    if not text:
        return b""
    try:
        return base64.b64decode("".join(text.split()), validate=True)
    except (binascii.Error, ValueError):
        raise Refusal(
            "InvalidCertificateData", f"{field} of {where} is not base64.", f"Encode the PEM text, or use {field[:-5]}."
        ) from None


def _existing(text: str | None, field: str, at: Path, where: str) -> Path | None:
    if not text:
        return None
    path = at.parent / text  # an absolute one stays as it is
    if not path.is_file():
        raise Refusal("FileMissing", f"{field} of {where} names {path}, which is not there.", "Correct the path.")
    return path
