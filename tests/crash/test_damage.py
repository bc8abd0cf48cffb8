"""Damage to acknowledged data: found, named by revision, refused; and what `recover_to` keeps."""

from __future__ import annotations

import random
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from remuda.api.errors import Expired, Refusal
from remuda.embedded.apiserver.store import ObjectStore, SqliteJournal
from remuda.embedded.apiserver.store.acked_mark import acked_mark_path
from tests.crash.model import copy_state

PREFIX = "//pods/"
STEPS = 40
FLIPS = 120

Contents = dict[str, int]  # step by key


def key(number: int) -> str:
    return f"{PREFIX}team/p{number}"


def body(number: int, step: int) -> dict[str, Any]:
    meta = {"name": f"p{number}", "namespace": "team"}
    return {"metadata": meta, "step": step, "padding": f"needle-{step:03d}." * 40}


async def fill(path: Path, history: int = 4096) -> tuple[ObjectStore, dict[int, Contents]]:
    """Forty changes of seven objects, some of them removals; what was there at each revision."""
    store = ObjectStore(SqliteJournal(path), history=history)
    now: Contents = {}
    at: dict[int, Contents] = {store.revision: {}}
    for step in range(1, STEPS + 1):
        number = step % 7
        if step % 5 == 0 and key(number) in now:
            await store.remove(key(number), body(number, step))
            del now[key(number)]
        else:
            await store.put(key(number), body(number, step))
            now[key(number)] = step
        at[store.revision] = dict(now)
    return store, at


async def filled(path: Path, history: int = 4096) -> dict[int, Contents]:
    store, at = await fill(path, history)
    await store.close()
    return at


def contents(store: ObjectStore) -> Contents:
    return {record.key: int(record.body["step"]) for record in store.scan(PREFIX)}


def refused(path: Path) -> Refusal:
    with pytest.raises(Refusal) as caught:
        ObjectStore(SqliteJournal(path))
    return caught.value


def alter(path: Path, statement: str) -> None:
    with sqlite3.connect(path) as connection:
        assert connection.execute(statement).rowcount == 1
    connection.close()


def flip_needle(path: Path, step: int, occurrence: int) -> None:
    """One bit of what the file holds of that step; it is there twice: in the log, and in the object."""
    data = bytearray(path.read_bytes())
    needle, place = f"needle-{step:03d}.".encode(), -1
    found: list[int] = []
    while (place := data.find(needle * 3, place + 1)) >= 0:
        if not found or place - found[-1] > 1000:
            found.append(place)
    data[found[occurrence]] ^= 1
    path.write_bytes(data)


async def test_a_sound_state_opens_and_has_nothing_to_recover(tmp_path: Path) -> None:
    at = await filled(tmp_path / "state.db", history=10)
    store = ObjectStore(SqliteJournal(tmp_path / "state.db"))
    assert contents(store) == at[store.revision]
    await store.close()
    with pytest.raises(Refusal, match="StateNotDamaged"):
        ObjectStore(SqliteJournal(tmp_path / "state.db", recover_to=5))


async def test_a_flipped_bit_of_a_body_names_its_revision(tmp_path: Path) -> None:
    await filled(tmp_path / "state.db")
    for occurrence in (0, 1):
        copy = copy_state(tmp_path / "state.db", tmp_path / f"copy-{occurrence}")
        flip_needle(copy, STEPS - 1, occurrence)  # the last step is a removal
        said = refused(copy)
        assert said.reason == "StateDamaged"
        assert f"at revision {STEPS}:" in said.message
        assert key((STEPS - 1) % 7) in said.message
        assert "--recover-to" in said.fix
        assert refused(copy).reason == "StateDamaged", "once refused, it must not start the second time"


