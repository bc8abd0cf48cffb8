"""Kubernetes' URL grammar: which object, collection or subresource a path names."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from remuda.api.errors import BadRequest, NotFound
from remuda.api.kinds import BY_PATH
from remuda.api.meta import KObject
from remuda.api.selectors import FieldSelector, Selector, parse_field_selector, parse_selector

_TRUE = frozenset(("1", "t", "T", "true", "True", "TRUE"))
_FALSE = frozenset(("", "0", "f", "F", "false", "False", "FALSE"))


class Target(msgspec.Struct, frozen=True):
    """`name` empty: the collection. `namespace` empty: all of them, or the kind has none."""

    kind: type[KObject]
    namespace: str = ""
    name: str = ""
    subresource: str = ""


def parse_path(path: str) -> Target:
    parts = path.strip("/").split("/")
    if parts[0] == "api" and len(parts) >= 3:
        group, version, rest = "", parts[1], parts[2:]
    elif parts[0] == "apis" and len(parts) >= 4:
        group, version, rest = parts[1], parts[2], parts[3:]
    else:
        raise unknown_path(path)
    namespace = ""
    # `namespaces/x` is an object, `namespaces/x/status` its subresource, `namespaces/x/pods` a collection within it.
    if rest[0] == "namespaces" and len(rest) >= 3 and rest[2] not in ("status", "finalize"):
        namespace, rest = rest[1], rest[2:]
        if not namespace:
            raise unknown_path(path)
    kind = BY_PATH.get((group, version, rest[0]))
    if kind is None or len(rest) > 3 or (namespace and not kind.resource.namespaced) or "" in rest:
        raise unknown_path(path)
    name = rest[1] if len(rest) > 1 else ""
    subresource = rest[2] if len(rest) > 2 else ""
    if name and kind.resource.namespaced and not namespace:
        raise unknown_path(path)
    if subresource and subresource not in kind.resource.subresources:
        raise unknown_path(path)
    return Target(kind, namespace, name, subresource)


def unknown_path(path: str) -> NotFound:
    return NotFound(f"the server could not find the requested resource: {path}")


class Query(msgspec.Struct, frozen=True):
    is_watch: bool = False
    resource_version: str = ""
    labels: Selector = Selector()
    fields: FieldSelector = FieldSelector()
    has_bookmarks: bool = False
    timeout_s: float | None = None


def parse_query(given: Mapping[str, str]) -> Query:
    timeout = given.get("timeoutSeconds", "")
    if timeout and not timeout.isdigit():
        raise BadRequest(f"timeoutSeconds=`{timeout}` is not a number of seconds")
    return Query(
        is_watch=_flag(given, "watch"),
        resource_version=given.get("resourceVersion", ""),
        labels=parse_selector(given.get("labelSelector", "")),
        fields=parse_field_selector(given.get("fieldSelector", "")),
        has_bookmarks=_flag(given, "allowWatchBookmarks"),
        timeout_s=float(timeout) if timeout else None,
    )


def _flag(given: Mapping[str, str], name: str) -> bool:
    text = given.get(name, "")
    if text not in _TRUE | _FALSE:
        raise BadRequest(f"{name}=`{text}` is neither true nor false")
    return text in _TRUE
