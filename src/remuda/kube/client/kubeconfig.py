"""Where the cluster is: kubeconfig files as kubectl reads them, or the service account of the pod we run in.

Looked for in this order: the file that is named; the files of $KUBECONFIG; ~/.kube/config; the pod's service account. Of
several files the first to say something wins, entry by entry (an entry is never mixed from two files), and those that are
absent are passed over. Relative paths count from the file that holds them.

Everything that cannot work is refused here, with the place and the fix, not at the first request.

No client library's loader does this (0018 in docs/adr): lightkube knows no plugin of version v1 and merges no files, kubernetes
blocks while the plugin runs, kubernetes_asyncio lets a plugin hang for ever; all three write keys to temporary files.
"""

from __future__ import annotations

import base64
import binascii
import difflib
import os
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TypeVar
from urllib.parse import urlsplit

import msgspec
import yaml

from remuda.api.errors import Refusal
from remuda.kube.client.access import Access, Auth, ExecPlugin, Tls

E = TypeVar("E")

SERVICE_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
EXEC_VERSIONS = ("client.authentication.k8s.io/v1", "client.authentication.k8s.io/v1beta1")

MAX_KUBECONFIG = 4 << 20  # characters


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


class _KubeconfigYaml(yaml.SafeLoader):
    """Only null, true and false are not text, so that a name or a token may look like a number or a date."""

    yaml_implicit_resolvers = {}


_KubeconfigYaml.add_implicit_resolver(
    "tag:yaml.org,2002:bool", re.compile(r"(?:true|True|TRUE|false|False|FALSE)$"), list("tTfF")
)
_KubeconfigYaml.add_implicit_resolver(
    "tag:yaml.org,2002:null", re.compile(r"(?:~|null|Null|NULL|)$"), ["~", "n", "N", ""]
)
_KubeconfigYaml.add_implicit_resolver("tag:yaml.org,2002:merge", re.compile(r"<<$"), ["<"])


class Kubeconfig(msgspec.Struct, frozen=True):
    """The entries of all files, each with the file it came from."""

    paths: tuple[Path, ...]
    clusters: dict[str, tuple[ClusterEntry, Path]]
    users: dict[str, tuple[UserEntry, Path]]
    contexts: dict[str, tuple[ContextEntry, Path]]
    current_context: str


def load_kubeconfig(
    path: str | Path | None = None,
    *,
    context: str = "",
    environ: Mapping[str, str] = os.environ,
    home: Path | None = None,
    service_account: Path = SERVICE_ACCOUNT,
) -> Access:
    """The cluster the user means. `path`: only this file. `context`: instead of the current one."""
    if path is not None:
        return access_of_context(merge_kubeconfigs([Path(path)], must_exist=True), context)
    from_env = [Path(each).expanduser() for each in environ.get("KUBECONFIG", "").split(os.pathsep) if each]
    if from_env:
        if not any(each.exists() for each in from_env):
            raise Refusal(
                "KubeconfigNotFound",
                f"$KUBECONFIG names {', '.join(map(str, from_env))}, and none of them is there.",
                "Correct the variable or unset it.",
            )
        return access_of_context(merge_kubeconfigs(from_env), context)
    default = (home or Path.home()) / ".kube" / "config"
    if default.exists():
        return access_of_context(merge_kubeconfigs([default]), context)
    if environ.get("KUBERNETES_SERVICE_HOST") and not context:
        return service_account_access(environ=environ, service_account=service_account)
    raise Refusal(
        "NoCluster",
        f"There is no kubeconfig: $KUBECONFIG is not set and {default} is not there.",
        "Name one with --kubeconfig, or start a cluster with `remuda up`.",
    )


def merge_kubeconfigs(paths: Iterable[Path], *, must_exist: bool = False) -> Kubeconfig:
    """The files merged; the first to define a name or the current context wins."""
    found: list[Path] = []
    clusters: dict[str, tuple[ClusterEntry, Path]] = {}
    users: dict[str, tuple[UserEntry, Path]] = {}
    contexts: dict[str, tuple[ContextEntry, Path]] = {}
    current = ""
    for given in paths:
        path = given.expanduser().absolute()
        try:
            with path.open(encoding="utf-8") as file_text:
                text = file_text.read(MAX_KUBECONFIG + 1)
        except FileNotFoundError:
            if not must_exist:
                continue
            raise Refusal("KubeconfigNotFound", f"{path} is not there.", "Correct the path.") from None
        except (OSError, UnicodeDecodeError) as error:
            why = error.strerror if isinstance(error, OSError) else "it is not text"
            fix = "Correct its permissions or name another file."
            raise Refusal("KubeconfigUnreadable", f"{path} cannot be read: {why}.", fix) from None
        if len(text) > MAX_KUBECONFIG:
            said = f"{path} cannot be read: it has more than {MAX_KUBECONFIG >> 20} MiB, which no kubeconfig has."
            raise Refusal("KubeconfigUnreadable", said, "Name another file.")
        file = parse_kubeconfig(text, path)
        found.append(path)
        for cluster in file.clusters or ():
            clusters.setdefault(cluster.name, (cluster.cluster, path))
        for user in file.users or ():
            users.setdefault(user.name, (user.user, path))
        for each in file.contexts or ():
            contexts.setdefault(each.name, (each.context, path))
        current = current or file.current_context or ""
    return Kubeconfig(tuple(found), clusters, users, contexts, current)


