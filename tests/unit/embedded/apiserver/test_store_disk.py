"""A disk that takes no writes: what is refused, in which words, what goes on in memory, and that it mends by itself."""

from __future__ import annotations

import asyncio
import errno
import sqlite3
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from remuda.api.errors import ApiError
from remuda.api.kubernetes.core_v1 import NODE_LEASE_NAMESPACE, Lease, Namespace, Node
from remuda.api.meta import ObjectMeta
from remuda.embedded.apiserver.health_answers import apiserver_health_answer, storage_trouble_in_health_answer
from remuda.embedded.apiserver.lease_renewals import is_lease_renewal
from remuda.embedded.apiserver.local_cluster import LocalCluster
from remuda.embedded.apiserver.store import MemoryJournal, ObjectStore
from remuda.embedded.apiserver.store.journal import CommitDone
from remuda.embedded.apiserver.store.record import StoreEvent
from remuda.embedded.apiserver.store.storage_trouble import storage_trouble
from remuda.embedded.node.images import ImageStore
from remuda.embedded.node.node_registration import NodeConfig, NodeRegistration
from remuda.sim.virtual_time_loop import VirtualLoop, run_virtual

LEASES = Lease.resource.prefix
FULL = ApiError("The disk is full.", reason="StorageFull", code=507)


class RefusingJournal(MemoryJournal):
    """A memory journal whose disk can be full."""

    trouble: ApiError | None = None
    asked: int = 0

    def commit(self, group: Sequence[StoreEvent], compact_to: int, done: CommitDone) -> None:
        self.asked += 1
        if self.trouble is not None:
            done(self.trouble)
        else:
            super().commit(group, compact_to, done)


class Place:
    """An API with one node's lease in it, and the disk behind it."""

    def __init__(self) -> None:
        self.journal = RefusingJournal()
        self.store = ObjectStore(self.journal, may_stay_in_memory=is_lease_renewal)
        uids = iter(range(1000))
        self.api = LocalCluster(self.store, clock=lambda: 1000.0, new_uid=lambda: f"u{next(uids)}")

    async def prepare(self) -> None:
        for name in ("default", NODE_LEASE_NAMESPACE):
            await self.api.create(Namespace, Namespace(metadata=ObjectMeta(name=name)))
        meta = {"name": "node-01", "namespace": NODE_LEASE_NAMESPACE}
        await self.api.create(Lease, {"metadata": meta, "spec": {"holderIdentity": "node-01", **moment(0)}})

    async def renew(self, second: int, **more: Any) -> Lease:
        return await self.api.patch(Lease, "node-01", {"spec": {**moment(second), **more}}, NODE_LEASE_NAMESPACE)

    async def lease(self) -> Lease:
        return await self.api.get(Lease, "node-01", NODE_LEASE_NAMESPACE)

    async def on_disk(self) -> Lease:
        """What a cluster would find that started on the same disk now."""
        store = ObjectStore(MemoryJournal(self.journal.rows()))
        return await LocalCluster(store, clock=lambda: 0.0, new_uid=str).get(Lease, "node-01", NODE_LEASE_NAMESPACE)


def moment(second: int) -> dict[str, str]:
    return {"renewTime": f"2026-01-01T00:00:{second:02d}.000000Z"}


@pytest.fixture
async def place() -> Place:
    place = Place()
    await place.prepare()
    return place


async def test_a_full_disk_refuses_writes_in_words_and_keeps_reading(place: Place) -> None:
    place.journal.trouble = FULL
    with pytest.raises(ApiError) as caught:
        await place.api.create(Namespace, Namespace(metadata=ObjectMeta(name="late")))
    assert (caught.value.code, caught.value.reason) == (507, "StorageFull")
    assert place.store.trouble is FULL
    assert [n.name for n in (await place.api.list(Namespace)).items] == ["default", NODE_LEASE_NAMESPACE]
    place.journal.trouble = None
    await place.api.create(Namespace, Namespace(metadata=ObjectMeta(name="late")))
    assert place.store.trouble is None


