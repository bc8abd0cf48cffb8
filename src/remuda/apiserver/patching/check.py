"""Whether a body fits its schema: names, types, and list items that can be told apart.

Null fits everywhere: it means "not there".
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import msgspec

from remuda.apiserver.patching.compare import Unnameable, item_element
from remuda.apiserver.patching.fields import paths
from remuda.apiserver.patching.schema import Schema

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
    _check(body, schema, path, out)
    return out


def _check(value: Any, schema: Schema, path: str, out: list[Fault]) -> None:
    kind = schema.type
    if kind == "any" or value is None:
        return
    if kind == "object":
        if not isinstance(value, dict):
            out.append(Fault(TYPE, path, f"must be an object, not {_named(value)}"))
            return
        fields, other = schema.fields, schema.element
        for name, below in value.items():
            child = fields.get(name) or other
            if child is None:
                out.append(Fault(UNKNOWN, f"{path}.{name}", "is not a field"))
            else:
                _check(below, child, f"{path}.{name}", out)
    elif kind == "array":
        _check_list(value, schema, path, out)
    elif not _FITS[kind](value):
        out.append(Fault(TYPE, path, f"must be {_ARTICLES.get(kind, 'a')} {kind}, not {_named(value)}"))


def _check_list(value: Any, schema: Schema, path: str, out: list[Fault]) -> None:
    if not isinstance(value, list):
        out.append(Fault(TYPE, path, f"must be an array, not {_named(value)}"))
        return
    seen: set[str] = set()
    for index, item in enumerate(value):
        place = f"{path}[{index}]"
        if schema.list_type != "atomic":
            try:
                element = item_element(item, schema)
            except Unnameable as error:
                out.append(Fault(ITEM, place, error.what))
                continue
            place = path + next(paths({element: {}}))
            if element in seen:
                out.append(Fault(ITEM, place, "is there twice"))
            seen.add(element)
        _check(item, schema.items, place, out)


def _is_integer(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


_FITS: Final[dict[str, Callable[[Any], bool]]] = {
    "string": lambda value: isinstance(value, str),
    "boolean": lambda value: isinstance(value, bool),
    "integer": _is_integer,
    "number": _is_number,
    "int-or-string": lambda value: isinstance(value, str) or _is_integer(value),
    "quantity": lambda value: isinstance(value, str) or _is_number(value),
}
_ARTICLES: Final = {"integer": "an", "int-or-string": "an"}


def _named(value: Any) -> str:
    if isinstance(value, bool):
        return "a boolean"
    if isinstance(value, dict):
        return "an object"
    if isinstance(value, list):
        return "an array"
    return "a string" if isinstance(value, str) else "a number"
