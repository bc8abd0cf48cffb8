"""An agent that says nothing: told from one that has nothing to say by a lease of its own.

NodeDevices has transitions only, so a quiet agent and a dead one look alike there, and the node's own lease is its kubelet's. An
agent beside a kubelet therefore renews `<node>.remuda-agent` in the namespace of the node leases. When that lease runs out,
nothing is known of the node's devices any more. An agent that never had one (it lives and dies with its node) is never silent.
"""

from __future__ import annotations

from remuda.api.kubernetes.core_v1 import Lease
from remuda.api.meta import to_seconds

SUFFIX = ".remuda-agent"
REPORT_TIMEOUT_S = 30.0  # how long nothing may be heard, of a device or of an agent


def agent_lease(node: str) -> str:
    return f"{node}{SUFFIX}"


def node_of(lease: str) -> str:
    """The node whose agent has the lease of that name; "" when it is no agent's."""
    return lease.removesuffix(SUFFIX) if lease.endswith(SUFFIX) else ""


def silent_since(lease: Lease | None, now: float) -> float | None:
    """When it was last heard of, if that is too long ago."""
    if lease is None or lease.spec.renew_time is None:
        return None
    renewed = to_seconds(lease.spec.renew_time)
    return renewed if now > renewed + lease.spec.lease_duration_seconds else None


def ends_at(lease: Lease | None, now: float) -> float | None:
    """When to look again because the lease would run out."""
    if lease is None or lease.spec.renew_time is None:
        return None
    end = to_seconds(lease.spec.renew_time) + lease.spec.lease_duration_seconds
    return end if end >= now else None
