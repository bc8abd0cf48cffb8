"""Where committed changes go: the `Journal` protocol, and the one that keeps them in memory.

Contract of a journal:

- `load` is called once, first, and returns everything committed so far;
- `commit` gets one group of changes in revision order and makes all of them durable, or none; it then calls `done` exactly
  once, in the thread of the event loop, with None or with the error. The store has one group under way at a time;
- `compact_to` asks to forget log rows up to that revision in the same step.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

import msgspec

from remuda.api.errors import ApiError
from remuda.embedded.apiserver.store.record import DELETED, StoreEvent

CommitDone = Callable[[ApiError | None], None]


class LogRow(msgspec.Struct, frozen=True):
    rv: int
    key: str
    type: str
    body: bytes


class ObjectRow(msgspec.Struct, frozen=True):
    key: str
    rv: int
    body: bytes


class LoadedState(msgspec.Struct, frozen=True):
    """The bytes a store starts from. `compacted`: history up to and including this revision is gone."""

    objects: Sequence[ObjectRow] = ()
    log: Sequence[LogRow] = ()
    compacted: int = 0


class Journal(Protocol):
    @property
    def immediate(self) -> bool:
        """True when `commit` calls `done` before it returns: then a write needs no event loop turn."""
        ...

    def load(self) -> LoadedState: ...

    def commit(self, group: Sequence[StoreEvent], compact_to: int, done: CommitDone) -> None: ...

    def close(self) -> None: ...


class MemoryJournal:
    """Commits at once and synchronously; no threads, no files. `MemoryJournal(old.rows())` reopens its bytes."""

    immediate = True

    def __init__(self, rows: LoadedState | None = None) -> None:
        start = rows or LoadedState()
        self._objects: dict[str, ObjectRow | StoreEvent] = {row.key: row for row in start.objects}
        self._log: list[LogRow | StoreEvent] = list(start.log)
        self._compacted = start.compacted
        self.commits = 0

    def load(self) -> LoadedState:
        return self.rows()

    def commit(self, group: Sequence[StoreEvent], compact_to: int, done: CommitDone) -> None:
        # Events are kept as they are and encoded only when somebody asks for the bytes: their bodies never change.
        for event in group:
            if event.type == DELETED:
                self._objects.pop(event.record.key, None)
            else:
                self._objects[event.record.key] = event
        self._log.extend(group)
        if compact_to > self._compacted:
            self._log = [row for row in self._log if _row_revision(row) > compact_to]
            self._compacted = compact_to
        self.commits += 1
        done(None)

    def rows(self) -> LoadedState:
        """Everything committed so far, as bytes: what a disk would hold."""
        objects = [
            row if isinstance(row, ObjectRow) else ObjectRow(row.record.key, row.record.rv, row.record.raw)
            for row in self._objects.values()
        ]
        log = [
            row if isinstance(row, LogRow) else LogRow(row.record.rv, row.record.key, row.type, row.record.raw)
            for row in self._log
        ]
        return LoadedState(objects, log, self._compacted)

    def close(self) -> None:
        pass


def _row_revision(row: LogRow | StoreEvent) -> int:
    return row.rv if isinstance(row, LogRow) else row.record.rv
