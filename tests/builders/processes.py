"""Processes of one simulated cluster, each of which can be stopped alone, as SIGSTOP does: nothing of it runs, time goes on.

All parts of a world share one event loop. Whatever a loop runs has a context, and tasks and timers inherit it from who made them;
so a context variable says whose each of them is. What belongs to a stopped process is set aside, in order, until it runs again:
then all its timers are late at once. What another process hands to it (`telling`) waits with the rest.
"""

from __future__ import annotations

import asyncio
import contextvars
from collections import deque
from collections.abc import Callable
from typing import Any

from remuda.sim.virtual_time_loop import VirtualLoop

_PROCESS = contextvars.ContextVar("process", default="")  # whose code runs; "" = the story's


class Processes:
    def __init__(self, loop: VirtualLoop) -> None:
        self._loop = loop
        self._aside: dict[str, list[asyncio.Handle]] = {}  # by process that is stopped
        self._ready = _Ready(loop, self._aside)

    def is_stopped(self, process: str) -> bool:
        return process in self._aside

    def stop(self, process: str) -> None:
        self._aside.setdefault(process, [])

    def go_on(self, process: str) -> None:
        self._ready.extend(self._aside.pop(process, ()))

    def all_go_on(self) -> None:
        for process in list(self._aside):
            self.go_on(process)

    def context(self, process: str) -> contextvars.Context:
        made = contextvars.copy_context()
        made.run(_PROCESS.set, process)
        return made

    def become(self, process: str) -> None:
        """What runs now, and all that it starts, belongs to that process."""
        _PROCESS.set(process)

    def telling(self, process: str, hear: Callable[..., object]) -> Callable[..., None]:
        """Called by anybody, heard by that process, as soon as it runs."""
        context = self.context(process)

        def tell(*args: Any) -> None:
            self._loop.call_soon(hear, *args, context=context)

        return tell

    def telling_me(self, hear: Callable[..., object]) -> Callable[..., None]:
        return self.telling(_PROCESS.get(), hear)


class _Ready(deque[asyncio.Handle]):
    """What the loop has to run, in place of its own queue: what belongs to a stopped process is set aside when its turn comes."""

    def __init__(self, loop: Any, aside: dict[str, list[asyncio.Handle]]) -> None:
        super().__init__(loop._ready)
        loop._ready = self
        self._aside = aside
        self._nothing = asyncio.Handle(print, (), loop)
        self._nothing.cancel()

    def popleft(self) -> asyncio.Handle:
        handle = super().popleft()
        if self._aside:
            process = handle._context.get(_PROCESS, "")  # type: ignore[attr-defined] # asyncio has no word for it
            if process in self._aside:
                self._aside[process].append(handle)
                return self._nothing
        return handle
