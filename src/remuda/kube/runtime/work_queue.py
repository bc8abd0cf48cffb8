"""`WorkQueue`: keys that need a look. A key is queued at most once and never handed to two workers at the same time.

A key added while it is being worked on is queued again when that work is `done`, so no change is missed and none is worked
on twice at once. `add_after` keeps the earliest time asked for. All timing is the loop's.

Namespaces take turns: a thousand keys of one do not make the single key of another wait for all of them. A key that is *held*
(its look failed in a way nobody foresaw) waits out its pause whatever happens to its object meanwhile, so that nobody can
make a controller fail as often as they can write.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

from remuda.kube.runtime.backoff import Backoff, Jitter, no_jitter
from remuda.kube.runtime.turns_queue import TurnsQueue

Key = TypeVar("Key", bound=Hashable)

# A look a day costs nothing, and a moment beyond all reason (inf, NaN) never breaks the loop's timers.
LONGEST_WAIT_S = 86_400.0


def work_queue_key_namespace(key: Hashable) -> Hashable:
    """Keys are (namespace, name, ...), or a plain name of something that belongs to nobody."""
    return key[0] if isinstance(key, tuple) and key else ""


class WorkQueue(Generic[Key]):
    def __init__(
        self,
        *,
        backoff: Backoff = Backoff(),  # noqa: B008 - an immutable value
        jitter: Jitter = no_jitter,
        turn_of: Callable[[Key], Hashable] = work_queue_key_namespace,
    ) -> None:
        self._backoff = backoff
        self._jitter = jitter
        self._ready: TurnsQueue[Key] = TurnsQueue(turn_of)
        self._queued: set[Key] = set()
        self._running: set[Key] = set()
        self._again: set[Key] = set()  # added while running
        self._timers: dict[Key, asyncio.TimerHandle] = {}
        self._failures: dict[Key, int] = {}
        self._held: dict[Key, float] = {}  # until when (loop time) nothing makes it ready

    def add(self, key: Key) -> None:
        if key in self._held:
            self.add_after(key, 0)
            return
        timer = self._timers.pop(key, None)
        if timer is not None:
            timer.cancel()
        if key in self._running:
            self._again.add(key)
        elif key not in self._queued:
            self._queued.add(key)
            self._ready.put_nowait(key)

    def add_after(self, key: Key, delay_s: float) -> None:
        held = self._held.get(key)
        if delay_s <= 0 and held is None:
            self.add(key)
            return
        if key in self._queued or key in self._again:
            return
        loop = asyncio.get_running_loop()
        when = loop.time() + (delay_s if delay_s < LONGEST_WAIT_S else LONGEST_WAIT_S)
        if held is not None:
            when = max(when, held)
        timer = self._timers.get(key)
        if timer is not None:
            if timer.when() <= when:
                return
            timer.cancel()
        self._timers[key] = loop.call_at(when, self._due, key)

    def _due(self, key: Key) -> None:
        self._held.pop(key, None)
        self.add(key)

    def retry(self, key: Key, *, hold: bool = False) -> None:
        """Look again after a wait that doubles with every failure in a row. `hold`: not before, whoever adds it."""
        failures = self._failures[key] = self._failures.get(key, 0) + 1
        wait_s = self._backoff.delay(failures, self._jitter)
        if hold:
            self._held[key] = asyncio.get_running_loop().time() + wait_s
        self.add_after(key, wait_s)

    def failures(self, key: Key) -> int:
        return self._failures.get(key, 0)

    def forget(self, key: Key) -> None:
        """It went well: the next failure starts from the shortest wait."""
        self._failures.pop(key, None)
        self._held.pop(key, None)

    async def get(self) -> Key:
        """The next key; it counts as running until `done`."""
        key = await self._ready.get()
        self._queued.discard(key)
        self._running.add(key)
        return key

    def done(self, key: Key) -> None:
        self._running.discard(key)
        if key in self._again:
            self._again.discard(key)
            self.add(key)

    def __len__(self) -> int:
        """Keys ready to be worked on."""
        return self._ready.qsize()

    @property
    def is_idle(self) -> bool:
        """Nothing ready, nothing running; timers may still be set."""
        return not (self._queued or self._running)

    def close(self) -> None:
        """Forget every timer."""
        for timer in self._timers.values():
            timer.cancel()
        self._timers.clear()
