"""Putting an applied body into an object, taking fields out of it, and the form a server gives to what it stores.

Unchanged parts are shared with the arguments. Order matters for lists only: items that both have stand in the order of the
applied body, the rest keeps its place among them.
"""

from __future__ import annotations

from typing import Any, Final

from remuda.api.meta import JsonObject
from remuda.embedded.apiserver.patching.bounds import CONTAINERS
from remuda.embedded.apiserver.patching.compare import has_own_paths, item_element
from remuda.embedded.apiserver.patching.field_sets import SELF, is_member_field
from remuda.embedded.apiserver.patching.patch_schema import (
    ANY,
    FieldSet,
    KindSchema,
    PatchSchema,
    object_meta_patch_schema,
)


def merge_applied(live: Any, applied: Any, schema: PatchSchema) -> Any:
    """`applied` over `live`: its leaves win, nothing is removed."""
    if live is applied or not live or not has_own_paths(live, schema):
        return applied
    if not applied or not has_own_paths(applied, schema):
        return live if applied is None or (not applied and type(applied) is type(live)) else applied
    if isinstance(live, list):
        return _merge_applied_items(live, applied, schema)
    out: JsonObject = dict(live)
    for name, value in applied.items():
        out[name] = merge_applied(live[name], value, schema.child(name)) if name in live else value
    return out


def _merge_applied_items(live: list[Any], applied: list[Any], schema: PatchSchema) -> list[Any]:
    lefts = [item_element(item, schema) for item in live]
    rights = [item_element(item, schema) for item in applied]
    of_left: dict[str, Any] = {}
    for key, item in zip(lefts, live, strict=True):
        of_left[key] = None if key in of_left else item  # an item that is there twice is not merged, but replaced
    of_right = dict(zip(rights, applied, strict=True))

    def joined(key: str) -> Any:
        left = of_left.get(key)
        return of_right[key] if left is None else merge_applied(left, of_right[key], schema.items)

    shared = iter([key for key in rights if key in of_left])
    due = next(shared, None)
    pending = iter(rights)
    out: list[Any] = []
    for key, item in zip(lefts, live, strict=True):
        if key not in of_right:
            out.append(item)
        elif key == due:  # another one that both have comes where the applied body has it
            for right in pending:
                out.append(joined(right))
                if right == key:
                    break
            due = next(shared, None)
    out.extend(map(joined, pending))
    return out


def remove_fields(value: Any, fields: FieldSet, schema: PatchSchema) -> Any:
    """The value without these fields; None when nothing is left of an object or a list."""
    if not fields:
        return value
    if isinstance(value, list):
        return _remove_items(value, fields, schema)
    if not isinstance(value, dict):
        return value
    if not has_own_paths(value, schema):
        return None
    out: JsonObject = dict(value)
    for key, below in fields.items():
        name = key[2:]
        if key[0] == "f" and name in value:
            if is_member_field(below):
                del out[name]
            else:
                out[name] = remove_fields(value[name], below, schema.child(name))
    return out or None


def _remove_items(items: list[Any], fields: FieldSet, schema: PatchSchema) -> list[Any] | None:
    if not has_own_paths(items, schema):
        return None
    out: list[Any] = []
    for item in items:
        below = fields.get(item_element(item, schema))
        if below is None:
            out.append(item)
        elif not is_member_field(below):
            out.append(remove_fields(item, below, schema.items))
    return out or None


def field_set_with_declared_members(fields: FieldSet, schema: PatchSchema) -> FieldSet:
    """The set with every declared field that it goes through as a member, so that an emptied one is removed whole."""
    out: FieldSet = {}
    for key, below in fields.items():
        if not below:
            out[key] = below
            continue
        if key[0] == "f":
            name = key[2:]
            node = field_set_with_declared_members(below, schema.child(name))
            out[key] = {SELF: {}, **node} if name in schema.fields else node
        else:
            out[key] = field_set_with_declared_members(below, schema.items if key[0] == "k" else ANY)
    return out


_ZEROS: Final = {"string": "", "quantity": "0", "integer": 0, "number": 0, "boolean": False}


def settle_body_by_patch_schema(body: JsonObject, kind: KindSchema) -> JsonObject:
    """What a server keeps of a body: no nulls but those a custom kind allows, no empty optional lists and maps.

    In a map of a built-in kind a null counts as the empty value, since its key was given. Metadata is built in for every
    kind; the owners in it are not touched, since an empty list of them is a request (see `track_update`).
    """
    return _settle_object(settle_metadata_by_patch_schema(body), kind.root, custom=kind.custom, skip="metadata")


def settle_metadata_by_patch_schema(body: JsonObject) -> JsonObject:
    meta = body.get("metadata")
    if not isinstance(meta, dict):
        return body
    new = _settle_object(meta, object_meta_patch_schema(), custom=False, skip="managedFields")
    return body if new is meta else {**body, "metadata": new}


def _settle_object(body: JsonObject, schema: PatchSchema, *, custom: bool, skip: str = "") -> JsonObject:
    out: JsonObject | None = None
    for name, value in body.items():
        if name == skip or (value and not isinstance(value, CONTAINERS)):
            continue
        declared = schema.fields.get(name)
        child = declared or schema.element or ANY
        drop = False
        kept = value
        if value is None:
            if custom:
                drop = not child.nullable
            elif declared is None and child.type in _ZEROS:
                kept = _ZEROS[child.type]
            else:
                drop = child.type != "any"
        elif value:
            kept = _settle_value(value, child, custom)
        elif not custom and declared is not None and name not in schema.required and isinstance(value, CONTAINERS):
            drop = child.type == "array" or (child.type == "object" and child.element is not None)
        if drop or kept is not value:
            if out is None:
                out = dict(body)
            if drop:
                del out[name]
            else:
                out[name] = kept
    return body if out is None else out


def _settle_value(value: Any, schema: PatchSchema, custom: bool) -> Any:
    if isinstance(value, dict):
        return _settle_object(value, schema, custom=custom)
    items = [_settle_value(item, schema.items, custom) if isinstance(item, CONTAINERS) else item for item in value]
    return value if all(map(_is_same_item, items, value)) else items


def _is_same_item(a: Any, b: Any) -> bool:
    return a is b
