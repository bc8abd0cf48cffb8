"""Namespace controller: a namespace that is being deleted is emptied, then let go."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import cache
from typing import Any, ClassVar

from remuda.api.errors import ApiError, NotFound
from remuda.api.kubernetes.core_v1 import Namespace
from remuda.api.meta import JsonObject, KObject, Resource
from remuda.embedded.builtin.informers import BuiltinView
from remuda.kube.cluster import Cluster, Preconditions
from remuda.kube.runtime.bulk_writes import write_all_objects
from remuda.kube.runtime.work_queue import WorkQueue

LOOK_AGAIN_S = 1.0  # while something in it is still going: pods end, finalizers are taken off


@cache
def structless_kind_for_builtin(of: Resource) -> type[KObject]:
    """A kind we have no Struct for: metadata, and the rest as it is on the wire."""

    class Stored(KObject, frozen=True, rename="camel", omit_defaults=True, kw_only=True):
        resource: ClassVar[Resource] = of

        spec: Any = None
        status: Any = None

    return Stored


class NamespaceController:
    """A `Reconciler` keyed by the namespace's name. `kinds`: everything namespaced that is served at the time."""

    def __init__(
        self,
        cluster: Cluster,
        view: BuiltinView,
        queue: WorkQueue[str],
        kinds: Callable[[], Iterable[type[KObject]]],
    ) -> None:
        self._cluster, self._view, self._queue, self._kinds = cluster, view, queue, kinds
        view.namespaces.subscribe(self._on_namespace)

    def _on_namespace(self, old: Namespace | None, new: Namespace | None) -> None:
        if new is not None and new.is_deleting:
            self._queue.add(new.name)

    async def observe(self, key: str) -> tuple[Namespace, list[KObject]] | None:
        namespace = self._view.namespaces.get(key)
        if namespace is None or not namespace.is_deleting:
            return None
        found: list[KObject] = []
        for kind in self._kinds():
            if kind.resource.namespaced:
                found += (await self._cluster.list(kind, key)).items
        return namespace, found

    def plan(
        self, observed: tuple[Namespace, list[KObject]] | None, now: float
    ) -> tuple[Namespace, list[KObject], bool] | None:
        if observed is None:
            return None
        namespace, content = observed
        return namespace, [obj for obj in content if not obj.is_deleting], not content

    async def apply(self, plan: tuple[Namespace, list[KObject], bool] | None) -> float | None:
        if plan is None:
            return None
        namespace, doomed, is_empty = plan
        if is_empty:
            # Leaving finalizers out of the spec takes ours off; the server removes the object when none is left.
            body: JsonObject = {
                "metadata": {"name": namespace.name, "uid": namespace.uid},
                "spec": {"finalizers": []},
            }
            try:
                await self._cluster.replace(Namespace, body, subresource="finalize")
            except NotFound:
                pass
            return None
        await write_all_objects(self._delete, doomed)
        return LOOK_AGAIN_S

    async def _delete(self, obj: KObject) -> None:
        try:
            await self._cluster.delete(type(obj), obj.name, obj.namespace, when=Preconditions(uid=obj.uid))
        except ApiError:
            pass  # gone, or changed: the next look tells