async def test_a_lease_is_renewed_while_the_disk_is_full_and_saved_when_it_is_not(place: Place) -> None:
    watch = place.store.follow(LEASES, place.store.revision)
    durable = place.store.revision
    place.journal.trouble = FULL
    renewed = [await place.renew(second) for second in range(1, 6)][-1]
    assert (await place.lease()).spec.renew_time == renewed.spec.renew_time
    assert [event.record.body["spec"]["renewTime"] for event in watch.read()] == [
        moment(second)["renewTime"] for second in range(1, 6)
    ]
    assert place.store.trouble is FULL, "it is not forgotten that nothing can be written"
    assert place.store.revision == durable, "lists and bookmarks name only what is durable"
    assert (await place.on_disk()).spec.renew_time != renewed.spec.renew_time

    place.journal.trouble = None
    made = await place.api.create(Namespace, Namespace(metadata=ObjectMeta(name="next")))
    assert (await place.on_disk()).spec.renew_time == renewed.spec.renew_time
    assert int(made.metadata.resource_version) > int(renewed.metadata.resource_version)
    assert place.store.revision == int(made.metadata.resource_version)
    log = [row.rv for row in place.journal.rows().log]
    assert log == sorted(set(log))


async def test_a_lease_that_changes_hands_has_to_be_durable(place: Place) -> None:
    place.journal.trouble = FULL
    for change in ({"holderIdentity": "somebody-else"}, {"leaseTransitions": 4}, {"holderIdentity": ""}):
        with pytest.raises(ApiError) as caught:
            await place.renew(1, **change)
        assert caught.value.reason == "StorageFull", change
    with pytest.raises(ApiError):
        await place.api.delete(Lease, "node-01", NODE_LEASE_NAMESPACE)
    assert (await place.lease()).spec.holder_identity == "node-01"
    await place.renew(2)


async def test_a_watch_of_leases_goes_on_from_a_revision_that_is_only_in_memory(place: Place) -> None:
    place.journal.trouble = FULL
    renewed = await place.renew(1)
    watch = place.store.follow(LEASES, int(renewed.metadata.resource_version))
    assert watch.read() == []
    await place.renew(2)
    assert len(watch.read()) == 1


class HeldJournal(RefusingJournal):
    """Answers when told to."""

    immediate = False

    def __init__(self) -> None:
        super().__init__()
        self.waiting: list[Any] = []

    def commit(self, group: Sequence[StoreEvent], compact_to: int, done: CommitDone) -> None:
        self.waiting.append(lambda: RefusingJournal.commit(self, group, compact_to, done))

    async def asked_for(self) -> None:
        while not self.waiting:  # noqa: ASYNC110 - turns of the loop, not time
            await asyncio.sleep(0)

    def release(self) -> None:
        self.waiting.pop(0)()


async def test_a_renewal_of_a_version_that_failed_fails_with_it() -> None:
    place = Place()
    place.journal = held = HeldJournal()
    place.store = ObjectStore(held, may_stay_in_memory=is_lease_renewal)
    place.api = LocalCluster(place.store, clock=lambda: 1000.0, new_uid=lambda: "uid")
    making = asyncio.create_task(place.prepare())
    for _ in range(3):
        await held.asked_for()
        held.release()
    await making
    held.trouble = FULL
    taking = asyncio.create_task(place.renew(1, holderIdentity="thief"))
    await asyncio.sleep(0)
    on_it = asyncio.create_task(place.renew(2))
    await held.asked_for()
    await asyncio.sleep(0)
    held.release()
    results = await asyncio.gather(taking, on_it, return_exceptions=True)
    assert [getattr(result, "reason", result) for result in results] == ["StorageFull", "StorageFull"]
    assert (await place.lease()).spec.holder_identity == "node-01"


