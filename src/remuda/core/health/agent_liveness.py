"""Leases: which agent has fallen silent, and when a lease was last renewed by the clock of who reads it.

NodeDevices has transitions only, so a quiet agent and a dead one look alike there, and the node's own lease is its kubelet's. An
agent beside a kubelet therefore renews `<node>.remuda-agent` in the namespace of the node leases. When that lease runs out,
nothing is known of the node's devices any more. An agent that never had one (it lives and dies with its node) is never silent.
One that is there and has reported nothing yet leaves its node *unreported*: what a kubelet offers there, nobody can name.

`renewTime` is the word of the holder's clock, and that may be an hour off, or a century. Taken literally, a node whose clock is
behind would be dead at every look while its processes run, and the death of one whose clock is ahead would go unnoticed for as
long. So a renewal counts from when it was first seen here, unless both clocks agree (`AgentLeaseRenewals`). Of a lease that is
old at first sight nobody can tell which of the two it is: its holder gets one more length of it to be heard.

What an agent reports goes the way of its renewals. While those are missing (`MISSED_SHARE` of the lease without one; they come
four times per length) it cannot be known whether it has anything to report: it is *unheard*, which is a deaf time of ours about
this one holder (`own_stalls`). So is all that was before the first sight of it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable
from datetime import datetime

from remuda.api.devices import NodeDevices, Observed
from remuda.api.kubernetes.core_v1 import Lease
from remuda.api.meta import to_seconds
from remuda.core.health.own_stalls import DeafTime

SUFFIX = ".remuda-agent"
AGREE_SHARE = 0.25  # of the lease's length: holders fence themselves after two thirds of it
MISSED_SHARE = 1 / 3  # of the lease's length without a renewal: one is missing
KEPT_GAPS = 4
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


def nodes_with_agent(
    ledgers: Iterable[NodeDevices],
    leases: Collection[str],
    find_lease: Callable[[str], Lease | None],
    now: float,
) -> frozenset[str]:
    """Nodes whose agent has reported and is not silent. One without a lease of its own lives and dies with its node."""
    return frozenset(
        ledger.name
        for ledger in ledgers
        if ledger.observed != Observed()
        and (
            (lease := liveness_lease_name(ledger.name)) not in leases
            or agent_silent_since(find_lease(lease), now) is None
        )
    )


class AgentLeaseRenewals:
    """By name of the lease: its newest renewal, and when that was first seen. Objects are few (a node has two), so all are kept
    until they are gone."""

    def __init__(self) -> None:
        self._seen: dict[str, tuple[datetime, float]] = {}
        self._gaps: dict[str, tuple[DeafTime, ...]] = {}

    def see(self, lease: Lease, now: float) -> None:
        renewed = lease.spec.renew_time
        known = self._seen.get(lease.name)
        if renewed is not None and (known is None or known[0] != renewed):
            before = known[1] if known is not None else -math.inf
            if _is_renewal_missing(lease, before, now):
                self._gaps[lease.name] = (*self._gaps.get(lease.name, ()), DeafTime(before, now))[-KEPT_GAPS:]
            self._seen[lease.name] = renewed, now

    def forget(self, name: str) -> None:
        self._seen.pop(name, None)
        self._gaps.pop(name, None)

    def unheard_times(self, lease: Lease, now: float) -> tuple[DeafTime, ...]:
        """Times in which the holder could not be heard; the last one stands when it ends now."""
        known = self._seen.get(lease.name)
        if known is None:
            return ()
        over = tuple(
            gap for gap in self._gaps.get(lease.name, ()) if gap.until <= now
        )  # later: on a clock that was ahead
        return (*over, DeafTime(known[1], now)) if _is_renewal_missing(lease, known[1], now) else over

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


def _is_renewal_missing(lease: Lease, seen_at: float, now: float) -> bool:
    return now - seen_at > MISSED_SHARE * lease.spec.lease_duration_seconds
