"""What a kind looks like to a patch: the types of its fields and how lists and maps merge.

Two sources, one form. Built-in kinds come from `schema.json` (facts out of Kubernetes' OpenAPI description, written by
tools/extract-merge-keys), custom kinds from their structural schemas. Either way the result is a `KindSchema` whose `root`
is a tree (for recursive types, a graph) of `PatchSchema` nodes.

The merge rules are Kubernetes': a list is atomic (owned and replaced as a whole), a set of scalars, or a map by the values
of its `keys`; an object is granular unless it is `atomic`. Where nothing is declared (`ANY`) objects are granular and lists
atomic. Strategic merge patch has rules of its own (`strategy`, `merge_key`), which custom kinds lack.

Nodes are shared and never change once their kind was handed out.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from importlib import resources
from typing import Any, Final

import msgspec

from remuda.api.meta import JsonObject

FieldSet = dict[str, Any]  # FieldsV1; see fields.py


class PatchSchema:
    """One place in a kind.

    `type` is object, array, string, integer, number, boolean, int-or-string, quantity, time, micro-time (six digits of a
    second) or any. An object has declared `field_sets` and, when other names are allowed too, the `element` they all are of; an
    array has the `element` of its items.
    """

    __slots__ = (
        "always",
        "atomic",
        "default",
        "element",
        "fields",
        "format",
        "free",
        "granular",
        "keys",
        "list_type",
        "merge_key",
        "nullable",
        "required",
        "strategy",
        "type",
    )

    def __init__(self, type: str, format: str = "") -> None:
        self.type = type
        self.format = format  # of a string or a number, as OpenAPI names it
        self.fields: dict[str, PatchSchema] = {}
        self.element: PatchSchema | None = None
        self.required: tuple[str, ...] = ()
        self.atomic = False  # an object that merges as a whole
        self.list_type = "atomic"  # or set, map
        self.keys: tuple[str, ...] = ()  # sorted, as paths are written
        self.strategy: frozenset[str] = frozenset()  # of a strategic merge patch: merge, replace, retainKeys
        self.merge_key = ""
        self.default: Any = None
        self.nullable = False
        self.granular: object = None  # dict or list: what of this place has paths below it; set by `sealed`
        self.free = False  # true and 1 may both stand here or below, which Python takes for equal
        self.always = False  # the server's own form has this object even when nobody wrote it

    def child(self, name: str) -> PatchSchema:
        """The field of that name; undeclared ones may be anything."""
        return self.fields.get(name) or self.element or ANY

    @property
    def items(self) -> PatchSchema:
        return self.element or ATOMIC

    def sealed(self) -> PatchSchema:
        if self.type == "array":
            self.granular = None if self.list_type == "atomic" else list
        else:
            self.granular = dict if self.type in ("object", "any") and not self.atomic else None
        return self

    def variant(self) -> PatchSchema:
        """A copy for a place that overrides what its type says. It shares the fields, even those still to be filled in."""
        copy = PatchSchema(self.type, self.format)
        for slot in PatchSchema.__slots__:
            setattr(copy, slot, getattr(self, slot))
        return copy


ANY: Final = PatchSchema("any")
ATOMIC: Final = PatchSchema("any")
for _schema in (ANY, ATOMIC):
    _schema.element, _schema.nullable, _schema.free = _schema, True, True
ATOMIC.atomic = True
ANY.sealed()


class KindSchema:
    """A kind for the patch engine.

    `custom` kinds keep nulls where their schema allows them, start from an empty object, and know no strategic merge patch.
    `resets` has, by subresource, the fields that a write through it cannot change and therefore never owns.
    """

    __slots__ = ("custom", "resets", "root", "zero")

    def __init__(self, root: PatchSchema, resets: Mapping[str, FieldSet], *, custom: bool) -> None:
        self.root = root
        self.resets = resets
        self.custom = custom
        # What a new object is compared with: nobody owns the empty objects that every body of a built-in kind has.
        self.zero: JsonObject = {} if custom else _zero_values(root)


def _zero_values(schema: PatchSchema) -> JsonObject:
    out: JsonObject = {}
    for name, field in schema.fields.items():
        if field.always:
            out[name] = _zero_values(field)
        elif name in schema.required:
            out[name] = _ZEROS.get(field.type)
    return out


_ZEROS: Final = {"string": "", "integer": 0, "number": 0, "boolean": False}

# Built-in kinds.

_STATUS_RESETS: Final[dict[str, FieldSet]] = {
    "v1 Pod": {"f:metadata": {"f:deletionTimestamp": {}, "f:ownerReferences": {}}},
    "apps/v1 Deployment": {"f:metadata": {"f:labels": {}}},
}


class _SchemaTable(msgspec.Struct, frozen=True):
    kinds: dict[str, str]
    types: dict[str, JsonObject]


class _SchemaBuilder:
    """Turns the types of the table into nodes, each once; a type may be met again while it is being built."""

    def __init__(self, table: _SchemaTable) -> None:
        self.table = table
        self.built: dict[str, PatchSchema] = {}

    def named(self, name: str) -> PatchSchema:
        schema = self.built.get(name)
        if schema is None:
            entry = self.table.types[name]
            schema = self.built[name] = PatchSchema("object")
            schema.atomic = entry.get("atomic", False)
            schema.required = tuple(entry.get("required", ()))
            schema.sealed()
            for field, of in entry["fields"].items():
                schema.fields[field] = self.field(of)
        return schema

    def field(self, of: str | JsonObject) -> PatchSchema:
        if isinstance(of, str):
            return self.plain(of)
        kind = of["type"]
        if kind in ("array", "map"):
            schema = PatchSchema("array" if kind == "array" else "object")
            schema.element = self.field(of["items"])
            schema.list_type = of.get("list", "atomic")
            schema.keys = tuple(sorted(of.get("keys") or ()))
        else:
            schema = self.plain(kind).variant()
        schema.atomic = of.get("atomic", schema.atomic)
        schema.strategy = frozenset(of["patch"].split(",")) if "patch" in of else frozenset()
        schema.merge_key = of.get("mergeKey", "")
        schema.default = of.get("default")
        return schema.sealed()

    def plain(self, of: str) -> PatchSchema:
        if of[0] == "@":
            return self.named(of[1:])
        if of[0] == "=":
            schema = self.named(of[1:]).variant()
            schema.always = True
            return schema
        if of in ("any", "raw"):
            return ANY if of == "any" else ATOMIC
        name, _, format = of.partition("/")
        return PatchSchema(name, format)


@cache
def _schema_builder() -> _SchemaBuilder:
    data = resources.files(__package__).joinpath("schema.json").read_bytes()
    return _SchemaBuilder(msgspec.json.decode(data, type=_SchemaTable))


@cache
def builtin_kind_schema(api_version: str, kind: str) -> KindSchema | None:
    """The schema of a built-in kind, None when the table has none."""
    builder, key = _schema_builder(), f"{api_version} {kind}"
    name = builder.table.kinds.get(key)
    if name is None:
        return None
    root = builder.named(name)
    resets: dict[str, FieldSet] = {}
    if "status" in root.fields:
        resets = {"": {"f:status": {}}, "status": {"f:spec": {}, **_STATUS_RESETS.get(key, {})}}
    return KindSchema(root, resets, custom=False)


def object_meta_patch_schema() -> PatchSchema:
    return _schema_builder().named("meta.v1.ObjectMeta")


# Custom kinds.


def custom_kind_patch_schema(schema: JsonObject | None, *, has_status: bool) -> KindSchema:
    """A custom kind's version by its `openAPIV3Schema`; `has_status`: the status subresource is enabled for it.

    Without a schema everything is undeclared: granular objects, atomic lists.
    """
    if schema is None:
        root = PatchSchema("object").sealed()
        root.element, root.free = ANY, True
    else:
        root = _structural_node({**schema, "x-kubernetes-embedded-resource": True}, preserve=False)
        root.atomic = False
        root.sealed()
    resets: dict[str, FieldSet] = {}
    if has_status:
        resets = {"": {"f:status": {}}, "status": {"f:metadata": {}, "f:spec": {}}}
    return KindSchema(root, resets, custom=True)


def _structural_node(schema: JsonObject, preserve: bool) -> PatchSchema:
    preserve = preserve or schema.get("x-kubernetes-preserve-unknown-fields") is True
    kind = schema.get("type") or ""
    properties: JsonObject = schema.get("properties") or {}
    if schema.get("x-kubernetes-int-or-string") is True:
        out = PatchSchema("int-or-string")
    elif kind == "array":
        out = _structural_list_node(schema, preserve)
    elif kind == "object" or properties:
        out = PatchSchema("object")
        out.fields = {name: _structural_node(of, preserve) for name, of in properties.items()}
        out.required = tuple(schema.get("required") or ())
        out.atomic = schema.get("x-kubernetes-map-type") == "atomic"
        more = schema.get("additionalProperties")
        if isinstance(more, dict):
            out.element = _structural_node(more, preserve)
        elif more is True or (more is None and (preserve or not properties)):
            out.element = ANY
        if schema.get("x-kubernetes-embedded-resource") is True:
            out.fields |= {
                "apiVersion": PatchSchema("string"),
                "kind": PatchSchema("string"),
                "metadata": object_meta_patch_schema(),
            }
    elif kind:
        out = PatchSchema(kind, schema.get("format") or "")
    else:
        out = ANY.variant()
    out.nullable = out.type == "any" or schema.get("nullable") is True
    out.free = out.type == "any" or any(below.free for below in (*out.fields.values(), *filter(None, [out.element])))
    out.default = schema.get("default")
    return out.sealed()


def _structural_list_node(schema: JsonObject, preserve: bool) -> PatchSchema:
    out = PatchSchema("array")
    items = schema.get("items")
    out.element = _structural_node(items, preserve) if isinstance(items, dict) else ATOMIC
    out.list_type = schema.get("x-kubernetes-list-type") or "atomic"
    out.keys = tuple(sorted(schema.get("x-kubernetes-list-map-keys") or ()))
    return out
