"""`LocalCluster`: the `Cluster` port in process, over a `Store`. No sockets and, with a memory journal, no waiting.

Every write is decide-then-store: a pure rule looks at the newest accepted version and answers with a change; since nothing
is awaited between the look and the staging, no other write comes between them. Every verdict is given on durable state:
when a rule refuses because of a version that is not committed yet, that version is waited for and the rule asked again.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from typing import Any, TypeVar, cast

import msgspec

from remuda.api.codec import to_wire
from remuda.api.core_v1 import Binding, Pod
from remuda.api.errors import ApiError, BadRequest
from remuda.api.meta import JsonObject, KObject
from remuda.api.selectors import EVERYTHING, FieldSelector, Selector
from remuda.apiserver import rules
from remuda.apiserver.admission import admit, ill_typed
from remuda.apiserver.naming import generated_name
from remuda.apiserver.selection import scope, within
from remuda.apiserver.store import ADDED, Record, Store
from remuda.apiserver.store.collection import Cursor
from remuda.kube.cluster import ANY, NO_FIELDS, Listing, Preconditions, WatchEvent
from remuda.kube.rest import check_address

K = TypeVar("K", bound=KObject)

_NAME_TRIES = 8  # 27^5 suffixes: even the second try is rare

Records = list[Record]  # `list` is a method in the class below
Decide = Callable[[Record | None], rules.Change | None]


class LocalCluster:
    """`clock`: unix seconds. `new_uid`: a fresh unique string each call; names made from generateName derive from it too."""

    def __init__(self, store: Store, *, clock: Callable[[], float], new_uid: Callable[[], str]) -> None:
        self.store = store
        self._clock = clock
        self._new_uid = new_uid

    # Reading.

    async def get(self, kind: type[K], name: str, namespace: str = "") -> K:
        return self.read(kind, name, namespace).decode(kind)

    async def list(
        self,
        kind: type[K],
        namespace: str = "",
        *,
        labels: Selector = EVERYTHING,
        fields: FieldSelector = NO_FIELDS,
    ) -> Listing[K]:
        found = self.select(kind, namespace, labels, fields)
        return Listing([record.decode(kind) for record in found], str(self.store.revision))

    async def watch(
        self,
        kind: type[K],
        since: str,
        namespace: str = "",
        *,
        labels: Selector = EVERYTHING,
        fields: FieldSelector = NO_FIELDS,
    ) -> AsyncGenerator[WatchEvent[K], None]:
        """`since` of "" or "0": first everything there is, as ADDED."""
        there, cursor = self.follow(kind, since, namespace, labels, fields)
        for record in there:
            yield WatchEvent(ADDED, str(record.rv), record.decode(kind))
        while True:
            for _, type_, record in cursor.read():
                yield WatchEvent(type_, str(record.rv), record.decode(kind))
            if not await cursor.more():
                return

    # Writing.

    async def create(self, kind: type[K], body: K | JsonObject) -> K:
        return (await self.create_record(kind, body)).decode(kind)

    async def replace(self, kind: type[K], body: K | JsonObject, *, subresource: str = "") -> K:
        return (await self.replace_record(kind, body, subresource=subresource)).decode(kind)

    async def patch(
        self,
        kind: type[K],
        name: str,
        patch: JsonObject,
        namespace: str = "",
        *,
        subresource: str = "",
        when: Preconditions = ANY,
    ) -> K:
        record = await self.patch_record(kind, name, patch, namespace, subresource=subresource, when=when)
        return record.decode(kind)

    async def delete(
        self, kind: type[K], name: str, namespace: str = "", *, when: Preconditions = ANY, grace_s: int | None = None
    ) -> None:
        await self.delete_record(kind, name, namespace, when=when, grace_s=grace_s)

    async def bind(self, name: str, namespace: str, binding: Binding) -> None:
        resource = Pod.resource
        meta = binding.metadata
        expect = rules.Expect(meta.uid, meta.resource_version)

        def decide(head: Record | None) -> rules.Change:
            if head is None:
                raise rules.not_found(resource, name)
            return rules.bound(head.body, binding.target, meta.annotations, now=self._clock(), expect=expect)

        await self._apply(Pod, _key(Pod, name, namespace), decide)

    # The same, for the HTTP face: records instead of decoded objects, so that bytes go out as they are.

    async def create_record(self, kind: type[KObject], body: KObject | JsonObject) -> Record:
        resource = kind.resource
        wire = own_copy(kind, body)
        meta = wire["metadata"]
        if resource.namespaced and not meta.get("namespace"):
            raise BadRequest("an empty namespace may not be set during creation; set metadata.namespace")
        namespace = str(meta.get("namespace") or "")
        uid = self._new_uid()
        if not meta.get("name") and meta.get("generateName"):
            meta["name"], uid = self._fresh_name(kind, str(meta["generateName"]), namespace, uid)
        new = rules.created(resource, wire, now=self._clock(), uid=uid)
        admit(kind, new)
        name = new["metadata"]["name"]

        def decide(head: Record | None) -> rules.Change:
            if head is not None:
                raise rules.already_exists(resource, name)
            return rules.Change(new)

        return await self._apply(kind, resource.key(name, namespace), decide)

    async def replace_record(self, kind: type[KObject], body: KObject | JsonObject, *, subresource: str = "") -> Record:
        resource = kind.resource
        wire = own_copy(kind, body)
        meta = wire["metadata"]
        name = str(meta.get("name") or "")

        def decide(head: Record | None) -> rules.Change | None:
            if head is None:
                raise rules.not_found(resource, name)
            return self._admitted(kind, head, rules.replaced(resource, head.body, wire, subresource))

        return await self._apply(kind, _key(kind, name, str(meta.get("namespace") or "")), decide)

    async def patch_record(
        self,
        kind: type[KObject],
        name: str,
        patch: JsonObject,
        namespace: str = "",
        *,
        subresource: str = "",
        when: Preconditions = ANY,
    ) -> Record:
        resource = kind.resource
        if not isinstance(patch, dict):
            raise BadRequest("a merge patch must be an object")
        wire: JsonObject = msgspec.to_builtins(patch)
        expect = rules.Expect(when.uid, when.resource_version)

        def decide(head: Record | None) -> rules.Change | None:
            if head is None:
                raise rules.not_found(resource, name)
            return self._admitted(kind, head, rules.patched(resource, head.body, wire, subresource, expect))

        return await self._apply(kind, _key(kind, name, namespace), decide)

    def read(self, kind: type[KObject], name: str, namespace: str = "") -> Record:
        record = self.store.get(_key(kind, name, namespace))
        if record is None:
            raise rules.not_found(kind.resource, name)
        return record

    def select(self, kind: type[KObject], namespace: str, labels: Selector, fields: FieldSelector) -> Records:
        prefix, matches = scope(kind, namespace, labels, fields)
        found = self.store.scan(prefix)
        return found if matches is None else [record for record in found if matches(record.body)]

    def follow(
        self, kind: type[KObject], since: str, namespace: str, labels: Selector, fields: FieldSelector
    ) -> tuple[Records, Cursor]:
        """What a watch starts with (nothing, unless it asks from no version on), and the place it goes on from."""
        prefix, matches = scope(kind, namespace, labels, fields)
        if kind.resource.namespaced and namespace:
            matches = within(namespace, matches)  # the store follows whole collections
        if since in ("", "0"):
            return self.select(kind, namespace, labels, fields), self.store.follow(prefix, self.store.revision, matches)
        if not (since.isascii() and since.isdigit()):
            raise BadRequest(f"invalid resource version `{since}`: it must be one that a list or an object gave")
        return [], self.store.follow(prefix, int(since), matches)

    async def delete_record(
        self,
        kind: type[KObject],
        name: str,
        namespace: str = "",
        *,
        when: Preconditions = ANY,
        grace_s: int | None = None,
    ) -> Record:
        resource = kind.resource
        expect = rules.Expect(when.uid, when.resource_version)

        def decide(head: Record | None) -> rules.Change | None:
            if head is None:
                raise rules.not_found(resource, name)
            return rules.deleted(resource, head.body, now=self._clock(), grace_s=grace_s, expect=expect)

        return await self._apply(kind, _key(kind, name, namespace), decide)

    def _fresh_name(self, kind: type[KObject], prefix: str, namespace: str, uid: str) -> tuple[str, str]:
        name = generated_name(prefix, uid)
        for _ in range(_NAME_TRIES):
            if self.store.head(kind.resource.key(name, namespace)) is None:
                break
            uid = self._new_uid()
            name = generated_name(prefix, uid)
        return name, uid

    def _admitted(self, kind: type[KObject], head: Record, change: rules.Change | None) -> rules.Change | None:
        """Only what was written is judged: an old object that new rules would refuse can still be labelled and let go."""
        if change is not None and rules.states_intent(head.body, change.body):
            admit(kind, change.body)
        return change

    async def _apply(self, kind: type[KObject], key: str, decide: Decide) -> Record:
        store = self.store
        while True:
            head = store.head(key)
            try:
                change = decide(head)
            except ApiError:
                if store.is_settled(key):
                    raise
                await self._settled(key)
                decide(store.get(key))  # refused on durable state as well: then that is the answer
                continue
            if change is None:
                assert head is not None
                await store.settle(key)  # "nothing to do" is an acknowledgement, too
                return head
            expect = 0 if head is None else head.rv
            if change.removed:
                return await store.remove(key, change.body, expect=expect)
            try:
                return await store.put(key, change.body, expect=expect, kind=kind)
            except msgspec.ValidationError as error:
                raise ill_typed(kind, change.body, error) from None

    async def _settled(self, key: str) -> None:
        try:
            await self.store.settle(key)
        except ApiError:
            return  # that write failed; ours is judged on what was there before it


def _key(kind: type[KObject], name: str, namespace: str) -> str:
    check_address(kind.resource, namespace, name)
    return kind.resource.key(name, namespace)


def own_copy(kind: type[KObject], body: Any) -> JsonObject:
    """The wire form, sharing nothing with the caller's object."""
    resource = kind.resource
    wire: JsonObject
    if isinstance(body, KObject):
        wire = to_wire(body)
    elif isinstance(body, dict):
        wire = cast(JsonObject, msgspec.to_builtins(body))
    else:
        raise BadRequest(f"a {resource.kind} must be an object, not a {type(body).__name__}")
    given = (wire.get("apiVersion", resource.api_version), wire.get("kind", resource.kind))
    if given != (resource.api_version, resource.kind):
        raise BadRequest(f"the object is a {given[1]} of {given[0]}; here go {resource.kind} of {resource.api_version}")
    meta = wire.get("metadata")
    if meta is None:
        wire["metadata"] = {}
    elif not isinstance(meta, dict):
        raise BadRequest("metadata must be an object")
    return wire
