"""`AckedMark`: the newest acknowledged revision, in 16 bytes beside the database.

Sqlite takes a damaged or missing tail of its write-ahead log for a write that was under way in a crash, and drops it without a
word. The mark tells the two apart. It is written after the commit is on disk and before anybody is told, and never synced: it
survives a killed process, and after a power failure it may be older than the state, never newer. So a state that ends before
its mark has lost acknowledged data, while one that goes beyond it is fine.
"""

from __future__ import annotations

import os
import struct
from pathlib import Path

_FORM = struct.Struct(">QQ")  # the revision, and its complement: a torn or foreign mark is no mark
_ALL = (1 << 64) - 1


class AckedMark:
    def __init__(self, database: Path) -> None:
        self._descriptor = os.open(acked_mark_path(database), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)

    def read(self) -> int:
        """0 when there is none."""
        data = os.pread(self._descriptor, _FORM.size, 0)
        if len(data) != _FORM.size:
            return 0
        revision, complement = _FORM.unpack(data)
        return int(revision) if revision ^ complement == _ALL else 0

    def write(self, revision: int) -> None:
        try:
            os.pwrite(self._descriptor, _FORM.pack(revision, revision ^ _ALL), 0)
        except OSError:
            pass  # a full disk, before the file's first block: an older mark is a weaker check, not a wrong one

    def close(self) -> None:
        os.close(self._descriptor)


def acked_mark_path(database: Path) -> Path:
    return database.with_name(database.name + "-acked")
