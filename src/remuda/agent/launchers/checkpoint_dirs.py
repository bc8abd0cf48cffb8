"""Whether a job's checkpoint directory can be used on this node. Looked at before each attempt, off the event loop.

A path that cannot be written would otherwise show itself hours later, at the first checkpoint, on every rank at once. The look
may hang (a network file system that does not answer), so it happens in a thread and the launcher waits for it, nobody else.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable

KEPT = 256  # answers remembered; older ones are simply looked up again


class CheckpointDirs:
    def __init__(self, answered: Callable[[], None]) -> None:
        """`answered` is called when a look has ended."""
        self._answered = answered
        self._faults: dict[tuple[str, int], str] = {}
        self._looking: dict[tuple[str, int], asyncio.Task[None]] = {}

    def fault(self, directory: str, attempt: int) -> str | None:
        """None = not looked yet, "" = fine, else why it cannot be used."""
        return self._faults.get((directory, attempt))

    def look(self, directory: str, attempt: int) -> None:
        key = (directory, attempt)
        if key not in self._looking and key not in self._faults:
            task = asyncio.get_running_loop().create_task(self._look(key))
            self._looking[key] = task

    async def close(self) -> None:
        tasks = list(self._looking.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _look(self, key: tuple[str, int]) -> None:
        try:
            fault = await asyncio.to_thread(checkpoint_dir_fault, key[0])
        finally:
            del self._looking[key]
        while len(self._faults) >= KEPT:
            del self._faults[next(iter(self._faults))]
        self._faults[key] = fault
        self._answered()


def checkpoint_dir_fault(directory: str) -> str:
    """Makes the directory when it is missing. "" when it can be written, else a sentence that names it."""
    try:
        os.makedirs(directory, exist_ok=True)
    except OSError as error:
        return f"{directory} cannot be made: {error.strerror or error}."
    if not os.access(directory, os.W_OK | os.X_OK):
        return f"{directory} cannot be written."
    return ""
