"""A body against a structural schema: prune what it does not know, fill in its defaults, say what does not fit.

Only the parts of OpenAPI v3 that structural schemas may use. CEL rules (x-kubernetes-validations) are not evaluated; a
definition that has them is served without them. `metadata` of the root is the server's business and left alone.

A schema with many choices, met by a list with many items, costs their product. So finding misfits is paid step by step from a
budget (`WorkBudget`), and ends after `MAX_MISFITS`.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from datetime import datetime
from itertools import islice
from typing import Any

from remuda.api.codec import encode
from remuda.api.meta import JsonObject
from remuda.api.validation.patterns import BadPattern, fits_validation_pattern, validation_pattern_price
from remuda.embedded.apiserver.patching import WorkBudget

MAX_MISFITS = 100
_ENVELOPE = ("apiVersion", "kind", "metadata")


def prune_by_schema(body: JsonObject, schema: JsonObject, unknown: list[str]) -> JsonObject:
    """The body without undeclared fields, whose paths are added to `unknown`. What is untouched is shared."""
    kept: JsonObject = _prune_value(body, schema, "", unknown, is_root=True)
    return kept


def _prune_value(value: Any, schema: JsonObject, path: str, unknown: list[str], *, is_root: bool = False) -> Any:
    if isinstance(value, list):
        items = schema.get("items")
        if not isinstance(items, dict):
            return value
        new = [_prune_value(item, items, f"{path}[{index}]", unknown) for index, item in enumerate(value)]
        return value if all(a is b for a, b in zip(new, value, strict=True)) else new
    if not isinstance(value, dict):
        return value
    properties = schema.get("properties") or {}
    more = schema.get("additionalProperties")
    keeps = schema.get("x-kubernetes-preserve-unknown-fields") is True or more is True
    envelope = _ENVELOPE if is_root or schema.get("x-kubernetes-embedded-resource") is True else ()
    out: JsonObject | None = None
    for name, below in value.items():
        at = f"{path}.{name}" if path else name
        if name in envelope:
            continue
        inner = properties.get(name)
        if inner is None and isinstance(more, dict):
            inner = more
        if inner is not None:
            new_below = _prune_value(below, inner, at, unknown)
            if new_below is not below:
                out = dict(value) if out is None else out
                out[name] = new_below
        elif not keeps:
            unknown.append(at)
            out = dict(value) if out is None else out
            del out[name]
    return value if out is None else out


def with_schema_defaults(value: Any, schema: JsonObject) -> Any:
    """With the schema's defaults where nothing is; null counts as nothing unless it is allowed."""
    if isinstance(value, list):
        items = schema.get("items")
        return [with_schema_defaults(item, items) for item in value] if isinstance(items, dict) else value
    if not isinstance(value, dict):
        return value
    out = dict(value)
    for name, inner in (schema.get("properties") or {}).items():
        if "default" in inner and (name not in out or (out[name] is None and not inner.get("nullable"))):
            out[name] = inner["default"]
        if name in out:
            out[name] = with_schema_defaults(out[name], inner)
    more = schema.get("additionalProperties")
    if isinstance(more, dict):
        known = schema.get("properties") or {}
        out = {name: below if name in known else with_schema_defaults(below, more) for name, below in out.items()}
    return out


def crd_schema_misfits(body: JsonObject, schema: JsonObject) -> list[tuple[str, str]]:
    """(field, what) of what does not fit, in Kubernetes' words; not all of it when there is a lot."""
    judged = {k: v for k, v in body.items() if k != "metadata"}
    work = WorkBudget("make the object smaller, or its schema simpler (fewer anyOf, oneOf, allOf, enum, pattern)")
    return list(islice(_value_misfits(judged, _schema_without_metadata(schema), "", 0, work), MAX_MISFITS))


def _schema_without_metadata(schema: JsonObject) -> JsonObject:
    properties = {k: v for k, v in (schema.get("properties") or {}).items() if k != "metadata"}
    required = [name for name in schema.get("required") or () if name != "metadata"]
    return {**schema, "properties": properties, "required": required}


