"""When a lease was last renewed, by the clock of who reads it.

`renewTime` is the word of the holder's clock, and that may be an hour off, or a century. Taken literally, a node whose clock is
behind would be dead at every look while its processes run, and the death of one whose clock is ahead would go unnoticed for as
long. So a renewal counts from when it was first seen here, unless both clocks agree. Of a lease that is old at first sight nobody
can tell which of the two it is: its holder gets one more length of it to be heard.
"""

from __future__ import annotations

from datetime import datetime

from remuda.api.kubernetes.core_v1 import Lease
from remuda.api.meta import to_seconds

AGREE_SHARE = 0.25  # of the lease's length: holders fence themselves after two thirds of it


class LeaseSights:
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

    def heard(self, lease: Lease) -> float | None:
        """Unix seconds of our clock; None when it was never renewed."""
        renewed = lease.spec.renew_time
        if renewed is None:
            return None
        at = to_seconds(renewed)
        known = self._seen.get(lease.name)
        if known is None or known[0] != renewed:
            return at
        return at if abs(known[1] - at) <= AGREE_SHARE * lease.spec.lease_duration_seconds else known[1]
