"""`LocalCluster`: the `Cluster` port in process, over `ObjectService`. No sockets and, with a memory journal, no waiting."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import TypeVar

from remuda.api.kubernetes.core_v1 import Binding, Pod
from remuda.api.meta import JsonObject, KObject
from remuda.api.selectors import EVERYTHING, FieldSelector, Selector
from remuda.embedded.apiserver import write_rules
from remuda.embedded.apiserver.evictions import charge_disruption_budget
from remuda.embedded.apiserver.objects import ObjectService, served_object_key
from remuda.embedded.apiserver.store import ADDED, StoredObject
from remuda.kube.cluster import ANY, NO_FIELDS, Listing, Preconditions, WatchEvent

K = TypeVar("K", bound=KObject)

Records = list[StoredObject]  # `list` is a method in the class below


class LocalCluster(ObjectService):
    async def get(self, kind: type[K], name: str, namespace: str = "") -> K:
        return self.read(self.registry.of(kind), name, namespace).decode(kind)

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

    def select(self, kind: type[KObject], namespace: str, labels: Selector, fields: FieldSelector) -> Records:
        return self.find(self.registry.of(kind), namespace, labels, fields)

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
        there, cursor = self.follow_records(self.registry.of(kind), since, namespace, labels, fields)
        for record in there:
            yield WatchEvent(ADDED, str(record.rv), record.decode(kind))
        while True:
            for event in cursor.read():
                yield WatchEvent(event.type, str(event.record.rv), event.record.decode(kind))
            if not await cursor.more():
                return

    async def create(self, kind: type[K], body: K | JsonObject) -> K:
        return (await self.create_record(self.registry.of(kind), body)).decode(kind)

    async def replace(self, kind: type[K], body: K | JsonObject, *, subresource: str = "") -> K:
        return (await self.replace_record(self.registry.of(kind), body, subresource=subresource)).decode(kind)

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
        served = self.registry.of(kind)
        record = await self.patch_record(served, name, patch, namespace, subresource=subresource, when=when)
        return record.decode(kind)

    async def delete(
        self, kind: type[K], name: str, namespace: str = "", *, when: Preconditions = ANY, grace_s: int | None = None
    ) -> None:
        await self.delete_record(self.registry.of(kind), name, namespace, when=when, grace_s=grace_s)

    async def bind(self, name: str, namespace: str, binding: Binding) -> None:
        served = self.registry.of(Pod)
        meta = binding.metadata
        expect = write_rules.WriteExpectation(meta.uid, meta.resource_version)

        def decide(head: StoredObject | None, _: object) -> write_rules.WriteChange:
            if head is None:
                raise write_rules.served_object_not_found(served.resource, name)
            return write_rules.write_rule_for_binding(
                head.body, binding.target, meta.annotations, now=self.clock(), expect=expect
            )

        await self._apply(served, served_object_key(served, name, namespace), decide)

    async def evict(self, name: str, namespace: str, *, when: Preconditions = ANY) -> None:
        served = self.registry.of(Pod)
        pod = self.read(served, name, namespace).body
        write_rules.check_preconditions(
            served.resource, pod, write_rules.WriteExpectation(when.uid, when.resource_version)
        )
        await charge_disruption_budget(self, pod)
        await self.delete_record(served, name, namespace, when=when)
