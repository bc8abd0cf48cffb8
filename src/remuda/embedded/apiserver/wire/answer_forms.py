"""In which form a client wants objects: as they are, as a Table, or their metadata alone (from the Accept header)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from enum import Enum

import msgspec

from remuda.api.codec import decode_json_with_codec, encode
from remuda.api.errors import ApiError, BadRequest
from remuda.api.meta import JsonObject
from remuda.embedded.apiserver.conversion import from_storage_version, is_version_converted
from remuda.embedded.apiserver.kinds_served import ServedKind
from remuda.embedded.apiserver.store.record import StoredObject, StoreEvent, encode_store_event_line
from remuda.embedded.apiserver.wire.paging import ListPage
from remuda.embedded.apiserver.wire.tables import table_columns

_META_V1 = "meta.k8s.io/v1"


class AnswerForm(Enum):
    OBJECT = 0
    TABLE = 1
    METADATA = 2


class NotAcceptable(ApiError):
    code, reason = 406, "NotAcceptable"


class AnswerView(msgspec.Struct, frozen=True):
    """`include`: what a table's rows carry besides cells: None, Metadata or Object."""

    form: AnswerForm = AnswerForm.OBJECT
    include: str = "Metadata"


def negotiate_form(accept: str, include: str) -> AnswerView:
    """The first of the client's choices that can be met."""
    if not accept:
        return AnswerView()
    if include not in ("", "None", "Metadata", "Object"):
        raise BadRequest(f"includeObject=`{include}` is not supported; use None, Metadata or Object")
    for choice in accept.split(","):
        media, *parameters = (part.strip() for part in choice.split(";"))
        asked = dict(p.split("=", 1) for p in parameters if "=" in p)
        if media not in ("application/json", "application/*", "*/*"):
            continue
        wanted = asked.get("as", "")
        if not wanted:
            return AnswerView()
        if asked.get("g") != "meta.k8s.io" or asked.get("v") != "v1":
            continue
        if wanted == "Table":
            return AnswerView(AnswerForm.TABLE, include or "Metadata")
        if wanted in ("PartialObjectMetadata", "PartialObjectMetadataList"):
            return AnswerView(AnswerForm.METADATA)
    raise NotAcceptable(
        "only the following media types are accepted: application/json, and Table or PartialObjectMetadata as v1 in it"
    )


def object_in_answer_form(view: AnswerView, served: ServedKind, record: StoredObject, now: float) -> bytes:
    if view.form is AnswerForm.OBJECT:
        return _object_bytes(served, record)
    if view.form is AnswerForm.METADATA:
        return encode(_partial_metadata(record.body))
    return encode(_table_answer(view, served, [record], now, {"resourceVersion": str(record.rv)}))


def list_page_in_answer_form(view: AnswerView, served: ServedKind, page: ListPage, now: float) -> bytes:
    meta: JsonObject = {"resourceVersion": str(page.revision)}
    if page.continue_ or (served.custom is not None and view.form is AnswerForm.OBJECT):
        meta["continue"] = page.continue_
    if page.remaining:
        meta["remainingItemCount"] = page.remaining
    resource = served.resource
    if view.form is AnswerForm.OBJECT:
        return b'{"kind":"%b","apiVersion":"%b","metadata":%b,"items":[%b]}' % (
            resource.list_of.encode(),
            resource.api_version.encode(),
            encode(meta),
            b",".join(_list_item_bytes(served, page.records)),
        )
    if view.form is AnswerForm.METADATA:
        items = [_partial_metadata(record.body) for record in page.records]
        return encode({"kind": "PartialObjectMetadataList", "apiVersion": _META_V1, "metadata": meta, "items": items})
    return encode(_table_answer(view, served, page.records, now, meta))


def watch_event_in_answer_form(view: AnswerView, served: ServedKind, event: StoreEvent, now: float) -> bytes:
    if view.form is AnswerForm.OBJECT and not is_version_converted(served):
        return event.line
    return encode_store_event_line(event.type, object_in_answer_form(view, served, event.record, now))


def bookmark_in_answer_form(
    view: AnswerView, served: ServedKind, revision: int, *, ends_initial: bool = False
) -> bytes:
    meta: JsonObject = {"resourceVersion": str(revision)}
    if ends_initial:
        meta["annotations"] = {"k8s.io/initial-events-end": "true"}
    resource = served.resource
    body: JsonObject = {"kind": resource.kind, "apiVersion": resource.api_version, "metadata": meta}
    if view.form is AnswerForm.METADATA:
        body |= {"kind": "PartialObjectMetadata", "apiVersion": _META_V1}
    elif view.form is AnswerForm.TABLE:
        row = {"cells": [], "object": {"kind": "PartialObjectMetadata", "apiVersion": _META_V1, "metadata": meta}}
        body = {"kind": "Table", "apiVersion": _META_V1, "metadata": {"resourceVersion": str(revision)}}
        body |= {"columnDefinitions": [], "rows": [row]}
    return encode_store_event_line("BOOKMARK", encode(body))


def _object_bytes(served: ServedKind, record: StoredObject) -> bytes:
    if is_version_converted(served) and record.body.get("apiVersion") != served.resource.api_version:
        return encode(from_storage_version(served, record.body))
    return record.raw


def _list_item_bytes(served: ServedKind, records: Iterable[StoredObject]) -> Iterable[bytes]:
    """Items of a list. Those of built-in kinds do not repeat what the list says of all of them."""
    if served.custom is not None:
        return (_object_bytes(served, record) for record in records)
    resource = served.resource
    head = b'{"apiVersion":"%b","kind":"%b",' % (resource.api_version.encode(), resource.kind.encode())
    return (_without_type_head(_object_bytes(served, record), head) for record in records)


def _without_type_head(raw: bytes, head: bytes) -> bytes:
    if raw.startswith(head):
        return b"{" + raw[len(head) :]
    body = decode_json_with_codec(raw)
    return encode({name: value for name, value in body.items() if name not in ("apiVersion", "kind")})


def _partial_metadata(body: JsonObject) -> JsonObject:
    return {"kind": "PartialObjectMetadata", "apiVersion": _META_V1, "metadata": body["metadata"]}


def _table_answer(
    view: AnswerView, served: ServedKind, records: Sequence[StoredObject], now: float, meta: JsonObject
) -> JsonObject:
    columns = table_columns(served)
    rows = []
    for record in records:
        row: JsonObject = {"cells": [column.cell(record.body, now) for column in columns]}
        if view.include == "Metadata":
            row["object"] = _partial_metadata(record.body)
        else:
            row["object"] = from_storage_version(served, record.body) if view.include == "Object" else None
        rows.append(row)
    return {
        "kind": "Table",
        "apiVersion": _META_V1,
        "metadata": meta,
        "columnDefinitions": [column.definition for column in columns],
        "rows": rows,
    }
