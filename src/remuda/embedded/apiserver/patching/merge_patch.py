"""JSON merge patch (RFC 7386), within bounds.

Beyond the RFC, and as Kubernetes does it: nulls inside a value that is new are dropped, also within its lists.
"""

from __future__ import annotations

from typing import Any

from remuda.api.errors import BadRequest
from remuda.api.meta import JsonObject
from remuda.embedded.apiserver.patching.bounds import check_body_bounds


def merge_patch(doc: JsonObject, patch: Any) -> JsonObject:
    if not isinstance(patch, dict):
        raise BadRequest("a merge patch must be an object")
    check_body_bounds(patch)
    return _merge_object(doc, patch)


def _merge_object(doc: JsonObject, patch: JsonObject) -> JsonObject:
    out = dict(doc)
    for name, value in patch.items():
        current = doc.get(name)
        if value is None:
            out.pop(name, None)
        elif not isinstance(current, dict):
            out[name] = _without_nulls(value)
        else:
            out[name] = _merge_object(current, value) if isinstance(value, dict) else value
    return out


def _without_nulls(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _without_nulls(below) for name, below in value.items() if below is not None}
    return [_without_nulls(item) for item in value] if isinstance(value, list) else value
