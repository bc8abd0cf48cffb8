"""The proofs that this process can hear others (`core.health.own_stalls`): its loop runs, and the API takes its writes.

The write is the renewal of a small lease of our own, of a name that belongs to this part alone. It proves what a read does not:
that others could have renewed theirs. Who leads by a lease has that proof already, and needs no second one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import structlog

from remuda.api.errors import AlreadyExists, NotFound
from remuda.api.kubernetes.core_v1 import Lease
from remuda.api.meta import JsonObject, to_time
from remuda.core.health.own_stalls import API, API_LATE_S, LOOP, LOOP_LATE_S, OwnStalls
from remuda.kube.cluster import Cluster
from remuda.kube.runtime.leader import lease_micro_time

log = structlog.get_logger(__name__)

LOOK_S = 0.5  # of the loop
WRITE_S = 1.0  # of the API
PREFIX = "remuda-listens-"  # of the leases
NAMESPACE = "kube-system"


async def watch_loop_lag(stalls: OwnStalls, clock: Callable[[], float], part: str) -> None:
    """Until cancelled."""
    stalls.expect(LOOP, LOOP_LATE_S, clock())
    while True:
        await asyncio.sleep(LOOK_S)
        prove_stall_watch_hearing(stalls, LOOP, clock(), part)


async def watch_api_writes_for_stalls(
    stalls: OwnStalls, cluster: Cluster, clock: Callable[[], float], part: str
) -> None:
    """Until cancelled."""
    stalls.expect(API, API_LATE_S, clock())
    is_lost = False
    while True:
        try:
            # No limit of time: while it hangs there is no proof, and a write that is given up too early never is one.
            await _renew_listening_lease(cluster, clock(), PREFIX + part)
        except Exception as error:  # whatever the transport raises: the next turn tries again
            if not is_lost:
                log.warning("stalls.api_away", part=part, error=str(error) or type(error).__name__)
            is_lost = True
        else:
            is_lost = False
            prove_stall_watch_hearing(stalls, API, clock(), part)
        await asyncio.sleep(WRITE_S)


def prove_stall_watch_hearing(stalls: OwnStalls, proof: str, now: float, part: str) -> None:
    deaf_s = stalls.proved(proof, now)
    if deaf_s:
        log.warning("stalls.deaf", part=part, proof=proof, seconds=round(deaf_s, 1), so="countdowns begin anew")


async def _renew_listening_lease(cluster: Cluster, now: float, name: str) -> None:
    # As text: a real API server refuses lease times without exactly six digits of microseconds.
    renewed = lease_micro_time(to_time(now))
    spec: JsonObject = {"holderIdentity": name, "leaseDurationSeconds": 3, "renewTime": renewed}
    try:
        await cluster.patch(Lease, name, {"spec": spec}, NAMESPACE)
    except NotFound:
        try:
            await cluster.create(Lease, {"metadata": {"name": name, "namespace": NAMESPACE}, "spec": spec})
        except AlreadyExists:
            return
