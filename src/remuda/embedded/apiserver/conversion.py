"""Between the version a client speaks and the version its objects are stored in.

Versions of a custom kind differ in `apiVersion` only. Events live in two groups with different field names and are stored
in the core group's form.
"""

from __future__ import annotations

from remuda.api.meta import JsonObject
from remuda.embedded.apiserver.kinds_served import ServedKind

# events.k8s.io/v1 -> v1
_RENAMED = {
    "regarding": "involvedObject",
    "note": "message",
    "reportingController": "reportingComponent",
    "deprecatedSource": "source",
    "deprecatedFirstTimestamp": "firstTimestamp",
    "deprecatedLastTimestamp": "lastTimestamp",
    "deprecatedCount": "count",
}
_RENAMED_BACK = {old: new for new, old in _RENAMED.items()}


def to_storage_version(served: ServedKind, body: JsonObject) -> JsonObject:
    if served.store is served.resource:
        return body
    return _with_version_fields(served, body, served.store.api_version, _RENAMED)


def from_storage_version(served: ServedKind, body: JsonObject) -> JsonObject:
    wanted = served.resource.api_version
    if served.store is served.resource and body.get("apiVersion") == wanted:
        return body
    return _with_version_fields(served, body, wanted, _RENAMED_BACK)


def is_version_converted(served: ServedKind) -> bool:
    """Stored bytes cannot go out as they are. A custom kind's storage version may have been another one once."""
    return served.store is not served.resource or served.custom is not None


def _with_version_fields(served: ServedKind, body: JsonObject, api_version: str, names: dict[str, str]) -> JsonObject:
    if served.custom is None and served.resource.plural == "events":
        body = {names.get(name, name): value for name, value in body.items()}
    return {**body, "apiVersion": api_version}
