"""The marks that ranks leave (see `rank.py`), and the plain start of the same commands without any of Remuda."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

POLL_S = 0.02  # only how soon the benchmark goes on; every time it reports was written by the rank itself


class Broken(Exception):
    """Something that must hold does not: the run ends non-zero, whatever the times are."""


class Mark(msgspec.Struct, frozen=True):
    attempt: int
    rank: int
    pid: int
    time: float
    resumed: int


def read_marks(path: Path) -> list[Mark]:
    """Whole lines only: one may be about to be written."""
    try:
        lines = path.read_text().split("\n")[:-1]
    except FileNotFoundError:
        return []
    found = []
    for line in lines:
        attempt, rank, pid, moment, resumed = line.split()
        found.append(Mark(int(attempt), int(rank), int(pid), float(moment), int(resumed)))
    return found


def of_attempt(path: Path, attempt: int, ranks: int) -> list[Mark] | None:
    """The marks of one attempt once every rank has left its own, else None. A rank that ran twice is an error."""
    found = [mark for mark in read_marks(path) if mark.attempt == attempt]
    if len({mark.rank for mark in found}) < ranks:
        return None
    if len(found) != ranks:
        raise Broken(f"attempt {attempt} was run by {len(found)} processes, not by {ranks}")
    return found


def _late(path: Path, attempt: int, ranks: int, timeout_s: float) -> Broken:
    count = sum(mark.attempt == attempt for mark in read_marks(path))
    return Broken(f"only {count} of {ranks} ranks run attempt {attempt} after {timeout_s:g} s")


async def wait_for_marks(path: Path, attempt: int, ranks: int, timeout_s: float) -> list[Mark]:
    deadline = time.monotonic() + timeout_s
    while (found := of_attempt(path, attempt, ranks)) is None:
        if time.monotonic() > deadline:
            raise _late(path, attempt, ranks, timeout_s)
        await asyncio.sleep(POLL_S)
    return found


def start_bare(command: Sequence[str], env: Mapping[str, str], folder: Path, ranks: int, timeout_s: float) -> float:
    """Seconds from before the first spawn to the last mark; the processes are ended before it returns."""
    marks = folder / "marks"
    null = [(os.POSIX_SPAWN_OPEN, fd, os.devnull, os.O_RDWR, 0) for fd in (0, 1, 2)]
    pids: list[int] = []
    began = time.time()
    try:
        for rank in range(ranks):
            own = {**env, "RANK": str(rank), "WORLD_SIZE": str(ranks), "REMUDA_CHECKPOINT_DIR": str(folder)}
            pids.append(os.posix_spawnp(command[0], [*command, str(marks)], own, file_actions=null, setsid=True))
        while (found := of_attempt(marks, 0, ranks)) is None:
            if time.time() > began + timeout_s:
                raise _late(marks, 0, ranks, timeout_s)
            time.sleep(POLL_S)
    finally:
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        for pid in pids:
            os.waitpid(pid, 0)
    return max(mark.time for mark in found) - began
