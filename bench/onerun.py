"""One repetition in a process of its own: what one leaves behind in memory, tasks or caches is not the next one's.

The parent passes what to do as JSON and reads the result, JSON too, from the last line. `Broken` in the child is `Broken` in the
parent.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

import msgspec
import structlog

from bench.marks import Broken

Ask = TypeVar("Ask")
Result = TypeVar("Result")

_BROKEN = 3


def quiet() -> None:
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR))


def rss_mib() -> float:
    """This process's resident memory now."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize() / 2**20


@contextmanager
def scratch() -> Iterator[Path]:
    root = Path(tempfile.mkdtemp(prefix="remuda-bench-"))
    try:
        yield root
    finally:
        end_processes_below(root)
        shutil.rmtree(root, ignore_errors=True)


def end_processes_below(root: Path) -> None:
    """Those with a path below it on their command line. Ranks outlive a cluster that has died, as they should."""
    while processes_below(root):
        for pid in processes_below(root):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.05)  # what they had begun to start shows itself meanwhile


def processes_below(root: Path) -> list[int]:
    wanted = os.fsencode(root) + b"/"
    return [pid for pid in map(int, filter(str.isdecimal, os.listdir("/proc"))) if wanted in _command_of(pid)]


def _command_of(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


def run_apart(module: str, ask: object, result: type[Result], root: Path, timeout_s: float) -> Result:
    command = [sys.executable, "-m", module, str(root), msgspec.json.encode(ask).decode()]
    try:
        ended = subprocess.run(command, stdout=subprocess.PIPE, timeout=timeout_s, check=False)
    except subprocess.TimeoutExpired:
        raise Broken(f"{module} did not end within {timeout_s:g} s") from None
    lines = ended.stdout.decode(errors="replace").splitlines()
    if ended.returncode or not lines:
        raise Broken(lines[-1] if ended.returncode == _BROKEN and lines else f"{module} ended with {ended.returncode}")
    return msgspec.json.decode(lines[-1], type=result)


def answer(ask: type[Ask], run: Callable[[Path, Ask], Awaitable[object]]) -> int:
    """The child's side; the exit code."""
    root, text = sys.argv[1:]

    async def main() -> object:
        return await run(Path(root), msgspec.json.decode(text, type=ask))

    try:
        found = asyncio.run(main())
    except Broken as broken:
        print(broken)
        return _BROKEN
    print(msgspec.json.encode(found).decode())
    return 0
