"""Checkpoints of this node's ranks, as files: `<root>/<namespace>/<job>-<uid8>/rank-R/step-N.*` (`launch.checkpoints`).

The job's directory is mounted into its containers, and those may be anybody's: what is below it is read by the rules of
`link.untrusted_files`, a chunk at a time, and never listed beyond a bound. Nothing is written in there. What comes from other
nodes, and marks of ours, are made in `<root>/.remuda`, which only the agent can enter, and moved in by rename: no name in the
job's directory is ever followed or opened for writing.

`<root>/.remuda/homes/` notes in which attempt a rank last ran here, or had everything brought here. `<root>/.remuda/held/` has a
second name (a hard link) of each checkpoint that was copied and that the gang may still have to go on from: a rank that saves
faster than copies are made removes it, and the copy would be the only one.

A directory that is not there holds nothing; any other error says nothing about what is there.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import fcntl
import hashlib
import json
import os
import stat
from collections.abc import Callable, Iterator
from concurrent.futures import Executor
from pathlib import Path
from typing import TypeVar

import msgspec

from remuda.agent.allocation.checkpoint_places import allocate_checkpoint_place
from remuda.agent.copies.copy_ports import JobKey
from remuda.agent.copies.copy_store import RESERVE
from remuda.launch.protocol import MAX_CHECKPOINTS
from remuda.link.copy_wire import CHUNK, MAX_COUNT, CopyMark
from remuda.link.untrusted_files import (
    UnfitFile,
    read_untrusted_file,
    untrusted_directory,
    untrusted_regular_file,
)

MAX_NAMES = 20_000  # in a rank's directory; a rank that has more is not looked through
SIDE_BYTES = 4096
LOOKED_AT = 64  # steps, from the newest
T = TypeVar("T")


class JobCheckpointFiles:
    """Implements `CheckpointFiles`. `work`: threads of its own, so that a disk that hangs holds up nobody else."""

    def __init__(self, root: str | Path, work: Executor) -> None:
        self.root = Path(root)
        self.own = self.root / ".remuda"
        self._work = work

    def prepare(self) -> None:
        self.root.mkdir(parents=True, exist_ok=True)
        self.root.chmod(0o700)  # containers come by a mount
        for place in (self.own, self.own / "homes", self.own / "incoming"):
            place.mkdir(exist_ok=True)
            place.chmod(0o700)
        # Of an agent that was killed; what has a further name is no checkpoint.
        for left in (self.own / "incoming").iterdir():
            if left.suffix != ".part":
                left.unlink(missing_ok=True)

    async def run(self, call: Callable[..., T], *args: object) -> T:
        """Who is cancelled waits until the call has ended: what the caller closes then, no thread has in hand any more. A number
        of a file that is closed is the next one's."""
        done = asyncio.get_running_loop().run_in_executor(self._work, call, *args)
        try:
            return await asyncio.shield(done)
        except asyncio.CancelledError:
            await asyncio.wait([done])
            if not done.cancelled():
                done.exception()  # nobody is left to hear it
            raise

    # --- what was where -------------------------------------------------------------------------------------------------

    def _home_file(self, key: JobKey, rank: int) -> Path:
        return self.own / "homes" / key.directory.replace("/", "~") / f"rank-{rank}"

    async def home(self, key: JobKey, rank: int) -> int:
        return await self.run(self.read_home, key, rank)

    def read_home(self, key: JobKey, rank: int) -> int:
        try:
            return int(self._home_file(key, rank).read_text(encoding="ascii"))
        except (FileNotFoundError, ValueError):
            return 0

    async def note_home(self, key: JobKey, rank: int, attempt: int) -> None:
        await self.run(self._write_home, key, rank, attempt)

    def _write_home(self, key: JobKey, rank: int, attempt: int) -> None:
        file = self._home_file(key, rank)
        file.parent.mkdir(mode=0o700, exist_ok=True)
        temporary = file.with_suffix(".new")
        temporary.write_text(str(attempt), encoding="ascii")
        temporary.replace(file)

    # --- what is there --------------------------------------------------------------------------------------------------

    async def settle(self, key: JobKey, rank: int, newest: int | None, but: frozenset[int]) -> tuple[int, ...]:
        return await self.run(self.settle_rank, key, rank, newest, but)

    def settle_rank(self, key: JobKey, rank: int, newest: int | None, but: frozenset[int]) -> tuple[int, ...]:
        folder = f"{key.directory}/rank-{rank}"
        try:
            with untrusted_directory(self.root, folder) as directory:
                names = _listed_names(directory, folder)
                steps = sorted((s for s in map(_step_of_side_file, names) if s is not None), reverse=True)
                found: list[int] = []
                for step in steps[:LOOKED_AT]:
                    if f"step-{step}.bad" in names or not self._is_whole(key, rank, step, directory):
                        continue
                    if newest is not None and step > newest and step not in but:
                        self._mark_abandoned(directory, step)
                    elif not _is_marked_abandoned(directory, step, names):
                        found.append(step)
        except (FileNotFoundError, NotADirectoryError):
            return ()
        return tuple(found[:MAX_CHECKPOINTS])

    def _is_whole(self, key: JobKey, rank: int, step: int, directory: int) -> bool:
        mark = self.read_mark(key, rank, step)
        if mark is None:
            return False
        try:
            data = os.stat(f"step-{step}.ckpt", dir_fd=directory, follow_symlinks=False)
        except FileNotFoundError:
            return False
        is_ours = data.st_nlink == 1 or self._has_name_of_ours(key, rank, step, data)
        return stat.S_ISREG(data.st_mode) and is_ours and data.st_size == mark.size

    def _mark_abandoned(self, directory: int, step: int) -> None:
        side = os.stat(f"step-{step}.json", dir_fd=directory, follow_symlinks=False)
        made = self.own / "incoming" / f"mark-{os.urandom(8).hex()}"
        made.write_text("The gang went on from an earlier step while this rank was elsewhere.", encoding="ascii")
        made.chmod(0o644)
        now = made.stat().st_mtime_ns
        os.utime(made, ns=(now, max(now, side.st_mtime_ns)))
        os.rename(made, f"step-{step}.abandoned", dst_dir_fd=directory)

    def read_mark(self, key: JobKey, rank: int, step: int) -> CopyMark | None:
        """What its side file says; None: it has none, or none that can be meant."""
        try:
            text = read_untrusted_file(self.root, f"{key.directory}/rank-{rank}/step-{step}.json", SIDE_BYTES)
            side = json.loads(text)
        except (FileNotFoundError, NotADirectoryError, UnfitFile, ValueError, RecursionError):
            return None
        except OSError as error:
            if error.errno == errno.ELOOP:  # a link
                return None
            raise
        if not isinstance(side, dict) or side.get("step") != step or isinstance(side.get("step"), bool):
            return None
        size, digest = side.get("bytes"), side.get("sha256")
        if isinstance(size, bool) or not isinstance(size, int) or not 0 <= size <= MAX_COUNT:
            return None
        if not isinstance(digest, str) or len(digest) != 64 or not set(digest.lower()) <= set("0123456789abcdef"):
            return None
        return CopyMark(step, size, digest.lower(), attempt=0)

    @contextlib.contextmanager
    def open_checkpoint(self, key: JobKey, rank: int, mark: CopyMark) -> Iterator[int]:
        """A descriptor to read `mark.size` bytes from. UnfitFile, FileNotFoundError when it is not that."""
        path = f"{key.directory}/rank-{rank}/step-{mark.step}.ckpt"
        with untrusted_regular_file(self.root, path, names=2) as (fd, found):
            if found.st_nlink > 1 and not self._has_name_of_ours(key, rank, mark.step, found):
                raise UnfitFile(path, "has more than one name")
            if found.st_size != mark.size:
                raise UnfitFile(path, f"has {found.st_size} bytes, and should have {mark.size}")
            yield fd

    # --- what is held -----------------------------------------------------------------------------------------------------

    def _held_folder(self, key: JobKey, rank: int) -> Path:
        return self.own / "held" / key.directory.replace("/", "~") / f"rank-{rank}"

    def _has_name_of_ours(self, key: JobKey, rank: int, step: int, found: os.stat_result) -> bool:
        try:
            held = os.stat(self._held_folder(key, rank) / f"step-{step}.ckpt", follow_symlinks=False)
        except FileNotFoundError:
            return False
        return found.st_nlink == 2 and (held.st_dev, held.st_ino) == (found.st_dev, found.st_ino)

    def hold(self, key: JobKey, rank: int, mark: CopyMark, fd: int) -> None:
        """Gives the file behind the descriptor a name of ours. OSError when it has none any more, or cannot have two."""
        folder = self._held_folder(key, rank)
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        data = folder / f"step-{mark.step}.ckpt"
        made = f"held-{os.urandom(8).hex()}"
        incoming = os.open(self.own / "incoming", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.link(f"/proc/self/fd/{fd}", made, dst_dir_fd=incoming)  # with a descriptor the link is followed
        finally:
            os.close(incoming)
        data.unlink(missing_ok=True)  # renaming a file over another name of its own does nothing
        (self.own / "incoming" / made).replace(data)
        side = self.own / "incoming" / f"{made}.json"
        side.write_bytes(msgspec.json.encode(mark))
        side.replace(data.with_suffix(".json"))

    def held_marks(self, key: JobKey, rank: int) -> dict[int, CopyMark]:
        found: dict[int, CopyMark] = {}
        for side in self._held_folder(key, rank).glob("step-*.json"):
            with contextlib.suppress(OSError, msgspec.DecodeError):
                mark = msgspec.json.decode(side.read_bytes(), type=CopyMark)
                if side.with_suffix(".ckpt").stat().st_size == mark.size:
                    found[mark.step] = mark
        return found

    def open_held(self, key: JobKey, rank: int, mark: CopyMark) -> int | None:
        """A descriptor, when that very checkpoint is held. Its writer may still have it open: what is read is checked."""
        held = self.held_marks(key, rank).get(mark.step)
        if held is None or held.sha256 != mark.sha256:
            return None
        return os.open(self._held_folder(key, rank) / f"step-{mark.step}.ckpt", os.O_RDONLY | os.O_CLOEXEC)

    async def drop_held(self, key: JobKey, rank: int, but: frozenset[int]) -> None:
        await self.run(self._drop_held, key, rank, but)

    def _drop_held(self, key: JobKey, rank: int, but: frozenset[int]) -> None:
        keep = {f"step-{step}.{kind}" for step in but for kind in ("ckpt", "json")}
        for file in self._held_folder(key, rank).glob("step-*"):
            if file.name not in keep:
                file.unlink(missing_ok=True)

    # --- what comes here ------------------------------------------------------------------------------------------------

    def partial(self, key: JobKey, rank: int, mark: CopyMark) -> Path:
        """Where a checkpoint lies while it comes; what is there already need not come again."""
        return self.own / "incoming" / f"{key.uid}.{rank}.{mark.step}.{mark.sha256}.part"

    def open_partial(self, key: JobKey, rank: int, mark: CopyMark) -> int:
        """To read and to append, for one at a time. OSError when somebody has it, or there is no room for all of it. A rank has
        one: what began to come of another of its checkpoints goes."""
        part = self.partial(key, rank, mark)
        for other in part.parent.glob(f"{key.uid}.{rank}.*.part"):
            if other != part:
                other.unlink(missing_ok=True)
        fd = os.open(part, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            found, free = os.fstat(fd), os.statvfs(self.own)
            if found.st_nlink != 1 or found.st_ino != part.stat().st_ino:
                raise OSError(errno.EAGAIN, "it has just come, or was given up")
            lacking = max(0, mark.size - found.st_size)
            if free.f_bavail * free.f_frsize - lacking < free.f_blocks * free.f_frsize * RESERVE:
                raise OSError(errno.ENOSPC, "the disk here has no room for it")
        except OSError:
            os.close(fd)
            raise
        return fd

    def drop_old_partials(self, before: float) -> None:
        """Those that nothing has come of since."""
        for part in (self.own / "incoming").glob("*.part"):
            with contextlib.suppress(FileNotFoundError):
                if part.stat().st_mtime < before:
                    part.unlink()

    def place(self, key: JobKey, rank: int, mark: CopyMark) -> None:
        """Moves what came into the job's directory: first away with the old commit mark, then the data, then the new one."""
        data = self.partial(key, rank, mark)
        side = data.with_suffix(".json")
        body = {"step": mark.step, "bytes": mark.size, "sha256": mark.sha256}
        side.write_text(json.dumps(body), encoding="ascii")
        for file in (data, side):
            file.chmod(0o644)  # any user of the container may read it
        allocate_checkpoint_place(str(self.root), key.namespace, key.name, key.uid)
        folder = _make_open_directory(self.root, key.directory, f"rank-{rank}")
        with untrusted_directory(self.root, folder) as directory:
            for old in ("json", "abandoned"):
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(f"step-{mark.step}.{old}", dir_fd=directory)
            os.rename(data, f"step-{mark.step}.ckpt", dst_dir_fd=directory)
            os.rename(side, f"step-{mark.step}.json", dst_dir_fd=directory)
            os.fsync(directory)


def _make_open_directory(root: Path, above: str, name: str) -> str:
    """A directory that every user may write in, as containers run as anybody; one that is there is left as it is."""
    with untrusted_directory(root, above) as directory:
        try:
            os.mkdir(name, 0o700, dir_fd=directory)
        except FileExistsError:
            return f"{above}/{name}"
        made = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=directory)
        try:
            os.fchmod(made, 0o777)
        finally:
            os.close(made)
    return f"{above}/{name}"


def _listed_names(directory: int, folder: str) -> set[str]:
    with os.scandir(directory) as entries:
        names = {entry.name for _, entry in zip(range(MAX_NAMES + 1), entries, strict=False)}
    if len(names) > MAX_NAMES:
        raise OSError(errno.EFBIG, f"{folder} has more than {MAX_NAMES} files")
    return names


def _step_of_side_file(name: str) -> int | None:
    digits = name[5:-5]
    if (
        name.startswith("step-")
        and name.endswith(".json")
        and digits.isascii()
        and digits.isdigit()
        and len(digits) < 16
    ):
        return int(digits) if digits == str(int(digits)) else None
    return None


def _is_marked_abandoned(directory: int, step: int, names: set[str]) -> bool:
    if f"step-{step}.abandoned" not in names:
        return False
    try:
        marked = os.stat(f"step-{step}.abandoned", dir_fd=directory, follow_symlinks=False).st_mtime_ns
        return os.stat(f"step-{step}.json", dir_fd=directory, follow_symlinks=False).st_mtime_ns <= marked
    except FileNotFoundError:
        return False


def hash_file_so_far(fd: int) -> tuple[int, hashlib._Hash]:
    """How much is there, and its digest so far."""
    digest, size = hashlib.sha256(), 0
    while chunk := os.pread(fd, CHUNK, size):
        digest.update(chunk)
        size += len(chunk)
    return size, digest
