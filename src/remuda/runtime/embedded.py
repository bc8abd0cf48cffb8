"""An embedded cluster in one process: store, API, garbage collection, control plane, machines.

`async with EmbeddedCluster(...) as cluster:` gives a running one. The parts meet only through the `Cluster` port and the
progress board, so each may be stopped and started alone: `restart_control_plane` is what a crash of the manager is.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Callable, Coroutine
from pathlib import Path
from types import TracebackType
from typing import Any

from remuda.api.core_v1 import Namespace, Pod
from remuda.api.errors import AlreadyExists
from remuda.api.meta import KObject, ObjectMeta
from remuda.apiserver.garbage import GarbageCollector
from remuda.apiserver.local import LocalCluster
from remuda.apiserver.objects import Admission, Heads
from remuda.apiserver.store import Store
from remuda.apiserver.store.journal import Journal
from remuda.controllers.builtin import run_builtin
from remuda.controllers.builtin.namespaces import stored_kind
from remuda.kube.cluster import Cluster
from remuda.link.progress import ProgressBoard
from remuda.node.training import Behaviour, CheckpointStore
from remuda.runtime.config import ClusterConfig
from remuda.runtime.controlplane import ControlPlane
from remuda.runtime.machines import Machines

HALT_GRACE_S = 3.0


class EmbeddedCluster:
    def __init__(
        self,
        config: ClusterConfig,
        journal: Journal,
        *,
        root: Path,
        clock: Callable[[], float],
        chance: random.Random,
        new_uid: Callable[[], str],
        behaviour: Callable[[Pod], Behaviour] | None = None,
        checkpoints: CheckpointStore | None = None,
        manager_api: Callable[[Cluster], Cluster] = lambda api: api,
        machine_api: Callable[[Cluster], Cluster] = lambda api: api,
        admission: Callable[[Heads], Admission] | None = None,
    ) -> None:
        """`checkpoints`: what simulated pods find on the shared file system. `manager_api` wraps the port that a control
        plane is given, each time one is made, `machine_api` that of the nodes and agents: there their calls can be watched,
        held up, or made to fail."""
        self.config = config
        self.store = Store(journal)
        self.api = LocalCluster(self.store, clock=clock, new_uid=new_uid, admission=admission)
        self.board = ProgressBoard()
        self._clock = clock
        self._chance = chance
        self._manager_api = manager_api
        self.machines = Machines(
            config,
            machine_api(self.api),
            self.board,
            root=root,
            clock=clock,
            chance=chance,
            behaviour=behaviour,
            checkpoints=checkpoints,
        )
        self.control = self._control_plane()
        self._control_task: asyncio.Task[None] | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self._has_machines = False

    async def __aenter__(self) -> EmbeddedCluster:
        try:
            await self.start()
        except BaseException:
            await self._stop_tasks()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.halt()

    async def start(self) -> None:
        for name in ("default", "kube-system", "kube-node-lease"):
            with contextlib.suppress(AlreadyExists):
                await self.api.create(Namespace, Namespace(metadata=ObjectMeta(name=name)))
        self._spawn(GarbageCollector(self.api).run(self._clock), "garbage")
        self._spawn(run_builtin(self.api, self._clock, self._chance.random, self._kinds), "builtin")
        ready = asyncio.Event()
        self._spawn(self.machines.run(ready), "machines")
        self._has_machines = True
        await self._wait(ready)
        self._control_task = asyncio.create_task(self.control.run(), name="control-plane")

    def _kinds(self) -> list[type[KObject]]:
        """Everything namespaced that can be listed now, custom kinds included."""
        rows = [s for s in self.api.registry if s.resource.namespaced and "list" in s.resource.verbs]
        return [s.kind or stored_kind(s.resource) for s in rows]

    async def _wait(self, ready: asyncio.Event) -> None:
        """For `ready`, or for the part that failed before it."""
        waiting = asyncio.create_task(ready.wait())
        done, _ = await asyncio.wait({waiting, *self._tasks}, return_when=asyncio.FIRST_COMPLETED)
        if waiting not in done:
            waiting.cancel()
        for task in done - {waiting}:
            task.result()

    async def restart_control_plane(self) -> None:
        """Drop scheduler and controllers in the middle of whatever they do, and start new ones that know nothing."""
        await self.stop_control_plane()
        self.control = self._control_plane()
        self._control_task = asyncio.create_task(self.control.run(), name="control-plane")

    async def stop_control_plane(self) -> None:
        if self._control_task is not None:
            await _cancelled([self._control_task])
            self._control_task = None

    def _control_plane(self) -> ControlPlane:
        # The board belongs to the control plane's side of the link: a new manager starts with an empty one.
        self.board.clear()
        return ControlPlane(self._manager_api(self.api), self.board, self._clock, chance=self._chance)

    async def halt(self) -> None:
        """End everything, containers included."""
        await self._stop_tasks()
        if self._has_machines:
            await self.machines.halt(HALT_GRACE_S)
        await self.store.close()

    async def let_go(self) -> None:
        """End this process's part; containers run on."""
        await self._stop_tasks()
        if self._has_machines:
            await self.machines.let_go()
        await self.store.close()

    async def wait_failed(self) -> None:
        """Returns never, unless a part fails: then raises what it failed of."""
        parts = [*self._tasks, *([self._control_task] if self._control_task else [])]
        done, _ = await asyncio.wait(parts, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()

    def _spawn(self, work: Coroutine[Any, Any, None], name: str) -> None:
        self._tasks.append(asyncio.create_task(work, name=name))

    async def _stop_tasks(self) -> None:
        await self.stop_control_plane()
        await _cancelled(self._tasks)
        self._tasks.clear()


async def _cancelled(tasks: list[asyncio.Task[None]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
