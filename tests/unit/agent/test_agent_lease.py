"""The agent's lease: made once, renewed in time, and never the end of the agent."""

from __future__ import annotations

import asyncio

from remuda.agent.agent_lease import AgentLease
from remuda.api.kubernetes.core_v1 import NODE_LEASE_NAMESPACE, Lease, Namespace
from remuda.api.meta import to_seconds
from remuda.core.health.agent_liveness import agent_silent_since
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
