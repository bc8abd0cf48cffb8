"""The store's promises, with journals that can be held up or made to fail."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from remuda.api.errors import ApiError, Conflict, Expired, NotFound, Unavailable
from remuda.api.kubernetes.core_v1 import Pod
from remuda.embedded.apiserver.local_cluster import LocalCluster
from remuda.embedded.apiserver.store import MemoryJournal, ObjectStore
from remuda.embedded.apiserver.store.collection import IN_ALL_FORMS
from remuda.embedded.apiserver.store.journal import CommitDone, LoadedState
from remuda.embedded.apiserver.store.record import StoreEvent

PREFIX = Pod.resource.prefix


class HeldJournal:
    """Commits when told to, and how."""

    immediate = False

    def __init__(self) -> None:
        self.waiting: list[tuple[list[StoreEvent], CommitDone]] = []
        self.groups: list[int] = []

    def load(self) -> LoadedState:
        return LoadedState()

    def commit(self, group: Sequence[StoreEvent], compact_to: int, done: CommitDone) -> None:
        self.groups.append(len(group))
        self.waiting.append((list(group), done))

    def release(self, error: ApiError | None = None) -> None:
        _, done = self.waiting.pop(0)
        done(error)

    def close(self) -> None:
        pass


def key(name: str) -> str:
    return Pod.resource.key(name, "team")


def body(name: str, **more: Any) -> dict[str, Any]:
    return {"metadata": {"name": name, "namespace": "team"}, **more}


def a_cluster(store: ObjectStore) -> LocalCluster:
    uids = iter(range(1000))
    return LocalCluster(store, clock=lambda: 1000.0, new_uid=lambda: f"u{next(uids)}")


async def turns(count: int = 5) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


async def test_a_write_is_neither_acknowledged_nor_readable_nor_watched_before_it_is_durable() -> None:
    journal = HeldJournal()
    store = ObjectStore(journal)
    cluster = a_cluster(store)
    stream = cluster.watch(Pod, "1")
    seen = asyncio.ensure_future(anext(stream))
    creating = asyncio.create_task(cluster.create(Pod, body("a")))
    await turns()
    assert len(journal.waiting) == 1
    assert not creating.done()
    assert not seen.done()
    with pytest.raises(NotFound):
        await cluster.get(Pod, "a", "team")
    listing = await cluster.list(Pod)
    assert (listing.items, listing.resource_version) == ([], "1")
    journal.release()
    pod = await creating
    assert (await cluster.get(Pod, "a", "team")) == pod
    assert (await seen).obj is pod  # one decoded object for every reader in the process
    await stream.aclose()


async def test_writes_are_checked_against_what_is_accepted_and_answered_on_what_is_durable() -> None:
    journal = HeldJournal()
    cluster = a_cluster(ObjectStore(journal))
    first = asyncio.create_task(cluster.create(Pod, body("a")))
    await turns()
    patching = asyncio.create_task(cluster.patch(Pod, "a", {"metadata": {"labels": {"x": "1"}}}, "team"))
    again = asyncio.create_task(cluster.create(Pod, body("a")))
    await turns()
    assert not again.done()  # refusing now would reveal, and rely on, a write that may still fail
    journal.release()
    await turns()
    assert first.done()
    assert not patching.done()
    journal.release()
    assert (await patching).labels == {"x": "1"}
    with pytest.raises(ApiError, match="already exists"):
        await again


async def test_a_refusal_is_judged_again_when_the_write_it_relied_on_fails() -> None:
    journal = HeldJournal()
    cluster = a_cluster(ObjectStore(journal))
    first = asyncio.create_task(cluster.create(Pod, body("a")))
    await turns()
    again = asyncio.create_task(cluster.create(Pod, body("a")))
    await turns()
    journal.release(ApiError("no space", reason="StorageFull"))
    with pytest.raises(ApiError, match="no space"):
        await first
    await turns()
    journal.release()
    assert (await again).name == "a"


async def test_nothing_to_do_is_acknowledged_only_when_what_it_saw_is_durable() -> None:
    journal = HeldJournal()
    cluster = a_cluster(ObjectStore(journal))
    creating = asyncio.create_task(cluster.create(Pod, body("a")))
    await turns()
    nothing = asyncio.create_task(cluster.patch(Pod, "a", {}, "team"))
    await turns()
    assert not nothing.done()
    journal.release()
    assert await nothing == await creating


async def test_whatever_waits_is_committed_as_one_group() -> None:
    journal = HeldJournal()
    store = ObjectStore(journal)
    writes = [asyncio.create_task(store.put(key(f"a{i}"), body(f"a{i}"))) for i in range(10)]
    await turns()
    writes += [asyncio.create_task(store.put(key(f"b{i}"), body(f"b{i}"))) for i in range(20)]
    await turns()
    assert journal.groups == [10]  # one group under way at a time
    journal.release()
    assert journal.groups == [10, 20]
    journal.release()
    records = await asyncio.gather(*writes)
    assert [record.rv for record in records] == list(range(2, 32))
    assert store.revision == 31


async def test_a_failed_commit_fails_everything_built_on_it_and_the_next_write_works() -> None:
    journal = HeldJournal()
    store = ObjectStore(journal)
    cluster = a_cluster(store)
    creating = asyncio.create_task(cluster.create(Pod, body("kept")))
    await turns()
    journal.release()
    kept = await creating
    cursor = store.follow(PREFIX, store.revision)

    under_way = asyncio.create_task(cluster.patch(Pod, "kept", {"metadata": {"labels": {"x": "1"}}}, "team"))
    await turns()
    behind = asyncio.create_task(cluster.patch(Pod, "kept", {"metadata": {"labels": {"y": "2"}}}, "team"))
    await turns()
    journal.release(ApiError("disk full", reason="StorageFull"))
    for failed in (under_way, behind):
        with pytest.raises(ApiError, match="disk full") as caught:
            await failed
        assert (caught.value.code, caught.value.reason) == (500, "StorageFull")
    assert journal.waiting == []
    assert await cluster.get(Pod, "kept", "team") == kept
    assert store.head(key("kept")) is store.get(key("kept"))

    retry = asyncio.create_task(cluster.patch(Pod, "kept", {"metadata": {"labels": {"y": "2"}}}, "team"))
    await turns()
    journal.release()
    after = await retry
    assert after.labels == {"y": "2"}
    assert int(after.metadata.resource_version) > int(kept.metadata.resource_version)
    assert [event.record.rv for event in cursor.read()] == [int(after.metadata.resource_version)]


async def test_a_cancelled_writer_does_not_cancel_the_write() -> None:
    journal = HeldJournal()
    store = ObjectStore(journal)
    writing = asyncio.create_task(store.put(key("a"), body("a")))
    await turns()
    writing.cancel()
    await asyncio.wait([writing])
    journal.release()
    assert store.get(key("a")) is not None


async def test_optimistic_concurrency() -> None:
    store = ObjectStore(MemoryJournal())
    record = await store.put(key("a"), body("a"), expect=0)
    for expect in (0, record.rv - 1, record.rv + 1):
        with pytest.raises(Conflict):
            await store.put(key("a"), body("a"), expect=expect)
    assert (await store.put(key("a"), body("a"), expect=record.rv)).rv == record.rv + 1
    with pytest.raises(Conflict):
        await store.remove(key("b"), body("b"))


async def test_a_watcher_that_is_too_slow_is_cut_off() -> None:
    store = ObjectStore(MemoryJournal(), history=8)
    slow = store.follow(PREFIX, store.revision)
    quick = store.follow(PREFIX, store.revision)
    read = []
    for number in range(30):
        await store.put(key("a"), body("a", n=number))
        read += [event.record.body["n"] for event in quick.read()]
    assert read == list(range(30))
    with pytest.raises(Expired, match="too slow"):
        slow.read()


async def test_the_history_keeps_bytes_and_the_newest_versions_keep_every_form() -> None:
    """Red before: all forms of every change stayed for as long as it was history."""
    store = ObjectStore(MemoryJournal(), history=4 * IN_ALL_FORMS)
    cluster = a_cluster(store)
    await cluster.create(Pod, body("still"))
    await cluster.create(Pod, body("gone"))
    await cluster.delete(Pod, "gone", "team", grace_s=0)
    await cluster.create(Pod, body("busy"))
    began = store.revision
    cursor = store.follow(PREFIX, 1, None)
    for number in range(2 * IN_ALL_FORMS):
        await cluster.patch(Pod, "busy", {"metadata": {"labels": {"n": str(number)}}}, "team")
    events = cursor.read()
    whole = [event for event in events if event.record._body is not None or event.record._decoded is not None]
    current = {store.get(key("still")), store.get(key("busy"))}
    assert current <= {event.record for event in whole}
    assert len(whole) <= IN_ALL_FORMS + len(current)
    # Whoever asks for old versions is answered as before.
    assert [event.record.body["metadata"]["name"] for event in events[:2]] == ["still", "gone"]
    labels = [event.record.decode(Pod).labels.get("n") for event in events if event.record.rv > began]
    assert labels == [str(number) for number in range(2 * IN_ALL_FORMS)]


async def test_kinds_do_not_push_each_other_out_of_the_history() -> None:
    store = ObjectStore(MemoryJournal(), history=8)
    await store.put("//nodes/n", {"metadata": {"name": "n"}})
    since = store.revision
    await store.put("//nodes/n", {"metadata": {"name": "n", "labels": {}}})
    for number in range(50):
        await store.put(key("a"), body("a", n=number))
    assert len(store.follow("//nodes/", since).read()) == 1


async def test_memory_journal_reopens_its_bytes_with_history() -> None:
    journal = MemoryJournal()
    store = ObjectStore(journal)
    await store.put(key("a"), body("a", n=1))
    await store.put(key("b"), body("b"))
    changed = await store.put(key("a"), body("a", n=2))
    await store.remove(key("b"), body("b"))
    again = ObjectStore(MemoryJournal(journal.rows()))
    assert again.revision == store.revision
    assert [record.body for record in again.scan(PREFIX)] == [changed.body]
    events = again.follow(PREFIX, 1).read()
    assert [event.type for event in events] == ["ADDED", "ADDED", "MODIFIED", "DELETED"]
    assert (await again.put(key("c"), body("c"))).rv == store.revision + 1


async def test_the_log_is_compacted_and_a_reopened_store_knows_what_it_lost() -> None:
    journal = MemoryJournal()
    store = ObjectStore(journal, history=10)
    for number in range(100):
        await store.put(key("a"), body("a", n=number))
    rows = journal.rows()
    assert 10 <= len(rows.log) <= 15
    again = ObjectStore(MemoryJournal(rows), history=10)
    with pytest.raises(Expired):
        again.follow(PREFIX, rows.compacted - 1)
    assert len(again.follow(PREFIX, rows.compacted).read()) == len(rows.log)
    with pytest.raises(Expired):  # also for a kind of which nothing is left in the log
        again.follow("//nodes/", rows.compacted - 1)


async def test_a_closed_store_ends_its_watches_and_refuses_writes() -> None:
    journal = HeldJournal()
    store = ObjectStore(journal)
    cluster = a_cluster(store)
    creating = asyncio.create_task(cluster.create(Pod, body("a")))
    await turns()
    closing = asyncio.create_task(store.close())
    await turns()
    assert not closing.done()  # an accepted write is not dropped
    journal.release()
    await asyncio.gather(creating, closing)
    assert [event.type async for event in cluster.watch(Pod, "1")] == ["ADDED"]
    with pytest.raises(Unavailable):
        await cluster.create(Pod, body("b"))
