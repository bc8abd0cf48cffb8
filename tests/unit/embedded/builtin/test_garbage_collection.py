from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from remuda.api.kubernetes.core_v1 import Binding, Node, Pod
from remuda.api.meta import KObject
from remuda.embedded.apiserver.local_cluster import LocalCluster
from remuda.embedded.apiserver.store import MemoryJournal, ObjectStore
from remuda.embedded.apiserver.write_rules import FOREGROUND, ORPHAN
from remuda.embedded.builtin.garbage_collection import GarbageCollector
from remuda.kube.cluster import Preconditions
from tests.builders.waiting import PATIENCE_S


def a_cluster() -> LocalCluster:
    uids = itertools.count()
    return LocalCluster(ObjectStore(MemoryJournal()), clock=lambda: 0.0, new_uid=lambda: f"u{next(uids)}")


def owned_by(*owners: KObject, **more: str) -> list[dict[str, Any]]:
    return [
        {"apiVersion": o.resource.api_version, "kind": o.resource.kind, "name": o.name, "uid": o.uid, **more}
        for o in owners
    ]


async def a_pod(cluster: LocalCluster, name: str, owners: list[dict[str, Any]], **more: Any) -> Pod:
    meta = {"name": name, "namespace": "team", "ownerReferences": owners}
    return await cluster.create(Pod, {"metadata": meta, **more})


@asynccontextmanager
async def collecting(cluster: LocalCluster) -> AsyncIterator[GarbageCollector]:
    collector = GarbageCollector(cluster)
    task = asyncio.create_task(collector.run(lambda: 0.0))
    try:
        await asyncio.sleep(0)  # its first step: it looks at what there is and listens from then on
        yield collector
    finally:
        task.cancel()
        await asyncio.wait([task])
        assert task.cancelled()


async def pods(cluster: LocalCluster, count: int) -> list[str]:
    """The names, once there are that many and the dust has settled."""
    async with asyncio.timeout(PATIENCE_S):
        while len(found := (await cluster.list(Pod)).items) != count:  # noqa: ASYNC110
            await asyncio.sleep(0)
    for _ in range(50):
        await asyncio.sleep(0)
    assert [p.name for p in (await cluster.list(Pod)).items] == [p.name for p in found]
    return [p.name for p in found]


async def test_dependents_go_with_their_owner_and_so_on() -> None:
    cluster = a_cluster()
    async with collecting(cluster):
        node = await cluster.create(Node, {"metadata": {"name": "n"}})
        top = await a_pod(cluster, "top", owned_by(node))
        await a_pod(cluster, "below", owned_by(top))
        await a_pod(cluster, "free", [])
        assert await pods(cluster, 3) == ["below", "free", "top"]
        await cluster.delete(Node, "n")
        assert await pods(cluster, 1) == ["free"]


async def test_one_living_owner_is_enough() -> None:
    cluster = a_cluster()
    async with collecting(cluster):
        first = await cluster.create(Node, {"metadata": {"name": "n1"}})
        second = await cluster.create(Node, {"metadata": {"name": "n2"}})
        await a_pod(cluster, "p", owned_by(first, second))
        await cluster.delete(Node, "n1")
        assert await pods(cluster, 1) == ["p"]
        await cluster.delete(Node, "n2")
        assert await pods(cluster, 0) == []


async def test_orphans_are_found_at_start() -> None:
    cluster = a_cluster()
    node = await cluster.create(Node, {"metadata": {"name": "n"}})
    kept = await cluster.create(Node, {"metadata": {"name": "kept"}})
    await a_pod(cluster, "orphan", owned_by(node))
    await a_pod(cluster, "owned", owned_by(kept))
    await cluster.delete(Node, "n")
    async with collecting(cluster):
        assert await pods(cluster, 1) == ["owned"]


