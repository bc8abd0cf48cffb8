"""Copies that this node keeps for others: `<root>/<namespace>/<job>-<uid8>/rank-R/step-N.ckpt` and `.json`, for the agent alone.

A copy counts once it has the size and the digest that were said of it, is on disk, and has its commit mark. What comes is written
beside the copies first and removed when it is not to be had whole. The space is bounded: all copies and all that is on its way
count, and the file system keeps a reserve. Nobody's copies are given up for another's: who finds no room is refused by name, and
goes to another node.

The index is of this process, made from what is on disk; threads touch files only.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
from collections.abc import Iterable
from pathlib import Path

import msgspec

from remuda.agent.copies.copy_ports import CopyRefused, JobKey
from remuda.link.copy_wire import CopyMark, is_plausible_copy_wire_mark

SHARE = 0.2  # of the file system, unless somebody says how much
RESERVE = 0.05  # of it stays free


class CopyLimits(msgspec.Struct, frozen=True):
    """In bytes. `space`: for all copies; None = a share of the file system; 0 = this node takes none. `largest`: of one."""

    space: int | None = None
    largest: int = 256 << 30


class CopyStore:
    def __init__(self, root: str | Path, limits: CopyLimits) -> None:
        self.root = Path(root)
        self.limits = limits
        self._marks: dict[tuple[str, int], dict[int, CopyMark]] = {}
        self._coming = 0  # bytes that were promised room

    def open(self) -> None:
        """Finds what is there."""
        self.root.mkdir(parents=True, exist_ok=True)
        self.root.chmod(0o700)
        shutil.rmtree(self.root / ".incoming", ignore_errors=True)
        (self.root / ".incoming").mkdir(mode=0o700)
        for side in self.root.glob("*/*/rank-*/step-*.json"):
            with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
                body = json.loads(side.read_text(encoding="ascii"))
                mark = CopyMark(body["step"], body["bytes"], body["sha256"], body["attempt"])
                data = side.with_suffix(".ckpt")
                directory = str(side.parent.parent.relative_to(self.root))
                rank = int(side.parent.name.removeprefix("rank-"))
                if is_plausible_copy_wire_mark(mark) and data.stat().st_size == mark.size:
                    self._marks.setdefault((directory, rank), {})[mark.step] = mark

    # --- what is there --------------------------------------------------------------------------------------------------

    @property
    def used(self) -> int:
        return self._coming + sum(mark.size for marks in self._marks.values() for mark in marks.values())

    @property
    def space(self) -> int:
        if self.limits.space is not None:
            return self.limits.space
        found = os.statvfs(self.root)
        return int(found.f_blocks * found.f_frsize * SHARE)

    def marks(self, key: JobKey, rank: int) -> dict[int, CopyMark]:
        return self.marks_in(key.directory, rank)

    def marks_in(self, directory: str, rank: int) -> dict[int, CopyMark]:
        return dict(self._marks.get((directory, rank), {}))

    def ranks(self) -> list[tuple[str, int]]:
        return list(self._marks)

    def path(self, directory: str, rank: int, step: int) -> Path:
        return self.root / directory / f"rank-{rank}" / f"step-{step}.ckpt"

    # --- what comes and goes --------------------------------------------------------------------------------------------

    def promise_room(self, mark: CopyMark) -> None:
        """CopyRefused: CopyTooLarge, NoSpaceForCopies. Given back by `keep` or `give_back_room`."""
        if mark.size > self.limits.largest:
            raise CopyRefused(
                "CopyTooLarge", f"It has {mark.size} bytes; copies here have up to {self.limits.largest}."
            )
        free = os.statvfs(self.root)
        left = free.f_bavail * free.f_frsize - self._coming - mark.size
        if self.used + mark.size > self.space or left < free.f_blocks * free.f_frsize * RESERVE:
            raise CopyRefused("NoSpaceForCopies", f"Copies here have {self.space} bytes, and {self.used} are taken.")
        self._coming += mark.size

    def give_back_room(self, mark: CopyMark) -> None:
        self._coming -= mark.size

    def keep(self, key: JobKey, rank: int, mark: CopyMark) -> None:
        """It is on disk."""
        self._marks.setdefault((key.directory, rank), {})[mark.step] = mark

    def forget(self, directory: str, rank: int, steps: Iterable[int]) -> list[Path]:
        """They count no more; the files to remove."""
        marks = self._marks.get((directory, rank), {})
        gone = [step for step in steps if marks.pop(step, None) is not None]
        if not marks:
            self._marks.pop((directory, rank), None)
        return [self.path(directory, rank, step) for step in gone]

    def incoming(self, mark: CopyMark) -> IncomingCopy:
        return IncomingCopy(self.root / ".incoming" / os.urandom(12).hex(), mark)

    def commit(self, key: JobKey, rank: int, coming: IncomingCopy) -> None:
        """In a thread. CopyRefused CopyCorrupt when it is not what was said."""
        coming.finish()
        target = self.path(key.directory, rank, coming.mark.step)
        target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with contextlib.suppress(FileNotFoundError):
            target.with_suffix(".json").unlink()
        coming.path.replace(target)
        self.write_mark(key, rank, coming.mark)

    def write_mark(self, key: JobKey, rank: int, mark: CopyMark) -> None:
        """In a thread."""
        side = self.path(key.directory, rank, mark.step).with_suffix(".json")
        made = self.root / ".incoming" / f"{os.urandom(12).hex()}.json"
        body = {"step": mark.step, "bytes": mark.size, "sha256": mark.sha256, "attempt": mark.attempt}
        with made.open("w", encoding="ascii") as file:
            json.dump(body, file)
            file.flush()
            os.fsync(file.fileno())
        made.replace(side)
        fd = os.open(side.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)


def remove_copy_files(files: Iterable[Path]) -> None:
    """In a thread. The commit mark first."""
    for file in files:
        for name in (file.with_suffix(".json"), file):
            with contextlib.suppress(OSError):
                name.unlink()


def write_and_hash(fd: int, digest: hashlib._Hash, chunk: bytes) -> None:
    """In a thread."""
    digest.update(chunk)
    rest = memoryview(chunk)
    while rest:
        rest = rest[os.write(fd, rest) :]


class IncomingCopy:
    """A file that comes, a chunk at a time. In threads."""

    def __init__(self, path: Path, mark: CopyMark) -> None:
        self.path = path
        self.mark = mark
        self._digest = hashlib.sha256()
        self._size = 0
        self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)

    def write(self, chunk: bytes) -> None:
        self._size += len(chunk)
        write_and_hash(self._fd, self._digest, chunk)

    def finish(self) -> None:
        if self._size != self.mark.size or self._digest.hexdigest() != self.mark.sha256:
            raise CopyRefused("CopyCorrupt", "What came is not what its side file says.")
        os.fsync(self._fd)

    def close(self) -> None:
        """Also removes it, unless it was committed."""
        with contextlib.suppress(OSError):
            os.close(self._fd)
        with contextlib.suppress(FileNotFoundError):
            self.path.unlink()
