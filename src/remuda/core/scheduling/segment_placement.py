"""Placing segments: each whole in one domain, the gang they are of in as few domains as it takes. Pure.

A gang whose members need not all share a domain is cut into segments. All of them get a place or none does.
"""

from __future__ import annotations

from collections.abc import Sequence

from remuda.api.errors import Refusal
from remuda.core.scheduling.explain import explain_not_placed
from remuda.core.scheduling.first_fit import fit_all_pods, free_devices_for_placement, spend_placement_assignments
from remuda.core.scheduling.placement_request import Assignment, SegmentAsk
from remuda.core.state.snapshot import Snapshot
from remuda.core.state.transaction import Transaction


def place_segments(
    snapshot: Snapshot, topology: str, segments: Sequence[SegmentAsk], transaction: Transaction | None = None
) -> list[Assignment] | Refusal:
    """All segments, each whole in one domain, or the one reason why not. `transaction` is as it was afterwards.

    Least fragmentation: each goes to the domain that has the least room and still takes it, so that one is filled up before
    another is broken into; those that sit somewhere come first, then the large ones."""
    transaction = transaction if transaction is not None else Transaction.of(snapshot)
    mark = transaction.mark()
    found: list[Assignment] = []
    order = sorted(segments, key=lambda s: (s.pinned is None, -sum(p.gpus for p in s.members)))
    for segment in order:
        placed = _place_segment(snapshot, topology, segment, transaction)
        if isinstance(placed, Refusal):
            transaction.rollback(mark)
            return placed
        spend_placement_assignments(snapshot, transaction, placed)
        found += placed
    transaction.rollback(mark)
    return found


def _place_segment(
    snapshot: Snapshot, topology: str, segment: SegmentAsk, transaction: Transaction
) -> list[Assignment] | Refusal:
    domains = snapshot.domains(topology)
    if segment.pinned is not None:
        names = [segment.pinned]
    else:
        names = sorted(
            domains,
            key=lambda d: (snapshot.is_suspect(domains[d]), free_devices_for_placement(domains[d], transaction), d),
        )
    for name in names:
        placed = fit_all_pods(snapshot, domains.get(name, []), segment.members, transaction)
        if placed is not None:
            return placed
    return explain_not_placed(snapshot, segment.members, topology, segment.pinned, transaction)