STATEMENTS = {
    "a change is gone": "DELETE FROM log WHERE rv=20",
    "the newest change is gone": "DELETE FROM log WHERE rv=(SELECT max(rv) FROM log)",
    "a change of another kind": "UPDATE log SET type='DELETED' WHERE rv=20",
    "a change of another object": f"UPDATE log SET key='{key(9)}' WHERE rv=20",
    "an object is gone": "DELETE FROM obj WHERE rv=(SELECT min(rv) FROM obj)",
    "an object has an older version": "UPDATE obj SET rv=rv-1 WHERE rv=(SELECT min(rv) FROM obj)",
    "an object came from nowhere": f"INSERT INTO obj SELECT '{key(9)}', rv, body, sum FROM obj LIMIT 1",
}


@pytest.mark.parametrize("what", STATEMENTS)
async def test_rows_that_are_not_as_written(tmp_path: Path, what: str) -> None:
    path = tmp_path / "state.db"
    await filled(path)
    alter(path, STATEMENTS[what])
    assert refused(path).reason == "StateDamaged"


async def test_one_flipped_bit_anywhere_is_never_silent(tmp_path: Path) -> None:
    """Either the state is refused, or everything is there as it was acknowledged: history, objects, revision."""
    seed = random.SystemRandom().randrange(2**32)
    print(f"seed {seed}")
    chance = random.Random(seed)
    path = tmp_path / "state.db"
    await filled(path, history=20)
    whole = ObjectStore(SqliteJournal(path))
    right = (whole.revision, contents(whole), history(whole))
    await whole.close()
    data = path.read_bytes()
    outcomes = []
    for _ in range(FLIPS):
        copy = copy_state(path, tmp_path / "copy")
        place = chance.randrange(len(data))
        copy.write_bytes(data[:place] + bytes([data[place] ^ 1 << chance.randrange(8)]) + data[place + 1 :])
        try:
            store = ObjectStore(SqliteJournal(copy))
        except Refusal as refusal:
            outcomes.append(refusal.reason)
            continue
        assert (store.revision, contents(store), history(store)) == right, f"silent damage at byte {place}"
        await store.close()
        outcomes.append("unused")
    # About a third of the bytes are rows, so that a draw without any is one in 10**20; how many there are is the draw's.
    assert "StateDamaged" in outcomes
    assert set(outcomes) <= {"StateDamaged", "StateUnreadable", "StateNotOurs", "StateTooNew", "StateTooOld", "unused"}


@pytest.mark.parametrize("wrong", [5, 29])
async def test_the_mark_of_forgotten_history_is_not_believed_against_the_log(tmp_path: Path, wrong: int) -> None:
    path = tmp_path / "state.db"
    await filled(path, history=20)
    whole = ObjectStore(SqliteJournal(path))
    floor, right = whole._floor, history(whole)
    await whole.close()
    assert 5 < floor < 29
    alter(path, f"UPDATE meta SET value={wrong} WHERE name='compacted'")
    store = ObjectStore(SqliteJournal(path))
    assert history(store) == right
    with pytest.raises(Expired):
        store.follow(PREFIX, floor - 1)
    await store.close()


def history(store: ObjectStore) -> list[tuple[int, str, bytes]]:
    return [(e.record.rv, e.type, e.record.raw) for e in store.follow(PREFIX, store._floor).read()]


Spoil = Callable[[Path], None]


