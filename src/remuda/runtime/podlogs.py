"""`LogSource` over the log files of the embedded nodes.

A container has one file for all its runs; a launcher's marker lines cut it into attempts. `previous` therefore means the
attempt before the newest. The files keep no times.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

from remuda.api.codec import from_wire
from remuda.api.core_v1 import Pod
from remuda.api.errors import BadRequest
from remuda.api.meta import JsonObject
from remuda.apiserver.logs import LogQuery
from remuda.node.logs import LogIndex, Section, log_path

_CHUNK = 64 * 1024
POLL_S = 0.2

FindPod = Callable[[str, str], JsonObject | None]  # namespace, name -> the pod as it is now


class FileLogs:
    def __init__(self, root: Path, find_pod: FindPod) -> None:
        self._root = root
        self._find = find_pod

    async def read(self, pod: JsonObject, query: LogQuery) -> AsyncIterator[bytes]:
        typed = from_wire(Pod, pod)
        path = log_path(self._root, typed, query.container)
        if not path.exists() and not _has_started(pod, query.container):
            raise BadRequest(
                f'container "{query.container}" in pod "{typed.name}" is waiting to start: '
                f"{_waiting(pod, query.container)}"
            )
        start, end = 0, None
        if query.previous:
            section = _previous(path, typed.name, query.container)
            start, end = section.start, section.end
        if query.tail is not None:
            start = await asyncio.to_thread(_tail_start, path, start, end, query.tail)
        left = query.limit_bytes
        position = start
        yield b""  # everything that can be refused has been
        while True:
            is_over = not query.follow or query.previous or self._is_over(pod, query.container)
            while piece := _piece(path, position, end, left):
                position += len(piece)
                left = None if left is None else left - len(piece)
                yield piece
            if is_over or left == 0:
                return
            await asyncio.sleep(POLL_S)

    def _is_over(self, pod: JsonObject, container: str) -> bool:
        """Asked before the last read, so that nothing written before the end is missed."""
        meta = pod["metadata"]
        now = self._find(meta.get("namespace") or "", meta["name"])
        if now is None or now["metadata"].get("uid") != meta.get("uid"):
            return True
        return (now.get("status") or {}).get("phase") in ("Succeeded", "Failed")


def _piece(path: Path, position: int, end: int | None, left: int | None) -> bytes:
    count = min(x for x in (_CHUNK, None if end is None else end - position, left) if x is not None)
    if count <= 0:
        return b""
    try:
        with path.open("rb") as file:
            file.seek(position)
            return file.read(count)
    except FileNotFoundError:
        return b""


def _previous(path: Path, pod: str, container: str) -> Section:
    found = _sections(path)
    if len(found) < 2:
        raise BadRequest(f'previous terminated container "{container}" in pod "{pod}" not found')
    return found[-2]


def _sections(path: Path) -> list[Section]:
    index = LogIndex(path.parents[3], path.parents[2].name, path.parents[1].name)
    return sorted((s for s in index.refresh() if s.path == path), key=lambda s: s.start)


def _tail_start(path: Path, start: int, end: int | None, lines: int) -> int:
    """Where the last `lines` lines begin."""
    if lines == 0:
        return end if end is not None else (path.stat().st_size if path.exists() else 0)
    begins: deque[int] = deque(maxlen=lines)
    position = start
    try:
        with path.open("rb") as file:
            file.seek(start)
            for line in file:
                if end is not None and position >= end:
                    break
                begins.append(position)
                position += len(line)
    except FileNotFoundError:
        return start
    return begins[0] if begins else start


def _status(pod: JsonObject, container: str) -> Any:
    for each in (pod.get("status") or {}).get("containerStatuses") or ():
        if each.get("name") == container:
            return each
    return {}


def _has_started(pod: JsonObject, container: str) -> bool:
    state = _status(pod, container).get("state") or {}
    return "running" in state or "terminated" in state


def _waiting(pod: JsonObject, container: str) -> str:
    waiting = (_status(pod, container).get("state") or {}).get("waiting") or {}
    return str(waiting.get("reason") or "ContainerCreating")
