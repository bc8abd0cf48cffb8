"""Agents that vouch for each other over real TLS on loopback, with a clock that the test turns: leases, fences, doors and the
manager's book are the real ones; only the API is a stand-in that takes renewals or does not."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, cast

import pytest
import pytest_asyncio

from remuda.agent.agent_fence import AgentFence
from remuda.agent.agent_lease import AgentLease
from remuda.api.kubernetes.core_v1 import Lease, LeaseSpec
from remuda.api.meta import JsonObject, ObjectMeta, to_time
from remuda.core.health.agent_liveness import liveness_lease_name
from remuda.core.health.peer_holds import PeerHolds
from remuda.core.health.peer_vouching import CUT, PeerPlace, PeerStanding
from remuda.kube.cluster import Cluster
from remuda.link.peer_certificates import PeerAuthority, PeerKey
from remuda.link.peer_door import MAX_OPEN_FROM_ONE, QUESTION, PeerDoor, ask_peers
from remuda.link.peer_registry import PeerRegistry
from remuda.link.stream_messages import LinkAskPeers
from remuda.runtime.peer_endpoint import PeerEndpoint
from tests.builders.waiting import PATIENCE_S

LEASE_S, FENCE_S, STEP_S = 30.0, 20.0, 2.5
BEGIN = 1_800_000_000.0


class Renewals:
    """The API, as far as one agent's lease needs it."""

    def __init__(self, zone: Zone) -> None:
        self.is_away = False
        self._zone = zone

    async def patch(self, kind: type[Lease], name: str, change: JsonObject, namespace: str) -> None:
        if self.is_away:
            raise OSError("the API is away")
        noted = {key: value for key, value in change["metadata"]["annotations"].items() if value is not None}
        spec = LeaseSpec(lease_duration_seconds=int(LEASE_S), renew_time=to_time(self._zone.clock()))
        lease = Lease(metadata=ObjectMeta(name=name, annotations=noted), spec=spec)
        self._zone.holds.see(lease, self._zone.clock())


class Agent:
    def __init__(self, zone: Zone, name: str) -> None:
        self.name, self.zone, self.api = name, zone, Renewals(zone)
        self.fenced_at: float | None = None
        self.fence = AgentFence(self._stop, lambda: None, FENCE_S, zone.elapsed)
        self.standing = PeerStanding(LEASE_S, zone.elapsed())
        self.lease = AgentLease(
            cast(Cluster, self.api),
            name,
            zone.clock,
            lease_s=LEASE_S,
            elapsed=zone.elapsed,
            renewed=self.fence.renewed,
            standing=self.standing,
        )
        self.peers = PeerEndpoint(self.standing, self.lease, self.fence, zone.elapsed)
        self.peers._round_s = 2.0  # this machine may be busy; the clock that counts stands still meanwhile
        self.fence.vouchers.append(self._vouch)
        self.port = 0

    async def _vouch(self) -> float:
        return await self.peers.vouch()

    def _stop(self) -> None:
        self.fenced_at = self.zone.elapsed()


class Zone:
    def __init__(self) -> None:
        self.now = 0.0
        self.agents: dict[str, Agent] = {}
        self.holds = PeerHolds()
        self._ended = False
        labels = {f"n{i}": {"topology.remuda.dev/rack": f"r{i % 2}"} for i in range(9)}
        self.registry = PeerRegistry(lambda: labels, lambda node: 86_400.0, self.clock)
        self._running: list[asyncio.Task[None]] = []

    def elapsed(self) -> float:
        return self.now

    def clock(self) -> float:
        return BEGIN + self.now

    async def begin(self, count: int) -> list[Agent]:
        for i in range(count):
            agent = self.agents[f"n{i}"] = Agent(self, f"n{i}")
            agent.port = await agent.peers.door.start("127.0.0.1", 0)
            self._running.append(asyncio.create_task(agent.lease.run()))
        await self.introduce()
        await self.introduce()
        await self.pass_time(15.0)
        return list(self.agents.values())

    async def introduce(self) -> None:
        for agent in self.agents.values():
            asked = LinkAskPeers(1, agent.peers.csr, "127.0.0.1", agent.port)
            self.registry.introduce(agent.name, asked)
        self.now += 6.0
        for agent in self.agents.values():
            agent.peers.take(self.registry.introduce(agent.name, LinkAskPeers(1, agent.peers.csr, "127.0.0.1", agent.port)))

    async def pass_time(self, seconds: float) -> None:
        end = self.now + seconds
        while self.now < end:
            self.now += STEP_S
            for agent in self.agents.values():
                await agent.lease.try_for_peer(PATIENCE_S)
            for agent in self.agents.values():
                agent.fence.ask_timeout_s = PATIENCE_S
                await agent.fence.look()

    async def end(self) -> None:
        for task in self._running:
            task.cancel()
        await asyncio.gather(*self._running, return_exceptions=True)
        for agent in self.agents.values():
            agent.peers.door.stop()
