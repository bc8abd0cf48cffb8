"""Which kinds of objects hooks may make: those that an administrator allowed by name (`--allow-hook-kind`). Pure.

Whoever may write a RemedyPolicy or a NodeRollout chooses the object of its hook, and the manager makes it with its own account.
So the manager's configuration has the say, as the node's has for commands (`--allow-hook`), and its default is none:

    dc.example/v1/Repair          in any namespace, or in none
    batch/v1/Job@site-hooks       in that namespace only

Kinds that run containers need the namespace: there the administrator decides what a container may be. Pods are never made: they
would run as whoever asks in the manager's name, and their end is no condition that a hook could wait for.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

import msgspec

from remuda.api.errors import Refusal
from remuda.api.meta import JsonObject

_FORM = re.compile(
    r"(?P<version>([a-z0-9]([-a-z0-9.]*[a-z0-9])?/)?v[0-9][a-z0-9]*)/(?P<kind>[A-Z][A-Za-z0-9]{0,62})"
    r"(@(?P<namespace>[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?))?"
)
_INSTEAD = "Let the hook make a Job, or an object of a controller of your own, and allow that."
# By name alone, whatever their group and case: a name that looks like one of these runs containers.
_NEVER = frozenset({"pod", "binding"})
_RUN_CONTAINERS = frozenset(
    {
        "job",
        "cronjob",
        "jobset",
        "deployment",
        "replicaset",
        "replicationcontroller",
        "statefulset",
        "daemonset",
        "trainingjob",
    }
)


class HookKind(msgspec.Struct, frozen=True):
    """`namespace`: "" = any, and none."""

    version: str  # apiVersion
    kind: str
    namespace: str = ""


HookKinds = Sequence[HookKind]


def parse_hook_kinds(texts: Sequence[str]) -> tuple[HookKind, ...]:
    """Refusal InvalidHookKind."""
    return tuple(_parse_hook_kind(text) for text in texts)


def _parse_hook_kind(text: str) -> HookKind:
    found = _FORM.fullmatch(text)
    if found is None:
        raise _invalid_hook_kind(
            text, "it is not apiVersion/Kind", "Write for example --allow-hook-kind dc.example/v1/Repair."
        )
    kind, namespace = found["kind"], found["namespace"] or ""
    if kind.lower() in _NEVER:
        raise _invalid_hook_kind(text, f"hooks never make a {kind}", _INSTEAD)
    if kind.lower() in _RUN_CONTAINERS and not namespace:
        fix = f"Name the namespace that is meant for it: --allow-hook-kind {text}@NAMESPACE."
        raise _invalid_hook_kind(text, f"a {kind} runs containers, and no namespace is named", fix)
    return HookKind(found["version"], kind, namespace)


def _invalid_hook_kind(text: str, why: str, fix: str) -> Refusal:
    return Refusal("InvalidHookKind", f"`{text:.200}` cannot be allowed: {why}.", fix, "allow-hook-kind")


def require_allowed_remedy_hook_kind(body: JsonObject, allowed: HookKinds) -> None:
    """Refusal HookKindNotAllowed. `body`: with everything filled in."""
    version, kind = str(body.get("apiVersion") or ""), str(body.get("kind") or "")
    namespace = str((body.get("metadata") or {}).get("namespace") or "")
    for row in allowed:
        if (row.version, row.kind) == (version, kind) and row.namespace in ("", namespace):
            return
    where = f" in namespace {namespace}" if namespace else ""
    only = sorted(row.namespace for row in allowed if (row.version, row.kind) == (version, kind))
    told = f" (only in {', '.join(only)})" if only else ""
    asked = f"{version}/{kind}{'@' + namespace if namespace else ''}"
    raise Refusal(
        "HookKindNotAllowed",
        f"The manager does not allow hooks to make a {version} {kind}{where}{told}.",
        _INSTEAD if kind.lower() in _NEVER else f"To allow it, start the manager with --allow-hook-kind {asked}.",
        "object",
    )
