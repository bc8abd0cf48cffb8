"""The agent's lease: made once, renewed in time, and never the end of the agent."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from remuda.agent.agent_lease import AgentLease
from remuda.api.errors import Conflict
from remuda.api.kubernetes.core_v1 import NODE_LEASE_NAMESPACE, Lease, Namespace
from remuda.api.meta import to_seconds
from remuda.core.health.agent_liveness import agent_silent_since
from remuda.core.health.peer_vouching import ANNOTATION_PEERS, REACHES, PeerList, PeerStanding, read_vouching_peers
from remuda.embedded.apiserver.local_cluster import LocalCluster
from remuda.embedded.apiserver.store import MemoryJournal, ObjectStore
from remuda.sim.virtual_time_loop import VirtualLoop, run_virtual
from tests.builders.nodes import Outage

LEASE = "node-01.remuda-agent"


def test_it_is_renewed_and_an_api_that_is_away_is_asked_again() -> None:
    loop = VirtualLoop()

    async def main() -> None:
        cluster = LocalCluster(ObjectStore(MemoryJournal()), clock=loop.clock, new_uid=lambda: "uid")
        await cluster.create(Namespace, {"metadata": {"name": NODE_LEASE_NAMESPACE}})
        reach = Outage(cluster)
        task = asyncio.create_task(AgentLease(reach, "node-01", loop.clock, lease_s=30.0).run())

        async def age() -> float:
            lease = await cluster.get(Lease, LEASE, NODE_LEASE_NAMESPACE)
            assert lease.spec.renew_time is not None
            return loop.clock() - to_seconds(lease.spec.renew_time)

        await asyncio.sleep(1.0)
        lease = await cluster.get(Lease, LEASE, NODE_LEASE_NAMESPACE)
        assert (lease.spec.holder_identity, lease.spec.lease_duration_seconds) == ("node-01", 30)
        for _ in range(20):
            await asyncio.sleep(7.0)
            assert await age() <= 10.0
        reach.is_down = True
        await asyncio.sleep(60.0)
        assert agent_silent_since(await cluster.get(Lease, LEASE, NODE_LEASE_NAMESPACE), loop.clock()) is not None
        reach.is_down = False
        await asyncio.sleep(11.0)
        assert agent_silent_since(await cluster.get(Lease, LEASE, NODE_LEASE_NAMESPACE), loop.clock()) is None
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    run_virtual(main(), loop)


class SlowWrites:
    """A cluster that answers no patch while `holds`, and keeps what it was sent for later."""

    def __init__(self, inner: LocalCluster) -> None:
        self._inner = inner
        self.holds = False
        self.held: list[tuple[Any, ...]] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    async def patch(self, *args: Any) -> Any:
        if self.holds:
            self.held.append(args)
            await asyncio.Event().wait()
        return await self._inner.patch(*args)


def test_a_renewal_that_was_given_up_and_lands_late_changes_nothing() -> None:
    loop = VirtualLoop()

    async def main() -> None:
        cluster = LocalCluster(ObjectStore(MemoryJournal()), clock=loop.clock, new_uid=lambda: "uid")
        await cluster.create(Namespace, {"metadata": {"name": NODE_LEASE_NAMESPACE}})
        slow, standing = SlowWrites(cluster), PeerStanding(30.0, loop.time())
        lease = AgentLease(slow, "node-01", loop.clock, lease_s=30.0, elapsed=loop.time, standing=standing)  # type: ignore[arg-type]
        task = asyncio.create_task(lease.run())
        await asyncio.sleep(1.0)
        standing.want_list(PeerList(("a", "b", "c"), 600.0))
        slow.holds = True
        await asyncio.sleep(20.0)
        slow.holds = False
        await asyncio.sleep(20.0)
        standing.want_list(PeerList(("d", "e"), 600.0))
        await asyncio.sleep(20.0)
        assert slow.held, "some were given up"
        for late in slow.held:
            with pytest.raises(Conflict):
                await cluster.patch(*late)
        noted = (await cluster.get(Lease, LEASE, NODE_LEASE_NAMESPACE)).metadata.annotations
        assert read_vouching_peers(noted[ANNOTATION_PEERS]).nodes == ("d", "e")
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    run_virtual(main(), loop)


class CountedWrites:
    """A cluster that counts patches."""

    def __init__(self, inner: LocalCluster) -> None:
        self._inner = inner
        self.patches = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    async def patch(self, *args: Any) -> Any:
        self.patches += 1
        return await self._inner.patch(*args)


def test_peers_that_ask_all_the_time_make_a_little_more_than_twice_the_renewals() -> None:
    loop = VirtualLoop()

    async def main() -> None:
        cluster = LocalCluster(ObjectStore(MemoryJournal()), clock=loop.clock, new_uid=lambda: "uid")
        await cluster.create(Namespace, {"metadata": {"name": NODE_LEASE_NAMESPACE}})
        counted, standing = CountedWrites(cluster), PeerStanding(30.0, loop.time())
        lease = AgentLease(counted, "node-01", loop.clock, lease_s=30.0, elapsed=loop.time, standing=standing)  # type: ignore[arg-type]
        task = asyncio.create_task(lease.run())
        await asyncio.sleep(1.0)
        words = set[str]()
        for _ in range(600):
            await lease.try_for_peer(0.4)
            words.add(standing.say(loop.time(), is_fenced=False))
            await asyncio.sleep(0.5)
        assert words == {REACHES}, "it can be reached, and every answer says so"
        assert counted.patches <= 300.0 / 30.0 * 7 + 1
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    run_virtual(main(), loop)


class Meddled:
    """A cluster in which something happens just before, or after, a lease is read."""

    def __init__(self, inner: LocalCluster, happens: Callable[[], Awaitable[None]], *, before: bool) -> None:
        self._inner, self._happens, self._before = inner, happens, before

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    async def get(self, *args: Any) -> Any:
        if self._before:
            await self._happens()
        found = await self._inner.get(*args)
        if not self._before:
            await self._happens()
        return found


@pytest.mark.parametrize("before", [True, False])
@pytest.mark.parametrize("has_peers", [True, False])
def test_an_agent_that_was_replaced_puts_none_of_its_notes_back(has_peers: bool, before: bool) -> None:
    """Whenever it is replaced: here about when it looks at the lease, to write it then."""
    loop = VirtualLoop()

    async def main() -> None:
        cluster = LocalCluster(ObjectStore(MemoryJournal()), clock=loop.clock, new_uid=lambda: "uid")
        await cluster.create(Namespace, {"metadata": {"name": NODE_LEASE_NAMESPACE}})
        newer = PeerStanding(30.0, loop.time())
        newer.want_list(PeerList(("d", "e"), 600.0))
        second = AgentLease(cluster, "node-01", loop.clock, elapsed=loop.time, standing=newer)
        is_replaced, tasks = False, list[asyncio.Task[None]]()

        async def replace() -> None:
            nonlocal is_replaced
            if not is_replaced:
                is_replaced = True
                tasks.append(asyncio.create_task(second.run()))
                await asyncio.sleep(1.0)

        older = PeerStanding(30.0, loop.time()) if has_peers else None
        if older is not None:
            older.want_list(PeerList(("a", "b"), 600.0))
        await AgentLease(cluster, "node-01", loop.clock).renew()
        api: Any = Meddled(cluster, replace, before=before)
        first = AgentLease(
            api, "node-01", loop.clock, elapsed=loop.time, standing=older, is_ours=lambda: not is_replaced
        )
        tasks.append(asyncio.create_task(first.run()))
        for _ in range(60):
            await asyncio.sleep(1.0)
            noted = (await cluster.get(Lease, LEASE, NODE_LEASE_NAMESPACE)).metadata.annotations
            assert read_vouching_peers(noted[ANNOTATION_PEERS]).nodes == ("d", "e")
        assert tasks[0].done(), "it renews no more"
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    run_virtual(main(), loop)


def test_a_lease_that_others_write_or_remove_is_renewed_all_the_same() -> None:
    loop = VirtualLoop()

    async def main() -> None:
        cluster = LocalCluster(ObjectStore(MemoryJournal()), clock=loop.clock, new_uid=lambda: "uid")
        await cluster.create(Namespace, {"metadata": {"name": NODE_LEASE_NAMESPACE}})
        lease = AgentLease(cluster, "node-01", loop.clock, standing=PeerStanding(30.0, loop.time()))
        await lease.renew()
        await cluster.patch(Lease, LEASE, {"metadata": {"labels": {"a": "b"}}}, NODE_LEASE_NAMESPACE)
        await asyncio.sleep(5.0)
        await lease.renew()
        assert agent_silent_since(await cluster.get(Lease, LEASE, NODE_LEASE_NAMESPACE), loop.clock()) is None
        await cluster.delete(Lease, LEASE, NODE_LEASE_NAMESPACE)
        await lease.renew()
        assert (await cluster.get(Lease, LEASE, NODE_LEASE_NAMESPACE)).spec.holder_identity == "node-01"

    run_virtual(main(), loop)
