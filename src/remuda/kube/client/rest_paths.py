"""Kubernetes' REST grammar, the client's half: where an object lives, and the bodies that are not objects.

Shared with the server, which reads what is rendered here.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Generic, TypeVar
from urllib.parse import quote

import msgspec

from remuda.api.errors import ApiError, BadRequest
from remuda.api.kubernetes.core_v1 import Binding
from remuda.api.meta import JsonObject, KObject, ObjectMeta, Resource

K = TypeVar("K", bound=KObject)

MERGE_PATCH = "application/merge-patch+json"
JSON = "application/json"


def rest_path(resource: Resource, namespace: str = "", name: str = "", subresource: str = "") -> str:
    """`/api/v1/namespaces/ns/pods/name/status`; without a name the collection, without a namespace all namespaces."""
    root = f"/apis/{resource.group}/{resource.version}" if resource.group else f"/api/{resource.version}"
    scope = f"/namespaces/{quote(namespace, safe='')}" if resource.namespaced and namespace else ""
    one = f"/{quote(name, safe='')}" if name else ""
    return f"{root}{scope}/{resource.plural}{one}" + (f"/{subresource}" if subresource else "")


def rest_object_path(resource: Resource, namespace: str, name: str, subresource: str = "") -> str:
    check_rest_address(resource, namespace, name)
    return rest_path(resource, namespace, name, subresource)


def check_rest_address(resource: Resource, namespace: str, name: str) -> None:
    """One object is meant, so it has to be named in full."""
    if not name or (resource.namespaced and not namespace):
        missing = "namespace" if name else "name"
        raise BadRequest(f"a {missing} is needed to name one of {resource.plural}; set metadata.{missing}")


class ListMeta(msgspec.Struct, frozen=True, rename="camel"):
    """`continue_` names the next page; empty on the last."""

    resource_version: str = ""
    continue_: str = msgspec.field(name="continue", default="")


class ListBody(msgspec.Struct, Generic[K], frozen=True):
    items: list[K]
    metadata: ListMeta = ListMeta()


class Untyped(msgspec.Struct, frozen=True):
    """A page of a list before its items are looked at."""

    items: list[msgspec.Raw] = []
    metadata: ListMeta = ListMeta()


class Named(msgspec.Struct, frozen=True):
    metadata: ObjectMeta = ObjectMeta()


class WatchLine(msgspec.Struct, frozen=True):
    """One line of a watch stream; `object` is decoded once its type is known."""

    type: str
    object: msgspec.Raw


class DeletePreconditions(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    uid: str = ""
    resource_version: str = ""


class DeleteOptions(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    kind: str = ""
    api_version: str = ""
    grace_period_seconds: int | None = None
    preconditions: DeletePreconditions | None = None


class BindingTarget(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    name: str
    kind: str = ""
    api_version: str = ""


class BindingBody(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """The wire form of `Binding`, whose target is a reference and not just a name."""

    target: BindingTarget
    metadata: ObjectMeta = ObjectMeta()


def render_rest_binding(name: str, namespace: str, binding: Binding) -> JsonObject:
    meta: JsonObject = msgspec.to_builtins(binding.metadata)
    return {
        "apiVersion": "v1",
        "kind": "Binding",
        "metadata": {**meta, "name": name, "namespace": namespace},
        "target": {"apiVersion": "v1", "kind": "Node", "name": binding.target},
    }


def render_rest_eviction(name: str, namespace: str, options: DeleteOptions) -> JsonObject:
    return {
        "apiVersion": "policy/v1",
        "kind": "Eviction",
        "metadata": {"name": name, "namespace": namespace},
        "deleteOptions": msgspec.to_builtins(options),
    }


class HttpStreamLines:
    """A stream of bytes into whole lines. One line is one object, and no object is larger than `limit`."""

    def __init__(self, limit: int = 16 * 1024 * 1024) -> None:
        self._limit = limit
        self._parts: list[bytes] = []
        self._size = 0

    def feed(self, chunk: bytes) -> list[bytes]:
        """The lines that this chunk completes, without their ends and without empty ones."""
        first, *rest = chunk.split(b"\n")
        self._parts.append(first)
        self._size += len(first)
        if self._size > self._limit:
            raise ApiError(f"the API sent a line of more than {self._limit} bytes", reason="LineTooLong")
        if not rest:
            return []
        found = [b"".join(self._parts), *rest[:-1]]
        self._parts, self._size = [rest[-1]], len(rest[-1])
        return [line for line in found if line]


_UNIX_PATH_LIMIT = 107


@contextmanager
def rest_socket_path_within_limit(path: Path) -> Iterator[str]:
    """A form of a unix socket's path that fits the kernel's limit, good while the context is open.

    The limit is on the text, not on the depth: an open directory gives a short text for any directory.
    """
    if len(os.fsencode(path)) <= _UNIX_PATH_LIMIT:
        yield str(path)
        return
    directory = os.open(path.parent, os.O_PATH | os.O_DIRECTORY)
    try:
        yield f"/proc/self/fd/{directory}/{path.name}"
    finally:
        os.close(directory)
