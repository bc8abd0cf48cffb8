"""The tables of the state's database: their form, and reading and rewriting all of them. Transactions are the caller's."""

from __future__ import annotations

import sqlite3

import msgspec

from remuda.embedded.apiserver.store.integrity import (
    RecoveredState,
    SealedState,
    chained_checksum,
    count_sound_rows,
    row_checksum,
    total_store_checksum,
)
from remuda.embedded.apiserver.store.journal import LogRow, ObjectRow

FORMAT = 2
APPLICATION_ID = 0x52454D55  # "REMU": tells our file from any other sqlite database

_SCHEMA = """
CREATE TABLE obj (key TEXT PRIMARY KEY, rv INTEGER NOT NULL, body BLOB NOT NULL, sum INTEGER NOT NULL DEFAULT 0);
CREATE TABLE log (rv INTEGER PRIMARY KEY, key TEXT NOT NULL, type TEXT NOT NULL, body BLOB NOT NULL,
    sum INTEGER NOT NULL DEFAULT 0);
CREATE TABLE meta (name TEXT PRIMARY KEY, value INTEGER NOT NULL);
INSERT INTO meta VALUES ('compacted', 0), ('anchor', 0), ('head', 0), ('total', 0);
"""


class MalformedRow(Exception):
    """A value of a type that was never written."""


def make_sqlite_journal_tables(connection: sqlite3.Connection) -> None:
    for statement in filter(None, map(str.strip, _SCHEMA.split(";"))):
        connection.execute(statement)
    connection.execute(f"PRAGMA application_id={APPLICATION_ID}")
    connection.execute(f"PRAGMA user_version={FORMAT}")


def read_store_meta(connection: sqlite3.Connection) -> dict[str, int]:
    found = dict(connection.execute("SELECT name, value FROM meta"))
    for name in ("compacted", "anchor", "head", "total"):
        if not isinstance(found.get(name), int):
            raise MalformedRow(f"meta.{name} is {found.get(name)!r}")
    return found


def read_sealed_store_state(connection: sqlite3.Connection, acked: int) -> SealedState:
    meta = read_store_meta(connection)
    state = SealedState(
        objects=[
            (
                ObjectRow(_text_in_stored_row(key), _number_in_stored_row(rv), _bytes_in_stored_row(body)),
                _number_in_stored_row(stored),
            )
            for key, rv, body, stored in connection.execute("SELECT key, rv, body, sum FROM obj")
        ],
        log=[
            (
                LogRow(
                    _number_in_stored_row(rv),
                    _text_in_stored_row(key),
                    _text_in_stored_row(type_),
                    _bytes_in_stored_row(body),
                ),
                _number_in_stored_row(stored),
            )
            for rv, key, type_, body, stored in connection.execute(
                "SELECT rv, key, type, body, sum FROM log ORDER BY rv"
            )
        ],
        compacted=meta["compacted"],
        anchor=meta["anchor"],
        head=meta["head"],
        total=meta["total"],
        acked=acked,
    )
    # No sum covers `compacted`. But the first change that is left says it too, where it can be trusted; believing more
    # than is there would hide a gap from whoever resumes a watch in it.
    if count_sound_rows(state):
        state = msgspec.structs.replace(state, compacted=state.log[0][0].rv - 1)
    return state


# A damaged row may hold values of any type. Where it can, it goes on to be found by its sum and named.


def _number_in_stored_row(value: object) -> int:
    if not isinstance(value, int):
        raise MalformedRow(f"a number is {value!r}")
    return value


def _text_in_stored_row(value: object) -> str:
    return value if isinstance(value, str) else repr(value)


def _bytes_in_stored_row(value: object) -> bytes:
    return value if isinstance(value, bytes) else repr(value).encode()


def write_recovered_store_state(connection: sqlite3.Connection, found: RecoveredState) -> None:
    connection.execute("DELETE FROM obj")
    connection.execute("DELETE FROM log")
    rows = [(row.key, row.rv, row.body) for row in found.objects]
    connection.executemany("INSERT INTO obj (key, rv, body) VALUES (?, ?, ?)", rows)
    connection.execute("UPDATE meta SET value=? WHERE name='compacted'", (found.revision,))
    _write_checksums(connection)


def _write_checksums(connection: sqlite3.Connection) -> None:
    """Put the sums to rows that have none."""
    objects = [
        (row_checksum(rv, key, body), key) for key, rv, body in connection.execute("SELECT key, rv, body FROM obj")
    ]
    connection.executemany("UPDATE obj SET sum=? WHERE key=?", objects)
    head, changes = 0, []
    for rv, key, type_, body in connection.execute("SELECT rv, key, type, body FROM log ORDER BY rv"):
        head = chained_checksum(head, type_, row_checksum(rv, key, body))
        changes.append((head, rv))
    connection.executemany("UPDATE log SET sum=? WHERE rv=?", changes)
    values = [(0, "anchor"), (head, "head"), (total_store_checksum([own for own, _ in objects]), "total")]
    connection.executemany("UPDATE meta SET value=? WHERE name=?", values)
