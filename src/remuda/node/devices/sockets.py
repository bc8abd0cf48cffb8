"""Unix sockets in a directory whose path may be too long for them.

The kernel takes 107 bytes of path; a state directory can be deeper. Then the directory is opened and its sockets are reached
through /proc/self/fd, which is short and, unlike a change of directory, harms nobody else in the process.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path

MAX_PATH = 107


class SocketDirectory:
    def __init__(self, path: Path) -> None:
        path.mkdir(parents=True, exist_ok=True)
        self.path = path
        self._fd: int | None = os.open(path, os.O_DIRECTORY | os.O_RDONLY)

    def place(self, name: str) -> str:
        """A path that a socket call takes, good while the directory is open."""
        path = os.fspath(self.path / name)
        if len(os.fsencode(path)) <= MAX_PATH:
            return path
        if self._fd is None:
            raise OSError(f"{self.path} is closed")
        return f"/proc/self/fd/{self._fd}/{name}"

    def address(self, name: str) -> str:
        """The same for gRPC."""
        return f"unix:{self.place(name)}"

    def remove_sockets(self) -> list[str]:
        """Every socket here, whoever made it: a kubelet that starts wants all plugins to come again. Other files stay."""
        found = [p for p in sorted(self.path.iterdir()) if stat.S_ISSOCK(p.lstat().st_mode)]
        for path in found:
            path.unlink(missing_ok=True)
        return [path.name for path in found]

    def close(self) -> None:
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None
