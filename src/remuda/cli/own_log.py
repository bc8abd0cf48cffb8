"""`OwnLog`: where the program's own lines go, whatever happens to the disk behind it.

A line that cannot be written is dropped and counted, and the count is written before the next line that can: a log is worth less
than the process that writes it. With a `file` (the log of a process in the background, which has it as its stdout and stderr)
it is also bounded: at MAX_BYTES it becomes `<file>.1`, that one `<file>.2`, and the oldest is given up. Files are their owner's
alone. What looks like a bearer token is written as `***`: who can read a log must not be able to speak for somebody.
"""

from __future__ import annotations

import io
import os
import re
from pathlib import Path
from typing import TextIO

MAX_BYTES = 10 * 1024 * 1024
FILES = 3  # of them, the newest included

_BEARER = re.compile(r"(?i)(bearer[\s:='\"]+)[\w.~+/=-]{6,}")


class OwnLog(io.TextIOBase):
    """`stream`: what it writes to without a file."""

    encoding = "utf-8"
    errors = "backslashreplace"

    def __init__(
        self, stream: TextIO, file: Path | None = None, *, max_bytes: int = MAX_BYTES, files: int = FILES
    ) -> None:
        self._stream = stream
        self._file = file
        self._max_bytes = max_bytes
        self._files = files
        self._since_rotation = max_bytes  # the log of an earlier life may be too long already
        self.dropped = 0

    def writable(self) -> bool:
        return True

    def isatty(self) -> bool:
        return self._file is None and self._stream.isatty()

    def fileno(self) -> int:
        return self._stream.fileno()

    def write(self, text: str) -> int:
        clean = _BEARER.sub(r"\1***", text)
        if self.dropped:
            note = f"{self.dropped} lines of this log could not be written and are lost\n"
            if self._written(note):
                self.dropped = 0
        if self.dropped or not self._written(clean):
            self.dropped += max(1, clean.count("\n"))
        return len(text)

    def flush(self) -> None:
        """Nothing is held back."""

    def _written(self, text: str) -> bool:
        try:
            if self._file is None:
                self._stream.write(text)
                self._stream.flush()
            else:
                self._append(text.encode("utf-8", "backslashreplace"), self._file)
        except (OSError, ValueError):  # ValueError: somebody has closed it
            return False
        return True

    def _append(self, data: bytes, file: Path) -> None:
        descriptor = self._stream.fileno()
        if os.fstat(descriptor).st_size + len(data) > self._max_bytes and self._since_rotation > self._max_bytes // 2:
            self._since_rotation = 0  # a rotation that fails is not tried with every line
            rotate_own_log(file, self._files, (1, 2) if descriptor in (1, 2) else (descriptor,))
        while data:
            count = os.write(descriptor, data)
            self._since_rotation += count
            data = data[count:]


def rotate_own_log(file: Path, files: int, descriptors: tuple[int, ...]) -> None:
    """Begin `file` anew under these descriptors, and keep `files` of them."""
    fresh = file.with_name(f"{file.name}.new")
    descriptor = os.open(
        fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600
    )
    try:
        for number in range(files - 1, 0, -1):
            older = file.with_name(f"{file.name}.{number}")
            newer = file if number == 1 else file.with_name(f"{file.name}.{number - 1}")
            if newer.exists():
                newer.replace(older)
        fresh.replace(file)
        for each in descriptors:
            os.dup2(descriptor, each)
    finally:
        os.close(descriptor)
