"""How much may be under remedy at a time. Pure, and counted nowhere: a remedy's *footprint* follows from its incident.

A node is under remedy while a rung runs for one of its devices and through the soak that follows. One that waits for
its next rung, or for its replacement by hand, is not: it would keep all others from being cured, and to go on it has to
pass again. A node with several failed devices counts once, and one that is counted already may go on climbing.

A share is rounded down and is at least 1: 10 % of five nodes still lets one be repaired. "0" and "0%" let none. Nodes of a
domain that is recycled as a whole count each; so that such a remedy is ever possible, it may exceed a limit when nothing else
of that limit is under remedy.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from remuda.api.remedies import Limits
from remuda.core.remedies.occupancy import POOL, Footprint, Kind, Occupancy

HOUR_S = 3600.0


class Pool(msgspec.Struct, frozen=True):
    """What shares are of: how many nodes there are. Of a rack, tenant or reservation only those asked about need be known."""

    nodes: int = 0
    racks: Mapping[str, int] = {}
    tenants: Mapping[str, int] = {}
    reservations: Mapping[str, int] = {}


class Held(msgspec.Struct, frozen=True):
    """What stands in a remedy's way for now."""

    reason: str
    message: str


class Gate(msgspec.Struct, frozen=True):
    """What a rung that is not begun has to pass. `others`: as it stands at the time of the look. `shut`: a pause, or the
    breaker."""

    new: Footprint
    limits: Limits = Limits()
    pool: Pool = Pool()
    others: Occupancy = msgspec.field(default_factory=Occupancy)
    shut: Held | None = None

    def held(self, nodes: Sequence[str], now: float) -> Held | None:
        """Why nothing may be begun on these nodes now; None when it may."""
        new = msgspec.structs.replace(self.new, nodes=tuple(nodes) or self.new.nodes)
        return self.shut or held_by(new, self.others, self.limits, self.pool, now)


def bound(text: str, of: int) -> int | None:
    """How many that is; None = no limit."""
    if not text:
        return None
    if text.endswith("%"):
        share = int(text[:-1])
        return max(1, of * share // 100) if share else 0
    return int(text)


def held_by(new: Footprint, others: Occupancy, limits: Limits, pool: Pool, now: float) -> Held | None:
    """The first limit that `new` would exceed beside `others`; None when it may begin. What `new` itself has already is not
    counted against it."""
    checks: list[tuple[str, str, str, int, Kind]] = [
        ("PoolLimit", limits.pool, f"of policy {new.policy}", pool.nodes, POOL),
        ("CauseLimit", limits.cause, f"with {new.cause}", pool.nodes, ("cause", new.cause)),
    ]
    if new.rack:
        of_rack = pool.racks.get(new.rack, 0)
        checks.append(("RackLimit", limits.rack, f"of rack {new.rack}", of_rack, ("rack", new.rack)))
    if new.reservation:
        reserved = pool.reservations.get(new.reservation, 0)
        words = f"of reservation {new.reservation}"
        checks.append(("ReservationLimit", limits.reservation, words, reserved, ("reservation", new.reservation)))
    for tenant in new.tenants:
        count = pool.tenants.get(tenant, 0)
        checks.append(("TenantLimit", limits.tenant, f"of namespace {tenant}", count, ("tenant", tenant)))
    for reason, text, words, base, kind in checks:
        if held := _exceeds(reason, text, words, base, new, others, kind):
            return held
    return None if new.is_active else _per_hour(new, others, limits.per_hour, pool.nodes, now)


def _exceeds(reason: str, text: str, words: str, of: int, new: Footprint, others: Occupancy, kind: Kind) -> Held | None:
    most = bound(text, of)
    if most is None:
        return None
    there, coming = others.beside(new, kind)
    if not coming or (most and (there + coming <= most or not there)):
        return None
    share = f" ({text} of {of})" if text.endswith("%") else ""
    named = f": {', '.join(others.named(new, kind, 5))}{' ...' if there > 5 else ''}" if there else ""
    is_one = there == 1
    return Held(
        reason,
        f"{there} node{'' if is_one else 's'} {words} {'is' if is_one else 'are'} under remedy{named}; "
        f"{most}{share} may be.",
    )


def _per_hour(new: Footprint, others: Occupancy, text: str, of: int, now: float) -> Held | None:
    most = bound(text, of)
    if most is None:
        return None
    begun = others.begun_since(new, now - HOUR_S)
    if begun < most:
        return None
    share = f" ({text} of {of})" if text.endswith("%") else ""
    return Held(
        "HourLimit", f"{begun} remedies of policy {new.policy} were begun within an hour; {most}{share} may be."
    )
