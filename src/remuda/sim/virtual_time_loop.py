"""An asyncio event loop whose clock is virtual: waiting costs nothing, so hours of cluster life pass in a second.

The loop runs whatever is ready; when nothing is, it jumps to the next timer instead of sleeping. Everything in Remuda takes
its time from the loop (`loop.time()`, `asyncio.sleep`) or from an injected clock, so the whole control plane runs on it
unchanged and, with a seeded random source, the same way each time. Real I/O does not belong here: nothing would wait for it.

What would hang in real time fails here at once: nothing left to wait for (`NothingLeftToDo`), or so much work at one moment
that time never passes (`TimeStandsStill`).

Rejected: looptime (a test plugin; the simulator is for users too) and simpy (generators instead of coroutines: the shells
would have to be written twice).
"""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")

EPOCH = 1_800_000_000.0  # virtual time starts at a fixed moment, so that runs compare byte for byte
MAX_TURNS = 100_000  # of the loop at one moment; a recovery of a large gang takes a few hundred


class NothingLeftToDo(RuntimeError):
    """Every task waits for something that cannot happen any more: in real time this would be a hang."""


class TimeStandsStill(RuntimeError):
    """Tasks keep waking each other without ever waiting: in real time this would be a busy loop."""


class _JumpingSelector(selectors.SelectSelector):
    """Asks for ready I/O without waiting, and tells the loop to move its clock by what it would have waited."""

    def __init__(self, max_turns: int) -> None:
        super().__init__()
        self.loop: VirtualLoop | None = None
        self._max_turns = max_turns
        self._turns = 0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        # Besides the loop's own wake-up pipe there is usually nothing to ask the kernel about; we never sleep, so need no waking.
        ready = super().select(0) if len(self.get_map()) > 1 else []
        if self.loop is None:
            return ready
        if not ready:
            if timeout is None:
                raise NothingLeftToDo("no timer and no task is left, but the main task has not finished")
            if timeout > 0:
                self._turns = 0
                self.loop.advance(timeout)
                return ready
        self._turns += 1
        if self._turns > self._max_turns:
            self._turns = 0  # whoever cleans up needs turns, too
            raise TimeStandsStill(f"{self._max_turns} turns of the loop at {self.loop.time():.3f} s of virtual time")
        return ready


class VirtualLoop(asyncio.SelectorEventLoop):
    def __init__(self, max_turns: int = MAX_TURNS) -> None:
        selector = _JumpingSelector(max_turns)
        self._now = 0.0
        super().__init__(selector)
        selector.loop = self

    def time(self) -> float:
        return self._now

    def advance(self, seconds: float) -> None:
        if seconds > 0:
            self._now += seconds

    def clock(self) -> float:
        """Unix seconds of the virtual world."""
        return EPOCH + self._now


def run_virtual(main: Coroutine[Any, Any, T], loop: VirtualLoop | None = None) -> T:
    """Runs `main` to its end in virtual time; leftover tasks are cancelled."""
    own = loop or VirtualLoop()
    runner = asyncio.Runner(loop_factory=lambda: own)
    with runner:
        return runner.run(main)
