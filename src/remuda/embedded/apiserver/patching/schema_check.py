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
from remuda.api.quantity import parse_quantity
from remuda.embedded.apiserver.patching.compare import Unnameable, item_element
from remuda.embedded.apiserver.patching.field_sets import paths
from remuda.embedded.apiserver.patching.patch_schema import Schema

UNKNOWN: Final = "unknown"  # a field that the schema does not have
TYPE: Final = "type"  # a value that the field cannot take
ITEM: Final = "item"  # an item of a list that cannot be told from another


class Fault(msgspec.Struct, frozen=True):
    """What is wrong at one place, such as `.spec.replicas`."""

    kind: str
    path: str
    what: str


def faults(body: Any, schema: Schema, path: str = "") -> list[Fault]:
    """Every fault of a body, in the order of its fields."""
    out: list[Fault] = []
    _check(body, schema, (None, path), out)
    return out


# A place is the one above it and a piece of path, so that a path is put together only for a fault.
_Place = tuple[Any, str]


def _check(value: Any, schema: Schema, place: _Place, out: list[Fault]) -> None:
    kind = schema.type
    if kind == "any" or value is None:
        return
    if kind == "object":
        if not isinstance(value, dict):
            out.append(_mistyped("an object", value, place))
            return
        fields, other = schema.fields, schema.element
        for name, below in value.items():
            child = fields.get(name) or other
            if child is None:
                out.append(Fault(UNKNOWN, _path((place, f".{name}")), "is not a field"))
            elif child.type != "string" or not isinstance(below, str):
                _check(below, child, (place, f".{name}"), out)
    elif kind == "array":
        if isinstance(value, list):
            _check_items(value, schema, place, out)
        else:
            out.append(_mistyped("an array", value, place))
    elif not _FITS[kind](value):
        out.append(_mistyped(_WORDS.get(kind) or f"{'an' if kind[0] == 'i' else 'a'} {kind}", value, place))
    elif kind == "integer" and (limit := _LIMITS.get(schema.format)) and not -limit <= value < limit:
        out.append(Fault(TYPE, _path(place), f"must fit in {schema.format}"))


def _check_items(items: list[Any], schema: Schema, place: _Place, out: list[Fault]) -> None:
    seen: set[str] = set()
    for index, item in enumerate(items):
        here = (place, f"[{index}]")
        if schema.granular is list:
            try:
                element = item_element(item, schema)
            except Unnameable as error:
                out.append(Fault(ITEM, _path(here), error.what))
                continue
            if element in seen:
                out.append(Fault(ITEM, _path(here), f"{next(paths({element: {}}))} is there twice"))
            seen.add(element)
        _check(item, schema.items, here, out)


def _path(place: _Place | None) -> str:
    pieces: list[str] = []
    while place is not None:
        place, piece = place
        pieces.append(piece)
    return "".join(reversed(pieces))


def _mistyped(wanted: str, value: Any, place: _Place) -> Fault:
    return Fault(TYPE, _path(place), f"must be {wanted}, not {_named(value)}")


def _is_integer(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _is_quantity(value: Any) -> bool:
    if not isinstance(value, str):
        return _is_number(value)
    try:
        parse_quantity(value)
    except Refusal:
        return False
    return True


_TIME: Final = re.compile(r"\d{4}-\d\d-\d\dT(?:[01]\d|2[0-3]):\d\d:\d\d(\.\d+)?(?:Z|[+-]\d\d:\d\d)", re.ASCII)


def _is_time(value: Any, digits: int | None = None) -> bool:
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
    "integer": _is_integer,
    "number": _is_number,
    "int-or-string": lambda value: isinstance(value, str) or _is_integer(value),
    "quantity": _is_quantity,
    "time": _is_time,
    "micro-time": lambda value: _is_time(value, 6),
}


def _named(value: Any) -> str:
    if isinstance(value, bool):
        return "a boolean"
    if isinstance(value, dict):
        return "an object"
    if isinstance(value, list):
        return "an array"
    if isinstance(value, str):
        return f"`{value[:64]}`"
    return "a number"
