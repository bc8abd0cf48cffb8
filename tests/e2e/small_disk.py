"""A disk of the test's own, small enough to be filled: a tmpfs. Mounting one needs root.

Without root these tests skip, and the run's summary says so in capitals; in CI they fail instead, so they can never be missed
silently.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

NO_ROOT = "a disk that fills up cannot be mounted here; run the tests as root"


def require_root() -> None:
    if os.geteuid() != 0:
        skip_or_fail(NO_ROOT)


def skip_or_fail(why: str) -> None:
    if any(os.environ.get(name, "") not in ("", "0") for name in ("CI", "REMUDA_REQUIRE_KUBE")):
        pytest.fail(why, pytrace=False)
    pytest.skip(why)


class SmallDisk:
    def __init__(self, path: Path) -> None:
        self.path = path
        self._filler = path / "filler"

    def fill(self) -> None:
        """Not a byte is left."""
        with self._filler.open("ab", buffering=0) as file:
            size = 1 << 20
            while size:
                try:
                    file.write(b"\0" * size)
                except OSError:
                    size //= 2

    def is_full(self) -> bool:
        return os.statvfs(self.path).f_bavail == 0

    def free(self) -> None:
        self._filler.unlink()


@contextmanager
def small_disk(path: Path, size: str) -> Iterator[SmallDisk]:
    require_root()
    path.mkdir(exist_ok=True)
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size},mode=0700", "remuda-test", str(path)], check=True)
    try:
        yield SmallDisk(path)
    finally:
        # Lazily: a process that is just ending may still have a file open.
        subprocess.run(["umount", "--lazy", str(path)], check=True)
