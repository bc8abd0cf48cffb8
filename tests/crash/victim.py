"""The process that is killed, and the warm parent it is forked from: an interpreter takes longer to start than to crash.

As a program: one order a line on stdin (`Order` as JSON), one answer a line on stdout (`Told`): what the victim was told and
told its watcher before it died. The victim runs writers side by side, each the owner of one key, and a watcher; every few steps
it closes its store and opens it anew, so that what closing does to the files can be interrupted too.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time
from typing import Any

import msgspec

from remuda.embedded.apiserver.store import DELETED, ObjectStore, SqliteJournal
from tests.crash.disk import Disk

WRITERS = 6
STEPS = 4  # of each writer, before the store is closed and opened
HISTORY = 60
PREFIX = "//pods/"


class Order(msgspec.Struct):
    """Die in the n-th write to disk (`kill_at`), with part of it done; or be killed `pause_s` after so many acks."""

    path: str
    steps: list[int]
    kill_at: int = 0
    tear: float = 0.0
    acks: int = 0
    pause_s: float = 0.0


class Told(msgspec.Struct):
    signal: int
    acks: list[tuple[int, int, int]] = []  # writer, step, revision
    seen: list[tuple[int, int, int]] = []  # writer, step, revision; by the watcher


def key(writer: int) -> str:
    return f"{PREFIX}team/w{writer}"


def body(writer: int, step: int) -> dict[str, Any]:
    return {"metadata": {"name": f"w{writer}", "namespace": "team"}, "step": step, "padding": f"{step} " * 300}


def is_removal(step: int) -> bool:
    return step % 7 == 0


async def suffer(order: Order, out: int) -> None:
    steps = order.steps
    while True:
        store = ObjectStore(SqliteJournal(order.path), history=HISTORY)
        watching = asyncio.create_task(watch(store, out))
        await asyncio.gather(*(write(store, number, steps, out) for number in range(WRITERS)))
        await store.close()
        await watching


async def write(store: ObjectStore, number: int, steps: list[int], out: int) -> None:
    record = store.get(key(number))
    if record is not None:
        steps[number] = record.body["step"]
    for _ in range(STEPS):
        step = steps[number] + 1
        if is_removal(step):
            done = await store.remove(key(number), body(number, step))
        else:
            done = await store.put(key(number), body(number, step))
        os.write(out, b"a %d %d %d\n" % (number, step, done.rv))
        steps[number] = step


async def watch(store: ObjectStore, out: int) -> None:
    cursor = store.follow(PREFIX, store.revision)
    while await cursor.more():
        for event in cursor.read():
            record = event.record
            assert (event.type == DELETED) == is_removal(record.body["step"])
            os.write(out, b"w %d %d %d\n" % (int(record.key[len(key(0)) - 1 :]), record.body["step"], record.rv))


def strike(order: Order) -> Told:
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.close(reader)
            disk = Disk()
            disk.kill_at, disk.tear = order.kill_at, order.tear
            with disk.installed():
                asyncio.run(suffer(order, writer))
        finally:
            os._exit(1)
    os.close(writer)
    with os.fdopen(reader, "rb") as pipe:
        lines: list[bytes] = []
        while order.acks and sum(line.startswith(b"a") for line in lines) < order.acks:
            if not (line := pipe.readline()):
                break
            lines.append(line)
        if order.acks:
            time.sleep(order.pause_s)
            os.kill(pid, signal.SIGKILL)
        lines += pipe.readlines()  # told before it died, so told all the same
    _, status = os.waitpid(pid, 0)
    told = Told(os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0)
    for line in lines:
        kind, *numbers = line.split()
        if len(numbers) == 3:  # the last line may have been cut
            number, step, rv = map(int, numbers)
            (told.acks if kind == b"a" else told.seen).append((number, step, rv))
    return told


def main() -> None:
    for line in sys.stdin.buffer:
        os.write(1, msgspec.json.encode(strike(msgspec.json.decode(line, type=Order))) + b"\n")


if __name__ == "__main__":
    main()