def _value_misfits(
    value: Any, schema: JsonObject, path: str, depth: int, work: WorkBudget
) -> Iterator[tuple[str, str]]:
    work.spend(1 + len(path) // 64)
    at = path or "<nil>"
    if value is None:
        if not schema.get("nullable") and (schema.get("type") or schema.get("x-kubernetes-int-or-string")):
            wanted = schema.get("type") or "integer or string"
            yield at, f'Invalid value: "null": {at} in body must be of type {wanted}: "null"'
        return
    if schema.get("x-kubernetes-int-or-string") is True:
        if not (isinstance(value, str) or _is_schema_integer(value)):
            yield at, f"Invalid value: {_shown_misfit(value)}: must be an integer or a string"
        return
    wanted = schema.get("type")
    if wanted and not _is_of_schema_type(value, wanted):
        yield (
            at,
            f'Invalid value: "{_schema_type_of(value)}": {at} in body must be of type {wanted}: "{_schema_type_of(value)}"',
        )
        return
    if "enum" in schema:
        work.spend(len(schema["enum"]))
        if value not in schema["enum"]:
            work.spend(len(schema["enum"]))
            choices = ", ".join(_shown_misfit(choice) for choice in schema["enum"])
            yield at, f"Unsupported value: {_shown_misfit(value)}: supported values: {choices}"
    if isinstance(value, str):
        yield from _text_misfits(value, schema, at, work)
    elif isinstance(value, int | float) and not isinstance(value, bool):
        yield from _number_misfits(value, schema, at)
    elif isinstance(value, list):
        yield from _list_misfits(value, schema, path, depth, work)
    elif isinstance(value, dict):
        yield from _object_misfits(value, schema, path, depth, work)
    yield from _combined_misfits(value, schema, path, depth, work)


def _object_misfits(
    value: JsonObject, schema: JsonObject, path: str, depth: int, work: WorkBudget
) -> Iterator[tuple[str, str]]:
    required = schema.get("required") or ()
    work.spend(len(required))
    for name in required:
        if name not in value:
            yield (f"{path}.{name}" if path else name), "Required value"
    count = len(value)
    if count > schema.get("maxProperties", count):
        yield path or "<nil>", f"Too many: {count}: must have at most {schema['maxProperties']} items"
    if count < schema.get("minProperties", 0):
        yield path or "<nil>", f"Invalid value: {count}: should have at least {schema['minProperties']} properties"
    properties, more = schema.get("properties") or {}, schema.get("additionalProperties")
    for name, below in value.items():
        inner = properties.get(name, more)
        if isinstance(inner, dict):
            yield from _value_misfits(below, inner, f"{path}.{name}" if path else name, depth + 1, work)


def _list_misfits(
    value: list[Any], schema: JsonObject, path: str, depth: int, work: WorkBudget
) -> Iterator[tuple[str, str]]:
    at, count = path or "<nil>", len(value)
    if count > schema.get("maxItems", count):
        yield at, f"Too many: {count}: must have at most {schema['maxItems']} items"
    if count < schema.get("minItems", 0):
        yield at, f"Invalid value: {count}: {at} in body should have at least {schema['minItems']} items"
    kind, keys = schema.get("x-kubernetes-list-type"), schema.get("x-kubernetes-list-map-keys") or ()
    seen: set[bytes] = set()
    for index, item in enumerate(value):
        if kind in ("set", "map") or schema.get("uniqueItems"):
            mark = encode([item.get(k) for k in keys] if kind == "map" and isinstance(item, dict) else item)
            work.spend(len(mark) // 64)
            if mark in seen:
                yield f"{at}[{index}]", f"Duplicate value: {_shown_misfit(item)}"
            seen.add(mark)
        if isinstance(schema.get("items"), dict):
            yield from _value_misfits(item, schema["items"], f"{path}[{index}]", depth + 1, work)


def _text_misfits(value: str, schema: JsonObject, at: str, work: WorkBudget) -> Iterator[tuple[str, str]]:
    if len(value) > schema.get("maxLength", len(value)):
        yield at, f"Too long: may not be more than {schema['maxLength']} bytes"
    if len(value) < schema.get("minLength", 0):
        yield (
            at,
            f"Invalid value: {_shown_misfit(value)}: {at} in body should be at least {schema['minLength']} chars long",
        )
    pattern = schema.get("pattern")
    if pattern:
        try:
            work.spend(validation_pattern_price(pattern, value))
            fits = fits_validation_pattern(pattern, value)
        except BadPattern as bad:  # stored before patterns were checked
            fits, pattern = False, f"{pattern}, but pattern is invalid: error parsing regexp: {bad}"
        if not fits:
            yield at, f"Invalid value: {_shown_misfit(value)}: {at} in body should match '{pattern}'"
    if schema.get("format") == "date-time" and not _is_schema_time(value):
        yield (
            at,
            f"Invalid value: {_shown_misfit(value)}: {at} in body must be of type date-time: {_shown_misfit(value)}",
        )


def _number_misfits(value: float, schema: JsonObject, at: str) -> Iterator[tuple[str, str]]:
    low, high, step = schema.get("minimum"), schema.get("maximum"), schema.get("multipleOf")
    if low is not None and (value < low or (schema.get("exclusiveMinimum") and value == low)):
        more = "greater than" if schema.get("exclusiveMinimum") else "greater than or equal to"
        yield at, f"Invalid value: {value}: {at} in body should be {more} {low}"
    if high is not None and (value > high or (schema.get("exclusiveMaximum") and value == high)):
        less = "less than" if schema.get("exclusiveMaximum") else "less than or equal to"
        yield at, f"Invalid value: {value}: {at} in body should be {less} {high}"
    if step and math.fmod(value, step):
        yield at, f"Invalid value: {value}: {at} in body should be a multiple of {step}"


def _combined_misfits(
    value: Any, schema: JsonObject, path: str, depth: int, work: WorkBudget
) -> Iterator[tuple[str, str]]:
    if depth > 60:
        return
    at = path or "<nil>"
    for each in schema.get("allOf") or ():
        yield from _value_misfits(value, each, path, depth + 1, work)
    for name, wanted in (("anyOf", "at least one"), ("oneOf", "one and only one")):
        choices = schema.get(name)
        if choices:
            fits = sum(1 for each in choices if not any(_value_misfits(value, each, path, depth + 1, work)))
            if fits == 0 or (name == "oneOf" and fits != 1):
                yield at, f"Invalid value: {_shown_misfit(value)}: {at} in body must validate {wanted} schema ({name})"
    if isinstance(schema.get("not"), dict) and not any(_value_misfits(value, schema["not"], path, depth + 1, work)):
        yield at, f"Invalid value: {_shown_misfit(value)}: {at} in body must not validate the schema (not)"


def _is_schema_time(value: str) -> bool:
    try:
        return datetime.fromisoformat(value).tzinfo is not None
    except ValueError:
        return False


def _is_schema_integer(value: Any) -> bool:
    return (isinstance(value, int) and not isinstance(value, bool)) or (isinstance(value, float) and value.is_integer())


def _is_of_schema_type(value: Any, wanted: str) -> bool:
    match wanted:
        case "object":
            return isinstance(value, dict)
        case "array":
            return isinstance(value, list)
        case "string":
            return isinstance(value, str)
        case "boolean":
            return isinstance(value, bool)
        case "integer":
            return _is_schema_integer(value)
        case "number":
            return isinstance(value, int | float) and not isinstance(value, bool)
    return True


def _schema_type_of(value: Any) -> str:
    for name in ("object", "array", "string", "boolean", "integer", "number"):
        if _is_of_schema_type(value, name):
            return name
    return "null"


_SHOWN = 100
_shown = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"))


def _shown_misfit(value: Any) -> str:
    """The beginning of its JSON; no more of it is made."""
    if isinstance(value, str):
        value = value[: _SHOWN + 1]
    text = ""
    for piece in _shown.iterencode(value):
        text += piece[: _SHOWN + 1]
        if len(text) > _SHOWN:
            return f"{text[:_SHOWN]}..."
    return text
