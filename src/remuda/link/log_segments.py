"""A container's log as one sequence of bytes, though it is kept in several files.

Its shim (`embedded.node.shim`) appends to `main.log`. When that is long enough it becomes `main.log.<position>`, the position of
its first byte in all that was ever written, in 20 digits, and `main.log` begins anew; the oldest are removed. So a position
means the same byte for ever, whatever is rotated while somebody reads, and what is no longer kept lies before `log_begin`.

The files may be renamed and removed between two looks: a look that did not see one state is repeated, by inode.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import msgspec

_CHUNK = 64 * 1024
_LOOKS = 100  # a log is rotated once in megabytes; this many looks in a row cannot all meet one

T = TypeVar("T")


class LogSegment(msgspec.Struct, frozen=True):
    """Bytes [start, start + size) of the log, in the file at `path`."""

    path: Path
    start: int
    size: int
    inode: int = 0
    mtime: float = 0.0

    @property
    def end(self) -> int:
        return self.start + self.size


class _LogMoved(Exception):
    """Files were renamed or removed while they were looked at."""


def log_segments(log: Path) -> list[LogSegment]:
    """Oldest first; the one that is appended to is last. [] when there is none."""
    return _settled(lambda: _look_at_segments(log))


def log_begin(log: Path) -> int:
    """The position of the first byte that is kept."""
    found = log_segments(log)
    return found[0].start if found else 0


def log_end(log: Path) -> int:
    """The position of the next byte to be written."""
    found = log_segments(log)
    return found[-1].end if found else 0


def read_log_segments(log: Path, position: int, count: int = _CHUNK) -> tuple[int, bytes]:
    """Up to `count` bytes from `position` on, or from the first byte that is kept, if that is later; and where they begin."""
    return _settled(lambda: _read_segments(log, position, count))


def log_segments_tail_start(log: Path, start: int, end: int | None, lines: int) -> int:
    """Where the last `lines` lines of [start, end) begin. Reads from the end, in blocks, no more than it needs."""
    position = log_end(log) if end is None else end
    start = max(start, log_begin(log))
    if lines <= 0:
        return position
    left = lines + 1  # newlines: the one before the first line wanted is not part of it
    is_last = True
    while position > start:
        begin = max(start, position - _CHUNK)
        found, block = read_log_segments(log, begin, position - begin)
        if found != begin or not block:
            return found  # rotated away meanwhile
        if is_last and not block.endswith(b"\n"):
            left -= 1  # the last line has no end yet
        is_last = False
        newlines = block.count(b"\n")
        if newlines >= left:
            at = len(block)
            for _ in range(left):
                at = block.rfind(b"\n", 0, at)
            return begin + at + 1
        left -= newlines
        position = begin
    return start


def _settled(look: Callable[[], T]) -> T:
    for _ in range(_LOOKS):
        try:
            return look()
        except _LogMoved:
            continue
    raise OSError("the log's files keep changing")


def _look_at_segments(log: Path) -> list[LogSegment]:
    names = _older_names(log)
    segments: list[LogSegment] = []
    for name in names:
        found = _stat(log.with_name(name))
        if found is None:
            raise _LogMoved
        start = int(name.removeprefix(f"{log.name}."))
        segments.append(LogSegment(log.with_name(name), start, found.st_size, found.st_ino, found.st_mtime))
    newest = _stat(log)
    if _older_names(log) != names:
        raise _LogMoved
    if newest is not None:
        start = segments[-1].end if segments else 0
        segments.append(LogSegment(log, start, newest.st_size, newest.st_ino, newest.st_mtime))
    return segments


def _older_names(log: Path) -> list[str]:
    prefix = f"{log.name}."
    try:
        names = os.listdir(log.parent)
    except OSError:
        return []
    return sorted(name for name in names if name.startswith(prefix) and name[len(prefix) :].isdigit())


def _stat(path: Path) -> os.stat_result | None:
    try:
        return path.stat()
    except FileNotFoundError:
        return None


def _read_segments(log: Path, position: int, count: int) -> tuple[int, bytes]:
    segments = _look_at_segments(log)
    position = max(position, segments[0].start) if segments else position
    parts: list[bytes] = []
    at = position
    for segment in segments:
        if segment.end <= at or count <= 0:
            continue
        piece = _read_file(segment, at - segment.start, min(count, segment.end - at))
        parts.append(piece)
        at += len(piece)
        count -= len(piece)
    return position, b"".join(parts)


def _read_file(segment: LogSegment, offset: int, count: int) -> bytes:
    try:
        with segment.path.open("rb") as file:
            if os.fstat(file.fileno()).st_ino != segment.inode:
                raise _LogMoved
            file.seek(offset)
            return file.read(count)
    except FileNotFoundError:
        raise _LogMoved from None
