"""The life of a cluster in one process: parts that run until they are ended, and the machines behind them.

Parts are named tasks, started in an order and ended in the reverse one, each before the next. A part that fails is not started
again: `wait_failed` raises what it failed of, and the whole is taken down. Whoever derives from `Parts` says in `start` which
parts there are, and in `close` what is left to do when none runs any more.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from types import TracebackType
from typing import Any, Self

from remuda.runtime.background_tasks import wait_first_end
from remuda.runtime.machines import ClusterMachines

HALT_GRACE_S = 3.0


class ClusterParts:
    """`async with` starts it and, in the end, halts it."""

    def __init__(self, machines: ClusterMachines) -> None:
        self.machines = machines
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._has_machines = False

    async def start(self) -> None:
        raise NotImplementedError

    async def close(self) -> None:
        """When nothing runs any more."""

    async def __aenter__(self) -> Self:
        try:
            await self.start()
        except BaseException:
            await self._end_all()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.halt()

    async def halt(self) -> None:
        """End everything here, containers included; what the API holds stays."""
        await self._end_all()
        if self._has_machines:
            await self.machines.halt(HALT_GRACE_S)
        await self.close()

    async def let_go(self) -> None:
        """End this process's part; containers run on."""
        await self._end_all()
        if self._has_machines:
            await self.machines.let_go()
        await self.close()

    async def wait_failed(self) -> None:
        """Returns never, unless a part fails: then raises what it failed of."""
        await wait_first_end(self._tasks.values())

    def spawn(self, name: str, work: Coroutine[Any, Any, None]) -> None:
        self._tasks[name] = asyncio.create_task(work, name=name)

    async def end(self, name: str) -> None:
        task = self._tasks.pop(name, None)
        if task is not None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    async def start_machines(self) -> None:
        """Returns when every node is registered, or raises what a part failed of before that."""
        ready = asyncio.Event()
        self.spawn("machines", self.machines.run(ready))
        self._has_machines = True
        waiting = asyncio.create_task(_wait_for_cluster_machines(ready))
        try:
            await wait_first_end([waiting, *self._tasks.values()])
        finally:
            waiting.cancel()

    async def _end_all(self) -> None:
        for name in reversed(list(self._tasks)):
            await self.end(name)


async def _wait_for_cluster_machines(event: asyncio.Event) -> None:
    await event.wait()