async def test_an_owner_of_the_same_name_is_another_owner() -> None:
    cluster = a_cluster()
    async with collecting(cluster):
        node = await cluster.create(Node, {"metadata": {"name": "n"}})
        await a_pod(cluster, "p", owned_by(node))
        await cluster.delete(Node, "n")
        await cluster.create(Node, {"metadata": {"name": "n"}})
        assert await pods(cluster, 0) == []
        await a_pod(cluster, "late", owned_by(node))
        assert await pods(cluster, 0) == []


async def test_owners_it_cannot_know_are_left_in_peace() -> None:
    cluster = a_cluster()
    async with collecting(cluster):
        owner = {"apiVersion": "example.com/v1", "kind": "Job", "name": "j", "uid": "x"}
        await a_pod(cluster, "p", [owner])
        assert await pods(cluster, 1) == ["p"]


async def test_a_running_pod_is_only_asked_to_go() -> None:
    cluster = a_cluster()
    async with collecting(cluster):
        node = await cluster.create(Node, {"metadata": {"name": "n"}})
        pod = await a_pod(cluster, "p", owned_by(node))
        await cluster.bind("p", "team", Binding("n"))
        await cluster.delete(Node, "n")
        async with asyncio.timeout(PATIENCE_S):
            while not (await cluster.get(Pod, "p", "team")).is_deleting:  # noqa: ASYNC110
                await asyncio.sleep(0)
        await cluster.delete(Pod, "p", "team", grace_s=0, when=Preconditions(uid=pod.uid))
        assert await pods(cluster, 0) == []


async def test_orphaned_dependents_lose_the_reference_and_stay() -> None:
    cluster = a_cluster()
    async with collecting(cluster):
        node = await cluster.create(Node, {"metadata": {"name": "n"}})
        await a_pod(cluster, "p", owned_by(node))
        await cluster.delete_record(cluster.registry.of(Node), "n", finalizer=ORPHAN)
        await gone(cluster, Node, "n")
        assert await pods(cluster, 1) == ["p"]
        assert (await cluster.get(Pod, "p", "team")).metadata.owner_references == []


async def test_in_the_foreground_the_owner_goes_last() -> None:
    cluster = a_cluster()
    async with collecting(cluster):
        node = await cluster.create(Node, {"metadata": {"name": "n"}})
        blocking = [{**owned_by(node)[0], "blockOwnerDeletion": True}]
        await cluster.create(
            Pod,
            {
                "metadata": {
                    "name": "p",
                    "namespace": "team",
                    "ownerReferences": blocking,
                    "finalizers": ["example.com/x"],
                }
            },
        )
        await cluster.delete_record(cluster.registry.of(Node), "n", finalizer=FOREGROUND)
        async with asyncio.timeout(PATIENCE_S):
            while not (await cluster.get(Pod, "p", "team")).is_deleting:  # noqa: ASYNC110
                await asyncio.sleep(0)
        assert (await cluster.get(Node, "n")).is_deleting
        await cluster.patch(Pod, "p", {"metadata": {"finalizers": None}}, "team")
        await gone(cluster, Node, "n")
        assert await pods(cluster, 0) == []


async def test_a_reference_to_an_owner_that_is_gone_is_taken_off() -> None:
    cluster = a_cluster()
    async with collecting(cluster):
        first = await cluster.create(Node, {"metadata": {"name": "n1"}})
        second = await cluster.create(Node, {"metadata": {"name": "n2"}})
        await a_pod(cluster, "p", owned_by(first, second))
        await cluster.delete(Node, "n1")
        async with asyncio.timeout(PATIENCE_S):
            while len((await cluster.get(Pod, "p", "team")).metadata.owner_references) > 1:  # noqa: ASYNC110
                await asyncio.sleep(0)


async def gone(cluster: LocalCluster, kind: type[KObject], name: str) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while cluster.store.get(kind.resource.key(name)) is not None:  # noqa: ASYNC110
            await asyncio.sleep(0)
