"""Waiting for what real processes, sockets and servers do: look again and again, with a bound for a hang.

PATIENCE_S is no expectation of speed. A machine that is busy with something else may hold a process up for many seconds, so the
bound is far beyond that; it is reached only when what is waited for never comes.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar

PATIENCE_S = 120.0
POLL_S = 0.01

T = TypeVar("T")


async def until(what: str, look: Callable[[], Awaitable[T]], seconds: float = PATIENCE_S) -> T:
    """What `look` finds, once that is something."""
    deadline = time.monotonic() + seconds
    while not (found := await look()):
        assert time.monotonic() < deadline, f"waited {seconds:g} s for {what}"
        await asyncio.sleep(POLL_S)
    return found


def wait_until(what: str, look: Callable[[], object], seconds: float = PATIENCE_S) -> None:
    """For tests without an event loop."""
    deadline = time.monotonic() + seconds
    while not look():
        assert time.monotonic() < deadline, f"waited {seconds:g} s for {what}"
        time.sleep(POLL_S)