def parse_kubeconfig(text: str, path: Path) -> ConfigFile:
    try:
        body = yaml.load(text, _KubeconfigYaml)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f" at line {mark.line + 1}" if mark is not None else ""
        problem = getattr(error, "problem", None) or "it cannot be read"
        raise Refusal("InvalidKubeconfig", f"{path} is not YAML{where}: {problem}.", "Correct the file.") from None
    except RecursionError:
        raise Refusal("InvalidKubeconfig", f"{path} is nested too deeply.", "Correct the file.") from None
    if body is None:
        return ConfigFile()
    kind = (body.get("kind") if isinstance(body, dict) else None) or "Config"
    if kind != "Config":
        said = f"{path} holds {_with_article(str(kind))}, not a kubeconfig."
        raise Refusal("NotAKubeconfig", said, "Name the file of a cluster after --kubeconfig or in $KUBECONFIG.")
    try:
        found = msgspec.convert(body, ConfigFile)
    except msgspec.ValidationError as error:
        raise Refusal("InvalidKubeconfig", f"{path} is not a kubeconfig: {error}.", "Correct that field.") from None
    for what in ("clusters", "users", "contexts"):
        names = [entry.name for entry in getattr(found, what) or ()]
        twice = next((name for name in names if names.count(name) > 1), None)
        if twice is not None:
            raise Refusal(
                "InvalidKubeconfig", f"{path} has two {what} with the name `{twice}`.", "Rename or remove one of them."
            )
    return found


def _with_article(word: str) -> str:
    return f"{'an' if word[:1] in 'AEIOaeio' else 'a'} {word}"


def access_of_context(config: Kubeconfig, context: str = "") -> Access:
    """What one context says, or the current one."""
    files = ", ".join(map(str, config.paths))
    name = context or config.current_context
    if not name and not config.contexts:
        fix = "Name the file of a cluster after --kubeconfig or in $KUBECONFIG."
        raise Refusal("NoCurrentContext", f"{files} has no contexts.", fix)
    if not name:
        fix = (
            f"Name one with --context ({_kubeconfig_entry_names(config.contexts)}) or run `kubectl config use-context`."
        )
        raise Refusal("NoCurrentContext", f"{files} has no current context.", fix)
    chosen, at = _find_kubeconfig_entry(config.contexts, name, "context", files, "ContextNotFound")
    if not chosen.cluster:
        raise Refusal("ClusterNotFound", f"The context `{name}` in {at} names no cluster.", "Add context.cluster.")
    cluster, cluster_at = _find_kubeconfig_entry(
        config.clusters, chosen.cluster, f"cluster (of context `{name}`)", files, "ClusterNotFound"
    )
    user, user_at = UserEntry(), at
    if chosen.user:
        user, user_at = _find_kubeconfig_entry(
            config.users, chosen.user, f"user (of context `{name}`)", files, "UserNotFound"
        )
    where = f"cluster `{chosen.cluster}` in {cluster_at}"
    server = _checked_server_url(cluster.server or "", where)
    if cluster.proxy_url:
        raise Refusal(
            "ProxyNotSupported",
            f"The {where} is reached through the proxy {cluster.proxy_url}.",
            "Remove proxy-url and reach the server directly, for instance through `kubectl proxy` or a tunnel.",
        )
    return Access(
        server=server,
        namespace=chosen.namespace or "",
        tls=_tls_of_entries(chosen.cluster, cluster, chosen.user or "", user, cluster_at, user_at),
        auth=_auth_of_user(chosen.user or "", user, user_at),
        context=name,
        user=chosen.user or "",
        origin=str(user_at),
        can_compress=not cluster.disable_compression,
    )


