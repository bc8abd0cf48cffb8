"""Kubernetes' URL grammar over the registry: which object, collection or subresource a path names, and what a query asks."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from remuda.api.errors import BadRequest, NotFound, StatusDetails
from remuda.api.meta import Resource
from remuda.api.selectors import FieldSelector, Selector, parse_api_field_selector, parse_selector
from remuda.embedded.apiserver.kinds_served import KindRegistry, ServedKind
from remuda.embedded.apiserver.naming import served_request_option_invalid

_TRUE = frozenset(("1", "t", "T", "true", "True", "TRUE"))
_FALSE = frozenset(("", "0", "f", "F", "false", "False", "FALSE"))
_METADATA = ("metadata.name", "metadata.namespace")


class UrlTarget(msgspec.Struct, frozen=True):
    """`name` empty: the collection. `namespace` empty: all of them, or the kind has none."""

    served: ServedKind
    namespace: str = ""
    name: str = ""
    subresource: str = ""

    @property
    def resource(self) -> Resource:
        return self.served.resource


def parse_url_path(path: str, registry: KindRegistry) -> UrlTarget:
    parts = path.strip("/").split("/")
    if parts[0] == "api" and len(parts) >= 3:
        group, version, rest = "", parts[1], parts[2:]
    elif parts[0] == "apis" and len(parts) >= 4:
        group, version, rest = parts[1], parts[2], parts[3:]
    else:
        raise unknown_url_path(path)
    namespace = ""
    # `namespaces/x` is an object, `namespaces/x/status` its subresource, `namespaces/x/pods` a collection within it.
    if rest[0] == "namespaces" and len(rest) >= 3 and (len(rest) > 3 or rest[2] not in ("status", "finalize")):
        namespace, rest = rest[1], rest[2:]
        if not namespace:
            raise unknown_url_path(path)
    served = registry.find(group, version, rest[0])
    if served is None or len(rest) > 3 or (namespace and not served.resource.namespaced) or "" in rest:
        raise unknown_url_path(path)
    name = rest[1] if len(rest) > 1 else ""
    subresource = rest[2] if len(rest) > 2 else ""
    if name and served.resource.namespaced and not namespace:
        raise unknown_url_path(path)
    if subresource and subresource not in served.resource.subresources:
        raise unknown_url_path(path)
    return UrlTarget(served, namespace, name, subresource)


def unknown_url_path(path: str) -> NotFound:
    return NotFound(f"the server could not find the requested resource: {path}", details=StatusDetails())


class ReadQuery(msgspec.Struct, frozen=True):
    """What a read asks for."""

    is_watch: bool = False
    resource_version: str = ""
    version_match: str = ""
    labels: Selector = Selector()
    fields: FieldSelector = FieldSelector()
    has_bookmarks: bool = False
    sends_initial: bool = False
    timeout_s: float | None = None
    limit: int = 0
    continue_: str = ""


class WriteQuery(msgspec.Struct, frozen=True):
    is_dry_run: bool = False
    manager: str = ""
    validation: str = "Warn"  # of fields: Ignore, Warn, Strict
    is_forced: bool | None = None


def parse_read_query(given: Mapping[str, str], resource: Resource) -> ReadQuery:
    timeout, limit = given.get("timeoutSeconds", ""), given.get("limit", "")
    for name, text in (("timeoutSeconds", timeout), ("limit", limit)):
        if text and not (text.isascii() and text.isdigit()):
            raise BadRequest(f"{name}=`{text}` is not a whole number")
    labels = parse_selector(given.get("labelSelector", ""))
    fields = parse_api_field_selector(given.get("fieldSelector", ""))
    _check_selector_sizes(labels, fields)
    return ReadQuery(
        is_watch=_query_flag(given, "watch"),
        resource_version=given.get("resourceVersion", ""),
        version_match=given.get("resourceVersionMatch", ""),
        labels=labels,
        fields=_check_selectable_fields(fields, resource),
        has_bookmarks=_query_flag(given, "allowWatchBookmarks"),
        sends_initial=_query_flag(given, "sendInitialEvents"),
        timeout_s=float(timeout) if timeout else None,
        limit=int(limit or 0),
        continue_=given.get("continue", ""),
    )


OPTIONS = {"POST": "CreateOptions", "PUT": "UpdateOptions", "PATCH": "PatchOptions"}


def parse_write_query(given: Mapping[str, str], method: str) -> WriteQuery:
    dry_run, validation = given.get("dryRun", ""), given.get("fieldValidation", "") or "Warn"
    if dry_run not in ("", "All"):
        raise served_request_option_invalid(
            OPTIONS[method], "dryRun", f'Unsupported value: ["{dry_run}"]: supported values: "All"'
        )
    if validation not in ("Ignore", "Warn", "Strict"):
        what = f'Unsupported value: "{validation}": supported values: "", "Ignore", "Strict", "Warn"'
        raise served_request_option_invalid(OPTIONS[method], "fieldValidation", what)
    forced = _query_flag(given, "force") if "force" in given else None
    return WriteQuery(bool(dry_run), given.get("fieldManager", ""), validation, forced)


MAX_SELECTOR_TERMS = 1_000


def _check_selector_sizes(labels: Selector, fields: FieldSelector) -> None:
    """A selector is tried on every object of a list, and for every watcher at every event."""
    terms = len(fields.terms) + sum(1 + len(each.values) for each in labels.requirements)
    if terms > MAX_SELECTOR_TERMS:
        raise BadRequest(
            f"the selectors have more than {MAX_SELECTOR_TERMS} terms; ask in parts, or give the objects a label"
        )


def _check_selectable_fields(fields: FieldSelector, resource: Resource) -> FieldSelector:
    for path, _, _ in fields.terms:
        if path not in _METADATA and path not in resource.selectable:
            known = ", ".join((*_METADATA, *resource.selectable))
            raise BadRequest(f"field label not supported: {path}; {resource.plural} can be selected by {known}")
    return fields


def _query_flag(given: Mapping[str, str], name: str) -> bool:
    text = given.get(name, "")
    if text not in _TRUE | _FALSE:
        raise BadRequest(f"{name}=`{text}` is neither true nor false")
    return text in _TRUE
