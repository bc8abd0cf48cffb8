"""Container logs, read back by attempt and rank.

A container has one log, appended to over all its runs: `<root>/<namespace>/<gang>_<uid>/<pod>_<uid>/<container>.log` (and the
older parts of it beside that file, `log_segments`). The first uid is the owner's (of a pod without one, its own), so a job
never shows what an earlier one of the same name wrote. Logs go with their owner (`node.log_cleanup`). A launcher writes a
marker line before each start of the user's command, so the file falls into *sections*: what one attempt of the gang wrote on
that pod. What comes before the first marker (a pod without launcher has none at all) is attempt 0 of no rank.

The rank of a gang moves between pods; `find_log_sections` therefore looks at the whole gang and the caller picks. Positions are
those of `log_segments`: what is no longer kept is missing at the front of the oldest sections.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import msgspec

from remuda.api.kubernetes.core_v1 import Pod
from remuda.api.names import LABEL_GANG
from remuda.link.log_segments import log_segments, read_log_segments

# Not anchored to the start of a line: the child before may have died in the middle of one.
_MARKER = re.compile(
    rb"--- remuda attempt=(?P<attempt>\d+) rank=(?P<rank>\S+) host=(?P<host>\S+) time=(?P<time>[\d.]+) ---\r?\n"
)
_LONGEST_MARKER = 512
_CHUNK = 64 * 1024
_SCAN_BYTES = 4 * 1024 * 1024


class LogSection(msgspec.Struct, frozen=True):
    """Bytes [start, end) of the log at `path`; the last section of a log grows."""

    attempt: int
    rank: int | None
    pod: str
    path: Path
    start: int
    end: int
    time: float = 0.0


def rank_log_path(root: Path, pod: Pod, container: str) -> Path:
    return rank_log_owner(root, pod) / f"{pod.name}_{pod.uid}" / f"{container}.log"


def rank_log_owner(root: Path, pod: Pod) -> Path:
    """The directory of all logs that go with the pod's owner: its gang, or itself."""
    gang = pod.labels.get(LABEL_GANG)
    owners = [owner.uid for owner in pod.metadata.owner_references if owner.controller]
    owner = (owners[0] if owners else "") if gang else pod.uid
    return root / pod.namespace / f"{gang or pod.name}_{owner}"


def rank_log_directories_of_owner(root: Path, namespace: str, gang: str) -> list[Path]:
    """Of every owner of that name whose logs are kept, the one that was written to last at the end."""
    found = [path for path in (root / namespace).glob("*_*") if rank_log_directory_name(path) == gang and path.is_dir()]
    return sorted(found, key=lambda path: (path.stat().st_mtime, path.name))


def rank_log_directory_uid(directory: Path) -> str:
    """The uid in the name of an owner's or a pod's directory."""
    return directory.name.rpartition("_")[2]


def rank_log_directory_name(directory: Path) -> str:
    """The name of the owner or of the pod whose directory it is."""
    return directory.name.rpartition("_")[0]


def find_log_sections(root: Path, namespace: str, gang: str, uid: str | None = None) -> list[LogSection]:
    """Every section of the gang, oldest attempt first, then by rank."""
    return RankLogIndex(root, namespace, gang, uid).refresh()


def read_rank_log_section(section: LogSection) -> Iterator[bytes]:
    """The section's bytes, in pieces."""
    return (piece for _, piece in read_rank_log_pieces(section, section.start))


def read_rank_log_pieces(section: LogSection, position: int) -> Iterator[tuple[int, bytes]]:
    """The section's bytes from `position` in the log on, in pieces, each with where it begins."""
    while position < section.end:
        position, piece = read_log_segments(section.path, position, min(section.end - position, _CHUNK))
        piece = piece[: max(0, section.end - position)]
        if not piece:
            return
        yield position, piece
        position += len(piece)


class RankLogIndex:
    """Where the sections of one gang are; `refresh` looks at what was written since, not at the whole again.

    `uid`: of the gang's owner; without it, the one of that name that was written to last."""

    def __init__(self, root: Path, namespace: str, gang: str, uid: str | None = None) -> None:
        self._root, self._namespace, self._gang, self._uid = root, namespace, gang, uid
        self._files: dict[Path, _LogFile] = {}

    def refresh(self) -> list[LogSection]:
        directory = self._directory()
        for path in sorted(directory.glob("*/*.log")) if directory is not None else ():
            if path not in self._files:
                self._files[path] = _LogFile(path)
        sections: list[LogSection] = []
        for file in self._files.values():
            sections += file.refresh()
        return sorted(sections, key=lambda s: (s.attempt, -1 if s.rank is None else s.rank, s.time, str(s.path)))

    def _directory(self) -> Path | None:
        if self._uid is not None:
            return self._root / self._namespace / f"{self._gang}_{self._uid}"
        found = rank_log_directories_of_owner(self._root, self._namespace, self._gang)
        return found[-1] if found else None


class _LogFile:
    def __init__(self, path: Path) -> None:
        self._path = path
        self._pod = rank_log_directory_name(path.parent)
        self._marks: list[tuple[int, LogSection]] = [
            (0, LogSection(0, None, self._pod, path, 0, 0))
        ]  # where each marker begins
        self._seen = 0

    def refresh(self) -> list[LogSection]:
        segments = log_segments(self._path)
        begin, end = (segments[0].start, segments[-1].end) if segments else (0, 0)
        if end > self._seen:
            # A marker may have been cut in half by the end of the file last time.
            self._scan(max(begin, self._marks[-1][1].start, self._seen - _LONGEST_MARKER), end)
            self._seen = end
        ends = [*(begin for begin, _ in self._marks[1:]), self._seen]
        closed = [
            msgspec.structs.replace(section, start=max(section.start, begin), end=end)
            for (_, section), end in zip(self._marks, ends, strict=True)
        ]
        return [s for s in closed if s.end > s.start or (s.attempt and s.start == s.end >= begin)]

    def _scan(self, start: int, end: int) -> None:
        """Block by block, each with the end of the one before: a marker may lie across."""
        position, rest = start, b""
        while position < end:
            found, block = read_log_segments(self._path, position, min(_SCAN_BYTES, end - position))
            if not block:
                return
            rest = rest if found == position else b""  # what lay between is no longer kept
            self._find_marks(found - len(rest), rest + block)
            position = found + len(block)
            rest = (rest + block)[-_LONGEST_MARKER:]

    def _find_marks(self, begin: int, data: bytes) -> None:
        for match in _MARKER.finditer(data):
            at, after = begin + match.start(), begin + match.end()
            if match["host"].decode(errors="replace") != self._pod or after <= self._marks[-1][1].start:
                continue  # a log that quotes another log, or one that was seen with the block before
            rank = int(match["rank"]) if match["rank"].isdigit() else None
            section = LogSection(int(match["attempt"]), rank, self._pod, self._path, after, after, float(match["time"]))
            self._marks.append((at, section))
