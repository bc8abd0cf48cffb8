"""The agent's own lease: that it is there, apart from whether it has anything to say (`core.health.agent_liveness`).

Renewed three times per length. An API that does not answer is asked again at the next turn; who reads the lease draws the
conclusion. Only an agent that can die without its node needs one. It is also how a manager learns that the node has an agent, and
makes its NodeDevices; so an agent whose silence means nothing (`lease_s` 0) has one as well, without a time in it.
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
from remuda.kube.runtime.leader import lease_micro_time

log = structlog.get_logger(__name__)


class AgentLease:
    def __init__(
        self, cluster: Cluster, node: str, clock: Callable[[], float], *, lease_s: float = REPORT_TIMEOUT_S
    ) -> None:
        self._cluster = cluster
        self._node = node
        self._clock = clock
        self._lease_s = lease_s

    async def run(self) -> None:
        """Until cancelled."""
        turn_s = (self._lease_s or REPORT_TIMEOUT_S) / 3
        while True:
            try:
                async with asyncio.timeout(turn_s):
                    await self.renew()
            except Exception as error:  # whatever the transport raises: the next turn tries again
                log.warning("agent.lease_not_renewed", node=self._node, error=str(error) or type(error).__name__)
            await asyncio.sleep(turn_s)

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
