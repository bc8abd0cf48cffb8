"""Request bodies into values, records into response bodies."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, TypeVar

import msgspec

from remuda.api.codec import decode, decode_json, encode
from remuda.api.core_v1 import Binding
from remuda.api.errors import ApiError, BadRequest, Status, StatusDetails
from remuda.api.meta import JsonObject, KObject, ObjectMeta
from remuda.apiserver.store.record import Record, watch_line
from remuda.kube.cluster import Preconditions
from remuda.kube.rest import JSON, MERGE_PATCH, BindingBody, DeleteOptions

T = TypeVar("T")


class UnsupportedMediaType(ApiError):
    code, reason = 415, "UnsupportedMediaType"


class MethodNotAllowed(ApiError):
    code, reason = 405, "MethodNotAllowed"


class RequestTooLarge(ApiError):
    code, reason = 413, "RequestEntityTooLarge"


def media_type(header: str) -> str:
    return header.partition(";")[0].strip().lower()


def parse_object(header: str, body: bytes) -> JsonObject:
    if media_type(header) not in (JSON, ""):
        raise UnsupportedMediaType(f"the body is `{header}`; only {JSON} is understood here")
    return _mapping(body)


def parse_patch(header: str, body: bytes) -> JsonObject:
    if media_type(header) != MERGE_PATCH:
        raise UnsupportedMediaType(f"the patch is `{header}`; only {MERGE_PATCH} is understood here")
    return _mapping(body)


def parse_binding(header: str, body: bytes) -> Binding:
    if media_type(header) not in (JSON, ""):
        raise UnsupportedMediaType(f"the body is `{header}`; only {JSON} is understood here")
    given = _typed(BindingBody, body)
    return Binding(given.target.name, given.metadata)


def parse_delete_options(body: bytes, query_grace: str) -> tuple[Preconditions, int | None]:
    options = _typed(DeleteOptions, body) if body.strip() else DeleteOptions()
    grace = options.grace_period_seconds
    if grace is None and query_grace:
        if not query_grace.isdigit():
            raise BadRequest(f"gracePeriodSeconds=`{query_grace}` is not a number of seconds")
        grace = int(query_grace)
    asked = options.preconditions
    return (Preconditions() if asked is None else Preconditions(asked.uid, asked.resource_version)), grace


def named(body: JsonObject, namespace: str, name: str) -> JsonObject:
    """The body with the name and namespace of its path; what it says itself must agree."""
    meta = body.get("metadata")
    if not isinstance(meta, dict | None):
        raise BadRequest("metadata must be an object")
    meta = dict(meta or {})
    for field, value in (("namespace", namespace), ("name", name)):
        if value and (meta.get(field) or value) != value:
            raise BadRequest(f"metadata.{field} is `{meta[field]}` but the path says `{value}`")
        if value:
            meta[field] = value
    return {**body, "metadata": meta}


def render_list(kind: type[KObject], records: Iterable[Record], revision: int) -> bytes:
    resource = kind.resource
    return b'{"kind":"%b","apiVersion":"%b","metadata":{"resourceVersion":"%d"},"items":[%b]}' % (
        f"{resource.kind}List".encode(),
        resource.api_version.encode(),
        revision,
        b",".join(record.raw for record in records),
    )


def render_bookmark(kind: type[KObject], revision: int) -> bytes:
    resource = kind.resource
    meta = ObjectMeta(resource_version=str(revision))
    return watch_line("BOOKMARK", encode({"kind": resource.kind, "apiVersion": resource.api_version, "metadata": meta}))


def render_deleted(kind: type[KObject], record: Record) -> bytes:
    """Gone: a success status. Still there (marked, or held by finalizers): the object as it is now."""
    if not record.deleted:
        return record.raw
    resource = kind.resource
    details = StatusDetails(name=record.body["metadata"]["name"], kind=resource.plural, group=resource.group)
    return render_status(Status(status="Success", code=200, details=details))


def render_status(status: Status) -> bytes:
    body: JsonObject = msgspec.to_builtins(status)
    return encode(
        {"kind": "Status", "apiVersion": "v1", "metadata": {}, **body, "code": status.code, "status": status.status}
    )


def _mapping(body: bytes) -> JsonObject:
    try:
        value: Any = decode_json(body)
    except msgspec.DecodeError as error:
        raise BadRequest(f"the body is not JSON: {error}") from None
    if not isinstance(value, dict):
        raise BadRequest("the body must be a JSON object")
    return value


def _typed(type_: type[T], body: bytes) -> T:
    try:
        return decode(type_, body)
    except msgspec.MsgspecError as error:
        raise BadRequest(f"the body cannot be read: {error}") from None
