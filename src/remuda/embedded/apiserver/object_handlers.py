"""Reads and writes of objects over HTTP: from a request to a call on `ObjectService`, from a record to an answer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from remuda.api.errors import BadRequest
from remuda.api.meta import JsonObject, Resource
from remuda.embedded.apiserver import patching, write_rules
from remuda.embedded.apiserver.kinds_served import ServedKind
from remuda.embedded.apiserver.local_cluster import LocalCluster
from remuda.embedded.apiserver.naming import served_fields_invalid, served_request_option_invalid
from remuda.embedded.apiserver.objects import MakeNew, copy_served_object, served_object_key
from remuda.embedded.apiserver.off_loop import OffLoop
from remuda.embedded.apiserver.preparation import WritePreparation, require_stored
from remuda.embedded.apiserver.store.record import StoredObject
from remuda.embedded.apiserver.wire.answer_forms import (
    AnswerView,
    list_page_in_answer_form,
    negotiate_form,
    object_in_answer_form,
)
from remuda.embedded.apiserver.wire.bodies import (
    APPLY_PATCH,
    JSON_PATCH,
    STRATEGIC_PATCH,
    MethodNotAllowed,
    UnsupportedMediaType,
    duplicate_fields,
    encode_deletion_answer_body,
    parse_delete_options,
    parse_media_type,
    parse_object_body,
    parse_patch_media_and_body,
)
from remuda.embedded.apiserver.wire.http_exchange import LARGE_BYTES, HttpRequest
from remuda.embedded.apiserver.wire.paging import (
    ListPage,
    check_read_query_revision,
    check_read_query_version_match,
    read_list_page,
    take_list_page,
)
from remuda.embedded.apiserver.wire.url_paths import (
    OPTIONS,
    ReadQuery,
    UrlTarget,
    WriteQuery,
    parse_read_query,
    parse_write_query,
)
from remuda.kube.client.rest_paths import MERGE_PATCH

T = TypeVar("T")

_MAX_MANAGER = 128
LARGE_LIST = 500  # objects; as many as kubectl asks for at a time


class ObjectHandlers:
    def __init__(self, cluster: LocalCluster) -> None:
        self._cluster = cluster
        self._off_loop = OffLoop()

    async def _worked(self, request: HttpRequest, size: int, work: Callable[[], T]) -> T:
        """The result of some work, done off the loop when it is about so many bytes."""
        if size <= LARGE_BYTES:
            return work()
        await request.become_large()
        return await self._off_loop.run(work)

    async def _place_for(self, request: HttpRequest, target: UrlTarget) -> OffLoop | None:
        """Where a change of that object is made: off the loop, when the request or the object is large."""
        there = self._cluster.store.get(served_object_key(target.served, target.name, target.namespace))
        if there is not None and len(there.raw) > LARGE_BYTES:
            await request.become_large()
        return self._off_loop if request.is_large else None

    # Reading.

    def query(self, request: HttpRequest, target: UrlTarget) -> ReadQuery:
        query = parse_read_query(request.query, target.resource)
        if target.name and not query.is_watch:
            raise BadRequest("a single object has no list")
        check_read_query_version_match(query)
        return query

    def view(self, request: HttpRequest) -> AnswerView:
        return negotiate_form(request.accept, request.query.get("includeObject", ""))

    async def get(self, request: HttpRequest, target: UrlTarget) -> None:
        view = self.view(request)
        check_read_query_revision(self._cluster.store, request.query.get("resourceVersion", ""))
        record = self._cluster.read(target.served, target.name, target.namespace)
        await request.answer(self.rendered(view, target.served, record))

    async def list(self, request: HttpRequest, target: UrlTarget, query: ReadQuery) -> None:
        view = self.view(request)
        page = take_list_page(self._cluster, target.served, target.namespace, query)
        now = self._cluster.clock()

        def rendered() -> bytes:
            return list_page_in_answer_form(view, target.served, page.read(), now)

        size = 0 if len(page.records) <= LARGE_LIST else LARGE_BYTES + 1
        await request.answer(await self._worked(request, size, rendered))

    def rendered(self, view: AnswerView, served: ServedKind, record: StoredObject) -> bytes:
        return object_in_answer_form(view, served, record, self._cluster.clock())

    # Writing.

    def preparation(self, request: HttpRequest, target: UrlTarget, query: WriteQuery) -> WritePreparation:
        manager, media = query.manager, parse_media_type(request.content_type)
        if len(manager.encode()) > _MAX_MANAGER:
            what = f"Too long: may not be more than {_MAX_MANAGER} bytes"
            raise served_request_option_invalid(OPTIONS[request.method], "fieldManager", what)
        is_apply = request.method == "PATCH" and media == APPLY_PATCH
        if not is_apply:
            manager = patching.manager_name(manager, request.headers.get("user-agent", ""))
        return WritePreparation(
            target.served,
            validation=query.validation,
            manager=manager,
            now=self._cluster.clock(),
            subresource=target.subresource,
            is_patch=request.method == "PATCH" and not is_apply,
        )

    async def create(self, request: HttpRequest, target: UrlTarget) -> None:
        view, query = self.view(request), parse_write_query(request.query, request.method)
        data = await request.body()
        work = self.preparation(request, target, query)

        def decoded() -> JsonObject:
            body = parse_object_body(request.content_type, data)
            _check_custom_object(target.served, body)
            _check_duplicate_fields(query, request, data, work)
            return body

        body = await self._worked(request, len(data), decoded)
        record = await self._cluster.create_record(
            target.served,
            body,
            target.namespace,
            prepare=work.written,
            dry_run=query.is_dry_run,
            off_loop=self._off_loop if request.is_large else None,
        )
        await self._answer_written(request, target, view, work, record, None)

    async def replace(self, request: HttpRequest, target: UrlTarget) -> None:
        served = target.served
        view, query = self.view(request), parse_write_query(request.query, request.method)
        data = await request.body()
        work = self.preparation(request, target, query)

        def decoded() -> JsonObject:
            body = parse_object_body(request.content_type, data)
            _check_custom_object(served, body)
            return copy_served_object(served, body, target.namespace, target.name)

        body = await self._worked(request, len(data), decoded)
        if _needs_version_to_replace(served) and not body["metadata"].get("resourceVersion"):
            what = "Invalid value: 0: must be specified for an update"
            resource = served.resource
            named_so = Resource(resource.group, resource.version, resource.plural, resource.plural)
            raise served_fields_invalid(named_so, target.name, [("metadata.resourceVersion", what)])

        await self._worked(request, len(data), lambda: _check_duplicate_fields(query, request, data, work))

        def change(old: JsonObject | None) -> JsonObject:
            return work.written(require_stored(old, served, target.name), body)

        await self._write(request, target, view, query, change, work)

    async def patch(self, request: HttpRequest, target: UrlTarget) -> None:
        view, query = self.view(request), parse_write_query(request.query, request.method)
        data = await request.body()
        media, patch = await self._worked(
            request, len(data), lambda: parse_patch_media_and_body(request.content_type, data)
        )
        if query.is_forced is not None and media != APPLY_PATCH:
            raise served_request_option_invalid(
                "PatchOptions", "force", "Forbidden: may not be specified for non-apply patch"
            )
        if media == APPLY_PATCH and not query.manager:
            raise served_request_option_invalid(
                "PatchOptions", "fieldManager", "Required value: is required for apply patch"
            )
        work = self.preparation(request, target, query)
        await self._worked(request, len(data), lambda: _check_duplicate_fields(query, request, data, work))
        await self._write(request, target, view, query, self.patched(target, media, patch, query, work), work)

    def patched(self, target: UrlTarget, media: str, patch: Any, query: WriteQuery, work: WritePreparation) -> MakeNew:
        served = target.served
        if media == APPLY_PATCH:
            if not (patch.get("apiVersion") and patch.get("kind")):
                raise BadRequest("an applied object must have apiVersion and kind")
            patch = copy_served_object(served, patch, target.namespace, target.name)
            is_forced = bool(query.is_forced)

            def apply(live: JsonObject | None) -> JsonObject:
                if live is None and target.subresource:
                    return require_stored(live, served, target.name)
                return work.applied(live, patch, is_forced=is_forced)

            return apply
        if media == STRATEGIC_PATCH and served.schema.custom:
            raise UnsupportedMediaType(
                f"a strategic merge patch needs a built-in kind; {served.resource.kind} takes {MERGE_PATCH}, "
                f"{JSON_PATCH} and {APPLY_PATCH}"
            )

        def change(old: JsonObject | None) -> JsonObject:
            live = require_stored(old, served, target.name)
            new = handle_patch_of_served_object(media, live, patch, served.schema)
            meta = new.get("metadata")
            if isinstance(meta, dict) and meta.get("uid") not in (None, "", live["metadata"].get("uid")):
                what = f'Invalid value: "{meta["uid"]}": field is immutable'
                raise served_fields_invalid(served.resource, target.name, [("metadata.uid", what)])
            return work.written(live, new)

        return change

    async def _write(
        self,
        request: HttpRequest,
        target: UrlTarget,
        view: AnswerView,
        query: WriteQuery,
        change: MakeNew,
        work: WritePreparation,
    ) -> None:
        before: JsonObject | None = None

        def noted(old: JsonObject | None) -> JsonObject:
            nonlocal before
            before = old
            return change(old)

        record = await self._cluster.change_record(
            target.served,
            target.name,
            target.namespace,
            noted,
            subresource=target.subresource,
            dry_run=query.is_dry_run,
            off_loop=await self._place_for(request, target),
        )
        await self._answer_written(request, target, view, work, record, before)

    async def _answer_written(
        self,
        request: HttpRequest,
        target: UrlTarget,
        view: AnswerView,
        work: WritePreparation,
        record: StoredObject,
        before: JsonObject | None,
    ) -> None:
        def told() -> tuple[list[str], bytes]:
            warnings = self._cluster.warnings_about(target.served, record.body, before)
            return [*work.warnings, *warnings], self.rendered(view, target.served, record)

        request.warnings, answer = await self._off_loop.run(told) if request.is_large else told()
        await request.answer(answer, 201 if before is None else 200)

    async def delete(self, request: HttpRequest, target: UrlTarget) -> None:
        view = self.view(request)
        asked = parse_delete_options(request.content_type, await request.body(), request.query)
        finalizer = asked.finalizer
        if finalizer is None and target.served.resource.full_name == "jobs.batch":
            # Kubernetes' default for clients of this kind alone; kubectl always says what it wants.
            there = self._cluster.read(target.served, target.name, target.namespace)
            finalizer = None if write_rules.served_object_has_deletion_policy(there.body) else write_rules.ORPHAN
        record = await self._cluster.delete_record(
            target.served,
            target.name,
            target.namespace,
            when=asked.when,
            grace_s=asked.grace_s,
            finalizer=finalizer,
            dry_run=asked.is_dry_run,
        )
        whole = self.rendered(view, target.served, record)
        await request.answer(encode_deletion_answer_body(target.served, record, whole))

    async def delete_many(self, request: HttpRequest, target: UrlTarget) -> None:
        served = target.served
        if "deletecollection" not in served.resource.verbs:
            raise MethodNotAllowed(f"{served.resource.plural} are deleted one by one")
        query = self.query(request, target)
        asked = parse_delete_options(request.content_type, await request.body(), request.query)
        found = read_list_page(self._cluster, served, target.namespace, query)
        gone: list[StoredObject] = []
        for record in found.records:
            meta = record.body["metadata"]
            gone.append(
                await self._cluster.delete_record(
                    served,
                    meta["name"],
                    meta.get("namespace") or "",
                    grace_s=asked.grace_s,
                    finalizer=asked.finalizer,
                    dry_run=asked.is_dry_run,
                )
            )
        answer = ListPage(gone, self._cluster.store.revision, found.continue_, found.remaining)
        await request.answer(list_page_in_answer_form(AnswerView(), served, answer, self._cluster.clock()))


_VERSIONED = frozenset(
    (
        "poddisruptionbudgets.policy",
        "leases.coordination.k8s.io",
        "customresourcedefinitions.apiextensions.k8s.io",
    )
)


def _needs_version_to_replace(served: ServedKind) -> bool:
    """Replaced only by those who say which version they have seen."""
    return served.custom is not None or served.resource.full_name in _VERSIONED


def _is_foreign_custom_kind(served: ServedKind) -> bool:
    """A custom kind that is not ours."""
    return served.custom is not None and served.kind is None


def _check_custom_object(served: ServedKind, body: JsonObject) -> None:
    if _is_foreign_custom_kind(served) and not (body.get("apiVersion") and body.get("kind")):
        raise BadRequest(f"an object of a custom kind must have apiVersion and kind ({served.resource.kind})")


def _check_duplicate_fields(query: WriteQuery, request: HttpRequest, data: bytes, work: WritePreparation) -> None:
    if query.validation == "Strict":
        work.judge_duplicates(duplicate_fields(request.content_type, data))


def handle_patch_of_served_object(media: str, old: JsonObject, patch: Any, schema: patching.KindSchema) -> JsonObject:
    if media == JSON_PATCH:
        return patching.json_patch(old, patch)
    if media == STRATEGIC_PATCH:
        return patching.strategic_merge(old, patch, schema)
    return patching.merge_patch(old, patch)
