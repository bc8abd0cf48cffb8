"""OpenAPI v3, for `kubectl explain` and for clients that check fields before they send them.

Custom kinds (ours among them) are described by their own schemas. Built-in kinds come from the table the patch engine uses:
names, types and merge rules of their fields, without prose.
"""

from __future__ import annotations

import hashlib
from typing import Any

from remuda.api.codec import encode
from remuda.api.meta import JsonObject
from remuda.embedded.apiserver.kinds_served import KindRegistry, ServedKind
from remuda.embedded.apiserver.patching import PatchSchema
from remuda.embedded.apiserver.patching.patch_schema import object_meta_patch_schema

_META = "io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta"
_INT_OR_STRING: JsonObject = {"oneOf": [{"type": "integer"}, {"type": "string"}], "format": "int-or-string"}
_TIME: JsonObject = {"type": "string", "format": "date-time"}
_FORMS = {"int-or-string": _INT_OR_STRING, "quantity": _INT_OR_STRING, "time": _TIME, "micro-time": _TIME}


def openapi_index(registry: KindRegistry) -> JsonObject:
    paths: JsonObject = {}
    for group, version in _openapi_group_versions(registry):
        at = f"apis/{group}/{version}" if group else f"api/{version}"
        digest = (
            hashlib.sha256(repr(sorted(_openapi_kinds(registry, group, version))).encode()).hexdigest()[:32].upper()
        )
        paths[at] = {"serverRelativeURL": f"/openapi/v3/{at}?hash={digest}"}
    return {"paths": paths}


def openapi_document(registry: KindRegistry, group: str, version: str) -> JsonObject | None:
    served = [s for s in registry if (s.resource.group, s.resource.version) == (group, version)]
    if not served:
        return None
    book = _SchemaBook()
    paths: JsonObject = {}
    for each in served:
        _describe_paths(each, book, paths)
    return {
        "openapi": "3.0.0",
        "info": {"title": "Remuda", "version": "unversioned"},
        "paths": paths,
        "components": {"schemas": book.schemas},
    }


def _openapi_group_versions(registry: KindRegistry) -> list[tuple[str, str]]:
    return list(dict.fromkeys((s.resource.group, s.resource.version) for s in registry))


def _openapi_kinds(registry: KindRegistry, group: str, version: str) -> list[tuple[str, str]]:
    return [
        (s.resource.plural, "" if s.custom is None else hashlib.sha256(encode(s.custom.schema)).hexdigest())
        for s in registry
        if (s.resource.group, s.resource.version) == (group, version)
    ]


class _SchemaBook:
    """Schemas by name. A type is written once and referred to; that is also what ends recursion."""

    def __init__(self) -> None:
        self.schemas: JsonObject = {}
        self._names: dict[int, str] = {}

    def refer(self, schema: PatchSchema, name: str) -> JsonObject:
        known = self._names.get(id(schema))
        if known is None:
            known = name
            while known in self.schemas:
                known += "_"
            self._names[id(schema)] = known
            self.schemas[known] = {}
            self.schemas[known] = self._object(schema, known)
        return {"$ref": f"#/components/schemas/{known}"}

    def _object(self, schema: PatchSchema, name: str) -> JsonObject:
        body: JsonObject = {"type": "object"}
        if schema.fields:
            body["properties"] = {f: self.of(s, f"{name}.{f}") for f, s in schema.fields.items()}
        if schema.required:
            body["required"] = list(schema.required)
        if schema.element is not None:
            body["additionalProperties"] = self.of(schema.element, f"{name}.item")
        if schema.atomic:
            body["x-kubernetes-map-type"] = "atomic"
        return body

    def of(self, schema: PatchSchema, name: str) -> JsonObject:
        if schema is object_meta_patch_schema():
            name = _META
        if schema.type == "object" and schema.fields:
            return {"allOf": [self.refer(schema, name)], "default": {}}
        if schema.type == "object":
            return self._object(schema, name)
        if schema.type == "any":
            return {"x-kubernetes-preserve-unknown-fields": True}
        if schema.type == "array":
            body: JsonObject = {"type": "array", "items": self.of(schema.items, f"{name}.item")}
            if schema.list_type:
                body["x-kubernetes-list-type"] = schema.list_type
            if schema.keys:
                body["x-kubernetes-list-map-keys"] = list(schema.keys)
            if schema.strategy:
                body["x-kubernetes-patch-strategy"] = ",".join(sorted(schema.strategy))
            if schema.merge_key:
                body["x-kubernetes-patch-merge-key"] = schema.merge_key
            return body
        if schema.type in _FORMS:
            return dict(_FORMS[schema.type])
        return {"type": schema.type, **({"format": schema.format} if schema.format else {})}


def _describe_paths(served: ServedKind, book: _SchemaBook, paths: JsonObject) -> None:
    resource = served.resource
    gvk = {"group": resource.group, "version": resource.version, "kind": resource.kind}
    name = f"{'.'.join(reversed(resource.group.split('.'))) if resource.group else 'io.k8s.api.core'}"
    name = f"{name}.{resource.version}.{resource.kind}"
    if served.custom is not None:
        schema: Any = {**served.custom.schema}
        meta = book.refer(object_meta_patch_schema(), _META)
        schema["properties"] = {
            "apiVersion": {"type": "string", "description": "Version of the object's form."},
            "kind": {"type": "string", "description": "What the object is."},
            **(schema.get("properties") or {}),
            "metadata": {"allOf": [meta], "description": "Name, namespace, labels and what else all objects have."},
        }
        schema["x-kubernetes-group-version-kind"] = [gvk]
        book.schemas[name] = schema
    else:
        book.refer(served.schema.root, name)
        book.schemas[name]["x-kubernetes-group-version-kind"] = [gvk]
    root = f"/apis/{resource.group}/{resource.version}" if resource.group else f"/api/{resource.version}"
    at = f"{root}/namespaces/{{namespace}}/{resource.plural}" if resource.namespaced else f"{root}/{resource.plural}"
    ref = {"content": {"application/json": {"schema": {"$ref": f"#/components/schemas/{name}"}}}}
    ok = {"200": {"description": "OK", **ref}}
    # kubectl looks here whether the server knows fieldValidation and dryRun.
    options = [
        {"name": option, "in": "query", "schema": {"type": "string"}}
        for option in ("dryRun", "fieldManager", "fieldValidation")
    ]
    kind = {"x-kubernetes-group-version-kind": gvk, "responses": ok}
    paths[at] = {
        "get": {**kind, "x-kubernetes-action": "list"},
        "post": {**kind, "x-kubernetes-action": "post", "parameters": options, "requestBody": ref},
    }
    if not served.is_virtual:
        paths[f"{at}/{{name}}"] = {
            "get": {**kind, "x-kubernetes-action": "get"},
            "put": {**kind, "x-kubernetes-action": "put", "parameters": options, "requestBody": ref},
            "patch": {**kind, "x-kubernetes-action": "patch", "parameters": options, "requestBody": ref},
            "delete": {**kind, "x-kubernetes-action": "delete", "parameters": options[:1]},
        }
