"""`ObjectService`: reading and writing records of any served resource, over a `Store`.

Every write is decide-then-store: a pure rule looks at the newest accepted version and answers with a change; since nothing
is awaited between the look and the staging, no other write comes between them. Every verdict is given on durable state:
when a rule refuses because of a version that is not committed yet, that version is waited for and the rule asked again.

Callers outside the process give a `prepare` or a `change` function: what their request makes of the old body (decoding,
patching, defaulting, ownership). It runs inside the decision, possibly more than once, and must be pure.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, cast

import msgspec

from remuda.api.codec import codec_type_name, to_wire
from remuda.api.errors import ApiError, BadRequest, StatusDetails, Unavailable
from remuda.api.meta import JsonObject, KObject
from remuda.api.selectors import FieldSelector, Selector
from remuda.embedded.apiserver import write_rules
from remuda.embedded.apiserver.admission.request import CREATE, DELETE, UPDATE, AdmissionRequest
from remuda.embedded.apiserver.conversion import from_storage_version, to_storage_version
from remuda.embedded.apiserver.crd.lifecycle import accept_crd, is_crd_terminating
from remuda.embedded.apiserver.decisions import (
    AdmissionPort,
    Decide,
    MadeDecision,
    NewestStoredObjects,
    NotedReads,
)
from remuda.embedded.apiserver.kinds_served import CRD, KindRegistry, ServedKind
from remuda.embedded.apiserver.lanes import RETRY_AFTER_S
from remuda.embedded.apiserver.naming import generate_object_name
from remuda.embedded.apiserver.off_loop import OffLoop
from remuda.embedded.apiserver.own_kinds import check_own_kind, ill_typed_own_kind_body
from remuda.embedded.apiserver.selection import (
    served_namespace_key_prefix,
    served_namespace_matcher,
    stored_object_matcher,
)
from remuda.embedded.apiserver.store import ObjectStore, StoredObject
from remuda.embedded.apiserver.store.collection import WatchCursor
from remuda.embedded.apiserver.wire.bodies import MethodNotAllowed
from remuda.kube.client.rest_paths import check_rest_address
from remuda.kube.cluster import ANY, Preconditions

_TRIES_OFF_LOOP = 3
_NAME_TRIES = 8  # 27^5 suffixes: even the second try is rare

Prepare = Callable[[JsonObject | None, JsonObject], JsonObject]
MakeNew = Callable[[JsonObject | None], JsonObject]  # raises NotFound when it cannot start from nothing


class ObjectService:
    """`clock`: unix seconds. `new_uid`: a fresh unique string each call; names made from generateName derive from it too."""

    def __init__(
        self,
        store: ObjectStore,
        *,
        clock: Callable[[], float],
        new_uid: Callable[[], str],
        admission: Callable[[NewestStoredObjects], AdmissionPort] | None = None,
    ) -> None:
        self.store = store
        self.registry = KindRegistry()
        self.clock = clock
        self._new_uid = new_uid
        self._new_admission = admission
        self._admission = None if admission is None else admission(NewestStoredObjects(store))
        self._crd = cast(ServedKind, self.registry.find(CRD.group, CRD.version, CRD.plural))
        for record in store.scan(CRD.prefix):
            self.registry.install(record.body)

    # Reading.

    def read(self, served: ServedKind, name: str, namespace: str = "") -> StoredObject:
        record = self.store.get(served_object_key(served, name, namespace))
        if record is None:
            raise write_rules.served_object_not_found(served.resource, name)
        return record

    def find(self, served: ServedKind, namespace: str, labels: Selector, fields: FieldSelector) -> list[StoredObject]:
        matches = stored_object_matcher(labels, fields)
        found = self.store.scan(served_namespace_key_prefix(served.store, namespace))
        return found if matches is None else [record for record in found if matches(record.body)]

    def follow_records(
        self, served: ServedKind, since: str, namespace: str, labels: Selector, fields: FieldSelector
    ) -> tuple[list[StoredObject], WatchCursor]:
        """What a watch starts with (nothing, unless it asks from no version on), and the place it goes on from."""
        prefix = served_namespace_key_prefix(served.store, namespace)
        matches = stored_object_matcher(labels, fields)
        if served.resource.namespaced and namespace:
            matches = served_namespace_matcher(namespace, matches)  # the store follows whole collections
        if since in ("", "0"):
            there = self.find(served, namespace, labels, fields)
            return there, self.store.follow(prefix, self.store.revision, matches)
        return [], self.store.follow(prefix, parse_served_object_version(since), matches)

    # Writing.

    async def create_record(
        self,
        served: ServedKind,
        body: KObject | JsonObject,
        namespace: str = "",
        *,
        prepare: Prepare | None = None,
        dry_run: bool = False,
        off_loop: OffLoop | None = None,
    ) -> StoredObject:
        """`namespace`: of the path. `off_loop`: where to prepare it and to decide about it, when it is large."""
        resource = served.resource
        copied = partial(copy_served_object, served, body, namespace)
        wire = copied() if off_loop is None else await off_loop.run(copied)
        meta = wire["metadata"]
        if resource.namespaced and not meta.get("namespace"):
            raise BadRequest("an empty namespace may not be set during creation; set metadata.namespace")
        namespace = str(meta.get("namespace") or "")
        uid = self._new_uid()
        if not meta.get("name") and meta.get("generateName"):
            meta["name"], uid = self._fresh_name(served, str(meta["generateName"]), namespace, uid)
        if prepare is not None:
            meta["uid"] = uid  # some defaults are made from it
            wire = prepare(None, wire) if off_loop is None else await off_loop.run(partial(prepare, None, wire))
        name = str(wire["metadata"].get("name") or "")

        def decide(head: StoredObject | None, admission: AdmissionPort | None) -> write_rules.WriteChange:
            self._check_definition(served, is_new=head is None)
            new = self._created(served, wire, uid)
            if head is not None:
                raise write_rules.served_object_already_exists(resource, name)
            return write_rules.WriteChange(self._admit(admission, CREATE, served, new, None, "", dry_run))

        return await self._apply(served, served.store.key(name, namespace), decide, dry_run, off_loop)

    def _created(self, served: ServedKind, wire: JsonObject, uid: str) -> JsonObject:
        new = write_rules.created_object_body(served.resource, wire, now=self.clock(), uid=uid)
        check_own_kind(served.kind, new)
        return to_storage_version(served, new)

    async def change_record(
        self,
        served: ServedKind,
        name: str,
        namespace: str,
        change: MakeNew,
        *,
        subresource: str = "",
        dry_run: bool = False,
        off_loop: OffLoop | None = None,
    ) -> StoredObject:
        """The object as `change` makes it of the one that is there. Record.rv tells the caller whether it was new. `off_loop`:
        where to make it and to decide about it, when it is large."""
        resource = served.resource
        uid = self._new_uid()

        def decide(head: StoredObject | None, admission: AdmissionPort | None) -> write_rules.WriteChange | None:
            self._check_definition(served, is_new=head is None)
            if head is None:
                new = self._created(served, change(None), uid)
                return write_rules.WriteChange(self._admit(admission, CREATE, served, new, None, "", dry_run))
            old = from_storage_version(served, head.body)
            new = change(old)
            if new is old:
                return None
            replaced = write_rules.write_rule_for_replacement(resource, old, new, subresource)
            return self._admitted(admission, served, head, replaced, subresource, dry_run)

        return await self._apply(served, served_object_key(served, name, namespace), decide, dry_run, off_loop)

    async def replace_record(
        self, served: ServedKind, body: KObject | JsonObject, *, subresource: str = ""
    ) -> StoredObject:
        resource = served.resource
        wire = copy_served_object(served, body)
        meta = wire["metadata"]
        name = str(meta.get("name") or "")

        def decide(head: StoredObject | None, admission: AdmissionPort | None) -> write_rules.WriteChange | None:
            if head is None:
                raise write_rules.served_object_not_found(resource, name)
            replaced = write_rules.write_rule_for_replacement(resource, head.body, wire, subresource)
            return self._admitted(admission, served, head, replaced, subresource)

        return await self._apply(served, served_object_key(served, name, str(meta.get("namespace") or "")), decide)

    async def patch_record(
        self,
        served: ServedKind,
        name: str,
        patch: JsonObject,
        namespace: str = "",
        *,
        subresource: str = "",
        when: Preconditions = ANY,
    ) -> StoredObject:
        resource = served.resource
        if not isinstance(patch, dict):
            raise BadRequest("a merge patch must be an object")
        wire: JsonObject = msgspec.to_builtins(patch)
        expect = write_rules.WriteExpectation(when.uid, when.resource_version)

        def decide(head: StoredObject | None, admission: AdmissionPort | None) -> write_rules.WriteChange | None:
            if head is None:
                raise write_rules.served_object_not_found(resource, name)
            change = write_rules.patched_change(resource, head.body, wire, subresource, expect)
            return self._admitted(admission, served, head, change, subresource)

        return await self._apply(served, served_object_key(served, name, namespace), decide)

    async def delete_record(
        self,
        served: ServedKind,
        name: str,
        namespace: str = "",
        *,
        when: Preconditions = ANY,
        grace_s: int | None = None,
        finalizer: str | None = None,
        dry_run: bool = False,
    ) -> StoredObject:
        resource = served.resource
        expect = write_rules.WriteExpectation(when.uid, when.resource_version)

        def decide(head: StoredObject | None, admission: AdmissionPort | None) -> write_rules.WriteChange | None:
            if head is None:
                raise write_rules.served_object_not_found(resource, name)
            if admission is not None:
                admission.admit(AdmissionRequest(DELETE, resource, namespace, name, None, head.body, dry_run=dry_run))
            now = self.clock()
            return write_rules.write_rule_for_deletion(
                resource, head.body, now=now, grace_s=grace_s, expect=expect, finalizer=finalizer
            )

        record = await self._apply(served, served_object_key(served, name, namespace), decide, dry_run)
        if served is self._crd and not record.deleted and not dry_run:
            record = await self._empty(record)
        return record

    def warnings_about(self, served: ServedKind, body: JsonObject, old: JsonObject | None) -> list[str]:
        """What the writer of an object should know of it."""
        return [] if self._admission is None else self._admission.warnings(served.resource, body, old)

    # What every write passes through.

    def _fresh_name(self, served: ServedKind, prefix: str, namespace: str, uid: str) -> tuple[str, str]:
        name = generate_object_name(prefix, uid)
        for _ in range(_NAME_TRIES):
            if self.store.head(served.store.key(name, namespace)) is None:
                break
            uid = self._new_uid()
            name = generate_object_name(prefix, uid)
        return name, uid

    def _admitted(
        self,
        admission: AdmissionPort | None,
        served: ServedKind,
        head: StoredObject,
        change: write_rules.WriteChange | None,
        subresource: str = "",
        dry_run: bool = False,
    ) -> write_rules.WriteChange | None:
        """Only what was written is judged: an old object that new rules would refuse can still be labelled and let go."""
        if change is None or change.removed:
            return change
        has_intent = change.has_intent
        if has_intent:
            check_own_kind(served.kind, change.body, head.body)
        body = to_storage_version(served, change.body)
        if has_intent or not subresource:
            body = self._admit(admission, UPDATE, served, body, head.body, subresource, dry_run)
        if body is change.body:
            return change
        settled = write_rules.served_object_unless_unchanged(head.body, body) if has_intent else body
        return None if settled is None else write_rules.WriteChange(settled, change.removed)

    def _admit(
        self,
        admission: AdmissionPort | None,
        operation: str,
        served: ServedKind,
        body: JsonObject,
        old: JsonObject | None,
        subresource: str,
        dry_run: bool,
    ) -> JsonObject:
        if served is self._crd and not subresource:
            body = accept_crd(body, old, self.registry, self.clock())
        if admission is None:
            return body
        meta = body["metadata"]
        return admission.admit(
            AdmissionRequest(
                operation,
                served.resource,
                meta.get("namespace") or "",
                meta["name"],
                body,
                old,
                subresource,
                dry_run,
            )
        )

    async def _apply(
        self, served: ServedKind, key: str, decide: Decide, dry_run: bool = False, off_loop: OffLoop | None = None
    ) -> StoredObject:
        store, admission = self.store, self._admission
        if off_loop is not None:
            decide = await self._decided_off_loop(served, key, decide, off_loop)
        while True:
            head = store.head(key)
            try:
                change = decide(head, admission)
            except ApiError:
                if store.is_settled(key):
                    raise
                await self._settled(key)
                decide(store.get(key), admission)  # refused on durable state as well: then that is the answer
                continue
            if change is None:
                assert head is not None
                await store.settle(key)  # "nothing to do" is an acknowledgement, too
                return head
            if dry_run:
                return StoredObject(key, 0 if head is None else head.rv, body=change.body, deleted=change.removed)
            expect = 0 if head is None else head.rv
            if change.removed:
                record = await store.remove(key, change.body, expect=expect)
            else:
                try:
                    record = await store.put(key, change.body, expect=expect, kind=served.kind)
                except msgspec.ValidationError as error:
                    raise ill_typed_own_kind_body(served.resource, error) from None
            if served.custom is not None or served is self._crd:
                await self._after(served, record)
            return record

    async def _decided_off_loop(self, served: ServedKind, key: str, decide: Decide, off_loop: OffLoop) -> Decide:
        """`decide`, with an answer for the newest version. When a write came between it is asked again: here a few times, then
        where the answer is used."""
        for _ in range(_TRIES_OFF_LOOP):
            head, reads = self.store.head(key), NotedReads(self.store)
            if served is self._crd:
                reads.list(CRD.group, CRD.plural)  # their names, which the registry knows
            elif served.custom is not None:
                reads.get(CRD.group, CRD.plural, served.custom.definition)
            admission = None if self._new_admission is None else self._new_admission(reads)
            made = await off_loop.run(partial(MadeDecision, decide, head, admission, reads))
            if made.is_current(self.store.head(key)):
                return made
        return decide

    async def _settled(self, key: str) -> None:
        try:
            await self.store.settle(key)
        except ApiError:
            return  # that write failed; ours is judged on what was there before it

    # Definitions of custom kinds take effect with the write, and go when their last object has gone.

    def _check_definition(self, served: ServedKind, *, is_new: bool) -> None:
        """A request for a custom kind was read by the definition of its beginning; a large one takes a while."""
        if served.custom is None or served.kind is not None:
            return
        name, resource = served.custom.definition, served.resource
        head = self.store.head(CRD.key(name))
        if is_new and head is not None and is_crd_terminating(head.body):  # it would outlive its definition
            raise MethodNotAllowed(f"create not allowed while custom resource definition {name} is terminating")
        if self.registry.find(resource.group, resource.version, resource.plural) is not served:
            raise Unavailable(
                f"the definition {name} was changed while this request was worked on; send it again",
                details=StatusDetails(retry_after_seconds=RETRY_AFTER_S),
            )

    async def _after(self, served: ServedKind, record: StoredObject) -> None:
        if served is self._crd:
            if record.deleted:
                self.registry.uninstall(record.body["metadata"]["name"])
            else:
                self.registry.install(record.body)
        elif record.deleted and served.custom is not None and served.kind is None:
            head = self.store.head(CRD.key(served.custom.definition))
            if head is not None and is_crd_terminating(head.body):
                await self._empty(head)

    async def _empty(self, definition: StoredObject) -> StoredObject:
        """Delete every object of a definition that is being deleted; once none is left, let go of it."""
        spec = definition.body["spec"]
        name = definition.body["metadata"]["name"]
        rows = [s for s in self.registry if s.custom is not None and s.custom.definition == name and s.kind is None]
        prefix = f"/{spec['group']}/{spec['names']['plural']}/"
        is_own = self.registry.is_own(name)
        if rows:
            for record in self.store.scan(prefix):
                meta = record.body["metadata"]
                if "deletionTimestamp" not in meta:
                    try:
                        await self.delete_record(rows[0], meta["name"], meta.get("namespace") or "")
                    except ApiError:
                        continue  # gone meanwhile
        if (self.store.scan(prefix) and not is_own) or self.store.head(definition.key) is None:
            return definition

        def let_go(old: JsonObject | None) -> JsonObject:
            if old is None:
                raise write_rules.served_object_not_found(CRD, name)
            return {**old, "metadata": {**old["metadata"], "finalizers": []}}

        try:
            return await self.change_record(self._crd, name, "", let_go)
        except ApiError:
            return definition


def served_object_key(served: ServedKind, name: str, namespace: str) -> str:
    check_rest_address(served.resource, namespace, name)
    return served.store.key(name, namespace)


def parse_served_object_version(text: str) -> int:
    if not (text.isascii() and text.isdigit()):
        raise BadRequest(f"invalid resource version `{text}`: it must be one that a list or an object gave")
    return int(text)


def copy_served_object(served: ServedKind, body: Any, namespace: str = "", name: str = "") -> JsonObject:
    """The wire form, sharing nothing with the caller's object, with the namespace and name of its path: what it says itself
    must agree."""
    resource = served.resource
    wire: JsonObject
    if isinstance(body, KObject):
        wire = to_wire(body)
    elif isinstance(body, dict):
        wire = cast(JsonObject, msgspec.to_builtins(body))
    else:
        raise BadRequest(f"a {resource.kind} must be an object, not a {codec_type_name(type(body).__name__)}")
    given = (wire.get("apiVersion", resource.api_version), wire.get("kind", resource.kind))
    if given != (resource.api_version, resource.kind):
        raise BadRequest(
            f"the object is a {given[1]} of {given[0]}; expected a {resource.kind} of {resource.api_version}"
        )
    wire = {"apiVersion": resource.api_version, "kind": resource.kind, **wire}
    meta = wire.get("metadata")
    if meta is None:
        meta = wire["metadata"] = {}
    elif not isinstance(meta, dict):
        raise BadRequest("metadata must be an object")
    for field, value in (("namespace", namespace), ("name", name)):
        if value and (meta.get(field) or value) != value:
            raise BadRequest(f"metadata.{field} is `{meta[field]}` but the path says `{value}`")
        if value:
            meta[field] = value
    return wire
