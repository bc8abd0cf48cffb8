"""Writing a status: the smallest merge patch from what is there to what should be."""

from __future__ import annotations

from typing import TypeVar

import msgspec

from remuda.api.codec import to_wire
from remuda.api.errors import NotFound
from remuda.api.meta import JsonObject, KObject
from remuda.kube.cluster import Cluster, Preconditions

K = TypeVar("K", bound=KObject)


def builtin_status_patch(old: msgspec.Struct, new: msgspec.Struct, always: tuple[str, ...] = ()) -> JsonObject:
    """`always`: numbers that are written even when they are 0."""
    before, after = to_wire(old), {**dict.fromkeys(always, 0), **to_wire(new)}
    return builtin_merge_patch(before, after)


def builtin_merge_patch(before: JsonObject, after: JsonObject) -> JsonObject:
    """The merge patch from one to the other: what is gone is null, at every depth."""
    patch: JsonObject = {}
    for field in sorted({*before, *after}):
        old, new = before.get(field), after.get(field)
        if old == new:
            continue
        patch[field] = builtin_merge_patch(old, new) if isinstance(old, dict) and isinstance(new, dict) else new
    return patch


async def write_builtin_status(
    cluster: Cluster, obj: K, old: msgspec.Struct, new: msgspec.Struct, always: tuple[str, ...] = ()
) -> K:
    """The object as it is then. Raises Conflict when it was changed meanwhile."""
    patch = builtin_status_patch(old, new, always) if old != new else {}
    if not patch:
        return obj
    when = Preconditions(uid=obj.uid, resource_version=obj.metadata.resource_version)
    try:
        return await cluster.patch(
            type(obj), obj.name, {"status": patch}, obj.namespace, subresource="status", when=when
        )
    except NotFound:
        return obj
