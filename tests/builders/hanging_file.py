"""A file on a volume that does not answer: whoever opens it waits until it is told to answer. Made of a named pipe, so it needs
no file server, no root and no luck."""

from __future__ import annotations

import os
from pathlib import Path


class HangingFile:
    def __init__(self, path: Path) -> None:
        """`path`: a file, which hangs from now on."""
        self.path = path
        self._aside = path.with_name(path.name + ".aside")
        path.rename(self._aside)
        os.mkfifo(path)

    def answer(self) -> None:
        """The volume is back: who waits gets what is in the file, and so does everybody after. Waits for somebody who waits."""
        words = self._aside.read_bytes()
        with self.path.open("wb", buffering=0) as pipe:
            self._aside.replace(self.path)
            pipe.write(words)
