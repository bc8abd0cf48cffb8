"""Files in directories that others can write: containers, whoever they are, while we are root.

A name in such a directory says nothing about what is behind it by the time it is opened. It may be a link to a file of ours, a
FIFO nobody writes to, a device without end, a tree of ten thousand levels. So every access goes through here:

- the caller names a directory it trusts (`root`) and a path below it; each step of that path is opened by the descriptor of the
  step before, and a link at any of them is an error;
- a file counts when it is regular, has one name, and is not larger than the caller allows; opening it never waits;
- nothing is written here, ever. What must be put there is made in a directory that only we can write and moved in by `rename`;
- removing follows no link, needs two descriptors for a tree of any depth, and does not recurse.

What cannot be read is an OSError, `UnfitFile` for what is not a plain small file.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections.abc import Iterator
from pathlib import Path

_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC


class UnfitFile(OSError):
    """There is something by that name, and it is not what may be read."""

    def __init__(self, path: str, why: str) -> None:
        super().__init__(errno.EINVAL, f"{path} {why}")


@contextlib.contextmanager
def untrusted_directory(root: str | Path, path: str = ".") -> Iterator[int]:
    """The descriptor of the directory at `path` below `root`. `root` itself may be reached through links: it is ours."""
    fd = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        for name in _steps(path):
            below = os.open(name, _DIRECTORY, dir_fd=fd)
            os.close(fd)
            fd = below
        yield fd
    finally:
        os.close(fd)


@contextlib.contextmanager
def untrusted_regular_file(root: str | Path, path: str, names: int = 1) -> Iterator[tuple[int, os.stat_result]]:
    """Its descriptor, and what it was when it was opened. Its size may change while it is read. `names`: how many it may have;
    who allows more knows the others."""
    *above, name = _steps(path)
    with untrusted_directory(root, "/".join(above) or ".") as directory:
        fd = os.open(name, _FILE, dir_fd=directory)
    try:
        found = os.fstat(fd)
        if not stat.S_ISREG(found.st_mode):
            raise UnfitFile(path, "is not a regular file")
        if found.st_nlink > names:  # the other name may be of a file that its writer could not read
            raise UnfitFile(path, "has more than one name")
        yield fd, found
    finally:
        os.close(fd)


def read_untrusted_file(root: str | Path, path: str, limit: int) -> bytes:
    """The whole file. UnfitFile when it is larger than `limit`, also when it grows while it is read."""
    with untrusted_regular_file(root, path) as (fd, found):
        if found.st_size > limit:
            raise UnfitFile(path, f"has {found.st_size} bytes (limit {limit})")
        data = _read_up_to(fd, limit + 1)
    if len(data) > limit:
        raise UnfitFile(path, f"grows past {limit} bytes")
    return data


def read_untrusted_end(root: str | Path, path: str, size: int) -> bytes:
    """The last `size` bytes of the file, which may be of any length."""
    with untrusted_regular_file(root, path) as (fd, found):
        os.lseek(fd, max(0, found.st_size - size), os.SEEK_SET)
        return _read_up_to(fd, size)


def _read_up_to(fd: int, size: int) -> bytes:
    pieces: list[bytes] = []
    while size > 0 and (piece := os.read(fd, min(size, 1 << 20))):
        pieces.append(piece)
        size -= len(piece)
    return b"".join(pieces)


def _steps(path: str) -> list[str]:
    steps = [step for step in path.split("/") if step not in ("", ".")]
    if path.startswith("/") or ".." in steps:
        raise UnfitFile(path, "leads out of its directory")
    return steps


# --- removing -----------------------------------------------------------------------------------------------------------


def remove_few_untrusted_files(directory: int, most: int) -> bool:
    """Unlinks what is in the directory, unless that is more than `most` names or has directories in it. Whether it is empty."""
    with os.scandir(directory) as entries:
        names = [entry.name for _, entry in zip(range(most + 1), entries, strict=False)]
    if len(names) > most:
        return False
    try:
        for name in names:
            os.unlink(name, dir_fd=directory)
    except (IsADirectoryError, PermissionError):
        return False
    return True


def remove_untrusted_trees(trash: str | Path) -> None:
    """Empties `trash`, a directory that only we can write. Directories inside directories are first moved up into it, so depth
    costs nothing. What cannot be removed is left: the next call tries again."""
    fd = os.open(trash, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        stuck: set[str] = set()
        number, mark = 0, os.urandom(6).hex()
        while names := [name for name in os.listdir(fd) if name not in stuck]:
            for name in names:
                try:
                    number = _remove_one_level(fd, name, mark, number)
                except OSError:
                    stuck.add(name)
    finally:
        os.close(fd)


def _remove_one_level(trash: int, name: str, mark: str, number: int) -> int:
    if not stat.S_ISDIR(os.stat(name, dir_fd=trash, follow_symlinks=False).st_mode):
        os.unlink(name, dir_fd=trash)
        return number
    directory = os.open(name, _DIRECTORY, dir_fd=trash)
    try:
        with os.scandir(directory) as entries:
            for entry in entries:
                if entry.is_dir(follow_symlinks=False):
                    number += 1
                    os.rename(entry.name, f"up-{mark}-{number}", src_dir_fd=directory, dst_dir_fd=trash)
                else:
                    os.unlink(entry.name, dir_fd=directory)
    finally:
        os.close(directory)
    os.rmdir(name, dir_fd=trash)
    return number
