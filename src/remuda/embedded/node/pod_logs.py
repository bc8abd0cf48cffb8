"""`ApiLogSource` over the log files of the embedded nodes.

A container has one log for all its runs; a launcher's marker lines cut it into attempts. `previous` therefore means the attempt
before the newest. Positions are those of `link.log_segments`. The files keep no times; `node.log_times` says to a second when
what was written.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import aclosing
from io import BytesIO
from pathlib import Path
from typing import Any

from remuda.api.codec import from_wire
from remuda.api.errors import BadRequest
from remuda.api.kubernetes.core_v1 import Pod
from remuda.api.meta import JsonObject, to_time
from remuda.embedded.apiserver.log_source import LogQuery
from remuda.embedded.node.log_times import LogTimeIndex, LogTimes
from remuda.link.log_segments import log_end, log_segments_tail_start, read_log_segments
from remuda.link.rank_logs import (
    LogSection,
    RankLogIndex,
    rank_log_directory_name,
    rank_log_directory_uid,
    rank_log_path,
)

_CHUNK = 64 * 1024
_LONGEST_LINE = 1024 * 1024
POLL_S = 0.2

Piece = tuple[int, bytes]  # where in the file it begins
FindPod = Callable[[str, str], JsonObject | None]  # namespace, name -> the pod as it is now


class PodLogFiles:
    """`times` notes when the logs grow; it should look at them now and then (`keep_times`)."""

    def __init__(self, root: Path, find_pod: FindPod) -> None:
        self.times = LogTimes()
        self._root = root
        self._find = find_pod

    async def read(self, pod: JsonObject, query: LogQuery) -> AsyncIterator[bytes]:
        typed = from_wire(Pod, pod)
        path = rank_log_path(self._root, typed, query.container)
        if not path.exists() and not _has_container_started(pod, query.container):
            raise BadRequest(
                f'container "{query.container}" in pod "{typed.name}" is waiting to start: '
                f"{_container_waiting_reason(pod, query.container)}"
            )
        start, end = 0, None
        if query.previous:
            section = _previous_log_section(path, typed.name, query.container)
            start, end = section.start, section.end
        index = LogTimeIndex(path)
        if query.since is not None or query.timestamps:
            self.times.look(path)
            index.refresh()
        if query.since is not None:
            start = max(start, await asyncio.to_thread(_log_line_start, path, index.offset_since(query.since)))
        if query.tail is not None:
            start = await asyncio.to_thread(log_segments_tail_start, path, start, end, query.tail)
        yield b""  # everything that can be refused has been
        left = query.limit_bytes
        async with aclosing(self._pieces(pod, query, path, start, end)) as pieces:
            async for position, piece in _whole_log_lines(pieces) if query.timestamps else pieces:
                if query.timestamps:
                    piece = self._stamped(path, index, position, piece)
                yield piece if left is None else piece[:left]
                left = None if left is None else left - len(piece)
                if left is not None and left <= 0:
                    return

    async def _pieces(
        self, pod: JsonObject, query: LogQuery, path: Path, start: int, end: int | None
    ) -> AsyncGenerator[Piece, None]:
        position = start
        while True:
            is_over = not query.follow or query.previous or self._is_over(pod, query.container)
            while True:
                position, piece = _read_log_piece(path, position, end)
                if not piece:
                    break
                yield position, piece
                position += len(piece)
            if is_over:
                return
            await asyncio.sleep(POLL_S)

    def _stamped(self, path: Path, index: LogTimeIndex, position: int, lines: bytes) -> bytes:
        """Whole lines, the first of which begins at `position`, each with its time before it."""
        self.times.look(path)
        index.refresh()
        stamped: list[bytes] = []
        for line in BytesIO(lines):  # by newlines alone: a progress bar writes others
            position += len(line)
            stamped.append(f"{kubelet_log_timestamp(index.time_of(position))} ".encode() + line)
        return b"".join(stamped)

    def _is_over(self, pod: JsonObject, container: str) -> bool:
        """Asked before the last read, so that nothing written before the end is missed."""
        meta = pod["metadata"]
        now = self._find(meta.get("namespace") or "", meta["name"])
        if now is None or now["metadata"].get("uid") != meta.get("uid"):
            return True
        return (now.get("status") or {}).get("phase") in ("Succeeded", "Failed")


def kubelet_log_timestamp(seconds: float) -> str:
    """As a kubelet writes it: nine digits, which of a float's microseconds is all there is."""
    return f"{to_time(seconds):%Y-%m-%dT%H:%M:%S.%f}000Z"


async def _whole_log_lines(pieces: AsyncIterator[Piece]) -> AsyncIterator[Piece]:
    """The same in whole lines; only the last may lack its end, and one that is longer than anybody reads."""
    begun, rest = 0, b""
    async for position, piece in pieces:
        if not rest:
            begun = position
        rest += piece
        cut = rest.rfind(b"\n") + 1 or (len(rest) if len(rest) > _LONGEST_LINE else 0)
        if cut:
            yield begun, rest[:cut]
            begun, rest = begun + cut, rest[cut:]
    if rest:
        yield begun, rest


def _read_log_piece(path: Path, position: int, end: int | None) -> Piece:
    """What is at `position`, or at the first place after it that is still kept."""
    count = _CHUNK if end is None else min(_CHUNK, end - position)
    if count <= 0:
        return position, b""
    position, piece = read_log_segments(path, position, count)
    return position, piece if end is None else piece[: max(0, end - position)]


def _log_line_start(path: Path, offset: int) -> int:
    """Where the line begins that has byte `offset`; the offset itself when there is no such byte yet."""
    if offset >= log_end(path):
        return offset
    while offset > 0:
        begin = max(0, offset - _CHUNK)
        kept, block = read_log_segments(path, begin, offset - begin)
        found = block.rfind(b"\n")
        if found >= 0 or kept > begin:
            return kept + found + 1
        offset = begin
    return 0


def _previous_log_section(path: Path, pod: str, container: str) -> LogSection:
    found = _log_sections(path)
    if len(found) < 2:
        raise BadRequest(f'previous terminated container "{container}" in pod "{pod}" not found')
    return found[-2]


def _log_sections(path: Path) -> list[LogSection]:
    owner = path.parents[1]
    index = RankLogIndex(
        path.parents[3], path.parents[2].name, rank_log_directory_name(owner), rank_log_directory_uid(owner)
    )
    return sorted((s for s in index.refresh() if s.path == path), key=lambda s: s.start)


def _container_status(pod: JsonObject, container: str) -> Any:
    for each in (pod.get("status") or {}).get("containerStatuses") or ():
        if each.get("name") == container:
            return each
    return {}


def _has_container_started(pod: JsonObject, container: str) -> bool:
    state = _container_status(pod, container).get("state") or {}
    return "running" in state or "terminated" in state


def _container_waiting_reason(pod: JsonObject, container: str) -> str:
    waiting = (_container_status(pod, container).get("state") or {}).get("waiting") or {}
    return str(waiting.get("reason") or "ContainerCreating")
