"""Subresources that are more than a view of their object: scale, binding, eviction, log, exec."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing, nullcontext
from datetime import UTC, datetime
from typing import Any, cast

from remuda.api.codec import encode
from remuda.api.errors import ApiError, BadRequest, Invalid, Status
from remuda.api.meta import JsonObject, Resource
from remuda.embedded.apiserver import patching, write_rules
from remuda.embedded.apiserver.conversion import from_storage_version
from remuda.embedded.apiserver.evictions import charge_disruption_budget
from remuda.embedded.apiserver.kinds_served import ServedKind
from remuda.embedded.apiserver.local_cluster import LocalCluster
from remuda.embedded.apiserver.log_source import ApiLogSource, LogQuery
from remuda.embedded.apiserver.naming import served_fields_invalid
from remuda.embedded.apiserver.object_handlers import ObjectHandlers, handle_patch_of_served_object
from remuda.embedded.apiserver.preparation import require_stored
from remuda.embedded.apiserver.store.record import StoredObject
from remuda.embedded.apiserver.stream_seats import StreamSeats
from remuda.embedded.apiserver.wire.bodies import (
    MethodNotAllowed,
    encode_status_answer_body,
    parse_binding_request_body,
    parse_deletion,
    parse_object_body,
    parse_patch_media_and_body,
)
from remuda.embedded.apiserver.wire.http_exchange import HttpRequest
from remuda.embedded.apiserver.wire.table_cells import selector_cell as selector_text
from remuda.embedded.apiserver.wire.url_paths import UrlTarget, parse_write_query

_SCALE = Resource("autoscaling", "v1", "Scale", "scales")


class NotImplementedHere(ApiError):
    code, reason = 501, "NotImplemented"


class Subresources:
    def __init__(
        self,
        cluster: LocalCluster,
        handlers: ObjectHandlers,
        logs: ApiLogSource | None,
        closing: asyncio.Event,
        seats: StreamSeats,
    ) -> None:
        self._cluster = cluster
        self._handlers = handlers
        self._logs = logs
        self._closing = closing
        self._seats = seats

    async def handle(self, request: HttpRequest, target: UrlTarget) -> None:
        match (target.subresource, request.method):
            case ("scale", "GET"):
                record = self._cluster.read(target.served, target.name, target.namespace)
                await request.answer(encode(_scale_body(target.served, record)))
            case ("scale", "PUT" | "PATCH"):
                await self._set_scale(request, target)
            case ("binding", "POST"):
                await self.bind(request, target)
            case ("eviction", "POST"):
                await self._evict(request, target)
            case ("log", "GET"):
                await self._log(request, target)
            case ("exec", "GET" | "POST"):
                self._cluster.read(target.served, target.name, target.namespace)
                raise NotImplementedHere(
                    "pods of an embedded cluster are plain processes on this machine; use the machine's own tools"
                )
            case _:
                raise MethodNotAllowed(f"{request.method} is not possible on {request.path}")

    # Scale.

    async def _set_scale(self, request: HttpRequest, target: UrlTarget) -> None:
        served = target.served
        query = parse_write_query(request.query, request.method)
        body = await request.body()
        media, patch = "", None
        if request.method == "PUT":
            wanted = parse_object_body(request.content_type, body)
        else:
            wanted = {}
            media, patch = parse_patch_media_and_body(request.content_type, body)
        work = self._handlers.preparation(request, target, query)

        def change(old: JsonObject | None) -> JsonObject:
            live = require_stored(old, served, target.name)
            now = _scale_body(served, StoredObject("", 0, body=live))
            scale = (
                wanted if request.method == "PUT" else handle_patch_of_served_object(media, now, patch, _scale_schema())
            )
            work.check_types(scale, _scale_schema().root)
            write_rules.check_preconditions(
                served.resource, live, write_rules.expectation_in_metadata(scale.get("metadata") or {})
            )
            replicas = (scale.get("spec") or {}).get("replicas") or 0
            if replicas < 0:
                what = f"Invalid value: {replicas}: must be greater than or equal to 0"
                raise served_fields_invalid(_SCALE, target.name, [("spec.replicas", what)])
            new = _with_value_at_path(live, _scale_spec_path(served), replicas)
            return _owned_through_scale(
                live,
                new,
                patching.manager_name(query.manager, request.headers.get("user-agent", "")),
                served.schema,
                self._cluster.clock(),
                "scale",
            )

        record = await self._cluster.change_record(
            served, target.name, target.namespace, change, dry_run=query.is_dry_run
        )
        request.warnings = work.warnings
        await request.answer(encode(_scale_body(served, record)))

    # Binding and eviction.

    async def bind(self, request: HttpRequest, target: UrlTarget) -> None:
        body = await request.body()
        binding = parse_binding_request_body(request.content_type, body)
        await self._cluster.bind(target.name or binding.metadata.name, target.namespace, binding)
        await request.answer(encode_status_answer_body(Status(status="Success", code=201)), 201)

    async def _evict(self, request: HttpRequest, target: UrlTarget) -> None:
        given = parse_object_body(request.content_type, await request.body())
        options = given.get("deleteOptions") or {}
        asked = parse_deletion(options, request.query)
        if not asked.is_dry_run:
            pod = self._cluster.read(target.served, target.name, target.namespace).body
            await charge_disruption_budget(self._cluster, pod)
        await self._cluster.delete_record(
            target.served,
            target.name,
            target.namespace,
            when=asked.when,
            grace_s=asked.grace_s,
            finalizer=asked.finalizer,
            dry_run=asked.is_dry_run,
        )
        await request.answer(encode_status_answer_body(Status(status="Success", code=201)), 201)

    # Logs.

    async def _log(self, request: HttpRequest, target: UrlTarget) -> None:
        pod = self._cluster.read(target.served, target.name, target.namespace).body
        query = _parse_log_query(request.query, pod, self._cluster.clock())
        if not (pod.get("spec") or {}).get("nodeName"):  # nothing can have been written yet
            await request.send({"type": "http.response.start", "status": 204, "headers": []})
            await request.send({"type": "http.response.body", "body": b""})
            return
        if self._logs is None:
            raise NotImplementedHere("this server has no access to the logs of containers")
        with self._seats.seat(request, target.namespace) if query.follow else nullcontext():
            await self._send_log(request, self._logs.read(pod, query))

    async def _send_log(self, request: HttpRequest, pieces: AsyncIterator[bytes]) -> None:
        async with aclosing(cast(Any, pieces)):
            first = await anext(pieces, b"")  # what can be refused is refused before the answer begins
            headers = [(b"content-type", b"text/plain"), (b"cache-control", b"no-cache, private")]
            await request.send({"type": "http.response.start", "status": 200, "headers": headers})
            request.becomes_stream()
            pump = asyncio.create_task(self._pump(request, first, pieces))
            ends = [pump, asyncio.create_task(request.gone()), asyncio.create_task(self._closing.wait())]
            try:
                await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for task in ends:
                    task.cancel()
                await asyncio.gather(*ends, return_exceptions=True)
        await request.send({"type": "http.response.body", "body": b""})

    async def _pump(self, request: HttpRequest, first: bytes, pieces: AsyncIterator[bytes]) -> None:
        await request.send({"type": "http.response.body", "body": first, "more_body": True})
        async for piece in pieces:
            await request.send({"type": "http.response.body", "body": piece, "more_body": True})


def _owned_through_scale(
    live: JsonObject, new: JsonObject, manager: str, schema: patching.KindSchema, now: float, subresource: str
) -> JsonObject:
    """Ownership through scale has no time, as in Kubernetes, and therefore stands first."""
    new = patching.track_field_owners(live, new, manager, schema, now, subresource)
    entries = [dict(entry) for entry in new["metadata"].get("managedFields") or ()]
    for entry in entries:
        if entry.get("subresource") == subresource:
            entry.pop("time", None)
    entries.sort(key=lambda entry: (entry["operation"], entry.get("time") or "", entry["manager"]))
    return {**new, "metadata": {**new["metadata"], "managedFields": entries}} if entries else new


def _scale_body(served: ServedKind, record: StoredObject) -> JsonObject:
    body = from_storage_version(served, record.body)
    meta = body["metadata"]
    kept = ("name", "namespace", "uid", "resourceVersion", "creationTimestamp")
    status: JsonObject = {"replicas": _value_at_path(body, _scale_status_path(served)) or 0}
    text = _scale_selector(served, body)
    if text:
        status["selector"] = text
    replicas = _value_at_path(body, _scale_spec_path(served))
    return {
        "kind": "Scale",
        "apiVersion": "autoscaling/v1",
        "metadata": {name: meta[name] for name in kept if name in meta},
        "spec": {"replicas": replicas} if replicas else {},
        "status": status,
    }


def _scale_selector(served: ServedKind, body: JsonObject) -> str:
    if served.custom is not None:
        assert served.custom.scale is not None
        return str(_value_at_path(body, served.custom.scale.selector) or "") if served.custom.scale.selector else ""
    found = (body.get("spec") or {}).get("selector")
    return selector_text(found) if found else ""


def _scale_spec_path(served: ServedKind) -> str:
    return "spec.replicas" if served.custom is None or served.custom.scale is None else served.custom.scale.spec


def _scale_status_path(served: ServedKind) -> str:
    return "status.replicas" if served.custom is None or served.custom.scale is None else served.custom.scale.status


def _scale_schema() -> patching.KindSchema:
    schema = patching.builtin_kind_schema("autoscaling/v1", "Scale")
    assert schema is not None
    return schema


def _value_at_path(body: Any, path: str) -> Any:
    for name in path.split("."):
        body = body.get(name) if isinstance(body, dict) else None
    return body


def _with_value_at_path(body: JsonObject, path: str, value: Any) -> JsonObject:
    name, _, rest = path.partition(".")
    inner = body.get(name)
    return {**body, name: _with_value_at_path(inner if isinstance(inner, dict) else {}, rest, value) if rest else value}


def _parse_log_query(query: dict[str, str], pod: JsonObject, now: float) -> LogQuery:
    names = [c.get("name") for c in (pod.get("spec") or {}).get("containers") or ()]
    container = query.get("container", "")
    name = pod["metadata"]["name"]
    if not container:
        if len(names) > 1:
            raise BadRequest(f"a container name must be specified for pod {name}, choose one of: [{' '.join(names)}]")
        container = names[0] if names else "main"
    elif container not in names and names:
        raise BadRequest(f"container {container} is not valid for pod {name}")
    return LogQuery(
        container,
        follow=query.get("follow", "") in ("true", "1"),
        previous=query.get("previous", "") in ("true", "1"),
        tail=_log_count(query, "tailLines"),
        limit_bytes=_log_count(query, "limitBytes", least=1),
        since=_log_since(query, now),
        timestamps=query.get("timestamps", "") in ("true", "1"),
    )


def _log_since(query: dict[str, str], now: float) -> float | None:
    seconds, text = _log_count(query, "sinceSeconds", least=1), query.get("sinceTime", "")
    if seconds is not None and text:
        raise Invalid("at most one of `sinceTime` or `sinceSeconds` may be specified")
    if not text:
        return None if seconds is None else now - seconds
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise BadRequest(f"sinceTime is `{text}`; give a time such as 2027-01-15T08:00:00Z") from None
    return moment.replace(tzinfo=moment.tzinfo or UTC).timestamp()


def _log_count(query: dict[str, str], name: str, least: int = 0) -> int | None:
    text = query.get(name, "")
    if not text:
        return None
    if not (text.isascii() and text.removeprefix("-").isdigit() and len(text) < 20):
        raise BadRequest(f"{name} is `{text}`; give a whole number")
    if int(text) < least:
        raise Invalid(f"{name}: Invalid value: {text}: must be at least {least}")
    return int(text)
