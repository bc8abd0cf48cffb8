"""Which fields an object has, and which fields a change touched, as sets of paths.

Both follow the schema: below an atomic list or object there are no paths, items of a list that is a map or a set are named by
their keys or value. Two differences between them are Kubernetes' own. A change that adds an object adds its path as well,
even if it has fields; the fields of an applied body (`applied_field_set`) are its leaves, items and the entries of maps, since
whoever applies `spec.replicas` does not claim `spec`.

A list may name one item twice (a body from before its list became a map). Such an item is one indivisible field.
"""

from __future__ import annotations

from typing import Any, Final

from remuda.api.meta import JsonObject
from remuda.embedded.apiserver.patching.bounds import CONTAINERS
from remuda.embedded.apiserver.patching.field_sets import LEAF, SELF, field_path_json
from remuda.embedded.apiserver.patching.patch_schema import ANY, FieldSet, PatchSchema

_MISSING: Final = object()


class UnnameableItem(Exception):
    """A list item that its list's keys cannot name."""

    def __init__(self, what: str) -> None:
        super().__init__(what)
        self.what = what


def item_element(item: Any, schema: PatchSchema) -> str:
    """The path element of an item of a list that is a map or a set."""
    if not schema.keys:
        if item is None or isinstance(item, CONTAINERS):
            raise UnnameableItem("an item of a set must be a plain value")
        return "v:" + field_path_json(item)
    if not isinstance(item, dict):
        raise UnnameableItem("an item of this list must be an object")
    parts: list[str] = []
    for name in schema.keys:
        value = item.get(name, _MISSING)
        if value is _MISSING:
            value = schema.items.child(name).default
            if value is None:
                continue  # an item without this key is another item than one with it
        parts.append(f'"{name}":{field_path_json(value)}')
    if not parts:
        raise UnnameableItem(f"an item of this list must have {' or '.join(schema.keys)}")
    return "k:{" + ",".join(parts) + "}"


def has_own_paths(value: Any, schema: PatchSchema) -> bool:
    """The value has paths of its own below it."""
    return type(value) is schema.granular


def is_equal_json(a: Any, b: Any) -> bool:
    """Equal as JSON, where 1 is 1.0 but not true."""
    if a is b:
        return True
    if isinstance(a, dict):
        return (
            isinstance(b, dict) and a.keys() == b.keys() and all(is_equal_json(of, b[name]) for name, of in a.items())
        )
    if isinstance(a, list):
        return isinstance(b, list) and len(a) == len(b) and all(map(is_equal_json, a, b))
    return isinstance(a, bool) == isinstance(b, bool) and bool(a == b)


# Changes.


def compare_fields(old: JsonObject, new: JsonObject, schema: PatchSchema) -> tuple[FieldSet, FieldSet]:
    """The fields that `new` added or changed, and those it removed."""
    changed: FieldSet = {}
    removed: FieldSet = {}
    _compare_objects(old, new, schema, changed, removed)
    return changed, removed


def _compare_objects(
    old: JsonObject, new: JsonObject, schema: PatchSchema, changed: FieldSet, removed: FieldSet
) -> None:
    fields, other = schema.fields, schema.element or ANY
    for name, right in new.items():
        left = old.get(name, _MISSING)
        if left is right:
            continue
        child = fields.get(name) or other
        if left is _MISSING:
            changed[f"f:{name}"] = _whole_field_set(right, child)
        elif left != right or child.free:
            _compare_values(left, right, child, f"f:{name}", changed, removed)
    for name, left in old.items():
        if name not in new:
            removed[f"f:{name}"] = _whole_field_set(left, fields.get(name) or other)


def _compare_values(left: Any, right: Any, schema: PatchSchema, key: str, changed: FieldSet, removed: FieldSet) -> None:
    """Two values of one field that are not equal, or only to Python."""
    lower = left if left and has_own_paths(left, schema) else None
    upper = right if right and has_own_paths(right, schema) else None
    if lower is None and upper is None:
        if not is_equal_json(left, right):
            changed[key] = LEAF
        return
    more: FieldSet = {}
    less: FieldSet = {}
    if schema.type == "array":
        _compare_items(lower or (), upper or (), schema, more, less)
    else:
        _compare_objects(lower or {}, upper or {}, schema, more, less)
    # Null and empty give way to children; any other value was a field itself, and has become one or is one no more.
    if (lower is None and not _is_blank_value(left, upper)) or (upper is None and not _is_blank_value(right, lower)):
        changed[key] = {SELF: LEAF, **more} if more else LEAF
    elif more:
        changed[key] = more
    if less:
        removed[key] = less


def _is_blank_value(value: Any, like: Any) -> bool:
    return value is None or (not value and type(value) is type(like))


def _compare_items(old: Any, new: Any, schema: PatchSchema, changed: FieldSet, removed: FieldSet) -> None:
    lefts, rights = _items_by_element(old, schema), _items_by_element(new, schema)
    for key, left in lefts.items():
        right = rights.get(key, [])
        if len(left) == 1 and len(right) == 1:
            if left[0] is not right[0] and (left[0] != right[0] or schema.items.free):
                _compare_values(left[0], right[0], schema.items, key, changed, removed)
        elif len(left) > 1 and len(right) > 1:
            if left != right:
                changed[key] = LEAF
        else:
            removed[key] = LEAF if len(left) > 1 else _whole_field_set(left[0], schema.items)
            if right:
                changed[key] = LEAF if len(right) > 1 else _whole_field_set(right[0], schema.items)
    for key, right in rights.items():
        if key not in lefts:
            changed[key] = LEAF if len(right) > 1 else _whole_field_set(right[0], schema.items)


def _whole_field_set(value: Any, schema: PatchSchema) -> FieldSet:
    """The node of a value that is new (or gone) as a whole: itself and all below."""
    if not value or not has_own_paths(value, schema):
        return LEAF
    out: FieldSet = {SELF: LEAF}
    if isinstance(value, dict):
        fields, other = schema.fields, schema.element or ANY
        for name, below in value.items():
            out[f"f:{name}"] = _whole_field_set(below, fields.get(name) or other)
    else:
        for key, items in _items_by_element(value, schema).items():
            out[key] = LEAF if len(items) > 1 else _whole_field_set(items[0], schema.items)
    return out


def _items_by_element(items: Any, schema: PatchSchema) -> dict[str, list[Any]]:
    out: dict[str, list[Any]] = {}
    for item in items:
        out.setdefault(item_element(item, schema), []).append(item)
    return out


# Contents.


def applied_field_set(body: JsonObject, schema: PatchSchema) -> FieldSet:
    """The fields that a body claims when it is applied."""
    out: FieldSet = {}
    for name, value in body.items():
        declared = schema.fields.get(name)
        below = _claimed_fields(value, declared or schema.element or ANY)
        # The entries of a map are its users' to add and remove; a declared field is a place that is always there.
        if below is None:
            below = LEAF if declared is None or value is None else None
        elif below and declared is None:
            below = {SELF: LEAF, **below}
        if below is not None:
            out[f"f:{name}"] = below
    return out


def _claimed_fields(value: Any, schema: PatchSchema) -> FieldSet | None:
    """The node for a value, None when it claims nothing, such as an empty list whose items count one by one."""
    if not has_own_paths(value, schema):
        return LEAF
    if isinstance(value, dict):
        return applied_field_set(value, schema) or None if value else LEAF
    out: FieldSet = {}
    for key, items in _items_by_element(value, schema).items():
        below = _claimed_fields(items[0], schema.items) if len(items) == 1 else None
        out[key] = {SELF: LEAF, **below} if below else LEAF
    return out or None
