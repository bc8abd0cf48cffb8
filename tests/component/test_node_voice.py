"""What speaks for a node, whole, in virtual time: with every length of lease and fence that can be asked for."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from remuda.agent.hardware.fake_backend import FakeBackend
from remuda.api.errors import Unavailable
from remuda.api.kubernetes.core_v1 import NODE_LEASE_NAMESPACE, Lease, Namespace
from remuda.core.devices.machine_models import load_built_in_machine_model
from remuda.embedded.apiserver.local_cluster import LocalCluster
from remuda.embedded.apiserver.store import MemoryJournal, ObjectStore
from remuda.runtime.agent_post import AgentPost
from remuda.runtime.link_endpoint import RelayBoard
from remuda.runtime.node_agent import AgentProcessConfig
from remuda.runtime.node_voice import NodeVoice
from remuda.runtime.peer_endpoint import PeerConfig
from remuda.sim.virtual_time_loop import VirtualLoop, run_virtual

NODE, LEASE = "worker-1", "worker-1.remuda-agent"


class Ranks:
    """The node's ranks, as the fence has them."""

    def __init__(self, loop: VirtualLoop) -> None:
        self._loop = loop
        self.stopped_at: float | None = None

    def fence(self) -> None:
        self.stopped_at = self._loop.time()

    def unfence(self) -> None: ...

    def vouch(self, seconds: float) -> None: ...


class Api:
    """Refuses every n-th write, or all."""

    def __init__(self, inner: LocalCluster) -> None:
        self._inner = inner
        self.writes = 0
        self.refuses_each = 0
        self.is_away = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    async def patch(self, *args: Any, **options: Any) -> Any:
        self.writes += 1
        if self.is_away or (self.refuses_each and self.writes % self.refuses_each == 0):
            raise Unavailable("not now")
        return await self._inner.patch(*args, **options)

    async def get(self, *args: Any, **options: Any) -> Any:
        if self.is_away:
            raise Unavailable("not now")
        return await self._inner.get(*args, **options)


class Voice:
    def __init__(self, state: Path, lease_s: float, fence_s: float, peers: PeerConfig) -> None:
        self.loop = VirtualLoop()
        self.ranks = Ranks(self.loop)
        self._state = state
        self.config = AgentProcessConfig(
            NODE, report_timeouts={"": lease_s}, fence_s=fence_s, link_token=str(state / "none"), peers=peers
        ).voice

    @contextlib.asynccontextmanager
    async def speaking(self) -> AsyncIterator[Api]:
        """The manager is away: there is no stream."""
        cluster = LocalCluster(ObjectStore(MemoryJournal()), clock=self.loop.clock, new_uid=lambda: "uid")
        await cluster.create(Namespace, {"metadata": {"name": NODE_LEASE_NAMESPACE}})
        api: Any = Api(cluster)
        agent: Any = self.ranks
        post = AgentPost(self._state)
        post.take()
        voice = NodeVoice(self.config, api, agent, post, clock=self.loop.clock, elapsed=self.loop.time)
        backend = FakeBackend(load_built_in_machine_model("dgx-h100"), NODE, self.loop.clock)
        self._running = asyncio.create_task(voice.run(RelayBoard(), backend))
        tasks = self._running, asyncio.create_task(post.watch())
        yield api
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def is_over(self) -> bool:
        return self._running.done()


PEERS = [PeerConfig(), PeerConfig("10.0.0.1")]
LENGTHS = [
    (30.0, 25.0),
    (60.0, 25.0),
    (76.0, 25.0),
    (90.0, 25.0),
    (86_400.0, 25.0),
    (30.0, 5.0),
    (600.0, 400.0),
    (0.0, 2.0),
]


@pytest.mark.parametrize("peers", PEERS, ids=["alone", "peers"])
@pytest.mark.parametrize(("lease_s", "fence_s"), LENGTHS)
def test_while_the_manager_is_away_and_renewals_get_through_no_rank_is_stopped(
    tmp_path: Path, lease_s: float, fence_s: float, peers: PeerConfig
) -> None:
    voice = Voice(tmp_path, lease_s, fence_s, peers)

    async def story() -> None:
        async with voice.speaking() as api:
            api.refuses_each = 3
            await asyncio.sleep(20 * fence_s)
            assert voice.ranks.stopped_at is None
            assert api.writes <= 20 * fence_s / (voice.config.pace_s / 6) + 3, "no more than it takes"

    run_virtual(story(), voice.loop)


@pytest.mark.parametrize("peers", PEERS, ids=["alone", "peers"])
@pytest.mark.parametrize(("lease_s", "fence_s"), [*LENGTHS[:-1], (86_400.0, 86_400.0), (7200.0, 86_400.0)])
def test_without_the_api_it_stops_its_ranks_in_time_and_before_they_are_handed_on(
    tmp_path: Path, lease_s: float, fence_s: float, peers: PeerConfig
) -> None:
    voice = Voice(tmp_path, lease_s, fence_s, peers)

    async def story() -> None:
        async with voice.speaking() as api:
            await asyncio.sleep(100.0)
            written = (await api.get(Lease, LEASE, NODE_LEASE_NAMESPACE)).spec.lease_duration_seconds
            assert written == lease_s
            api.is_away = True
            since = voice.loop.time()
            await asyncio.sleep(2 * voice.config.fences_after_s)
            stopped = voice.ranks.stopped_at
            assert stopped is not None
            assert stopped <= since + voice.config.fences_after_s + 1.0
            assert stopped - since < min(lease_s, 3600.0)  # as `ClusterView` counts

    run_virtual(story(), voice.loop)


def test_all_that_speaks_for_the_node_ends_when_a_newer_agent_has_taken_over(tmp_path: Path) -> None:
    """Two streams of one node would end each other, again and again; and each would tell the manager where it listens."""
    voice = Voice(tmp_path, 30.0, 25.0, PeerConfig())

    async def story() -> None:
        async with voice.speaking() as api:
            await asyncio.sleep(60.0)
            assert not voice.is_over()
            AgentPost(tmp_path).take()
            await asyncio.sleep(1.0)
            assert voice.is_over()
            writes = api.writes
            await asyncio.sleep(120.0)
            assert api.writes == writes
            assert voice.ranks.stopped_at is None, "they are not its own any more"

    run_virtual(story(), voice.loop)
