"""Whether a job's checkpoint directory can be used on this node. Looked at before each attempt, off the event loop.

A path that cannot be written would otherwise show itself hours later, at the first checkpoint, on every rank at once. The look
may hang (a network file system that does not answer), so it has a thread of its own and the launcher waits for it, nobody else:
neither those who share threads, nor the end of this process. A directory has one look at a time, however many attempts ask.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
from collections.abc import Callable

KEPT = 256  # answers remembered; older ones are simply looked up again
MAX_LOOKS = 64  # directories that do not answer; the next wait for one that does


class CheckpointDirs:
    def __init__(self, answered: Callable[[], None]) -> None:
        """`answered` is called when a look has ended."""
        self._answered = answered
        self._faults: dict[tuple[str, int], str] = {}
        self._looking: set[str] = set()
        self._is_closed = False

    def fault(self, directory: str, attempt: int) -> str | None:
        """None = not looked yet, "" = fine, else why it cannot be used."""
        return self._faults.get((directory, attempt))

    def look(self, directory: str, attempt: int) -> None:
        """Nothing comes of it while another look is on; whoever still wants to know asks again when that has ended."""
        if directory in self._looking or (directory, attempt) in self._faults or len(self._looking) >= MAX_LOOKS:
            return
        self._looking.add(directory)
        work = (asyncio.get_running_loop(), directory, attempt)
        threading.Thread(target=self._look, args=work, name="checkpoint-directory", daemon=True).start()

    def close(self) -> None:
        self._is_closed = True

    def _look(self, loop: asyncio.AbstractEventLoop, directory: str, attempt: int) -> None:
        fault = launcher_checkpoint_dir_fault(directory)
        with contextlib.suppress(RuntimeError):  # the loop has ended meanwhile
            loop.call_soon_threadsafe(self._note, directory, attempt, fault)

    def _note(self, directory: str, attempt: int, fault: str) -> None:
        self._looking.discard(directory)
        while len(self._faults) >= KEPT:
            del self._faults[next(iter(self._faults))]
        self._faults[directory, attempt] = fault
        if not self._is_closed:
            self._answered()


def launcher_checkpoint_dir_fault(directory: str) -> str:
    """Makes the directory when it is missing. "" when it can be written, else a sentence that names it."""
    try:
        os.makedirs(directory, exist_ok=True)
    except OSError as error:
        return f"{directory} cannot be made: {error.strerror or error}."
    if not os.access(directory, os.W_OK | os.X_OK):
        return f"{directory} cannot be written."
    return ""
