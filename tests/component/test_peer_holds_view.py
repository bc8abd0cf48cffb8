"""The manager's view of nodes with peers: who may run on by its peers' word is not dead, who cannot is, a little later."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from remuda.agent.agent_lease import AgentLease
from remuda.api.errors import ApiError
from remuda.api.kubernetes.core_v1 import NODE_LEASE_NAMESPACE, Lease, Node
from remuda.api.meta import JsonObject, to_time
from remuda.controllers.cluster_view import ClusterView
from remuda.core.health.fence_bounds import FenceCountdown, fence_after_s
from remuda.core.health.peer_vouching import CUT, PeerList, PeerStanding
from remuda.embedded.apiserver.local_cluster import LocalCluster
from remuda.embedded.apiserver.store import MemoryJournal, ObjectStore
from remuda.kube.cluster import Cluster
from remuda.kube.runtime.leader import lease_micro_time
from remuda.sim.virtual_time_loop import VirtualLoop, run_virtual

LEASE_S = 30.0
NAMES = ("n0", "n1", "n2", "n3", "n4")


class Way:
    """One node's way to the API."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster, self.is_cut = cluster, False

    async def patch(self, kind: type[Lease], name: str, change: JsonObject, namespace: str) -> Lease:
        if self.is_cut:
            raise OSError("cut off")
        return await self.cluster.patch(kind, name, change, namespace)

    async def get(self, kind: type[Lease], name: str, namespace: str) -> Lease:
        if self.is_cut:
            raise OSError("cut off")
        return await self.cluster.get(kind, name, namespace)

    async def create(self, kind: type[Lease], body: JsonObject) -> Lease:
        return await self.cluster.create(kind, body)


class Stage:
    def __init__(self) -> None:
        self.loop = VirtualLoop()
        store, self._made = ObjectStore(MemoryJournal()), 0
        self.cluster = LocalCluster(store, clock=self.loop.clock, new_uid=self._uid)
        self.view = ClusterView(self.cluster, jitter=lambda: 0.0, clock=self.loop.clock)
        self.ways = {name: Way(self.cluster) for name in NAMES}
        self.standings: dict[str, PeerStanding] = {}
        self.dead_at: float | None = None

    def _uid(self) -> str:
        self._made += 1
        return f"uid-{self._made}"

    def play(self, story: Callable[[], Awaitable[None]]) -> None:
        async def main() -> None:
            for name in NAMES:
                await self.cluster.create(Node, {"metadata": {"name": name}})
                meta = {"name": name, "namespace": NODE_LEASE_NAMESPACE}
                await self.cluster.create(Lease, {"metadata": meta, "spec": {"leaseDurationSeconds": int(LEASE_S)}})
            tasks = [asyncio.create_task(informer.run()) for informer in (self.view.nodes, self.view.leases)]
            await self.view.nodes.synced()
            await self.view.leases.synced()
            for number, name in enumerate(NAMES):
                standing = self.standings[name] = PeerStanding(LEASE_S, self.loop.time())
                standing.want_list(PeerList(tuple(n for n in NAMES if n != name), 3600.0))
                tasks.append(asyncio.create_task(self._renew(name, standing, 1.7 * number)))
            tasks.append(asyncio.create_task(self._watch()))
            await asyncio.sleep(120.0)
            await story()
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

        run_virtual(main(), self.loop)

    async def _renew(self, name: str, standing: PeerStanding, phase: float) -> None:
        await asyncio.sleep(phase)
        way = self.ways[name]
        lease = AgentLease(way, name, self.loop.clock, elapsed=self.loop.time, standing=standing)  # type: ignore[arg-type]
        async with asyncio.TaskGroup() as group:
            group.create_task(lease.run())
            group.create_task(self._renew_as_kubelet(name, way))

    async def _renew_as_kubelet(self, name: str, way: Way) -> None:
        while True:
            try:
                renewed = {"renewTime": lease_micro_time(to_time(self.loop.clock()))}
                await way.patch(Lease, name, {"spec": renewed}, NODE_LEASE_NAMESPACE)
            except (OSError, ApiError):
                pass
            await asyncio.sleep(LEASE_S / 3)

    async def _watch(self) -> None:
        while True:
            if self.dead_at is None and self.view.is_dead("n0", self.loop.clock()):
                self.dead_at = self.loop.time()
            await asyncio.sleep(0.5)

    def cut(self, *names: str, is_cut: bool = True) -> None:
        for name in names:
            self.ways[name].is_cut = is_cut


def run_until_peers_came_back(stage: Stage) -> float:
    """All are cut; n0 is vouched for at the last moment before the others are back. When n0 has stopped by itself."""
    stops = FenceCountdown()

    async def story() -> None:
        stage.cut(*NAMES)
        await asyncio.sleep(16.0)
        asked = stage.loop.time()
        answers = {n: stage.standings[n].say(asked, is_fenced=False) for n in NAMES[1:]}
        assert set(answers.values()) == {CUT}
        stops.vouched(asked, min(fence_after_s(LEASE_S), stage.standings["n0"].vouched_s(asked, answers, asked)))
        stage.cut(*NAMES[1:], is_cut=False)
        await asyncio.sleep(90.0)

    stage.play(story)
    return stops.runs_until


def test_a_node_that_runs_by_the_word_of_peers_that_came_back_is_not_dead_before_it_has_stopped() -> None:
    stage = Stage()
    stopped_at = run_until_peers_came_back(stage)
    assert stage.dead_at is not None
    assert stopped_at < stage.dead_at < stopped_at + 15.0


def test_without_the_hold_it_is_dead_while_it_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    stage = Stage()
    monkeypatch.setattr(stage.view._peer_holds, "look", lambda now, promised: frozenset())
    stopped_at = run_until_peers_came_back(stage)
    assert stage.dead_at is not None
    assert stage.dead_at < stopped_at


def test_a_node_that_is_lost_alone_is_dead_a_sixth_of_the_lease_later_at_most() -> None:
    stage = Stage()
    since = 0.0

    async def story() -> None:
        nonlocal since
        since = stage.loop.time()
        stage.cut("n0")
        await asyncio.sleep(60.0)

    stage.play(story)
    assert stage.dead_at is not None
    assert since + LEASE_S * 2 / 3 <= stage.dead_at <= since + LEASE_S * 7 / 6 + 3.0


def test_who_is_given_up_by_an_operator_is_dead_at_once() -> None:
    stage = Stage()

    async def story() -> None:
        stage.cut(*NAMES)
        await asyncio.sleep(120.0)
        assert stage.dead_at is None
        said = {"remuda.dev/given-up": to_time(stage.loop.clock()).isoformat()}
        await stage.cluster.patch(Node, "n0", {"metadata": {"annotations": said}})
        await asyncio.sleep(2.0)

    stage.play(story)
    assert stage.dead_at is not None


def test_only_nodes_with_an_agent_are_peers() -> None:
    stage = Stage()

    async def story() -> None:
        await stage.cluster.create(Node, {"metadata": {"name": "bare"}})
        await asyncio.sleep(1.0)
        assert sorted(stage.view.labels_of_agents()) == list(NAMES)
        assert stage.view.peers_speak_for_s("n0") == 86_400.0
        assert stage.view.peers_speak_for_s("bare") == 0.0

    stage.play(story)
