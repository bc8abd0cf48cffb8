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

from remuda.apiserver.store import SqliteJournal, Store

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
    store = Store(SqliteJournal(path), history=HISTORY)

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


async def test_no_acknowledged_write_is_lost(tmp_path: Path) -> None:
    seed = random.SystemRandom().randrange(2**32)
    print(f"seed {seed}")
    chance = random.Random(seed)
    path = tmp_path / "state.db"
    acked = [7] * WRITERS  # the last step known of each writer; 7: a removal, so nothing is there
    revision = 0
    for _ in range(KILLS):
        command = [sys.executable, __file__, str(path), *map(str, acked)]
        child = subprocess.Popen(command, stdout=subprocess.PIPE)
        assert child.stdout is not None
        for _ in range(chance.randrange(1, 150)):
            line = child.stdout.readline()
            assert line, "the victim died by itself"
            _note(line, acked)
        child.send_signal(signal.SIGKILL)
        for line in child.stdout.read().splitlines():  # told before it died, so acknowledged all the same
            _note(line, acked)
        child.stdout.close()
        assert child.wait() == -signal.SIGKILL

        store = Store(SqliteJournal(path), history=HISTORY)
        assert store.revision >= max(revision, _note.newest)
        revision = store.revision
        log = [record.rv for _, _, record in store.follow(PREFIX, store._floor).read()]
        assert log == list(range(store._floor + 1, revision + 1))[-len(log) :]
        assert len(log) >= min(revision - 1, HISTORY)
        for number in range(WRITERS):
            record = store.get(key(number))
            found = None if record is None else record.body["step"]
            # The step after the acknowledged one may or may not have made it.
            allowed = {step: None if is_removal(step) else step for step in (acked[number], acked[number] + 1)}
            assert found in allowed.values(), f"writer {number}: {found}, acknowledged {acked[number]}"
            acked[number] = next(step for step, state in reversed(allowed.items()) if state == found)
        await store.close()


class _Note:
    """Takes one line of the victim."""

    def __init__(self) -> None:
        self.newest = 0

    def __call__(self, line: bytes, acked: list[int]) -> None:
        parts = line.split()
        if len(parts) == 3:
            number, step, rv = map(int, parts)
            assert step == acked[number] + 1
            acked[number] = step
            self.newest = max(self.newest, rv)


_note = _Note()


if __name__ == "__main__":
    asyncio.run(write_forever(sys.argv[1]))
