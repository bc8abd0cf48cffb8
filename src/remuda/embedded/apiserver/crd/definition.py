"""A CustomResourceDefinition as the server uses it: one `CustomVersion` per version that is served.

Objects of all versions are stored under one prefix in the storage version; with conversion strategy None (the only one
here) versions differ in nothing but `apiVersion`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec

from remuda.api.meta import JsonObject, Resource

_VERBS = ("delete", "deletecollection", "get", "list", "patch", "create", "update", "watch")
AGE: JsonObject = {"name": "Age", "type": "date", "jsonPath": ".metadata.creationTimestamp"}


class ScalePaths(msgspec.Struct, frozen=True):
    """Where the scale subresource finds its numbers: dotted paths, the selector's may be empty."""

    spec: str
    status: str
    selector: str = ""


class CustomVersion(msgspec.Struct, frozen=True):
    """`structural_schema` is the version's openAPIV3Schema; `columns` its additional printer columns."""

    resource: Resource
    storage: Resource
    definition: str
    schema: JsonObject
    columns: tuple[JsonObject, ...]
    scale: ScalePaths | None = None


def custom_versions(definition: JsonObject) -> Iterator[CustomVersion]:
    spec = definition["spec"]
    found = [(_custom_resource(spec, version), version) for version in spec["versions"]]
    storage = next(resource for resource, version in found if version.get("storage"))
    for resource, version in found:
        if not version.get("served"):
            continue
        schema = (version.get("schema") or {}).get("openAPIV3Schema") or {}
        columns = tuple(version.get("additionalPrinterColumns") or (AGE,))
        scale = (version.get("subresources") or {}).get("scale")
        yield CustomVersion(
            resource,
            storage,
            definition["metadata"]["name"],
            schema,
            columns,
            None if scale is None else _scale_paths(scale),
        )


def _custom_resource(spec: JsonObject, version: JsonObject) -> Resource:
    names = spec["names"]
    subresources = version.get("subresources") or {}
    return Resource(
        spec["group"],
        version["name"],
        names["kind"],
        names["plural"],
        namespaced=spec.get("scope") == "Namespaced",
        subresources=tuple(name for name in ("status", "scale") if subresources.get(name) is not None),
        short=tuple(names.get("shortNames") or ()),
        singular=names.get("singular") or names["kind"].lower(),
        list_kind=names.get("listKind") or f"{names['kind']}List",
        categories=tuple(names.get("categories") or ()),
        verbs=_VERBS,
        selectable=tuple(f["jsonPath"].removeprefix(".") for f in version.get("selectableFields") or ()),
    )


def _scale_paths(given: JsonObject) -> ScalePaths:
    return ScalePaths(
        _scale_path(given.get("specReplicasPath")),
        _scale_path(given.get("statusReplicasPath")),
        _scale_path(given.get("labelSelectorPath")),
    )


def _scale_path(path: Any) -> str:
    return str(path or "").removeprefix(".")
