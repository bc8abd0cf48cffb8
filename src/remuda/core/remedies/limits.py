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
from remuda.core.remedies.occupancy import POOL, LimitKind, RemedyFootprint, RemedyOccupancy

HOUR_S = 3600.0


class RemedyPool(msgspec.Struct, frozen=True):
    """What shares are of: how many nodes there are. Of a rack, tenant or reservation only those asked about need be known."""

    nodes: int = 0
    racks: Mapping[str, int] = {}
    tenants: Mapping[str, int] = {}
    reservations: Mapping[str, int] = {}


class HeldBack(msgspec.Struct, frozen=True):
    """What stands in a remedy's way for now."""

    reason: str
    message: str


class RemedyGate(msgspec.Struct, frozen=True):
    """What a rung that is not begun has to pass. `others`: as it stands at the time of the look. `shut`: a pause, or the
    breaker."""

    new: RemedyFootprint
    limits: Limits = Limits()
    pool: RemedyPool = RemedyPool()
    others: RemedyOccupancy = msgspec.field(default_factory=RemedyOccupancy)
    shut: HeldBack | None = None

    def held(self, nodes: Sequence[str], now: float) -> HeldBack | None:
        """Why nothing may be begun on these nodes now; None when it may."""
        new = msgspec.structs.replace(self.new, nodes=tuple(nodes) or self.new.nodes)
        return self.shut or limit_reached(new, self.others, self.limits, self.pool, now)


def limit_of_share(text: str, of: int) -> int | None:
    """How many that is; None = no limit."""
    if not text:
        return None
    if text.endswith("%"):
        share = int(text[:-1])
        return max(1, of * share // 100) if share else 0
    return int(text)


def limit_reached(
    new: RemedyFootprint, others: RemedyOccupancy, limits: Limits, pool: RemedyPool, now: float
) -> HeldBack | None:
    """The first limit that `new` would exceed beside `others`; None when it may begin. What `new` itself has already is not
    counted against it."""
    checks: list[tuple[str, str, str, int, LimitKind]] = [
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
        if held := _check_limit(reason, text, words, base, new, others, kind):
            return held
    return None if new.is_active else _check_hourly_limit(new, others, limits.per_hour, pool.nodes, now)


def _check_limit(
    reason: str, text: str, words: str, of: int, new: RemedyFootprint, others: RemedyOccupancy, kind: LimitKind
) -> HeldBack | None:
    most = limit_of_share(text, of)
    if most is None:
        return None
    there, coming = others.beside(new, kind)
    if not coming or (most and (there + coming <= most or not there)):
        return None
    share = f", {text} of {of}" if text.endswith("%") else ""
    named = f": {', '.join(others.named(new, kind, 5))}{' ...' if there > 5 else ''}" if there else ""
    is_one = there == 1
    return HeldBack(
        reason,
        f"{there} node{'' if is_one else 's'} {words} {'is' if is_one else 'are'} under remedy{named} "
        f"(limit {most}{share}).",
    )


def _check_hourly_limit(
    new: RemedyFootprint, others: RemedyOccupancy, text: str, of: int, now: float
) -> HeldBack | None:
    most = limit_of_share(text, of)
    if most is None:
        return None
    begun = others.begun_since(new, now - HOUR_S)
    if begun < most:
        return None
    share = f", {text} of {of}" if text.endswith("%") else ""
    return HeldBack("HourLimit", f"{begun} remedies of policy {new.policy} began within an hour (limit {most}{share}).")
