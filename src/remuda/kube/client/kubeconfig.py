"""Where the cluster is: kubeconfig files as kubectl reads them, or the service account of the pod we run in.

Looked for in this order: the file that is named; the files of $KUBECONFIG; ~/.kube/config; the pod's service account. Of
several files the first to say something wins, entry by entry (an entry is never mixed from two files), and those that are
absent are passed over. Relative paths count from the file that holds them.

Everything that cannot work is refused here, with the place and the fix, not at the first request.
"""

from __future__ import annotations

import difflib
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TypeVar
from urllib.parse import urlsplit

import msgspec

from remuda.api.errors import Refusal
from remuda.kube.client.access import Access, Auth, Tls
from remuda.kube.client.kubeconfig_file import ClusterEntry, ContextEntry, UserEntry, auth_of, parse, tls_of

E = TypeVar("E")

SERVICE_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")


class Kubeconfig(msgspec.Struct, frozen=True):
    """The entries of all files, each with the file it came from."""

    paths: tuple[Path, ...]
    clusters: dict[str, tuple[ClusterEntry, Path]]
    users: dict[str, tuple[UserEntry, Path]]
    contexts: dict[str, tuple[ContextEntry, Path]]
    current_context: str


def load(
    path: str | Path | None = None,
    *,
    context: str = "",
    environ: Mapping[str, str] = os.environ,
    home: Path | None = None,
    service_account: Path = SERVICE_ACCOUNT,
) -> Access:
    """The cluster the user means. `path`: only this file. `context`: instead of the current one."""
    named = Path(path) if path is not None else None
    if named is not None:
        return choose(read([named], must_exist=True), context)
    from_env = [Path(each).expanduser() for each in environ.get("KUBECONFIG", "").split(os.pathsep) if each]
    if from_env:
        if not any(each.exists() for each in from_env):
            raise Refusal(
                "KubeconfigNotFound",
                f"$KUBECONFIG names {', '.join(map(str, from_env))}, and none of them is there.",
                "Correct the variable or unset it.",
            )
        return choose(read(from_env), context)
    default = (home or Path.home()) / ".kube" / "config"
    if default.exists():
        return choose(read([default]), context)
    if environ.get("KUBERNETES_SERVICE_HOST") and not context:
        return in_cluster(environ=environ, service_account=service_account)
    raise Refusal(
        "NoCluster",
        f"There is no kubeconfig: $KUBECONFIG is not set and {default} is not there.",
        "Name one with --kubeconfig, or start a cluster with `remuda up`.",
    )


def read(paths: Iterable[Path], *, must_exist: bool = False) -> Kubeconfig:
    """The files merged; the first to define a name or the current context wins."""
    found: list[Path] = []
    clusters: dict[str, tuple[ClusterEntry, Path]] = {}
    users: dict[str, tuple[UserEntry, Path]] = {}
    contexts: dict[str, tuple[ContextEntry, Path]] = {}
    current = ""
    for given in paths:
        path = given.expanduser().absolute()
        try:
            text = path.read_text(encoding="utf-8")
        except FileNotFoundError:
            if not must_exist:
                continue
            raise Refusal("KubeconfigNotFound", f"{path} is not there.", "Correct the path.") from None
        except (OSError, UnicodeDecodeError) as error:
            why = error.strerror if isinstance(error, OSError) else "it is not text"
            fix = "Correct its permissions or name another file."
            raise Refusal("KubeconfigUnreadable", f"{path} cannot be read: {why}.", fix) from None
        file = parse(text, path)
        found.append(path)
        for cluster in file.clusters or ():
            clusters.setdefault(cluster.name, (cluster.cluster, path))
        for user in file.users or ():
            users.setdefault(user.name, (user.user, path))
        for each in file.contexts or ():
            contexts.setdefault(each.name, (each.context, path))
        current = current or file.current_context or ""
    return Kubeconfig(tuple(found), clusters, users, contexts, current)


def choose(config: Kubeconfig, context: str = "") -> Access:
    """What one context says, or the current one."""
    files = ", ".join(map(str, config.paths))
    name = context or config.current_context
    if not name:
        fix = f"Name one with --context ({_listed(config.contexts)}) or run `kubectl config use-context`."
        raise Refusal("NoCurrentContext", f"{files} has no current context.", fix)
    chosen, at = _entry(config.contexts, name, "context", files, "ContextNotFound")
    if not chosen.cluster:
        raise Refusal("ClusterNotFound", f"The context `{name}` in {at} names no cluster.", "Add context.cluster.")
    cluster, cluster_at = _entry(
        config.clusters, chosen.cluster, f"cluster (of context `{name}`)", files, "ClusterNotFound"
    )
    user, user_at = UserEntry(), at
    if chosen.user:
        user, user_at = _entry(config.users, chosen.user, f"user (of context `{name}`)", files, "UserNotFound")
    where = f"cluster `{chosen.cluster}` in {cluster_at}"
    server = _checked_server(cluster.server or "", where)
    if cluster.proxy_url:
        raise Refusal(
            "ProxyNotSupported",
            f"The {where} is reached through the proxy {cluster.proxy_url}.",
            "Remove proxy-url and reach the server directly, for instance through `kubectl proxy` or a tunnel.",
        )
    return Access(
        server=server,
        namespace=chosen.namespace or "",
        tls=tls_of(chosen.cluster, cluster, chosen.user or "", user, cluster_at, user_at),
        auth=auth_of(chosen.user or "", user, user_at),
        context=name,
        user=chosen.user or "",
        origin=str(user_at),
        can_compress=not cluster.disable_compression,
    )


def in_cluster(*, environ: Mapping[str, str] = os.environ, service_account: Path = SERVICE_ACCOUNT) -> Access:
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


def _checked_server(server: str, where: str) -> str:
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
            "InvalidServer", f"`{server}`, the server of the {where}, is no address.", "Write https://host:port."
        )
    return server.rstrip("/")


def _entry(entries: Mapping[str, E], name: str, what: str, files: str, reason: str) -> E:
    found = entries.get(name)
    if found is None:
        near = difflib.get_close_matches(name, list(entries), n=1)
        fix = f"Did you mean `{near[0]}`?" if near else f"There is {_listed(entries)}."
        raise Refusal(reason, f"There is no {what} `{name}` in {files}.", fix)
    return found


def _listed(entries: Mapping[str, object]) -> str:
    return ", ".join(sorted(entries)) or "none"
