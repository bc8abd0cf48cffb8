"""The directory each allocation has: the launcher's door, mounted into the container.

`<root>/<name>/agent.sock` and nothing else of ours. `root` is the agent's alone (0700). What is in a directory below it is not to
be believed, because a container may have written it: directories of older agents are open to everybody, and on an embedded node
the pod's own processes keep their progress there. So nothing is read from it (but an old agent's marker, see `device_grants`),
and it is removed without following what is in it: a few plain files at once, anything else is moved to `<root>/.trash` and
removed in a thread.
"""

from __future__ import annotations

import contextlib
import os
import stat
import threading
from pathlib import Path

import structlog

from remuda.link.untrusted_files import remove_few_untrusted_files, remove_untrusted_trees, untrusted_directory

log = structlog.get_logger(__name__)

TRASH = ".trash"
FEW = 16  # files of a well-behaved pod, removed at once


class AllocationDirs:
    def __init__(self, root: str, *, shared: bool) -> None:
        """`shared`: a container's user may be anybody and reaches the door through a read-only mount; what keeps the others of
        the machine out is `root`. Otherwise the pod's processes are of our own user, and write there."""
        self._root = Path(root)
        self._mode = 0o755 if shared else 0o700

    def path(self, name: str) -> Path:
        return self._root / name

    def names(self) -> list[str]:
        try:
            found = sorted(os.listdir(self._root))
        except FileNotFoundError:
            return []
        return [name for name in found if not name.startswith(".") and self.has(name)]

    def has(self, name: str) -> bool:
        return self._status(name) is not None

    def is_ours_alone(self, name: str) -> bool:
        """It is there, and nobody else can write it, unless through a mount that somebody else made."""
        found = self._status(name)
        return found is not None and found.st_uid == os.geteuid() and not found.st_mode & 0o022

    def make(self, name: str) -> None:
        """A fresh one."""
        self.remove(name)
        self._root.mkdir(mode=0o700, parents=True, exist_ok=True)
        os.mkdir(self.path(name), 0o700)
        self.let_in(name)

    def let_in(self, name: str) -> None:
        """Whoever runs in the container must find the door; a kubelet makes the directory of a pod without devices for root."""
        with untrusted_directory(self._root, name) as fd:
            mode = stat.S_IMODE(os.fstat(fd).st_mode)
            if mode | self._mode != mode:
                os.fchmod(fd, mode | self._mode)

    def remove(self, name: str) -> None:
        """Without a directory of that name nothing happens."""
        try:
            with untrusted_directory(self._root, name) as fd:
                is_empty = remove_few_untrusted_files(fd, FEW)
            if is_empty:
                with contextlib.suppress(OSError):  # somebody put something there meanwhile
                    os.rmdir(self.path(name))
                    return
            trash = self._root / TRASH
            trash.mkdir(mode=0o700, exist_ok=True)
            os.rename(self.path(name), trash / f"{name[:64]}-{os.urandom(6).hex()}")
        except FileNotFoundError:
            return
        self.empty_trash()

    def empty_trash(self) -> None:
        """In a thread: it may be a million files."""
        if (self._root / TRASH).is_dir():
            threading.Thread(target=self._sweep, name="allocation-trash", daemon=True).start()

    def _sweep(self) -> None:
        try:
            remove_untrusted_trees(self._root / TRASH)
        except OSError as error:
            log.warning("allocation.trash_left", error=str(error))

    def _status(self, name: str) -> os.stat_result | None:
        try:
            found = os.stat(self.path(name), follow_symlinks=False)
        except FileNotFoundError:
            return None
        return found if stat.S_ISDIR(found.st_mode) else None
