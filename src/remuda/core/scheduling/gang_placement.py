"""Placing a gang whole: every member gets a node and an exact device set inside one domain, or nobody gets anything.

The solver here is first fit: domains in the order of least room that still fits members and spares, then members only; what
fits in a domain is `first_fit`'s. The full scheduler replaces that and the domain order; the interface (`GangAsk` in,
assignments or one Refusal out, on an immutable Snapshot) stays.

Invariants: no device is assigned twice in a plan; members of a gang are assigned all or none, but for those that it can do
without (`optional`), which are left out only when there is no room for all; with a required topology every
pod of a gang, spares included, sits in one domain; spares never take the place of a member.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import msgspec

from remuda.api.errors import Refusal
from remuda.core.scheduling.explain import explain_never_placeable, explain_not_placed
from remuda.core.scheduling.first_fit import (
    first_fit_without_optional_pods,
    fit_all_pods,
    free_devices_for_placement,
    spend_placement_assignments,
)
from remuda.core.scheduling.placement_request import Assignment, GangAsk, PodAsk
from remuda.core.scheduling.segment_placement import place_segments
from remuda.core.state.reservations import reservations_open_to_asker, reserve_snapshot_nodes_for_gang
from remuda.core.state.snapshot import Snapshot
from remuda.core.state.transaction import Transaction

NO_ROOM_FOR_ALL = "NoRoomForAll"  # of a pod that its gang was placed without
GANGS_PER_STEP = 64


class PlacementPlan(msgspec.Struct, frozen=True):
    assignments: tuple[Assignment, ...]
    refused: tuple[tuple[PodAsk, Refusal], ...]


def plan_placement(snapshot: Snapshot, asks: Iterable[GangAsk]) -> PlacementPlan:
    """Gangs in order: those already running first (freed room goes back to the gang that lost it), spares last of all."""
    parts = list(plan_placement_in_steps(snapshot, asks))
    return PlacementPlan(
        tuple(a for part in parts for a in part.assignments), tuple(r for part in parts for r in part.refused)
    )


def plan_placement_in_steps(snapshot: Snapshot, asks: Iterable[GangAsk]) -> Iterator[PlacementPlan]:
    """The same plan piece by piece, so that whoever carries it out can do other things in between. Within a plan room only
    shrinks: what was refused once is refused, with the same words, to whoever asks the same again."""
    gangs = sorted(asks, key=lambda a: not a.is_recovering)
    transaction = Transaction.of(snapshot)
    refusals: dict[object, Refusal] = {}
    domain_of: dict[str, str | None] = {}
    done: list[Assignment] = []
    refused: list[tuple[PodAsk, Refusal]] = []
    keepers: list[GangAsk] = []
    for number, ask in enumerate(gangs, start=1):
        if not ask.is_recovering:
            _keep_nodes_for_gangs(snapshot, transaction, keepers)
        domain_of[ask.key] = ask.pinned
        before = len(refused)
        if ask.members:
            with reservations_open_to_asker(transaction, snapshot.reserved, ask.key) as has_more:
                placed = (None if has_more else refusals.get(ask.shape)) or place_gang_members(
                    snapshot, ask, transaction
                )
                if not isinstance(placed, Refusal):
                    spend_placement_assignments(snapshot, transaction, placed)
                    transaction.settle()
            if isinstance(placed, Refusal):
                if not has_more:
                    refusals[ask.shape] = placed
                refused.extend((pod, placed) for pod in ask.members)
            else:
                domain_of[ask.key] = snapshot.domain_of(placed[0].node, ask.topology)
                done.extend(placed)
                refused.extend(_optional_pods_left_out(snapshot, ask, placed, transaction))
        if ask.keeps and len(refused) > before:
            keepers.append(ask)
        if number % GANGS_PER_STEP == 0:
            yield PlacementPlan(tuple(done), tuple(refused))
            done, refused = [], []
    _keep_nodes_for_gangs(snapshot, transaction, keepers)
    for ask in gangs:
        for spare in ask.spares:
            with reservations_open_to_asker(transaction, snapshot.reserved, ask.key):
                placed = _place_gang_spare(snapshot, spare, ask.topology, domain_of[ask.key], transaction)
                if isinstance(placed, Refusal):
                    refused.append((spare, placed))
                    continue
                spend_placement_assignments(snapshot, transaction, placed)
                transaction.settle()
            done.extend(placed)
    yield PlacementPlan(tuple(done), tuple(refused))


def place_gang_members(
    snapshot: Snapshot, ask: GangAsk, transaction: Transaction | None = None
) -> list[Assignment] | Refusal:
    """All members of one gang on one snapshot, or the one reason why not."""
    transaction = transaction if transaction is not None else Transaction.of(snapshot)
    if ask.waiting_for:
        return Refusal(
            "GangIncomplete",
            f"{ask.waiting_for} pods of the gang do not exist yet.",
            "Nothing to do: they are being created.",
        )
    if (never := explain_never_placeable(snapshot, ask.members)) is not None:
        return never
    if ask.segments:
        return place_segments(snapshot, ask.topology, ask.segments, transaction)
    domains = snapshot.domains(ask.topology)
    if ask.pinned is not None:
        here = domains.get(ask.pinned, [])
        found = fit_all_pods(snapshot, here, ask.members, transaction) or first_fit_without_optional_pods(
            snapshot, here, ask.members, transaction
        )
        return found if found else explain_not_placed(snapshot, ask.members, ask.topology, ask.pinned, transaction)
    # Tightest domain first keeps the large ones whole; one with room for the spares beats one without.
    # A suspect one is taken when no other will do.
    order = list(domains)
    if len(domains) > 1:
        order.sort(
            key=lambda d: (snapshot.is_suspect(domains[d]), free_devices_for_placement(domains[d], transaction), d)
        )
    for extra in (ask.spares, ()) if ask.spares else ((),):
        for domain in order:
            found = fit_all_pods(snapshot, domains[domain], ask.members, transaction, extra)
            if found is not None:
                return found
    if any(pod.optional for pod in ask.members):
        fewer = [
            f
            for domain in order
            if (f := first_fit_without_optional_pods(snapshot, domains[domain], ask.members, transaction))
        ]
        if fewer:
            return max(fewer, key=len)
    return explain_not_placed(snapshot, ask.members, ask.topology, None, transaction)


def _place_gang_spare(
    snapshot: Snapshot, spare: PodAsk, topology: str, domain: str | None, transaction: Transaction
) -> list[Assignment] | Refusal:
    if domain is None:
        return Refusal(
            "GangNotPlaced", "A spare waits until its gang is placed.", "Nothing to do: it is placed after the gang."
        )
    found = fit_all_pods(snapshot, snapshot.domains(topology).get(domain, []), [spare], transaction)
    return (
        found
        if found is not None
        else explain_not_placed(snapshot, [spare], topology, domain, transaction, "NoRoomForSpare")
    )


def _optional_pods_left_out(
    snapshot: Snapshot, ask: GangAsk, placed: Sequence[Assignment], transaction: Transaction
) -> list[tuple[PodAsk, Refusal]]:
    """Those the gang is placed without."""
    there = {assignment.pod.uid for assignment in placed}
    left = [pod for pod in ask.members if pod.uid not in there]
    if not left:
        return []
    domain = snapshot.domain_of(placed[0].node, ask.topology)
    why = explain_not_placed(snapshot, left, ask.topology, domain, transaction, NO_ROOM_FOR_ALL)
    return [(pod, why) for pod in left]


def _keep_nodes_for_gangs(snapshot: Snapshot, transaction: Transaction, keepers: list[GangAsk]) -> None:
    """From here on nobody gets what those gangs wait for."""
    for ask in keepers:
        reserve_snapshot_nodes_for_gang(
            snapshot, transaction, ask.keeps, (pod.requests for pod in ask.members), ask.key
        )
    keepers.clear()
