"""Whether a body fits its schema: names, types, and list items that can be told apart.

Null fits everywhere: it means "not there". Times and quantities are types of their own: their text has to be one.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import datetime
from typing import Any, Final

import msgspec

from remuda.api.errors import Refusal
from remuda.api.kubernetes.quantity import parse_quantity
from remuda.embedded.apiserver.patching.compare import UnnameableItem, item_element
from remuda.embedded.apiserver.patching.field_sets import field_paths
from remuda.embedded.apiserver.patching.patch_schema import PatchSchema

UNKNOWN: Final = "unknown"  # a field that the schema does not have
TYPE: Final = "type"  # a value that the field cannot take
ITEM: Final = "item"  # an item of a list that cannot be told from another


class SchemaFault(msgspec.Struct, frozen=True):
    """What is wrong at one place, such as `.spec.replicas`."""

    kind: str
    path: str
    what: str


def find_patch_schema_faults(body: Any, schema: PatchSchema, path: str = "") -> list[SchemaFault]:
    """Every fault of a body, in the order of its fields."""
    out: list[SchemaFault] = []
    _check_value_schema(body, schema, (None, path), out)
    return out


# A place is the one above it and a piece of path, so that a path is put together only for a fault.
_FaultPlace = tuple[Any, str]


def _check_value_schema(value: Any, schema: PatchSchema, place: _FaultPlace, out: list[SchemaFault]) -> None:
    kind = schema.type
    if kind == "any" or value is None:
        return
    if kind == "object":
        if not isinstance(value, dict):
            out.append(_mistyped_fault("an object", value, place))
            return
        fields, other = schema.fields, schema.element
        for name, below in value.items():
            child = fields.get(name) or other
            if child is None:
                out.append(SchemaFault(UNKNOWN, _schema_fault_path((place, f".{name}")), "is not a field"))
            elif child.type != "string" or not isinstance(below, str):
                _check_value_schema(below, child, (place, f".{name}"), out)
    elif kind == "array":
        if isinstance(value, list):
            _check_items_schema(value, schema, place, out)
        else:
            out.append(_mistyped_fault("an array", value, place))
    elif not _FITS[kind](value):
        out.append(_mistyped_fault(_WORDS.get(kind) or f"{'an' if kind[0] == 'i' else 'a'} {kind}", value, place))
    elif kind == "integer" and (limit := _LIMITS.get(schema.format)) and not -limit <= value < limit:
        out.append(SchemaFault(TYPE, _schema_fault_path(place), f"must fit in {schema.format}"))


def _check_items_schema(items: list[Any], schema: PatchSchema, place: _FaultPlace, out: list[SchemaFault]) -> None:
    seen: set[str] = set()
    for index, item in enumerate(items):
        here = (place, f"[{index}]")
        if schema.granular is list:
            try:
                element = item_element(item, schema)
            except UnnameableItem as error:
                out.append(SchemaFault(ITEM, _schema_fault_path(here), error.what))
                continue
            if element in seen:
                out.append(
                    SchemaFault(ITEM, _schema_fault_path(here), f"{next(field_paths({element: {}}))} is there twice")
                )
            seen.add(element)
        _check_value_schema(item, schema.items, here, out)


def _schema_fault_path(place: _FaultPlace | None) -> str:
    pieces: list[str] = []
    while place is not None:
        place, piece = place
        pieces.append(piece)
    return "".join(reversed(pieces))


def _mistyped_fault(wanted: str, value: Any, place: _FaultPlace) -> SchemaFault:
    return SchemaFault(TYPE, _schema_fault_path(place), f"must be {wanted}, not {_json_type_name(value)}")


def _is_json_integer(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_json_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _is_quantity_value(value: Any) -> bool:
    if not isinstance(value, str):
        return _is_json_number(value)
    try:
        parse_quantity(value)
    except Refusal:
        return False
    return True


_TIME: Final = re.compile(r"\d{4}-\d\d-\d\dT(?:[01]\d|2[0-3]):\d\d:\d\d(\.\d+)?(?:Z|[+-]\d\d:\d\d)", re.ASCII)


def _is_rfc3339_time(value: Any, digits: int | None = None) -> bool:
    """RFC 3339, with exactly so many digits of a second when that is said."""
    match = _TIME.fullmatch(value) if isinstance(value, str) else None
    if match is None or (digits is not None and len(match[1] or "") != digits + 1):
        return False
    try:
        datetime.fromisoformat(value)
    except ValueError:
        return False
    return True


_LIMITS: Final = {"int32": 2**31, "int64": 2**63}
_WORDS: Final = {
    "time": "a time such as 2026-01-31T12:00:00Z",
    "micro-time": "a time with six digits of a second, such as 2026-01-31T12:00:00.000000Z",
    "quantity": "a number with an optional unit, such as 500m or 2Gi",
}
_FITS: Final[dict[str, Callable[[Any], bool]]] = {
    "string": lambda value: isinstance(value, str),
    "boolean": lambda value: isinstance(value, bool),
    "integer": _is_json_integer,
    "number": _is_json_number,
    "int-or-string": lambda value: isinstance(value, str) or _is_json_integer(value),
    "quantity": _is_quantity_value,
    "time": _is_rfc3339_time,
    "micro-time": lambda value: _is_rfc3339_time(value, 6),
}


def _json_type_name(value: Any) -> str:
    if isinstance(value, bool):
        return "a boolean"
    if isinstance(value, dict):
        return "an object"
    if isinstance(value, list):
        return "an array"
    if isinstance(value, str):
        return f"`{value[:64]}`"
    return "a number"
