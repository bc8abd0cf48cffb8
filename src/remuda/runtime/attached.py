"""Remuda on a cluster that is there already: control plane and machines over any `Cluster`, with no store of their own.

`async with AttachedCluster(config, cluster, root=...) as attached:` gives running ones. What the API is, and what else works
on it, is the cluster's business: owner garbage collection, node lifecycle and the other controllers that every Kubernetes has
are not started here. The cluster must serve our kinds (deploy/crds) and have the namespace of the node leases; both are looked
for first, so that what is missing is said in one sentence and not by a dozen informers that retry.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType

from remuda.api.core_v1 import NODE_LEASE_NAMESPACE, Namespace
from remuda.api.devices import Drill, NodeDevices
from remuda.api.errors import NotFound, Refusal
from remuda.api.meta import KObject
from remuda.api.training import TrainingJob
from remuda.kube.cluster import Cluster
from remuda.link.progress import ProgressBoard
from remuda.runtime.config import ClusterConfig
from remuda.runtime.controlplane import ControlPlane
from remuda.runtime.machines import Machines

HALT_GRACE_S = 3.0

# On somebody else's cluster pods are ours only when they say so: the rest has a scheduler.
ATTACHED_SCHEDULERS = frozenset({"remuda"})

OWN_KINDS: tuple[type[KObject], ...] = (TrainingJob, NodeDevices, Drill)


class AttachedCluster:
    """`api` stays the caller's: it is not closed here."""

    def __init__(
        self,
        config: ClusterConfig,
        api: Cluster,
        *,
        root: Path,
        clock: Callable[[], float] = time.time,
        chance: random.Random | None = None,
    ) -> None:
        self.config = config
        self.api = api
        self.board = ProgressBoard()
        chance = chance or random.Random()
        self.machines = Machines(config, api, self.board, root=root, clock=clock, chance=chance)
        self.control = ControlPlane(api, self.board, clock, chance=chance, schedulers=ATTACHED_SCHEDULERS)
        self._tasks: list[asyncio.Task[None]] = []

    async def __aenter__(self) -> AttachedCluster:
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
        """Returns when every node is registered and the control plane runs."""
        await check_cluster(self.api)
        ready = asyncio.Event()
        machines = asyncio.create_task(self.machines.run(ready), name="machines")
        self._tasks.append(machines)
        waiting = asyncio.create_task(ready.wait())
        try:
            await asyncio.wait({waiting, machines}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            waiting.cancel()
        if machines.done():
            machines.result()
        self._tasks.append(asyncio.create_task(self.control.run(), name="control-plane"))

    async def wait_failed(self) -> None:
        """Returns never, unless a part fails: then raises what it failed of."""
        done, _ = await asyncio.wait(self._tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()

    async def halt(self) -> None:
        """End everything here, containers included; what the API holds stays."""
        await self._stop_tasks()
        await self.machines.halt(HALT_GRACE_S)

    async def let_go(self) -> None:
        """End this process's part; containers run on."""
        await self._stop_tasks()
        await self.machines.let_go()

    async def _stop_tasks(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._tasks.clear()


async def check_cluster(api: Cluster) -> None:
    """Refusal unless the cluster has what we stand on."""
    for kind in OWN_KINDS:
        try:
            await api.list(kind)
        except NotFound:
            resource = kind.resource
            raise Refusal(
                "KindNotInstalled",
                f"The cluster does not serve {resource.plural}.{resource.group}.",
                "Install our kinds first: kubectl apply -f deploy/crds.",
            ) from None
    try:
        await api.get(Namespace, NODE_LEASE_NAMESPACE)
    except NotFound:
        raise Refusal(
            "NamespaceNotFound",
            f"The cluster has no namespace {NODE_LEASE_NAMESPACE}, where nodes keep their leases.",
            f"Create it: kubectl create namespace {NODE_LEASE_NAMESPACE}.",
        ) from None
