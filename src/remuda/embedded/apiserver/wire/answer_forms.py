"""In which form a client wants objects: as they are, as a Table, or their metadata alone (from the Accept header)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from enum import Enum

import msgspec

from remuda.api.codec import decode_json, encode
from remuda.api.errors import ApiError, BadRequest
from remuda.api.meta import JsonObject
from remuda.embedded.apiserver.conversion import from_storage, is_converted
from remuda.embedded.apiserver.kinds_served import Served
from remuda.embedded.apiserver.store.record import Event, Record, watch_line
from remuda.embedded.apiserver.wire.paging import Page
from remuda.embedded.apiserver.wire.tables import columns_of

_META_V1 = "meta.k8s.io/v1"


class Form(Enum):
    OBJECT = 0
    TABLE = 1
    METADATA = 2


class NotAcceptable(ApiError):
    code, reason = 406, "NotAcceptable"


class View(msgspec.Struct, frozen=True):
    """`include`: what a table's rows carry besides cells: None, Metadata or Object."""

    form: Form = Form.OBJECT
    include: str = "Metadata"


def negotiate(accept: str, include: str) -> View:
    """The first of the client's choices that can be met."""
    if not accept:
        return View()
    if include not in ("", "None", "Metadata", "Object"):
        raise BadRequest(f"includeObject=`{include}` is not supported; use None, Metadata or Object")
    for choice in accept.split(","):
        media, *parameters = (part.strip() for part in choice.split(";"))
        asked = dict(p.split("=", 1) for p in parameters if "=" in p)
        if media not in ("application/json", "application/*", "*/*"):
            continue
        wanted = asked.get("as", "")
        if not wanted:
            return View()
        if asked.get("g") != "meta.k8s.io" or asked.get("v") != "v1":
            continue
        if wanted == "Table":
            return View(Form.TABLE, include or "Metadata")
        if wanted in ("PartialObjectMetadata", "PartialObjectMetadataList"):
            return View(Form.METADATA)
    raise NotAcceptable(
        "only the following media types are accepted: application/json, and Table or PartialObjectMetadata as v1 in it"
    )


def render_one(view: View, served: Served, record: Record, now: float) -> bytes:
    if view.form is Form.OBJECT:
        return _raw(served, record)
    if view.form is Form.METADATA:
        return encode(_metadata(record.body))
    return encode(_table(view, served, [record], now, {"resourceVersion": str(record.rv)}))


def render_page(view: View, served: Served, page: Page, now: float) -> bytes:
    meta: JsonObject = {"resourceVersion": str(page.revision)}
    if page.continue_ or (served.custom is not None and view.form is Form.OBJECT):
        meta["continue"] = page.continue_
    if page.remaining:
        meta["remainingItemCount"] = page.remaining
    resource = served.resource
    if view.form is Form.OBJECT:
        return b'{"kind":"%b","apiVersion":"%b","metadata":%b,"items":[%b]}' % (
            resource.list_of.encode(),
            resource.api_version.encode(),
            encode(meta),
            b",".join(_raws(served, page.records)),
        )
    if view.form is Form.METADATA:
        items = [_metadata(record.body) for record in page.records]
        return encode({"kind": "PartialObjectMetadataList", "apiVersion": _META_V1, "metadata": meta, "items": items})
    return encode(_table(view, served, page.records, now, meta))


def render_event(view: View, served: Served, event: Event, type_: str, record: Record, now: float) -> bytes:
    if view.form is Form.OBJECT and not is_converted(served):
        return event.line(type_, record)
    return watch_line(type_, render_one(view, served, record, now))


def render_bookmark(view: View, served: Served, revision: int, *, ends_initial: bool = False) -> bytes:
    meta: JsonObject = {"resourceVersion": str(revision)}
    if ends_initial:
        meta["annotations"] = {"k8s.io/initial-events-end": "true"}
    resource = served.resource
    body: JsonObject = {"kind": resource.kind, "apiVersion": resource.api_version, "metadata": meta}
    if view.form is Form.METADATA:
        body |= {"kind": "PartialObjectMetadata", "apiVersion": _META_V1}
    elif view.form is Form.TABLE:
        row = {"cells": [], "object": {"kind": "PartialObjectMetadata", "apiVersion": _META_V1, "metadata": meta}}
        body = {"kind": "Table", "apiVersion": _META_V1, "metadata": {"resourceVersion": str(revision)}}
        body |= {"columnDefinitions": [], "rows": [row]}
    return watch_line("BOOKMARK", encode(body))


def _raw(served: Served, record: Record) -> bytes:
    if is_converted(served) and record.body.get("apiVersion") != served.resource.api_version:
        return encode(from_storage(served, record.body))
    return record.raw


def _raws(served: Served, records: Iterable[Record]) -> Iterable[bytes]:
    """Items of a list. Those of built-in kinds do not repeat what the list says of all of them."""
    if served.custom is not None:
        return (_raw(served, record) for record in records)
    resource = served.resource
    head = b'{"apiVersion":"%b","kind":"%b",' % (resource.api_version.encode(), resource.kind.encode())
    return (_headless(_raw(served, record), head) for record in records)


def _headless(raw: bytes, head: bytes) -> bytes:
    if raw.startswith(head):
        return b"{" + raw[len(head) :]
    body = decode_json(raw)
    return encode({name: value for name, value in body.items() if name not in ("apiVersion", "kind")})


def _metadata(body: JsonObject) -> JsonObject:
    return {"kind": "PartialObjectMetadata", "apiVersion": _META_V1, "metadata": body["metadata"]}


def _table(view: View, served: Served, records: Sequence[Record], now: float, meta: JsonObject) -> JsonObject:
    columns = columns_of(served)
    rows = []
    for record in records:
        row: JsonObject = {"cells": [column.cell(record.body, now) for column in columns]}
        if view.include == "Metadata":
            row["object"] = _metadata(record.body)
        else:
            row["object"] = from_storage(served, record.body) if view.include == "Object" else None
        rows.append(row)
    return {
        "kind": "Table",
        "apiVersion": _META_V1,
        "metadata": meta,
        "columnDefinitions": [column.definition for column in columns],
        "rows": rows,
    }
