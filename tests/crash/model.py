"""What must be true after a crash, given what the victims were told: the model that the store is checked against."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from remuda.api.errors import Expired
from remuda.embedded.apiserver.store import DELETED, ObjectStore, SqliteJournal
from tests.crash.victim import HISTORY, PREFIX, WRITERS, Told, is_removal, key


class Model:
    """Acknowledged writes, and a watcher that lives through all crashes and resumes where it was."""

    def __init__(self) -> None:
        self.steps = [7] * WRITERS  # the last step of each writer; 7 is a removal, so nothing is there yet
        self.revision = 0
        self.resumed = 0
        self.expired = 0
        self._mirror: dict[str, int] = {}
        self._seen = 1

    def hear(self, told: Told) -> None:
        for number, step, rv in told.acks:
            assert step == self.steps[number] + 1
            self.steps[number] = step
            self.revision = max(self.revision, rv)
        seen = [rv for _, _, rv in told.seen]
        assert seen == sorted(set(seen)), "the victim's own watcher saw changes twice or out of order"
        # Whatever a watcher has seen must be there: it may have acted on it.
        self.revision = max([self.revision, *seen])

    async def check(self, path: Path) -> None:
        store = ObjectStore(SqliteJournal(path), history=HISTORY)
        try:
            assert store.revision >= self.revision, "revisions went back"
            self.revision = store.revision
            found: dict[str, int] = {}
            for number in range(WRITERS):
                record = store.get(key(number))
                step = None if record is None else int(record.body["step"])
                # The step after the acknowledged one may or may not have made it.
                last = self.steps[number]
                allowed = {at: None if is_removal(at) else at for at in (last, last + 1)}
                assert step in allowed.values(), f"writer {number}: found {step}, acknowledged {last}"
                self.steps[number] = next(at for at, state in allowed.items() if state == step)
                if step is not None:
                    found[key(number)] = step
            self._resume(store)
            assert self._mirror == found, "the watcher missed a change"
        finally:
            await store.close()

    def _resume(self, store: ObjectStore) -> None:
        try:
            changes = store.follow(PREFIX, self._seen).read()
        except Expired:
            # Only when that much history has been made since.
            assert store.revision - self._seen >= HISTORY, "expired too early"
            self._mirror = {record.key: int(record.body["step"]) for record in store.scan(PREFIX)}
            self.expired += 1
        else:
            revisions = [change.record.rv for change in changes]
            assert revisions == list(range(self._seen + 1, store.revision + 1)), "the history has a gap"
            for change in changes:
                record = change.record
                if change.type == DELETED:
                    del self._mirror[record.key]
                else:
                    self._mirror[record.key] = int(record.body["step"])
            self.resumed += 1
        self._seen = store.revision


def copy_state(path: Path, target: Path) -> Path:
    """All files of a database that nobody has open."""
    target.mkdir(exist_ok=True)
    for old in target.iterdir():
        os.unlink(old)
    for found in path.parent.glob(path.name + "*"):
        shutil.copy(found, target / found.name)
    return target / path.name
