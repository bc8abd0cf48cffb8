"""When the lines of a container's log were written.

Nobody puts a time on each line: that would cost every container that writes much. Instead the log is looked at once a second,
and when it has grown, its length and the time of its last change are noted in a file beside it (`main.log` -> `main.times`,
rows of 16 bytes). A line's time is that of the first row that has the whole line: the last line of a burst is exact, others are
at most a look too late. While no cluster runs nobody looks, so what was written then gets the time of the last of it.

Lengths and times never go down. One process writes rows; a row torn by a crash is cut off by the next.
"""

from __future__ import annotations

import asyncio
import os
import struct
from bisect import bisect_left
from collections.abc import Callable, Iterable
from pathlib import Path

from remuda.api.kubernetes.core_v1 import Pod
from remuda.link.log_segments import log_segments
from remuda.link.rank_logs import rank_log_path

LOOK_S = 1.0
MOST_ROWS = 65536  # a megabyte; half of them are kept
_ROW = struct.Struct("<dQ")


class LogTimeIndex:
    """The rows of one log, as far as they were read."""

    def __init__(self, log: Path) -> None:
        self._path = log.with_suffix(".times")
        self._inode = 0
        self._times: list[float] = []
        self._sizes: list[int] = []

    def refresh(self) -> None:
        try:
            with self._path.open("rb") as file:
                inode = os.fstat(file.fileno()).st_ino
                if inode != self._inode:  # the first look, or cut since the last one
                    self._inode, self._times, self._sizes = inode, [], []
                file.seek(len(self._sizes) * _ROW.size)
                data = file.read()
        except FileNotFoundError:
            return
        for time, size in _ROW.iter_unpack(data[: len(data) // _ROW.size * _ROW.size]):
            self._times.append(time)
            self._sizes.append(size)

    def time_of(self, end: int) -> float:
        """Of the line that ends at byte `end`."""
        row = min(bisect_left(self._sizes, end), len(self._times) - 1)
        return self._times[row] if row >= 0 else 0.0

    def offset_since(self, moment: float) -> int:
        """Where what was written at `moment` or later begins; it may be within a line that ends later."""
        row = bisect_left(self._times, moment)
        return self._sizes[row - 1] if row else 0


class LogTimes:
    """Writes the rows."""

    def __init__(self) -> None:
        self._last: dict[Path, tuple[float, int]] = {}

    def look(self, log: Path) -> None:
        """Note how long the log is, if it has grown. Does nothing for one that is not there."""
        try:
            segments = log_segments(log)
            if not segments:
                return
            time, size = self._last.get(log) or _last_time_row(log)
            if segments[-1].end > size:
                row = (max(time, max(s.mtime for s in segments)), segments[-1].end)
                _append_time_row(log, row, segments[0].start)
                self._last[log] = row
        except OSError:
            return  # a full disk: the next look tries again, and what is written meanwhile gets its time

    def forget_but(self, logs: set[Path]) -> None:
        for log in [log for log in self._last if log not in logs]:
            del self._last[log]


async def keep_log_times(times: LogTimes, root: Path, pods: Callable[[], Iterable[Pod]]) -> None:
    """Look at the logs of the running pods, until cancelled."""
    while True:
        running = (pod for pod in pods() if pod.status.phase == "Running")
        logs = {rank_log_path(root, pod, container.name) for pod in running for container in pod.spec.containers}
        for log in sorted(logs):
            times.look(log)
        times.forget_but(logs)
        await asyncio.sleep(LOOK_S)


def _last_time_row(log: Path) -> tuple[float, int]:
    path = log.with_suffix(".times")
    try:
        with path.open("rb") as file:
            rows = path.stat().st_size // _ROW.size
            if not rows:
                return 0.0, 0
            file.seek((rows - 1) * _ROW.size)
            time, size = _ROW.unpack(file.read(_ROW.size))
            return time, size
    except FileNotFoundError:
        return 0.0, 0


def _append_time_row(log: Path, row: tuple[float, int], begin: int) -> None:
    """`begin`: where the log begins. Rows of what is no longer kept are given up when there are many."""
    path = log.with_suffix(".times")
    with path.open("ab") as file:
        torn = file.tell() % _ROW.size
        if torn:
            file.truncate(file.tell() - torn)
        file.write(_ROW.pack(*row))
        is_long = file.tell() >= MOST_ROWS * _ROW.size
    if is_long:
        rows = [r for r in _ROW.iter_unpack(path.read_bytes()) if r[1] > begin][-MOST_ROWS // 2 :]
        fresh = path.with_suffix(".times-new")
        fresh.write_bytes(b"".join(_ROW.pack(*r) for r in rows))
        fresh.replace(path)
