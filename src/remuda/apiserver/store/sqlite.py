"""`SqliteJournal`: the state directory's database. WAL, synchronous=FULL, one writer thread.

`obj` holds the newest version of every object, `log` the changes in revision order (the watch history); both are written in
the same transaction, so they never disagree. The file is locked exclusively while open: a second process that opened
the same state would keep its own memory of it, and the two would drift apart.

The format's version is in the file (`PRAGMA user_version`). A newer one is refused: reading it with old code could lose
what the new code wrote.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import queue
import sqlite3
import threading
from collections.abc import Sequence
from pathlib import Path

from remuda.api.errors import ApiError, Refusal
from remuda.apiserver.store.journal import Done, Loaded, LogRow, ObjectRow
from remuda.apiserver.store.record import DELETED, Event

FORMAT = 1
APPLICATION_ID = 0x52454D55  # "REMU": tells our file from any other sqlite database

_SCHEMA = """
CREATE TABLE obj (key TEXT PRIMARY KEY, rv INTEGER NOT NULL, body BLOB NOT NULL);
CREATE TABLE log (rv INTEGER PRIMARY KEY, key TEXT NOT NULL, type TEXT NOT NULL, body BLOB NOT NULL);
CREATE TABLE meta (name TEXT PRIMARY KEY, value INTEGER NOT NULL);
INSERT INTO meta VALUES ('compacted', 0);
"""

_Rows = tuple[list[tuple[int, str, str, bytes]], int]
_Job = tuple[_Rows | Path, Done, asyncio.AbstractEventLoop]  # rows to commit, or where to put a copy


class SqliteJournal:
    """`max_bytes` caps the database file (0 = no cap): a full state then fails like a full disk."""

    immediate = False

    def __init__(self, path: str | Path, *, max_bytes: int = 0) -> None:
        self.path = Path(path)
        self.commits = 0
        self._max_bytes = max_bytes
        self._compacted = 0
        self._jobs: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()
        self._connection: sqlite3.Connection | None = self._open()
        self._thread = threading.Thread(target=self._run, name="remuda-journal", daemon=True)
        self._thread.start()

    def _open(self) -> sqlite3.Connection:
        try:
            # Bodies may hold secrets, so the file is its owner's alone; sqlite gives its side files the same mode.
            os.close(os.open(self.path, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600))
        except OSError as error:
            raise self._refusal(error) from error
        try:
            # Used by the opening thread until the writer starts and by the writer alone from then on.
            connection = sqlite3.connect(self.path, isolation_level=None, check_same_thread=False, timeout=0.5)
        except sqlite3.Error as error:
            raise self._refusal(error) from error
        try:
            self._prepare(connection)
        except BaseException as error:
            connection.close()
            if isinstance(error, sqlite3.Error):
                raise self._refusal(error) from error
            raise
        return connection

    def _prepare(self, connection: sqlite3.Connection) -> None:
        connection.execute("PRAGMA locking_mode=EXCLUSIVE")
        connection.execute("PRAGMA journal_mode=WAL")
        connection.execute("PRAGMA synchronous=FULL")
        connection.execute("BEGIN IMMEDIATE")
        version = int(connection.execute("PRAGMA user_version").fetchone()[0])
        application = int(connection.execute("PRAGMA application_id").fetchone()[0])
        if version > FORMAT:
            raise Refusal(
                "StateTooNew",
                f"{self.path} was written by a newer Remuda (state format {version}, this one knows {FORMAT}).",
                "Start it with that newer version, or use another state directory.",
            )
        if version == 0:
            if application or connection.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]:
                raise self._not_ours()
            for statement in filter(None, map(str.strip, _SCHEMA.split(";"))):
                connection.execute(statement)
            connection.execute(f"PRAGMA application_id={APPLICATION_ID}")
            connection.execute(f"PRAGMA user_version={FORMAT}")
        elif application != APPLICATION_ID:
            raise self._not_ours()
        connection.execute("COMMIT")
        if self._max_bytes:
            page = int(connection.execute("PRAGMA page_size").fetchone()[0])
            connection.execute(f"PRAGMA max_page_count={max(1, self._max_bytes // page)}")

    def _not_ours(self) -> Refusal:
        return Refusal(
            "StateNotOurs",
            f"{self.path} is a database of something else.",
            "Use another state directory, or move the file away.",
        )

    def _refusal(self, error: Exception) -> Refusal:
        name = getattr(error, "sqlite_errorname", "")
        if name.startswith(("SQLITE_BUSY", "SQLITE_LOCKED")):
            return Refusal(
                "StateInUse",
                f"{self.path} is in use by another process.",
                "Stop the other instance (remuda down), or use another state directory.",
            )
        return Refusal(
            "StateUnreadable",
            f"{self.path} cannot be opened: {error}.",
            "Check the directory's permissions and free space; restore the file or use another state directory.",
        )

    def load(self) -> Loaded:
        connection = self._connection
        assert connection is not None
        try:
            self._compacted = int(connection.execute("SELECT value FROM meta WHERE name='compacted'").fetchone()[0])
            return Loaded(
                [ObjectRow(*row) for row in connection.execute("SELECT key, rv, body FROM obj")],
                [LogRow(*row) for row in connection.execute("SELECT rv, key, type, body FROM log ORDER BY rv")],
                self._compacted,
            )
        except sqlite3.Error as error:
            raise self._refusal(error) from error

    def commit(self, group: Sequence[Event], compact_to: int, done: Done) -> None:
        rows = [(event.record.rv, event.record.key, event.type, event.record.raw) for event in group]
        self._jobs.put(((rows, compact_to), done, asyncio.get_running_loop()))

    async def copy_to(self, target: Path) -> None:
        """A copy of the database as of now, in a new file: what was committed before is in it. Writes wait meanwhile."""
        loop = asyncio.get_running_loop()
        copied: asyncio.Future[ApiError | None] = loop.create_future()
        self._jobs.put((target, lambda error: None if copied.done() else copied.set_result(error), loop))
        error = await copied
        if error is not None:
            raise error

    def close(self) -> None:
        """Finish what was handed over, then release the file."""
        if self._thread.is_alive():
            self._jobs.put(None)
            self._thread.join()

    def _run(self) -> None:
        while (job := self._jobs.get()) is not None:
            work, done, loop = job
            error = self._try_copy(work) if isinstance(work, Path) else self._try(*work)
            # The loop may be gone when the process is being torn down; then nobody is left to be told.
            with contextlib.suppress(RuntimeError):
                loop.call_soon_threadsafe(done, error)
        if self._connection is not None:
            self._connection.close()

    def _try(self, rows: list[tuple[int, str, str, bytes]], compact_to: int) -> ApiError | None:
        try:
            if self._connection is None:
                self._connection = self._open()
            self._write(self._connection, rows, compact_to)
            return None
        except sqlite3.Error as error:
            self._roll_back()
            if getattr(error, "sqlite_errorname", "") == "SQLITE_FULL":
                return ApiError(f"the state's disk is full: {error}; free some space", reason="StorageFull")
            return ApiError(f"the state could not be written: {error}", reason="StorageFailed")
        except Refusal as refusal:
            return ApiError(f"the state could not be reopened: {refusal}", reason="StorageFailed")

    def _try_copy(self, target: Path) -> ApiError | None:
        try:
            if self._connection is None:
                self._connection = self._open()
            _copy(self._connection, target)
            return None
        except (sqlite3.Error, OSError) as error:
            return ApiError(f"the state could not be copied: {error}", reason="BackupFailed")
        except Refusal as refusal:
            return ApiError(f"the state could not be reopened: {refusal}", reason="BackupFailed")

    def _write(self, connection: sqlite3.Connection, rows: list[tuple[int, str, str, bytes]], compact_to: int) -> None:
        newest = {key: (rv, type_, body) for rv, key, type_, body in rows}
        connection.execute("BEGIN IMMEDIATE")
        connection.executemany("INSERT INTO log VALUES (?, ?, ?, ?)", rows)
        connection.executemany(
            "INSERT INTO obj VALUES (?, ?, ?) ON CONFLICT (key) DO UPDATE SET rv=excluded.rv, body=excluded.body",
            [(key, rv, body) for key, (rv, type_, body) in newest.items() if type_ != DELETED],
        )
        connection.executemany(
            "DELETE FROM obj WHERE key=?", [(key,) for key, (_, type_, _) in newest.items() if type_ == DELETED]
        )
        if compact_to > self._compacted:
            connection.execute("DELETE FROM log WHERE rv<=?", (compact_to,))
            connection.execute("UPDATE meta SET value=? WHERE name='compacted'", (compact_to,))
        connection.execute("COMMIT")
        self._compacted = compact_to
        self.commits += 1

    def _roll_back(self) -> None:
        """Back to a usable connection; when even that fails the next commit opens the file anew."""
        connection = self._connection
        try:
            if connection is not None and connection.in_transaction:
                connection.execute("ROLLBACK")
        except sqlite3.Error:
            with contextlib.suppress(sqlite3.Error):
                connection.close()  # type: ignore[union-attr]
            self._connection = None


def copy_database(source: Path, target: Path) -> None:
    """A copy of a database that nobody has open; Refusal when it is not ours, too new, or in use."""
    journal = SqliteJournal(source)  # makes sure of all that, and takes the lock
    try:
        assert journal._connection is not None
        _copy(journal._connection, target)
    except (sqlite3.Error, OSError) as error:
        raise Refusal("BackupFailed", f"{source} could not be copied: {error}.", "Check the free space.") from None
    finally:
        journal.close()


def check_database(path: Path) -> None:
    """Refusal unless the file is a whole database of a format this program knows."""
    journal = SqliteJournal(path)
    try:
        assert journal._connection is not None
        found = journal._connection.execute("PRAGMA quick_check(1)").fetchone()[0]
    except sqlite3.Error as error:
        found = str(error)
    finally:
        journal.close()
    if found != "ok":
        raise Refusal("BackupDamaged", f"The database of the backup is damaged: {found}.", "Use another backup.")


def _copy(connection: sqlite3.Connection, target: Path) -> None:
    os.close(os.open(target, os.O_CREAT | os.O_EXCL | os.O_RDWR | os.O_CLOEXEC, 0o600))
    copy = sqlite3.connect(target)
    try:
        connection.backup(copy)
    finally:
        copy.close()
