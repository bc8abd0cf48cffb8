"""The agent's own lease: that it is there, apart from whether it has anything to say (`core.health.agent_liveness`).

Renewed three times per length. An API that does not answer is asked again soon; who reads the lease draws the conclusion, and
the agent its own (`agent_fence`). Only an agent that can die without its node needs one. It is also how a manager learns that the
node has an agent, and makes its NodeDevices; so an agent whose silence means nothing (`lease_s` 0) has one as well, without a
time in it.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable

import structlog

from remuda.api.errors import AlreadyExists, NotFound
from remuda.api.kubernetes.core_v1 import NODE_LEASE_NAMESPACE, Lease
from remuda.api.meta import JsonObject, to_time
from remuda.core.health.agent_liveness import REPORT_TIMEOUT_S, liveness_lease_name
from remuda.kube.cluster import Cluster
from remuda.kube.runtime.leader import lease_micro_time, suspend_aware_lease_clock_s

log = structlog.get_logger(__name__)


class AgentLease:
    def __init__(
        self,
        cluster: Cluster,
        node: str,
        clock: Callable[[], float],
        *,
        lease_s: float = REPORT_TIMEOUT_S,
        elapsed: Callable[[], float] = suspend_aware_lease_clock_s,
        renewed: Callable[[float], None] = lambda sent_at: None,
        not_renewed: Callable[[], None] = lambda: None,
    ) -> None:
        """`renewed` is told when a renewal that got through was sent, by `elapsed`; `not_renewed`, that one did not."""
        self._not_renewed = not_renewed
        self._elapsed = elapsed
        self._renewed = renewed
        self._cluster = cluster
        self._node = node
        self._clock = clock
        self._lease_s = lease_s

    async def run(self) -> None:
        """Until cancelled."""
        length_s = self._lease_s or REPORT_TIMEOUT_S
        while True:
            sent_at, pause_s = self._elapsed(), length_s / 3
            try:
                async with asyncio.timeout(length_s / 6):
                    await self.renew()
            except Exception as error:  # whatever the transport raises: the next turn tries again
                log.warning("agent.lease_not_renewed", node=self._node, error=str(error) or type(error).__name__)
                pause_s = length_s / 12
                self._not_renewed()
            else:
                self._renewed(sent_at)
            await asyncio.sleep(pause_s)

    async def renew(self) -> None:
        # As text: a real API server refuses lease times without exactly six digits of microseconds.
        name, now = liveness_lease_name(self._node), lease_micro_time(to_time(self._clock()))
        length = max(1, math.ceil(self._lease_s))
        spec: JsonObject = {"holderIdentity": self._node, "leaseDurationSeconds": length, "renewTime": now}
        if not self._lease_s:
            spec |= {"leaseDurationSeconds": None, "renewTime": None}
        try:
            await self._cluster.patch(Lease, name, {"spec": spec}, NODE_LEASE_NAMESPACE)
        except NotFound:
            meta = {"name": name, "namespace": NODE_LEASE_NAMESPACE}
            try:
                said = {field: value for field, value in spec.items() if value is not None}
                await self._cluster.create(Lease, {"metadata": meta, "spec": {**said, "acquireTime": now}})
            except AlreadyExists:  # an agent that is being replaced was a moment faster
                return
