"""What speaks for a node: its lease at the API, its stream to the manager, its peers; and its fence, for when none of them does.

Each of the three can vouch for the node, in this order (`agent.agent_fence`). All of it ends when a newer agent of the node
has taken over (`agent_post`): two voices of one node would tell the manager two things.

Renewals follow the fence: a node that fences sooner than two thirds of its lease renews at the pace of the lease that it fences
by. At the pace of a longer one it would fence between two renewals, with an API that takes every one of them.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
from collections.abc import Callable

import msgspec
import structlog

from remuda.agent.agent import Agent
from remuda.agent.agent_fence import AgentFence
from remuda.agent.agent_lease import AgentLease
from remuda.agent.hardware.backend_port import DeviceBackend
from remuda.api.devices import NodeDevices
from remuda.api.errors import NotFound
from remuda.core.health.fence_bounds import bounded_fence_s, fence_bounded_renewal_pace_s
from remuda.core.health.peer_vouching import PeerStanding
from remuda.kube.cluster import Cluster
from remuda.kube.runtime.leader import suspend_aware_lease_clock_s
from remuda.runtime.agent_post import AgentPost
from remuda.runtime.background_tasks import run_beside
from remuda.runtime.link_endpoint import RelayBoard, has_link_endpoint_token, link_dialled
from remuda.runtime.peer_endpoint import PeerConfig, PeerEndpoint, serve_peer_endpoint

log = structlog.get_logger(__name__)

ASK_API_S = 3.0


class NodeVoiceConfig(msgspec.Struct, frozen=True):
    """`lease_s` 0: the agent's silence means nothing. `fence_s`: as asked for; 0: it never fences. `link_token`: no such file: no
    stream, everything goes through the API."""

    node: str
    lease_s: float
    fence_s: float
    link_namespace: str
    link_token: str
    peers: PeerConfig

    @property
    def fences_after_s(self) -> float:
        return bounded_fence_s(self.fence_s, self.lease_s)

    @property
    def pace_s(self) -> float:
        return fence_bounded_renewal_pace_s(self.fence_s, self.lease_s)

    @property
    def has_peers(self) -> bool:
        return self.peers.is_on and self.fence_s > 0 and self.lease_s > 0


class NodeVoice:
    def __init__(
        self,
        config: NodeVoiceConfig,
        cluster: Cluster,
        agent: Agent,
        post: AgentPost,
        *,
        clock: Callable[[], float] = time.time,
        elapsed: Callable[[], float] = suspend_aware_lease_clock_s,
    ) -> None:
        """`post` has been taken before: whatever an older agent said to peers is then over, and counts as said by this one."""
        self._config = config
        self._cluster = cluster
        self._post = post
        self._elapsed = elapsed
        self.met: list[Callable[[PeerEndpoint], None]] = []  # called with where the peers will meet
        self.fence = AgentFence(agent.fence, agent.unfence, config.fences_after_s, elapsed, tell=agent.vouch)
        self._standing = PeerStanding(config.pace_s, elapsed()) if config.has_peers else None
        self.lease = AgentLease(
            cluster,
            config.node,
            clock,
            lease_s=config.lease_s,
            pace_s=config.pace_s,
            elapsed=elapsed,
            renewed=self.fence.renewed,
            not_renewed=self.fence.not_renewed if config.fence_s > 0 else lambda: None,
            standing=self._standing,
            is_ours=lambda: post.is_ours,
        )

    async def run(self, board: RelayBoard, backend: DeviceBackend) -> None:
        """Until cancelled, or until a newer agent has taken over."""
        config = self._config
        async with contextlib.AsyncExitStack() as stack:
            await stack.enter_async_context(run_beside(self.lease.run(), "lease"))
            if config.fence_s > 0:
                if config.lease_s <= 0:
                    await stack.enter_async_context(run_beside(self._ask_api(), "reach"))
                await stack.enter_async_context(run_beside(self.fence.run(), "fence"))
            if has_link_endpoint_token(config.link_token):
                dialled = link_dialled(
                    config.node,
                    self._cluster,
                    namespace=config.link_namespace,
                    token_file=config.link_token,
                    board=board,
                    subscribe=backend.subscribe,
                )
                client = await stack.enter_async_context(dialled)
                self.fence.vouchers.append(client.ask_promise)
                if self._standing is not None:
                    endpoint = PeerEndpoint(
                        self._standing,
                        self.lease,
                        self.fence,
                        self._elapsed,
                        is_ours=lambda: self._post.is_ours,
                        jitter=random.random,
                    )
                    for meet in self.met:
                        meet(endpoint)
                    joining = serve_peer_endpoint(endpoint, self.fence, client, config.peers)
                    await stack.enter_async_context(run_beside(joining, "peers"))
            else:
                log.info("link.none", token=config.link_token)
            await self._post.taken.wait()

    async def _ask_api(self) -> None:
        """For an agent whose lease has no time in it: any answer of the API stands for a renewal."""
        pause_s = min(ASK_API_S, self._config.fences_after_s / 4)
        while True:
            asked = self._elapsed()
            try:
                async with asyncio.timeout(pause_s):
                    await self._cluster.get(NodeDevices, self._config.node)
                self.fence.renewed(asked)
            except NotFound:
                self.fence.renewed(asked)  # an answer all the same
            except Exception as error:
                log.debug("agent.unreachable", error=str(error))
            await asyncio.sleep(pause_s)
