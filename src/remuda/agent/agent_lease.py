"""The agent's own lease: that it is there, apart from whether it has anything to say (`core.health.agent_liveness`).

Renewed three times per length, or per `pace_s` where the node fences sooner than its lease asks for. An API that does not answer
is asked again soon; who reads the lease draws the conclusion, and the agent its own (`agent_fence`). Only an agent that can die
without its node needs one. It is also how a manager learns that the node has an agent, and makes its NodeDevices; so an agent
whose silence means nothing (`lease_s` 0) has one as well, without a time in it.

With `standing` each try is told to it, and carries what it notes for the manager (`core.health.peer_vouching`); a peer that asks
makes the next try come at once, now and then.

Renewals are guarded by the version of the lease: one that was given up here and lands after a newer one would put old notes back,
and the manager could hand on a node that runs by its peers' word. The same holds for an agent that a newer one has replaced
(`is_ours`): it looks once more between the version and the write, and renews no more.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections.abc import Callable, Mapping

import structlog

from remuda.api.errors import AlreadyExists, Conflict, NotFound
from remuda.api.kubernetes.core_v1 import NODE_LEASE_NAMESPACE, Lease
from remuda.api.meta import JsonObject, to_time
from remuda.core.health.agent_liveness import REPORT_TIMEOUT_S, liveness_lease_name
from remuda.core.health.peer_vouching import ANNOTATION_PEERS, ANNOTATION_SAID_CUT, TRY_SHARE, PeerStanding
from remuda.kube.cluster import Cluster
from remuda.kube.runtime.leader import lease_micro_time, suspend_aware_lease_clock_s

log = structlog.get_logger(__name__)

LOOKS = 3  # at the lease within one renewal: it may be written between the look and the write

# Of an agent without peers: what one before it noted is void.
NO_NOTES: Mapping[str, str | None] = {ANNOTATION_PEERS: None, ANNOTATION_SAID_CUT: None}


class LeaseOfNewerAgent(Exception):
    """Another agent of the node renews it now."""


class AgentLease:
    def __init__(
        self,
        cluster: Cluster,
        node: str,
        clock: Callable[[], float],
        *,
        lease_s: float = REPORT_TIMEOUT_S,
        pace_s: float = 0.0,
        elapsed: Callable[[], float] = suspend_aware_lease_clock_s,
        renewed: Callable[[float], None] = lambda sent_at: None,
        not_renewed: Callable[[], None] = lambda: None,
        standing: PeerStanding | None = None,
        is_ours: Callable[[], bool] = lambda: True,
    ) -> None:
        """`renewed` is told when a renewal that got through was sent, by `elapsed`; `not_renewed`, that one did not.
        `pace_s` 0: as the lease says. `is_ours`: no newer agent of the node has begun."""
        self._is_ours = is_ours
        self._pace_s = pace_s or lease_s or REPORT_TIMEOUT_S
        self._not_renewed = not_renewed
        self._standing = standing
        self._hurry, self._ended = asyncio.Event(), asyncio.Event()
        self._elapsed = elapsed
        self._renewed = renewed
        self._cluster = cluster
        self._node = node
        self._clock = clock
        self._lease_s = lease_s
        self._version = ""  # of the lease, as last seen here

    async def run(self) -> None:
        """Until cancelled, or until a newer agent of the node renews it."""
        length_s = self._pace_s
        while True:
            sent_at, pause_s = self._elapsed(), length_s / 3
            got_through = False
            notes = self._standing.begin_try(sent_at) if self._standing is not None else NO_NOTES
            try:
                async with asyncio.timeout(length_s * TRY_SHARE):
                    await self.renew(notes)
                got_through = True
            except LeaseOfNewerAgent:
                return
            except Exception as error:  # whatever the transport raises: the next turn tries again
                log.warning("agent.lease_not_renewed", node=self._node, error=str(error) or type(error).__name__)
                pause_s = length_s / 12
                self._not_renewed()
            finally:
                if self._standing is not None:
                    self._standing.end_try(got_through=got_through)
            if got_through:
                self._renewed(sent_at)
            self._ended.set()
            self._ended = asyncio.Event()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(pause_s):
                    await self._hurry.wait()
            self._hurry.clear()

    async def try_for_peer(self, wait_s: float) -> None:
        """A peer asks: try now if there was no try just before, and wait that long for how it ends."""
        if self._standing is None:
            return
        if is_due := self._standing.is_try_due(self._elapsed()):
            self._hurry.set()
        if is_due or self._standing.is_trying:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(wait_s):
                    await self._ended.wait()

    async def renew(self, notes: Mapping[str, str | None] = NO_NOTES) -> None:
        # As text: a real API server refuses lease times without exactly six digits of microseconds.
        name, now = liveness_lease_name(self._node), lease_micro_time(to_time(self._clock()))
        length = max(1, math.ceil(self._lease_s))
        spec: JsonObject = {"holderIdentity": self._node, "leaseDurationSeconds": length, "renewTime": now}
        if not self._lease_s:
            spec |= {"leaseDurationSeconds": None, "renewTime": None}
        change: JsonObject = {"metadata": {"annotations": dict(notes)}, "spec": spec}
        try:
            await self._patch(name, change)
        except NotFound:
            noted = {key: value for key, value in notes.items() if value is not None}
            meta: JsonObject = {"name": name, "namespace": NODE_LEASE_NAMESPACE, "annotations": noted}
            self._check_ours()
            try:
                said = {field: value for field, value in spec.items() if value is not None}
                made = await self._cluster.create(Lease, {"metadata": meta, "spec": {**said, "acquireTime": now}})
                self._version = made.metadata.resource_version
            except AlreadyExists:  # an agent that is being replaced was a moment faster
                await self._patch(name, change)

    async def _patch(self, name: str, change: JsonObject) -> None:
        for look in range(LOOKS):
            try:
                if not self._version:
                    found = await self._cluster.get(Lease, name, NODE_LEASE_NAMESPACE)
                    self._version = found.metadata.resource_version
                self._check_ours()  # whatever a newer agent writes has a later version than the one that is known here
                guarded: JsonObject = {**change, "metadata": {**change["metadata"], "resourceVersion": self._version}}
                written = await self._cluster.patch(Lease, name, guarded, NODE_LEASE_NAMESPACE)
                self._version = written.metadata.resource_version
                return
            except NotFound:
                self._version = ""
                raise
            except Conflict:
                self._version = ""
                if look == LOOKS - 1:
                    raise

    def _check_ours(self) -> None:
        if not self._is_ours():
            raise LeaseOfNewerAgent