def test_a_node_on_a_full_disk_is_not_fenced_and_tells_its_news_later() -> None:
    loop = VirtualLoop()

    async def main() -> None:
        place = Place()
        place.api.clock = loop.clock
        await place.prepare()
        fences: list[float] = []
        images = ImageStore()
        config = NodeConfig("node-01", devices=("gpu-0",), lease_s=8.0)
        registration = NodeRegistration(config, place.api, images, loop.clock, lambda: fences.append(loop.time()))
        await registration.register()
        keeping = asyncio.create_task(registration.keep())
        place.journal.trouble = FULL
        await images.pull("model:1")  # news that the node cannot tell while the disk is full
        registration.refresh()
        await asyncio.sleep(600)
        assert fences == []
        seen = (await place.lease()).spec.renew_time
        assert seen is not None
        assert loop.clock() - seen.timestamp() < 8.0, "nobody who reads the lease takes the node for dead"
        place.journal.trouble = None
        await asyncio.sleep(8)
        assert (await place.api.get(Node, "node-01")).status.images == [{"names": ["model:1"]}]
        keeping.cancel()
        await asyncio.gather(keeping, return_exceptions=True)

    run_virtual(main(), loop)


def a_sqlite_error(name: str) -> sqlite3.Error:
    error = sqlite3.OperationalError("disk I/O error")
    error.sqlite_errorname = name
    return error


@pytest.mark.parametrize(
    ("error", "reason", "code"),
    [
        (a_sqlite_error("SQLITE_FULL"), "StorageFull", 507),
        (OSError(errno.ENOSPC, "No space left on device"), "StorageFull", 507),
        (OSError(errno.EDQUOT, "Quota exceeded"), "StorageFull", 507),
        (a_sqlite_error("SQLITE_READONLY"), "StorageReadOnly", 503),
        (a_sqlite_error("SQLITE_READONLY_DBMOVED"), "StorageReadOnly", 503),
        (OSError(errno.EROFS, "Read-only file system"), "StorageReadOnly", 503),
        (a_sqlite_error("SQLITE_IOERR_WRITE"), "StorageFailed", 503),
        (OSError(errno.EIO, "Input/output error"), "StorageFailed", 503),
    ],
)
def test_every_fault_of_a_disk_has_a_name_and_a_fix(tmp_path: Path, error: Exception, reason: str, code: int) -> None:
    found = storage_trouble(tmp_path / "store.db", error)
    assert (found.reason, found.code) == (reason, code)
    assert str(tmp_path) in found.message
    assert found.message.count(". ") == 1, "a sentence, then the fix"


@pytest.mark.parametrize(
    ("flags", "free", "reason"),
    [(1, 10**9, "StorageReadOnly"), (0, 0, "StorageFull"), (0, 10**9, "StorageFailed")],
)
def test_an_io_error_is_named_after_what_the_file_system_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, flags: int, free: int, reason: str
) -> None:
    class Found:
        f_flag, f_bavail, f_frsize = flags, free, 1

    monkeypatch.setattr("os.statvfs", lambda path: Found)
    assert storage_trouble(tmp_path / "store.db", a_sqlite_error("SQLITE_IOERR_WRITE")).reason == reason


@pytest.mark.parametrize(
    ("path", "trouble", "code"),
    [
        ("/livez", None, 200),
        ("/readyz", None, 200),
        ("/livez", FULL, 200),
        ("/readyz", FULL, 500),
        ("/healthz", FULL, 500),
    ],
)
def test_readyz_tells_of_the_disk_and_livez_stays_ok(path: str, trouble: ApiError | None, code: int) -> None:
    for verbose in (True, False):
        told = apiserver_health_answer(path, trouble, verbose=verbose)
        assert told.code == code
        assert storage_trouble_in_health_answer(told.text) == ("StorageFull: The disk is full." if code == 500 else "")
