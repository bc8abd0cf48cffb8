"""Leader election on a real kube-apiserver: one leads, the next takes over, a fenced one writes nothing."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from functools import partial
from typing import Any

import pytest
import pytest_asyncio

from remuda.api.errors import Unavailable
from remuda.api.kubernetes.core_v1 import Lease
from remuda.kube.client.http_cluster import HttpCluster
from remuda.kube.client.kubeconfig import load_kubeconfig
from remuda.kube.guarded_cluster import FencedCluster, NotLeading
from remuda.kube.runtime.leader import LeaderTerm, LeaseContender, LeasePlace
from remuda.kube.runtime.leader_lease import LeaseTiming
from tests.builders.waiting import PATIENCE_S
from tests.kube.control_plane import ControlPlane

TIMING = LeaseTiming(lease_s=15, renew_s=10, retry_s=0.2)  # longer than a busy machine holds a process up


class Breakable(HttpCluster):
    is_broken = False

    async def _call(self, *args: Any, **options: Any) -> bytes:
        if self.is_broken:
            raise Unavailable("cut off")
        return await super()._call(*args, **options)


class Stage:
    """Who works now; a start while another works is an error."""

    def __init__(self) -> None:
        self.working: list[str] = []
        self.tokens: list[int] = []
        self.changed = asyncio.Condition()

    async def run(self, name: str, term: LeaderTerm) -> None:
        assert not self.working, f"{name} starts while {self.working} works"
        self.working.append(name)
        self.tokens.append(term.token)
        await self._tell()
        try:
            await asyncio.Event().wait()
        finally:
            self.working.remove(name)
            await self._tell()

    async def _tell(self) -> None:
        async with self.changed:
            self.changed.notify_all()

    async def until(self, *names: str) -> None:
        async with self.changed:
            await self.changed.wait_for(lambda: self.working == list(names))


@pytest_asyncio.fixture
async def clusters(control_plane: ControlPlane) -> AsyncIterator[list[Breakable]]:
    access = load_kubeconfig(control_plane.kubeconfig)
    async with AsyncExitStack() as stack, asyncio.timeout(PATIENCE_S):
        found = [Breakable(access=access) for _ in range(2)]
        for each in found:
            await stack.enter_async_context(each)
        yield found


async def test_one_leads_at_a_time(clusters: list[Breakable]) -> None:
    stage = Stage()
    tasks = []
    for number, cluster in enumerate(clusters):
        name = f"c{number}"
        contender = LeaseContender(cluster, LeasePlace("one-leads", "kube-system", name), TIMING)
        tasks.append(asyncio.create_task(contender.lead(partial(stage.run, name))))
        await stage.until("c0")
    lease = await clusters[0].get(Lease, "one-leads", "kube-system")
    assert lease.spec.holder_identity == "c0"
    assert lease.spec.lease_duration_seconds == TIMING.lease_s

    clusters[0].is_broken = True  # it stops by itself, and only then the other may start
    await stage.until()
    await stage.until("c1")
    clusters[0].is_broken = False

    tasks[1].cancel()  # it gives the lease back
    await asyncio.wait([tasks[1]])
    await stage.until("c0")
    tasks[0].cancel()
    await asyncio.wait([tasks[0]])
    assert (await clusters[0].get(Lease, "one-leads", "kube-system")).spec.holder_identity == ""
    assert stage.tokens == sorted(set(stage.tokens))


async def test_a_term_that_is_over_writes_nothing(clusters: list[Breakable]) -> None:
    frozen_s = 0.0
    loop = asyncio.get_running_loop()
    contender = LeaseContender(
        clusters[0], LeasePlace("fenced", "kube-system", "c0"), TIMING, elapsed=lambda: loop.time() + frozen_s
    )

    async def run(term: LeaderTerm) -> str:
        nonlocal frozen_s
        cluster = FencedCluster(clusters[1], term)
        await cluster.create(Lease, {"metadata": {"name": "written", "namespace": "kube-system"}})
        frozen_s = 60.0
        with pytest.raises(NotLeading):
            await cluster.create(Lease, {"metadata": {"name": "not-written", "namespace": "kube-system"}})
        return "fenced"

    assert await contender.lead(run) == "fenced"
    names = [lease.name for lease in (await clusters[0].list(Lease, "kube-system")).items]
    assert "written" in names
    assert "not-written" not in names
