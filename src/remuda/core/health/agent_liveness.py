"""Leases: which agent has fallen silent, and when a lease was last renewed by the clock of who reads it.

NodeDevices has transitions only, so a quiet agent and a dead one look alike there, and the node's own lease is its kubelet's. An
agent beside a kubelet therefore renews `<node>.remuda-agent` in the namespace of the node leases. When that lease runs out,
nothing is known of the node's devices any more. An agent that never had one (it lives and dies with its node) is never silent.
One that is there and has reported nothing yet leaves its node *unreported*: what a kubelet offers there, nobody can name.

`renewTime` is the word of the holder's clock, and that may be an hour off, or a century. Taken literally, a node whose clock is
behind would be dead at every look while its processes run, and the death of one whose clock is ahead would go unnoticed for as
long. So a renewal counts from when it was first seen here, unless both clocks agree (`AgentLeaseRenewals`). Of a lease that is
old at first sight nobody can tell which of the two it is: its holder gets one more length of it to be heard.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import datetime

from remuda.api.devices import NodeDevices, Observed
from remuda.api.kubernetes.core_v1 import Lease
from remuda.api.meta import to_seconds

SUFFIX = ".remuda-agent"
AGREE_SHARE = 0.25  # of the lease's length: holders fence themselves after two thirds of it
REPORT_TIMEOUT_S = 30.0  # how long nothing may be heard, of a device or of an agent


def liveness_lease_name(node: str) -> str:
    return f"{node}{SUFFIX}"


def node_of_liveness_lease(lease: str) -> str:
    """The node whose agent has the lease of that name; "" when it is no agent's."""
    return lease.removesuffix(SUFFIX) if lease.endswith(SUFFIX) else ""


def agent_silent_since(lease: Lease | None, now: float) -> float | None:
    """When it was last heard of, if that is too long ago."""
    if lease is None or lease.spec.renew_time is None:
        return None
    renewed = to_seconds(lease.spec.renew_time)
    return renewed if now > renewed + lease.spec.lease_duration_seconds else None


def agent_lease_ends_at(lease: Lease | None, now: float) -> float | None:
    """When to look again because the lease would run out."""
    if lease is None or lease.spec.renew_time is None:
        return None
    end = to_seconds(lease.spec.renew_time) + lease.spec.lease_duration_seconds
    return end if end >= now else None


def unreported_nodes(
    ledgers: Iterable[NodeDevices], leases: Iterable[str], find_lease: Callable[[str], Lease | None], now: float
) -> frozenset[str]:
    """Nodes whose agent is there and has yet to report what they have: it has a lease, or a NodeDevices that is empty until its
    first report. An agent that is silent is not waited for. `leases`: the names of all."""
    reported = {ledger.name: ledger.observed != Observed() for ledger in ledgers}
    agents = {node_of_liveness_lease(name) for name in leases} - {""}
    return frozenset(
        node
        for node in agents | reported.keys()
        if not reported.get(node) and agent_silent_since(find_lease(liveness_lease_name(node)), now) is None
    )


class AgentLeaseRenewals:
    """By name of the lease: its newest renewal, and when that was first seen. Objects are few (a node has two), so all are kept
    until they are gone."""

    def __init__(self) -> None:
        self._seen: dict[str, tuple[datetime, float]] = {}

    def see(self, lease: Lease, now: float) -> None:
        renewed = lease.spec.renew_time
        known = self._seen.get(lease.name)
        if renewed is not None and (known is None or known[0] != renewed):
            self._seen[lease.name] = renewed, now

    def forget(self, name: str) -> None:
        self._seen.pop(name, None)

    def renewed_at(self, lease: Lease) -> float | None:
        """Unix seconds of our clock; None when it was never renewed."""
        renewed = lease.spec.renew_time
        if renewed is None:
            return None
        at = to_seconds(renewed)
        known = self._seen.get(lease.name)
        if known is None or known[0] != renewed:
            return at
        return at if abs(known[1] - at) <= AGREE_SHARE * lease.spec.lease_duration_seconds else known[1]
