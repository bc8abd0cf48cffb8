from __future__ import annotations

import asyncio
import sqlite3
from pathlib import Path
from typing import Any

import pytest

from remuda.api.errors import ApiError, Refusal
from remuda.api.kubernetes.core_v1 import Pod
from remuda.embedded.apiserver.store import ObjectStore, SqliteJournal

PREFIX = Pod.resource.prefix


def key(name: str) -> str:
    return Pod.resource.key(name, "team")


def body(name: str, **more: Any) -> dict[str, Any]:
    return {"metadata": {"name": name, "namespace": "team"}, **more}


async def test_concurrent_writes_share_commits(tmp_path: Path) -> None:
    journal = SqliteJournal(tmp_path / "state.db")
    store = ObjectStore(journal)
    await asyncio.gather(*(store.put(key(f"p{i}"), body(f"p{i}")) for i in range(200)))
    assert journal.commits == 1

    async def rewrite(name: str) -> None:
        for number in range(10):
            await store.put(key(name), body(name, n=number))

    before = journal.commits
    await asyncio.gather(*(rewrite(f"p{i}") for i in range(50)))
    assert journal.commits - before < 50  # 500 writes; a commit each would be 500
    await store.close()


async def test_everything_is_there_after_reopening(tmp_path: Path) -> None:
    store = ObjectStore(SqliteJournal(tmp_path / "state.db"))
    await store.put(key("a"), body("a", n=1))
    await store.put(key("b"), body("b"))
    await store.put(key("a"), body("a", n=2))
    await store.remove(key("b"), body("b"))
    revision = store.revision
    await store.close()

    again = ObjectStore(SqliteJournal(tmp_path / "state.db"))
    assert again.revision == revision
    assert [record.body["n"] for record in again.scan(PREFIX)] == [2]
    assert [event.type for event in again.follow(PREFIX, 1).read()] == ["ADDED", "ADDED", "MODIFIED", "DELETED"]
    assert (await again.put(key("c"), body("c"))).rv == revision + 1
    await again.close()


async def test_create_and_delete_within_one_group(tmp_path: Path) -> None:
    store = ObjectStore(SqliteJournal(tmp_path / "state.db"))
    await asyncio.gather(
        store.put(key("a"), body("a")), store.remove(key("a"), body("a")), store.put(key("b"), body("b"))
    )
    await store.close()
    again = ObjectStore(SqliteJournal(tmp_path / "state.db"))
    assert [record.key for record in again.scan(PREFIX)] == [key("b")]
    await again.close()


async def test_old_log_rows_are_compacted(tmp_path: Path) -> None:
    store = ObjectStore(SqliteJournal(tmp_path / "state.db"), history=20)
    for number in range(100):
        await store.put(key("a"), body("a", n=number))
    await store.close()
    rows = SqliteJournal(tmp_path / "state.db")
    loaded = rows.load()
    rows.close()
    assert 20 <= len(loaded.log) <= 26
    assert loaded.compacted == loaded.log[0].rv - 1


async def test_a_full_state_fails_the_write_and_recovers(tmp_path: Path) -> None:
    journal = SqliteJournal(tmp_path / "state.db", max_bytes=256 * 1024)
    store = ObjectStore(journal)
    await store.put(key("small"), body("small"))
    with pytest.raises(ApiError) as caught:
        await store.put(key("big"), body("big", data="x" * 1024 * 1024))
    assert (caught.value.code, caught.value.reason) == (507, "StorageFull")
    assert store.get(key("big")) is None
    after = await store.put(key("next"), body("next"))
    await store.close()
    again = ObjectStore(SqliteJournal(tmp_path / "state.db"))
    assert [record.key for record in again.scan(PREFIX)] == [key("next"), key("small")]
    assert again.revision == after.rv
    await again.close()


async def test_a_broken_connection_is_opened_anew(tmp_path: Path) -> None:
    journal = SqliteJournal(tmp_path / "state.db")
    store = ObjectStore(journal)
    await store.put(key("a"), body("a"))
    assert journal._connection is not None
    journal._connection.close()
    with pytest.raises(ApiError) as caught:
        await store.put(key("b"), body("b"))
    assert caught.value.reason == "StorageFailed"
    await store.put(key("b"), body("b"))
    await store.close()


@pytest.mark.parametrize(("version", "reason"), [(99, "StateTooNew"), (1, "StateTooOld")])
def test_a_state_format_of_another_version_is_refused(tmp_path: Path, version: int, reason: str) -> None:
    path = tmp_path / "state.db"
    SqliteJournal(path).close()
    with sqlite3.connect(path) as connection:
        connection.execute(f"PRAGMA user_version={version}")
    connection.close()
    with pytest.raises(Refusal) as caught:
        SqliteJournal(path)
    assert caught.value.reason == reason
    assert caught.value.fix


def test_a_second_opener_is_refused(tmp_path: Path) -> None:
    first = SqliteJournal(tmp_path / "state.db")
    with pytest.raises(Refusal) as caught:
        SqliteJournal(tmp_path / "state.db")
    assert caught.value.reason == "StateInUse"
    first.close()
    SqliteJournal(tmp_path / "state.db").close()


@pytest.mark.parametrize("content", [b"not a database, but long enough to be read as the header of one" * 10])
def test_what_is_not_a_database_is_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "state.db"
    path.write_bytes(content)
    with pytest.raises(Refusal) as caught:
        SqliteJournal(path)
    assert caught.value.reason == "StateUnreadable"
    assert path.read_bytes() == content


def test_somebody_elses_database_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "state.db"
    with sqlite3.connect(path) as connection:
        connection.execute("CREATE TABLE mine (x)")
    connection.close()
    with pytest.raises(Refusal) as caught:
        SqliteJournal(path)
    assert caught.value.reason == "StateNotOurs"


def test_a_missing_directory_is_refused(tmp_path: Path) -> None:
    with pytest.raises(Refusal) as caught:
        SqliteJournal(tmp_path / "nowhere" / "state.db")
    assert caught.value.reason == "StateUnreadable"