def service_account_access(
    *, environ: Mapping[str, str] = os.environ, service_account: Path = SERVICE_ACCOUNT
) -> Access:
    """As the service account of the pod we run in. Its token and CA are read again whenever they change."""
    host, port = environ.get("KUBERNETES_SERVICE_HOST", ""), environ.get("KUBERNETES_SERVICE_PORT", "") or "443"
    if not host:
        fix = "Run in a pod, or name a kubeconfig."
        raise Refusal("NotInCluster", "$KUBERNETES_SERVICE_HOST is not set: this is not a pod.", fix)
    token, ca, namespace = (service_account / name for name in ("token", "ca.crt", "namespace"))
    if not token.is_file():
        raise Refusal(
            "NoServiceAccount",
            f"{token} is not there: the pod has no service account token.",
            "Set automountServiceAccountToken: true on the pod or its service account.",
        )
    try:
        own = namespace.read_text(encoding="utf-8").strip()
    except OSError:
        own = ""
    return Access(
        server=f"https://[{host}]:{port}" if ":" in host else f"https://{host}:{port}",
        namespace=own,
        tls=Tls(ca_file=ca if ca.is_file() else None),
        auth=Auth(token_file=token),
        user="the pod's service account",
        origin=str(service_account),
    )


def _tls_of_entries(
    name: str, cluster: ClusterEntry, user_name: str, user: UserEntry, cluster_at: Path, user_at: Path
) -> Tls:
    """`..._at`: the files the two entries came from."""
    where, who = f"cluster `{name}` in {cluster_at}", f"user `{user_name}` in {user_at}"
    ca_data = _decode_certificate_data(cluster.certificate_authority_data, "certificate-authority-data", where)
    ca_file = (
        None
        if ca_data
        else _existing_credential_file(cluster.certificate_authority, "certificate-authority", cluster_at, where)
    )
    is_insecure = bool(cluster.insecure_skip_tls_verify)
    if is_insecure and (ca_data or ca_file):
        raise Refusal(
            "InsecureWithAuthority",
            f"The {where} both skips verification and names a certificate authority.",
            "Remove insecure-skip-tls-verify (or the authority).",
        )
    cert_data = _decode_certificate_data(user.client_certificate_data, "client-certificate-data", who)
    key_data = _decode_certificate_data(user.client_key_data, "client-key-data", who)
    cert_file = (
        None if cert_data else _existing_credential_file(user.client_certificate, "client-certificate", user_at, who)
    )
    key_file = None if key_data else _existing_credential_file(user.client_key, "client-key", user_at, who)
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


def _auth_of_user(name: str, user: UserEntry, at: Path) -> Auth:
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
        token_file=_existing_credential_file(user.token_file, "tokenFile", at, who),
        username=user.username or "",
        password=user.password or "",
        plugin=None if user.exec is None else _exec_plugin(user.exec, at, who),
        impersonate=tuple((header, value) for header, value in impersonate if value),
    )


def _exec_plugin(entry: ExecEntry, at: Path, who: str) -> ExecPlugin:
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
            f"The exec plugin of {who} needs a terminal to ask questions, and there is none.",
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


def _checked_server_url(server: str, where: str) -> str:
    if not server:
        raise Refusal(
            "InvalidServer", f"The {where} names no server.", "Add cluster.server, such as https://host:6443."
        )
    try:
        parts = urlsplit(server if "://" in server else f"http://{server}")
        is_usable = parts.scheme in ("http", "https") and bool(parts.hostname)
        _ = parts.port  # raises when it is no number
    except ValueError:
        is_usable = False
    else:
        server = parts.geturl()
    if not is_usable:
        raise Refusal(
            "InvalidServer",
            f"`{server}`, the server of the {where}, is not a server address.",
            "Write https://host:port.",
        )
    return server.rstrip("/")


def _find_kubeconfig_entry(entries: Mapping[str, E], name: str, what: str, files: str, reason: str) -> E:
    found = entries.get(name)
    if found is None:
        near = difflib.get_close_matches(name, list(entries), n=1)
        fix = f"Did you mean `{near[0]}`?" if near else f"There is {_kubeconfig_entry_names(entries)}."
        raise Refusal(reason, f"There is no {what} `{name}` in {files}.", fix)
    return found


def _kubeconfig_entry_names(entries: Mapping[str, object]) -> str:
    return ", ".join(sorted(entries)) or "none"


def _decode_certificate_data(text: str | None, field: str, where: str) -> bytes:
    if not text:
        return b""
    try:
        return base64.b64decode("".join(text.split()), validate=True)
    except (binascii.Error, ValueError):
        raise Refusal(
            "InvalidCertificateData", f"{field} of {where} is not base64.", f"Encode the PEM text, or use {field[:-5]}."
        ) from None


def _existing_credential_file(text: str | None, field: str, at: Path, where: str) -> Path | None:
    if not text:
        return None
    path = at.parent / text  # an absolute one stays as it is
    if not path.is_file():
        raise Refusal("FileMissing", f"{field} of {where} names {path}, which is not there.", "Correct the path.")
    return path
