"""Placing segments: each whole in one domain, the gang they are of in as few domains as it takes. Pure.

A gang whose members need not all share a domain is cut into segments. All of them get a place or none does.
"""

from __future__ import annotations

from collections.abc import Sequence

from remuda.api.errors import Refusal
from remuda.core.scheduling.explain import explain
from remuda.core.scheduling.first_fit import fit_all, free_on, spend
from remuda.core.scheduling.placement_request import Assignment, Segment
from remuda.core.state.snapshot import Snapshot
from remuda.core.state.transaction import Room


def place_segments(
    snapshot: Snapshot, topology: str, segments: Sequence[Segment], room: Room | None = None
) -> list[Assignment] | Refusal:
    """All segments, each whole in one domain, or the one reason why not. `transaction` is as it was afterwards.

    Least fragmentation: each goes to the domain that has the least room and still takes it, so that one is filled up before
    another is broken into; those that sit somewhere come first, then the large ones."""
    room = room if room is not None else Room.of(snapshot)
    mark = room.mark()
    found: list[Assignment] = []
    order = sorted(segments, key=lambda s: (s.pinned is None, -sum(p.gpus for p in s.members)))
    for segment in order:
        placed = _place_segment(snapshot, topology, segment, room)
        if isinstance(placed, Refusal):
            room.rollback(mark)
            return placed
        spend(snapshot, room, placed)
        found += placed
    room.rollback(mark)
    return found


def _place_segment(snapshot: Snapshot, topology: str, segment: Segment, room: Room) -> list[Assignment] | Refusal:
    domains = snapshot.domains(topology)
    if segment.pinned is not None:
        names = [segment.pinned]
    else:
        names = sorted(domains, key=lambda d: (snapshot.is_suspect(domains[d]), free_on(domains[d], room), d))
    for name in names:
        placed = fit_all(snapshot, domains.get(name, []), segment.members, room)
        if placed is not None:
            return placed
    return explain(snapshot, segment.members, topology, segment.pinned, room)
