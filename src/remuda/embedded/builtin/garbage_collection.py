"""Owner garbage collection: an object goes when every owner it names is gone.

An owner is the same object only with the same uid. Objects are looked at when they appear (which covers orphans found at
start-up), when their owner references change, and when one of their owners is deleted; a delete with a propagation policy
leaves a finalizer on the owner, and the owner is looked at until its dependents are dealt with:

- orphan: the reference is taken off every dependent, then the owner goes;
- foregroundDeletion: the dependents are deleted first; the owner goes when those that block it are gone.

The collector hears of every committed change of every served kind and keeps an index from an owner's uid to its dependents.
Verdicts are given on committed state, and written with preconditions.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from functools import partial

import msgspec

from remuda.api.errors import Conflict, NotFound
from remuda.api.meta import JsonObject
from remuda.embedded.apiserver.kinds_served import ServedKind
from remuda.embedded.apiserver.objects import ObjectService
from remuda.embedded.apiserver.store import DELETED, StoredObject, StoreEvent
from remuda.embedded.apiserver.write_rules import FOREGROUND, ORPHAN
from remuda.kube.cluster import Preconditions
from remuda.kube.runtime.controller import run_controller
from remuda.kube.runtime.work_queue import WorkQueue

Owners = Sequence[JsonObject]


class CollectionPlan(msgspec.Struct, frozen=True):
    """What is to be done about one object: delete these, take owners off those, then take this finalizer off it."""

    delete: list[StoredObject] = []
    finalizer: str | None = None  # the policy under which they are deleted
    disown: list[tuple[StoredObject, frozenset[str]]] = []
    release: tuple[StoredObject, str] | None = None


class GarbageCollector:
    """A `Reconciler` keyed by store keys; `run` feeds it."""

    def __init__(self, objects: ObjectService) -> None:
        self._objects = objects
        self._queue: WorkQueue[str] = WorkQueue()
        self._dependents: dict[str, dict[str, None]] = {}  # owner's uid -> keys, in the order they came

    async def run(self, clock: Callable[[], float]) -> None:
        store = self._objects.store
        for record in store.everything():
            owners = _owner_references(record.body)
            self._index(record.key, (), owners)
            if owners or _deletion_policy(record.body):
                self._queue.add(record.key)
        unsubscribe = store.subscribe(self._on_event)
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(run_controller("garbage", self._queue, self, clock))
        finally:
            unsubscribe()

    def _on_event(self, event: StoreEvent) -> None:
        record, before = event.record, event.previous
        body = record.body
        owners = body["metadata"].get("ownerReferences") or ()
        old_owners = () if before is None else before.body["metadata"].get("ownerReferences") or ()
        if event.type == DELETED:
            self._index(record.key, old_owners or owners, ())
            for key in self._dependents.get(body["metadata"].get("uid") or "", ()):
                self._queue.add(key)
            for owner in self._living(body, owners):
                if _deletion_policy(owner.body):
                    self._queue.add(owner.key)
            return
        if owners != old_owners:
            self._index(record.key, old_owners, owners)
            if owners:
                self._queue.add(record.key)
        if "deletionTimestamp" in body["metadata"] and _deletion_policy(body):
            self._queue.add(record.key)

    def _index(self, key: str, old: Owners, new: Owners) -> None:
        for owner in old:
            keys = self._dependents.get(owner.get("uid") or "")
            if keys is not None:
                keys.pop(key, None)
                if not keys:
                    del self._dependents[owner["uid"]]
        for owner in new:
            self._dependents.setdefault(owner.get("uid") or "", {})[key] = None

    # Looking.

    async def observe(self, key: str) -> StoredObject | None:
        return self._objects.store.get(key)

    def plan(self, record: StoredObject | None, now: float) -> CollectionPlan:
        if record is None:
            return CollectionPlan()
        body = record.body
        policy = _deletion_policy(body) if "deletionTimestamp" in body["metadata"] else ""
        if policy:
            return self._release(record, policy)
        owners = _owner_references(body)
        if not owners or "deletionTimestamp" in body["metadata"]:
            return CollectionPlan()
        gone = frozenset(o.get("uid") or "" for o in owners if self._is_gone(body, o))
        if len(gone) == len(owners):
            return CollectionPlan(delete=[record])
        return CollectionPlan(disown=[(record, gone)]) if gone else CollectionPlan()

    def _release(self, record: StoredObject, policy: str) -> CollectionPlan:
        uid = record.body["metadata"].get("uid") or ""
        store = self._objects.store
        found = [r for r in map(store.get, sorted(self._dependents.get(uid, ()))) if r is not None]
        if policy == ORPHAN:
            return CollectionPlan(disown=[(r, frozenset((uid,))) for r in found], release=(record, policy))
        doomed = [r for r in found if "deletionTimestamp" not in r.body["metadata"]]
        if any(_blocks_owner_deletion(r.body, uid) for r in found):
            return CollectionPlan(delete=doomed, finalizer=FOREGROUND)
        return CollectionPlan(delete=doomed, release=(record, policy))

    def _is_gone(self, body: JsonObject, owner: JsonObject) -> bool:
        served = self._served_as(owner)
        if served is None:
            return False  # not served here, so nothing can be said about it: leave the dependent alone
        record = self._look_up(served, body, owner)
        return record is None or record.body["metadata"].get("uid") != owner.get("uid")

    def _living(self, body: JsonObject, owners: Owners) -> Iterator[StoredObject]:
        for owner in owners:
            served = self._served_as(owner)
            record = None if served is None else self._look_up(served, body, owner)
            if record is not None and record.body["metadata"].get("uid") == owner.get("uid"):
                yield record

    def _look_up(self, served: ServedKind, body: JsonObject, owner: JsonObject) -> StoredObject | None:
        namespace = body["metadata"].get("namespace") or ""
        if served.resource.namespaced and not namespace:
            return None  # an object without a namespace cannot be owned by one inside
        return self._objects.store.get(served.store.key(owner.get("name") or "", namespace))

    def _served_as(self, owner: JsonObject) -> ServedKind | None:
        group = (owner.get("apiVersion") or "").rpartition("/")[0]
        return self._objects.registry.by_group_kind(group, owner.get("kind") or "")

    # Acting.

    async def apply(self, plan: CollectionPlan) -> float | None:
        for record in plan.delete:
            await self._delete(record, plan.finalizer)
        for record, uids in plan.disown:
            await self._change(record, partial(_without_owners, uids=uids))
        if plan.release is not None:
            record, name = plan.release
            await self._change(record, partial(_without_finalizer, name=name))
        return None

    async def _delete(self, record: StoredObject, finalizer: str | None) -> None:
        served = self._objects.registry.by_prefix(record.key)
        meta = record.body["metadata"]
        if served is None:
            return
        when = Preconditions(uid=meta.get("uid") or "")
        try:
            await self._objects.delete_record(
                served, meta["name"], meta.get("namespace") or "", when=when, finalizer=finalizer
            )
        except (NotFound, Conflict):
            return  # gone, or another object by the same name

    async def _change(self, record: StoredObject, edit: Callable[[JsonObject], JsonObject]) -> None:
        served = self._objects.registry.by_prefix(record.key)
        uid = record.body["metadata"].get("uid")
        if served is None:
            return

        def change(old: JsonObject | None) -> JsonObject:
            if old is None or old["metadata"].get("uid") != uid:
                raise NotFound("it is gone")
            meta = edit(old["metadata"])
            return old if meta == old["metadata"] else {**old, "metadata": meta}

        meta = record.body["metadata"]
        try:
            await self._objects.change_record(served, meta["name"], meta.get("namespace") or "", change)
        except NotFound:
            return


def _owner_references(body: JsonObject) -> list[JsonObject]:
    return body["metadata"].get("ownerReferences") or []


def _deletion_policy(body: JsonObject) -> str:
    finalizers = body["metadata"].get("finalizers") or ()
    return ORPHAN if ORPHAN in finalizers else FOREGROUND if FOREGROUND in finalizers else ""


def _blocks_owner_deletion(body: JsonObject, uid: str) -> bool:
    return any(o.get("uid") == uid and o.get("blockOwnerDeletion") for o in _owner_references(body))


def _without_owners(meta: JsonObject, uids: frozenset[str]) -> JsonObject:
    left = [o for o in meta.get("ownerReferences") or () if o.get("uid") not in uids]
    rest = {name: value for name, value in meta.items() if name != "ownerReferences"}
    return {**rest, "ownerReferences": left} if left else rest


def _without_finalizer(meta: JsonObject, name: str) -> JsonObject:
    left = [f for f in meta.get("finalizers") or () if f != name]
    rest = {field: value for field, value in meta.items() if field != "finalizers"}
    return {**rest, "finalizers": left} if left else rest
