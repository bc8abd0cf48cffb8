"""A small file that others rotate: read when needed, and again only when it has changed."""

from __future__ import annotations

import os
from pathlib import Path

Mark = tuple[int, int, int]


def mark_of(path: Path) -> Mark | None:
    """Changes whenever the file does: a new file under the name (also behind a link), a new size or time. None: not there."""
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_ino, found.st_size, found.st_mtime_ns


class ReloadedFile:
    """While the file is away or empty (some writers are not atomic) the last good content stands."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._mark: Mark | None = None
        self._content = b""

    def read(self) -> bytes:
        mark = mark_of(self.path)
        if mark is not None and mark != self._mark:
            try:
                content = self.path.read_bytes()
            except OSError:
                content = b""
            if content:
                # The mark was taken before reading: a change in between is seen by the next look.
                self._mark, self._content = mark, content
        return self._content