def _flip(wal: Path) -> None:
    data = bytearray(wal.read_bytes())
    data[len(data) // 2] ^= 1
    wal.write_bytes(data)


def _cut(wal: Path) -> None:
    wal.write_bytes(wal.read_bytes()[: wal.stat().st_size // 2])


SPOILS: dict[str, Spoil] = {"a bit flips": _flip, "the end is cut off": _cut, "it is gone": lambda wal: wal.unlink()}


@pytest.mark.parametrize("spoil", SPOILS)
async def test_a_damaged_write_ahead_log_is_not_taken_for_a_torn_write(tmp_path: Path, spoil: str) -> None:
    """Sqlite drops what it cannot read at the end of that file. Here all of it had been acknowledged."""
    store, at = await fill(tmp_path / "state.db")
    acked = store.revision
    path = copy_state(tmp_path / "state.db", tmp_path / "copy")  # as a killed process would leave it
    await store.close()
    wal = path.with_name(path.name + "-wal")
    assert wal.stat().st_size > 50_000
    SPOILS[spoil](wal)
    said = refused(path)
    assert said.reason == "StateDamaged"
    assert f"up to revision {acked} were acknowledged" in said.message
    kept = list(path.parent.glob("state.db.damaged-*-wal"))
    assert kept or spoil == "it is gone", "what sqlite drops must be kept aside"
    good = int(said.fix.rsplit(" ", 1)[1].rstrip("."))
    assert good == 0 if spoil == "it is gone" else 1 < good < acked

    store = ObjectStore(SqliteJournal(path, recover_to=good))
    assert contents(store) == at.get(good, {})
    assert store.revision >= acked
    await store.close()


async def test_a_state_that_was_removed_begins_anew(tmp_path: Path) -> None:
    path = tmp_path / "state.db"
    await filled(path)
    path.unlink()
    store = ObjectStore(SqliteJournal(path))
    assert contents(store) == {}
    await store.close()
    store = ObjectStore(SqliteJournal(path))
    await store.close()


async def test_a_mark_that_is_older_or_gone_is_no_damage(tmp_path: Path) -> None:
    """After a power failure it may be: it is never synced."""
    path = tmp_path / "state.db"
    at = await filled(path)
    acked_mark_path(path).unlink()
    store = ObjectStore(SqliteJournal(path))
    assert contents(store) == at[store.revision]
    await store.close()
    acked_mark_path(path).write_bytes(b"\0" * 16)
    store = ObjectStore(SqliteJournal(path))
    await store.close()


async def test_recovery_keeps_the_good_prefix_and_goes_on_beyond_all_that_was_told(tmp_path: Path) -> None:
    path = tmp_path / "state.db"
    at = await filled(path)
    newest = max(at)
    alter(path, "UPDATE log SET body=x'7b7d' WHERE rv=25")
    said = refused(path)
    assert "at revision 25:" in said.message
    assert said.fix.endswith("--recover-to 24.")
    for revision in (25, newest, -1):
        with pytest.raises(Refusal, match="RecoveryNotPossible"):
            ObjectStore(SqliteJournal(path, recover_to=revision))
    for revision in (24, 11, 2):
        copy = copy_state(path, tmp_path / f"copy-{revision}")
        journal = SqliteJournal(copy, recover_to=revision)
        store = ObjectStore(journal)
        assert contents(store) == at[revision]
        assert list(journal.lost) == []
        assert store.revision >= newest, "a revision that was told must not be given again"
        for seen in (revision, newest - 1):  # those who may have seen what is gone have to list again
            with pytest.raises(Expired):
                store.follow(PREFIX, seen)
        record = await store.put(key(1), body(1, 77))
        assert record.rv > newest
        await store.close()
        store = ObjectStore(SqliteJournal(copy))  # from now on it starts as any other
        assert contents(store) == {**at[revision], key(1): 77}
        await store.close()
        assert list(copy.parent.glob("state.db.damaged-25"))


async def test_what_no_copy_is_left_of_is_lost_by_name(tmp_path: Path) -> None:
    """An old object's only copy is damaged: its history was forgotten long ago."""
    path = tmp_path / "state.db"
    store = ObjectStore(SqliteJournal(path), history=5)
    await store.put(key(99), body(99, 1))
    await store.put(key(98), body(98, 2))
    for step in range(3, 40):
        await store.put(key(1), body(1, step))
    newest = store.revision
    await store.close()
    alter(path, f"UPDATE obj SET body=x'7b7d' WHERE key='{key(99)}'")
    said = refused(path)
    assert key(99) in said.message
    journal = SqliteJournal(path, recover_to=newest)
    store = ObjectStore(journal)
    assert list(journal.lost) == [key(99)]
    assert contents(store) == {key(98): 2, key(1): 39}
    await store.close()
