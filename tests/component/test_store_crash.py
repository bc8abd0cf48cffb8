"""kill -9 at random moments: every acknowledged write is there afterwards, and revisions never go back.

Run as a program, this file is the victim: many writers, each the owner of one key, each telling what was acknowledged.
"""

from __future__ import annotations

import asyncio
import os
import random
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from remuda.embedded.apiserver.store import ObjectStore, SqliteJournal

KILLS = 20
WRITERS = 8
HISTORY = 200
PREFIX = "//pods/"


def key(writer: int) -> str:
    return f"{PREFIX}team/w{writer}"


def body(writer: int, step: int) -> dict[str, Any]:
    return {"metadata": {"name": f"w{writer}", "namespace": "team"}, "step": step, "padding": "x" * 2000}


def is_removal(step: int) -> bool:
    return step % 7 == 0


async def write_forever(path: str) -> None:
    store = ObjectStore(SqliteJournal(path), history=HISTORY)

    async def writer(number: int) -> None:
        record = store.get(key(number))
        step = record.body["step"] if record is not None else int(sys.argv[2 + number])
        while True:
            step += 1
            if is_removal(step):
                done = await store.remove(key(number), body(number, step))
            else:
                done = await store.put(key(number), body(number, step))
            os.write(1, b"%d %d %d\n" % (number, step, done.rv))

    await asyncio.gather(*(writer(number) for number in range(WRITERS)))


@pytest.mark.slow
def test_no_acknowledged_write_is_lost(tmp_path: Path) -> None:
    seed = random.SystemRandom().randrange(2**32)
    print(f"seed {seed}")
    chance = random.Random(seed)
    path = tmp_path / "state.db"
    known = Known()
    for _ in range(KILLS):
        command = [sys.executable, __file__, str(path), *map(str, known.steps)]
        child = subprocess.Popen(command, stdout=subprocess.PIPE)
        assert child.stdout is not None
        for _ in range(chance.randrange(1, 150)):
            line = child.stdout.readline()
            assert line, "the victim died by itself"
            known.note(line)
        child.send_signal(signal.SIGKILL)
        for line in child.stdout.read().splitlines():  # told before it died, so acknowledged all the same
            known.note(line)
        child.stdout.close()
        assert child.wait() == -signal.SIGKILL
        asyncio.run(known.check(path))
    assert known.revision > KILLS


class Known:
    """What the victims were told, and what was found after their deaths."""

    def __init__(self) -> None:
        self.steps = [7] * WRITERS  # the last step of each writer; 7 is a removal, so nothing is there yet
        self.revision = 0

    def note(self, line: bytes) -> None:
        parts = line.split()
        if len(parts) == 3:  # the last line may have been cut
            number, step, rv = map(int, parts)
            assert step == self.steps[number] + 1
            self.steps[number] = step
            self.revision = max(self.revision, rv)

    async def check(self, path: Path) -> None:
        store = ObjectStore(SqliteJournal(path), history=HISTORY)
        assert store.revision >= self.revision
        self.revision = store.revision
        log = [event.record.rv for event in store.follow(PREFIX, store._floor).read()]
        assert log == list(range(self.revision + 1 - len(log), self.revision + 1))
        assert len(log) >= min(self.revision - 1, HISTORY)
        for number in range(WRITERS):
            record = store.get(key(number))
            found = None if record is None else record.body["step"]
            # The step after the acknowledged one may or may not have made it.
            last = self.steps[number]
            allowed = {step: None if is_removal(step) else step for step in (last, last + 1)}
            assert found in allowed.values(), f"writer {number}: {found}, acknowledged {last}"
            self.steps[number] = next(step for step, state in allowed.items() if state == found)
        await store.close()


if __name__ == "__main__":
    asyncio.run(write_forever(sys.argv[1]))
