"""What the agent believes about its grants, on disk: `<root>/<name>.json`, one per grant that has a directory.

The table lives in memory; a record outlives the agent. `root` is the agent's alone (0700, owned by it) and is never mounted into
a container: whoever can write a record can say whose a device is. A record that cannot be read is no grant; the log says so.
"""

from __future__ import annotations

import contextlib
import os
import stat
from pathlib import Path

import msgspec
import structlog

from remuda.agent.allocation.allocation_table import Grant
from remuda.api.errors import Refusal

log = structlog.get_logger(__name__)

SUFFIX = ".json"
_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


class GrantRecords:
    def __init__(self, root: Path) -> None:
        self._root = root
        self._is_checked = False

    def read(self, name: str) -> Grant | None:
        try:
            found = msgspec.json.decode(self._path(name).read_bytes(), type=Grant)
        except FileNotFoundError:
            return None
        except (OSError, msgspec.DecodeError) as error:
            log.warning("allocation.unreadable", grant=name, error=str(error))
            return None
        return found if found.name == name else None

    def all(self) -> list[Grant]:
        try:
            names = sorted(os.listdir(self._root))
        except FileNotFoundError:
            return []
        found = (self.read(name.removesuffix(SUFFIX)) for name in names if name.endswith(SUFFIX))
        return [grant for grant in found if grant is not None]

    def write(self, grant: Grant) -> None:
        self._check()
        path = self._path(grant.name)
        made = path.with_name(f".{os.urandom(6).hex()}")
        fd = os.open(made, _NEW, 0o600)
        try:
            with os.fdopen(fd, "wb") as file:
                file.write(msgspec.json.encode(grant))
            os.replace(made, path)
        except BaseException:
            made.unlink(missing_ok=True)
            raise

    def remove(self, name: str) -> None:
        with contextlib.suppress(FileNotFoundError):
            self._path(name).unlink()

    def _path(self, name: str) -> Path:
        if "/" in name or name.startswith("."):
            raise ValueError(f"a grant cannot be called {name!r}")
        return self._root / f"{name}{SUFFIX}"

    def _check(self) -> None:
        """Made when it is missing, closed to others when it is open; one that is not ours is refused."""
        if self._is_checked:
            return
        self._root.mkdir(mode=0o700, parents=True, exist_ok=True)
        found = os.stat(self._root, follow_symlinks=False)
        if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid():
            raise Refusal(
                "DirectoryNotOurs",
                f"{self._root} holds who has which device, and belongs to somebody else.",
                "Remove it, or give the agent another directory with --root.",
            )
        if found.st_mode & 0o077:
            os.chmod(self._root, 0o700)
        self._is_checked = True
