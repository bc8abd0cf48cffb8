"""Owner garbage collection: an object goes when every owner it names is gone.

An owner is the same object only with the same uid. Objects are looked at when they appear (which covers orphans found at
start-up), when their owner references change, and when one of their owners is deleted. The verdict is given on the API's
own answer, not on the copies: the copies of two kinds may lag behind each other.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable

import msgspec

from remuda.api.errors import Conflict, NotFound, Refusal
from remuda.api.kinds import KINDS, kind_of
from remuda.api.meta import KObject, OwnerReference
from remuda.kube.cluster import Cluster, Preconditions
from remuda.kube.controller import run_controller
from remuda.kube.informer import Informer
from remuda.kube.workqueue import WorkQueue

_OWNERS = "owners"

Dependent = tuple[type[KObject], str, str]  # kind, namespace, name


class Garbage(msgspec.Struct, frozen=True):
    """An object to delete, or (uid empty) nothing to do."""

    dependent: Dependent
    uid: str = ""


class _Observed(msgspec.Struct, frozen=True):
    dependent: Dependent
    obj: KObject | None = None
    has_owner: bool = False


class GarbageCollector:
    """A `Reconciler`; `run` feeds it."""

    def __init__(self, cluster: Cluster, kinds: Iterable[type[KObject]] = KINDS) -> None:
        self._cluster = cluster
        self._queue: WorkQueue[Dependent] = WorkQueue()
        self._informers = [self._informer(kind) for kind in kinds]

    async def run(self, clock: Callable[[], float]) -> None:
        async with asyncio.TaskGroup() as group:
            for informer in self._informers:
                group.create_task(informer.run(), name=f"garbage-{informer.kind.resource.plural}")
            # A dependent may be known before its owner, so nobody is judged until everyone has been listed once.
            for informer in self._informers:
                await informer.synced()
            group.create_task(run_controller("garbage", self._queue, self, clock))

    def _informer(self, kind: type[KObject]) -> Informer[KObject]:
        informer: Informer[KObject] = Informer(self._cluster, kind)
        informer.add_index(_OWNERS, lambda obj: [owner.uid for owner in obj.metadata.owner_references])
        informer.subscribe(lambda old, new: self._on_change(kind, old, new))
        return informer

    def _on_change(self, kind: type[KObject], old: KObject | None, new: KObject | None) -> None:
        if new is None:
            assert old is not None
            for informer in self._informers:
                for dependent in informer.by_index(_OWNERS, old.uid):
                    self._queue.add((informer.kind, dependent.namespace, dependent.name))
            return
        owners = new.metadata.owner_references
        if owners and (old is None or old.metadata.owner_references != owners):
            self._queue.add((kind, new.namespace, new.name))

    async def observe(self, key: Dependent) -> _Observed:
        kind, namespace, name = key
        try:
            obj = await self._cluster.get(kind, name, namespace)
        except NotFound:
            return _Observed(key)
        for owner in obj.metadata.owner_references:
            if await self._is_there(owner, namespace):
                return _Observed(key, obj, has_owner=True)
        return _Observed(key, obj)

    async def _is_there(self, owner: OwnerReference, namespace: str) -> bool:
        try:
            kind = kind_of(owner.api_version, owner.kind)
        except Refusal:
            return True  # not served here, so nothing can be said about it: leave the dependent alone
        try:
            found = await self._cluster.get(kind, owner.name, namespace if kind.resource.namespaced else "")
        except NotFound:
            return False
        return found.uid == owner.uid

    def plan(self, observed: _Observed, now: float) -> Garbage:
        obj = observed.obj
        if obj is None or observed.has_owner or not obj.metadata.owner_references or obj.is_deleting:
            return Garbage(observed.dependent)
        return Garbage(observed.dependent, obj.uid)

    async def apply(self, plan: Garbage) -> float | None:
        if plan.uid:
            kind, namespace, name = plan.dependent
            try:
                await self._cluster.delete(kind, name, namespace, when=Preconditions(uid=plan.uid))
            except (NotFound, Conflict):
                return None  # gone, or another object by the same name
        return None
