"""What is under remedy, counted as limits ask for it. Pure; kept up footprint by footprint.

In a storm thousands of incidents ask whether there is room, again and again. A look at all that is under remedy for each of them
would cost the square of the storm, so nodes are counted by what limits them: policy, rack, tenant, reservation, cause. A question
costs the asker's own nodes then. A node that several incidents have counts once, and is gone when the last of them gives it back.
"""

from __future__ import annotations

from bisect import bisect_right, insort
from collections.abc import Iterable, Iterator
from itertools import islice

import msgspec


class RemedyFootprint(msgspec.Struct, frozen=True):
    """What one incident's remedy takes up. `is_active`: now; of one that is over, when it began still counts."""

    incident: str
    policy: str
    nodes: tuple[str, ...]
    began: float
    rack: str = ""
    tenants: tuple[str, ...] = ()
    reservation: str = ""
    cause: str = ""
    is_active: bool = True


LimitKind = tuple[str, str]  # (what is limited, of which value)

POOL: LimitKind = ("pool", "")


class RemedyOccupancy:
    """One footprint for each incident."""

    def __init__(self, footprints: Iterable[RemedyFootprint] = ()) -> None:
        self._known: dict[str, RemedyFootprint] = {}
        self._counts: dict[tuple[str, LimitKind], dict[str, int]] = {}  # by policy: node -> incidents that have it
        self._begun: dict[str, list[tuple[float, str]]] = {}  # by policy, oldest first
        for footprint in footprints:
            self.put(footprint)

    def __iter__(self) -> Iterator[RemedyFootprint]:
        return iter(self._known.values())

    def put(self, footprint: RemedyFootprint) -> None:
        if self._known.get(footprint.incident) == footprint:
            return
        self.drop(footprint.incident)
        self._known[footprint.incident] = footprint
        insort(self._begun.setdefault(footprint.policy, []), (footprint.began, footprint.incident))
        for kind in remedy_limits_for_footprint(footprint) if footprint.is_active else ():
            counts = self._counts.setdefault((footprint.policy, kind), {})
            for node in footprint.nodes:
                counts[node] = counts.get(node, 0) + 1

    def drop(self, incident: str) -> None:
        footprint = self._known.pop(incident, None)
        if footprint is None:
            return
        begun = self._begun[footprint.policy]
        del begun[bisect_right(begun, (footprint.began, incident)) - 1]
        for kind in remedy_limits_for_footprint(footprint) if footprint.is_active else ():
            counts = self._counts[footprint.policy, kind]
            for node in footprint.nodes:
                counts[node] -= 1
                if not counts[node]:
                    del counts[node]

    def beside(self, new: RemedyFootprint, kind: LimitKind) -> tuple[int, int]:
        """(nodes that others have, nodes of `new` that nobody else has) under that limit."""
        counts, own = self._counts.get((new.policy, kind), {}), self._own(new, kind)
        coming = sum(1 for node in set(new.nodes) if node not in counts or node in own)
        return len(counts) - len(own), coming

    def named(self, new: RemedyFootprint, kind: LimitKind, most: int) -> list[str]:
        """Those of the nodes that others have which were first to be counted."""
        own = self._own(new, kind)
        return list(islice((node for node in self._counts.get((new.policy, kind), {}) if node not in own), most))

    def begun_since(self, new: RemedyFootprint, since: float) -> int:
        """Others of its policy that were begun after that moment."""
        begun, known = self._begun.get(new.policy, []), self._known.get(new.incident)
        count = len(begun) - bisect_right(begun, since, key=lambda one: one[0])
        is_own = known is not None and known.policy == new.policy and known.began > since
        return count - is_own

    def _own(self, new: RemedyFootprint, kind: LimitKind) -> set[str]:
        """Nodes that only the incident's own standing footprint has there."""
        standing = self._known.get(new.incident)
        if (
            standing is None
            or not standing.is_active
            or standing.policy != new.policy
            or kind not in remedy_limits_for_footprint(standing)
        ):
            return set()
        counts = self._counts[new.policy, kind]
        return {node for node in standing.nodes if counts[node] == standing.nodes.count(node)}


def remedy_limits_for_footprint(footprint: RemedyFootprint) -> list[LimitKind]:
    """The limits it counts under."""
    found = [POOL, ("cause", footprint.cause)]
    if footprint.rack:
        found.append(("rack", footprint.rack))
    if footprint.reservation:
        found.append(("reservation", footprint.reservation))
    return [*found, *(("tenant", tenant) for tenant in footprint.tenants)]
