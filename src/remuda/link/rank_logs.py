"""Container logs, read back by attempt and rank.

A container has one log file, appended to over all its runs: `<root>/<namespace>/<gang>/<pod>/<container>.log`. A launcher
writes a marker line before each start of the user's command, so the file falls into *sections*: what one attempt of the gang
wrote on that pod. What comes before the first marker (a pod without launcher has none at all) is attempt 0 of no rank.

The rank of a gang moves between pods; `find_log_sections` therefore looks at the whole gang and the caller picks.
"""

from __future__ import annotations

import mmap
import re
from collections.abc import Iterator
from pathlib import Path

import msgspec

from remuda.api.kubernetes.core_v1 import Pod
from remuda.api.names import LABEL_GANG

# Not anchored to the start of a line: the child before may have died in the middle of one.
_MARKER = re.compile(
    rb"--- remuda attempt=(?P<attempt>\d+) rank=(?P<rank>\S+) host=(?P<host>\S+) time=(?P<time>[\d.]+) ---\r?\n"
)
_LONGEST_MARKER = 512
_CHUNK = 64 * 1024


class LogSection(msgspec.Struct, frozen=True):
    """Bytes [start, end) of the file at `path`; the last section of a file grows."""

    attempt: int
    rank: int | None
    pod: str
    path: Path
    start: int
    end: int
    time: float = 0.0


def rank_log_path(root: Path, pod: Pod, container: str) -> Path:
    gang = pod.labels.get(LABEL_GANG) or pod.name
    return root / pod.namespace / gang / pod.name / f"{container}.log"


def find_log_sections(root: Path, namespace: str, gang: str) -> list[LogSection]:
    """Every section of the gang, oldest attempt first, then by rank."""
    return RankLogIndex(root, namespace, gang).refresh()


def read_log_section(section: LogSection, start: int = 0) -> Iterator[bytes]:
    """The section's bytes from `start` (counted inside it), in pieces."""
    left = section.end - section.start - start
    with section.path.open("rb") as file:
        file.seek(section.start + start)
        while left > 0 and (piece := file.read(min(left, _CHUNK))):
            left -= len(piece)
            yield piece


class RankLogIndex:
    """Where the sections of one gang are; `refresh` looks at what was written since, not at the whole again."""

    def __init__(self, root: Path, namespace: str, gang: str) -> None:
        self._directory = root / namespace / gang
        self._files: dict[Path, _LogFile] = {}

    def refresh(self) -> list[LogSection]:
        for path in sorted(self._directory.glob("*/*.log")):
            if path not in self._files:
                self._files[path] = _LogFile(path)
        sections: list[LogSection] = []
        for file in self._files.values():
            sections += file.refresh()
        return sorted(sections, key=lambda s: (s.attempt, -1 if s.rank is None else s.rank, s.time, str(s.path)))


class _LogFile:
    def __init__(self, path: Path) -> None:
        self._path = path
        self._pod = path.parent.name
        self._marks: list[tuple[int, LogSection]] = [
            (0, LogSection(0, None, self._pod, path, 0, 0))
        ]  # where each marker begins
        self._seen = 0

    def refresh(self) -> list[LogSection]:
        size = self._path.stat().st_size if self._path.exists() else 0
        if size > self._seen:
            # A marker may have been cut in half by the end of the file last time.
            self._scan(max(self._marks[-1][1].start, self._seen - _LONGEST_MARKER), size)
            self._seen = size
        ends = [*(begin for begin, _ in self._marks[1:]), self._seen]
        closed = [msgspec.structs.replace(s, end=end) for (_, s), end in zip(self._marks, ends, strict=True)]
        return [s for s in closed if s.attempt or s.end > s.start]

    def _scan(self, start: int, size: int) -> None:
        with self._path.open("rb") as file, mmap.mmap(file.fileno(), size, access=mmap.ACCESS_READ) as data:
            for match in _MARKER.finditer(data, start):
                if match["host"].decode(errors="replace") != self._pod:
                    continue  # a log that quotes another log
                rank = int(match["rank"]) if match["rank"].isdigit() else None
                attempt, time = int(match["attempt"]), float(match["time"])
                section = LogSection(attempt, rank, self._pod, self._path, match.end(), match.end(), time)
                self._marks.append((match.start(), section))
