"""`SqliteJournal`: the state directory's database. WAL, synchronous=FULL, one writer thread.

`obj` holds the newest version of every object, `log` the changes in revision order (the watch history); both are written in
the same transaction, so they never disagree. The file is locked exclusively while open: a second process that opened
the same state would keep its own memory of it, and the two would drift apart.

The format's version is in the file (`PRAGMA user_version`). A newer one is refused: reading it with old code could lose
what the new code wrote. An older one is refused, too: no release wrote it.

What is read is checked against the sums that were written with it (`integrity`), and a damaged state is refused by revision.
`recover_to` goes on from the newest good one instead; a copy of the damaged files is kept beside them.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import queue
import shutil
import sqlite3
import threading
from collections.abc import Sequence
from pathlib import Path

import structlog

from remuda.api.errors import ApiError, Refusal
from remuda.embedded.apiserver.store.acked_mark import AckedMark
from remuda.embedded.apiserver.store.integrity import (
    SealedState,
    StateDamage,
    chained_checksum,
    find_state_damage,
    recover_state,
    row_checksum,
    total_store_checksum,
)
from remuda.embedded.apiserver.store.journal import CommitDone, LoadedState
from remuda.embedded.apiserver.store.record import DELETED, StoreEvent
from remuda.embedded.apiserver.store.rows import (
    APPLICATION_ID,
    FORMAT,
    MalformedRow,
    make_sqlite_journal_tables,
    read_sealed_store_state,
    read_store_meta,
    write_recovered_store_state,
)
from remuda.embedded.apiserver.store.storage_trouble import CODES, FAILED, storage_refusal, storage_trouble

log = structlog.get_logger(__name__)

# What reading a damaged file may end in; the last when even the words of the error cannot be read.
_SENSELESS = (sqlite3.Error, MalformedRow, UnicodeDecodeError)

_Rows = tuple[list[tuple[int, str, str, bytes]], int]
_Job = tuple[_Rows | Path, CommitDone, asyncio.AbstractEventLoop]  # rows to commit, or where to put a copy


class SqliteJournal:
    """`max_bytes` caps the database file (0 = no cap): a full state then fails like a full disk.

    `recover_to`: the revision to go back to when the state is damaged; `lost` then names the objects that it cost.
    """

    immediate = False

    def __init__(self, path: str | Path, *, max_bytes: int = 0, recover_to: int | None = None) -> None:
        self.path = Path(path)
        self.commits = 0
        self.lost: Sequence[str] = ()
        self._max_bytes = max_bytes
        self._recover_to = recover_to
        self._compacted = 0
        self._head = 0  # the sum of the newest log row
        self._sums: dict[str, int] = {}  # of every object
        self._total = 0  # all of them added up
        # Without the file there is nothing that could be damaged: somebody wants to begin anew.
        self._is_new = not self.path.exists() or not self.path.stat().st_size
        self._jobs: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()
        self._connection: sqlite3.Connection | None = self._open()
        try:
            self._acked = AckedMark(self.path)
        except OSError as error:
            self._connection.close()
            raise self._refusal(error) from error
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
            if isinstance(error, _SENSELESS):
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
            make_sqlite_journal_tables(connection)
        elif application != APPLICATION_ID:
            raise self._not_ours()
        elif version < FORMAT:
            raise Refusal(
                "StateTooOld",
                f"{self.path} is of state format {version}, from before the first release; this one knows {FORMAT}.",
                "Use another state directory, and apply your manifests there.",
            )
        connection.execute("COMMIT")
        if self._max_bytes:
            page = int(connection.execute("PRAGMA page_size").fetchone()[0])
            connection.execute(f"PRAGMA max_page_count={max(1, self._max_bytes // page)}")

    def _not_ours(self) -> Refusal:
        return Refusal(
            "StateNotOurs",
            f"{self.path} is not a state file of Remuda.",
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
        # No name: it could be read, and made no sense.
        if name.startswith("SQLITE_CORRUPT") or (isinstance(error, _SENSELESS) and not name):
            return Refusal(
                "StateDamaged",
                f"{self.path} is damaged and cannot be read: {error}.",
                "Restore a backup (remuda restore), or use another state directory.",
            )
        return storage_refusal(self.path, error) or Refusal(
            "StateUnreadable",
            f"{self.path} cannot be opened: {error}.",
            "Check the directory's permissions and free space; restore the file or use another state directory.",
        )

    def load(self) -> LoadedState:
        connection = self._connection
        assert connection is not None
        try:
            state = read_sealed_store_state(connection, 0 if self._is_new else self._acked.read())
            damage = find_state_damage(state)
            if damage is not None:
                self._keep_aside(damage)
            if damage is not None or self._recover_to is not None:
                self._recover(connection, state, damage)
                state = read_sealed_store_state(connection, 0)
        except _SENSELESS as error:
            self.close()
            raise self._refusal(error) from error
        except BaseException:
            self.close()
            raise
        self._compacted, self._head, self._total = state.compacted, state.head, state.total
        self._sums = {row.key: stored for row, stored in state.objects}
        self._acked.write(state.revision)
        return LoadedState([row for row, _ in state.objects], [row for row, _ in state.log], state.compacted)

    def _keep_aside(self, damage: StateDamage) -> None:
        """Before anything is written: what sqlite cannot use of its write-ahead log is gone once the file is closed."""
        for end in ("", "-wal"):
            source = self.path.with_name(self.path.name + end)
            copy = self.path.with_name(f"{self.path.name}.damaged-{damage.revision}{end}")
            if source.exists() and not copy.exists():
                try:
                    shutil.copy2(source, copy)
                except OSError as error:
                    log.warning("state.copy_failed", copy=str(copy), error=str(error))

    def _recover(self, connection: sqlite3.Connection, state: SealedState, damage: StateDamage | None) -> None:
        revision = self._recover_to
        if damage is None:
            raise Refusal("StateNotDamaged", f"{self.path} is not damaged.", "Start it without --recover-to.")
        if revision is None:
            raise Refusal(
                "StateDamaged",
                f"{self.path} is damaged at revision {damage.revision}: {damage.what}.",
                f"Restore a backup, or continue from the last good revision with --recover-to {damage.good}.",
            )
        if not state.compacted <= revision <= damage.good:
            raise Refusal(
                "RecoveryNotPossible",
                f"{self.path} cannot go back to revision {revision}.",
                f"Give a revision from {state.compacted} to {damage.good}.",
            )
        found = recover_state(state, revision)
        connection.execute("BEGIN IMMEDIATE")
        write_recovered_store_state(connection, found)
        connection.execute("COMMIT")
        self.lost = found.lost
        log.warning("state.recovered", revision=revision, objects=len(found.objects), lost=list(found.lost))

    def commit(self, group: Sequence[StoreEvent], compact_to: int, done: CommitDone) -> None:
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
        self._acked.close()

    def _try(self, rows: list[tuple[int, str, str, bytes]], compact_to: int) -> ApiError | None:
        try:
            self._write(self._reopened(), rows, compact_to)
            self._acked.write(rows[-1][0])
            return None
        except sqlite3.Error as error:
            self._roll_back()
            return storage_trouble(self.path, error)
        except Refusal as refusal:
            if isinstance(refusal.__cause__, (sqlite3.Error, OSError)):
                return storage_trouble(self.path, refusal.__cause__)
            return ApiError(f"the state could not be reopened: {refusal}", reason=FAILED, code=CODES[FAILED])

    def _try_copy(self, target: Path) -> ApiError | None:
        try:
            _backup_database(self._reopened(), target)
            return None
        except (sqlite3.Error, OSError) as error:
            with contextlib.suppress(OSError):
                target.unlink()  # half a copy on a full disk makes it no emptier
            return ApiError(f"the state could not be copied: {error}", reason="BackupFailed")
        except Refusal as refusal:
            return ApiError(f"the state could not be reopened: {refusal}", reason="BackupFailed")

    def _reopened(self) -> sqlite3.Connection:
        if self._connection is None:
            connection = self._open()
            if read_store_meta(connection)["head"] != self._head:
                # The commit that failed is on disk after all, while everybody was told that it is not.
                connection.close()
                raise Refusal(
                    "StateDiverged",
                    "A write that was reported as failed is in the state after all.",
                    "Restart the cluster: remuda down, then remuda up.",
                )
            self._connection = connection
        return self._connection

    def _write(self, connection: sqlite3.Connection, rows: list[tuple[int, str, str, bytes]], compact_to: int) -> None:
        newest: dict[str, tuple[str, int, bytes, int] | None] = {}  # as they go into `obj`; None: it is to go
        sealed: list[tuple[int, str, str, bytes, int]] = []
        head, total = self._head, self._total
        for rv, key, type_, body in rows:
            own = row_checksum(rv, key, body)
            head = chained_checksum(head, type_, own)
            sealed.append((rv, key, type_, body, head))
            newest[key] = None if type_ == DELETED else (key, rv, body, own)
        kept = [row for row in newest.values() if row is not None]
        gone = [key for key, row in newest.items() if row is None]
        sums = {key: own for key, _, _, own in kept}
        total = total_store_checksum([total, *(-self._sums.get(key, 0) for key in newest), *sums.values()])
        connection.execute("BEGIN IMMEDIATE")
        connection.executemany("INSERT INTO log VALUES (?, ?, ?, ?, ?)", sealed)
        connection.executemany(
            "INSERT INTO obj VALUES (?, ?, ?, ?) "
            "ON CONFLICT (key) DO UPDATE SET rv=excluded.rv, body=excluded.body, sum=excluded.sum",
            kept,
        )
        connection.executemany("DELETE FROM obj WHERE key=?", [(key,) for key in gone])
        changed = [(head, "head"), (total, "total")]
        if compact_to > self._compacted:
            last = connection.execute("SELECT sum FROM log WHERE rv<=? ORDER BY rv DESC LIMIT 1", (compact_to,))
            changed += [(compact_to, "compacted"), *((found, "anchor") for (found,) in last)]
            connection.execute("DELETE FROM log WHERE rv<=?", (compact_to,))
        connection.executemany("UPDATE meta SET value=? WHERE name=?", changed)
        connection.execute("COMMIT")
        self._head, self._total = head, total
        for key in gone:
            self._sums.pop(key, None)
        self._sums.update(sums)
        self._compacted = max(self._compacted, compact_to)
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
        _backup_database(journal._connection, target)
    except (sqlite3.Error, OSError) as error:
        raise Refusal(
            "BackupFailed", f"{source} could not be copied: {error}.", "Check that there is enough free space."
        ) from None
    finally:
        journal.close()


def check_database(path: Path) -> None:
    """Refusal unless the file is a whole database of a format this program knows, and holds what was written."""
    journal = SqliteJournal(path)
    try:
        assert journal._connection is not None
        found = journal._connection.execute("PRAGMA quick_check(1)").fetchone()[0]
        if found == "ok":
            journal.load()
    except (sqlite3.Error, Refusal) as error:
        found = error.message if isinstance(error, Refusal) else str(error)
    finally:
        journal.close()
    if found != "ok":
        raise Refusal(
            "BackupDamaged", f"The database of the backup is damaged: {found.rstrip('.')}.", "Use another backup."
        )


def _backup_database(connection: sqlite3.Connection, target: Path) -> None:
    os.close(os.open(target, os.O_CREAT | os.O_EXCL | os.O_RDWR | os.O_CLOEXEC, 0o600))
    copy = sqlite3.connect(target)
    try:
        connection.backup(copy)
    finally:
        copy.close()
