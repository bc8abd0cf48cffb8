"""Work as tasks: beside a block, until the process is told to end, until the first of several ends."""

from __future__ import annotations

import asyncio
import contextlib
import signal
from collections.abc import AsyncIterator, Coroutine, Iterable
from typing import Any


@contextlib.asynccontextmanager
async def run_beside(work: Coroutine[Any, Any, None], name: str) -> AsyncIterator[asyncio.Task[None]]:
    """Cancelled and waited for when the block is left. What it raises is nobody's: it must look after itself."""
    task = asyncio.get_running_loop().create_task(work, name=name)
    try:
        yield task
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def run_until_told(work: Coroutine[Any, Any, None], name: str) -> None:
    """SIGTERM or SIGINT cancels it, and then its end is no error."""
    task = asyncio.create_task(work, name=name)
    is_told = False

    def end() -> None:
        nonlocal is_told
        is_told = True
        task.cancel()

    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, end)
    try:
        await task
    except asyncio.CancelledError:
        if not is_told:
            raise


async def wait_first_end(tasks: Iterable[asyncio.Task[None]]) -> None:
    """Raises what the first of them failed of."""
    done, _ = await asyncio.wait(list(tasks), return_when=asyncio.FIRST_COMPLETED)
    for task in done:
        task.result()
