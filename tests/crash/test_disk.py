"""What reaches the disk before anybody is told, and what happens when the disk takes no more."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from remuda.api.errors import ApiError
from remuda.embedded.apiserver.store import ObjectStore, SqliteJournal
from tests.crash.disk import Disk

WRITES = 25
KEY = "//pods/team/p"


@pytest.fixture
def disk() -> Iterator[Disk]:
    with Disk().installed() as disk:
        yield disk


def body(step: int) -> dict[str, Any]:
    return {"metadata": {"name": "p", "namespace": "team"}, "step": step}


class Careless(SqliteJournal):
    """Leaves it to the kernel when to write: the check below must notice."""

    def _prepare(self, connection: sqlite3.Connection) -> None:
        super()._prepare(connection)
        connection.execute("PRAGMA synchronous=OFF")


async def unsynced_acks(disk: Disk, journal: SqliteJournal) -> int:
    """How many writes were acknowledged while something written for them was not synced."""
    store = ObjectStore(journal)
    found = 0
    for step in range(WRITES):
        del disk.events[:]
        await store.put(KEY, body(step))
        # In the order of things: the write-ahead log is written, then synced, then the reply.
        assert ("write", "wal") in disk.events
        found += disk.events[-1] != ("sync", "wal")
    await store.close()
    return found


async def test_every_reply_comes_after_a_sync(disk: Disk, tmp_path: Path) -> None:
    assert await unsynced_acks(disk, SqliteJournal(tmp_path / "state.db")) == 0


async def test_the_check_of_it_can_fail(disk: Disk, tmp_path: Path) -> None:
    assert await unsynced_acks(disk, Careless(tmp_path / "state.db")) == WRITES


async def test_a_full_disk_is_reported_and_recovers(disk: Disk, tmp_path: Path) -> None:
    path = tmp_path / "state.db"
    store = ObjectStore(SqliteJournal(path))
    for step in range(5):
        await store.put(KEY, body(step))
    disk.is_full = True
    for _ in range(3):
        with pytest.raises(ApiError) as caught:
            await store.put(KEY, body(99))
        assert caught.value.reason == "StorageFull"
        assert "Free some space" in caught.value.message
    record = store.get(KEY)  # reading goes on
    assert record is not None
    assert record.body["step"] == 4
    disk.is_full = False
    newest = await store.put(KEY, body(5))
    await store.close()

    again = ObjectStore(SqliteJournal(path))
    record = again.get(KEY)
    assert record is not None
    assert (record.rv, record.body["step"]) == (newest.rv, 5)
    assert again.revision == newest.rv
    await again.close()
