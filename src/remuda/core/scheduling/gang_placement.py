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
from remuda.core.scheduling.explain import explain, unfit
from remuda.core.scheduling.first_fit import fit_all, fit_fewer, free_on, spend
from remuda.core.scheduling.placement_request import Assignment, GangAsk, PodAsk
from remuda.core.scheduling.segment_placement import place_segments
from remuda.core.state.reservations import keep_nodes_for_gang, opened
from remuda.core.state.snapshot import Snapshot
from remuda.core.state.transaction import Room

NO_ROOM_FOR_ALL = "NoRoomForAll"  # of a pod that its gang was placed without


class PlacementPlan(msgspec.Struct, frozen=True):
    assignments: tuple[Assignment, ...]
    refused: tuple[tuple[PodAsk, Refusal], ...]


def plan_placement(snapshot: Snapshot, asks: Iterable[GangAsk]) -> PlacementPlan:
    """Gangs in order: those already running first (freed room goes back to the gang that lost it), spares last of all."""
    parts = list(plan_in_steps(snapshot, asks))
    return PlacementPlan(
        tuple(a for part in parts for a in part.assignments), tuple(r for part in parts for r in part.refused)
    )


def plan_in_steps(snapshot: Snapshot, asks: Iterable[GangAsk], gangs_per_step: int = 64) -> Iterator[PlacementPlan]:
    """The same plan piece by piece, so that whoever carries it out can do other things in between. Within a plan room only
    shrinks: what was refused once is refused, with the same words, to whoever asks the same again."""
    gangs = sorted(asks, key=lambda a: not a.is_recovering)
    room = Room.of(snapshot)
    refusals: dict[object, Refusal] = {}
    domain_of: dict[str, str | None] = {}
    done: list[Assignment] = []
    refused: list[tuple[PodAsk, Refusal]] = []
    keepers: list[GangAsk] = []
    for number, ask in enumerate(gangs, start=1):
        if not ask.is_recovering:
            _keep(snapshot, room, keepers)
        domain_of[ask.key] = ask.pinned
        before = len(refused)
        if ask.members:
            with opened(room, snapshot.reserved, ask.key) as has_more:
                placed = (None if has_more else refusals.get(ask.shape)) or place_members(snapshot, ask, room)
                if not isinstance(placed, Refusal):
                    _take(snapshot, room, placed)
            if isinstance(placed, Refusal):
                if not has_more:
                    refusals[ask.shape] = placed
                refused.extend((pod, placed) for pod in ask.members)
            else:
                domain_of[ask.key] = snapshot.domain_of(placed[0].node, ask.topology)
                done.extend(placed)
                refused.extend(_left_over(snapshot, ask, placed, room))
        if ask.keeps and len(refused) > before:
            keepers.append(ask)
        if number % gangs_per_step == 0:
            yield PlacementPlan(tuple(done), tuple(refused))
            done, refused = [], []
    _keep(snapshot, room, keepers)
    for ask in gangs:
        for spare in ask.spares:
            with opened(room, snapshot.reserved, ask.key):
                placed = _place_spare(snapshot, spare, ask.topology, domain_of[ask.key], room)
                if isinstance(placed, Refusal):
                    refused.append((spare, placed))
                    continue
                _take(snapshot, room, placed)
            done.extend(placed)
    yield PlacementPlan(tuple(done), tuple(refused))


def place_members(snapshot: Snapshot, ask: GangAsk, room: Room | None = None) -> list[Assignment] | Refusal:
    """All members of one gang on one snapshot, or the one reason why not."""
    room = room if room is not None else Room.of(snapshot)
    if ask.waiting_for:
        return Refusal(
            "GangIncomplete", f"{ask.waiting_for} pods of the gang do not exist yet.", "They are being made."
        )
    if (never := unfit(snapshot, ask.members)) is not None:
        return never
    if ask.segments:
        return place_segments(snapshot, ask.topology, ask.segments, room)
    domains = snapshot.domains(ask.topology)
    if ask.pinned is not None:
        here = domains.get(ask.pinned, [])
        found = fit_all(snapshot, here, ask.members, room) or fit_fewer(snapshot, here, ask.members, room)
        return found if found else explain(snapshot, ask.members, ask.topology, ask.pinned, room)
    # Tightest domain first keeps the large ones whole; one with room for the spares beats one without.
    # A suspect one is taken when no other will do.
    order = list(domains)
    if len(domains) > 1:
        order.sort(key=lambda d: (snapshot.is_suspect(domains[d]), free_on(domains[d], room), d))
    for extra in (ask.spares, ()) if ask.spares else ((),):
        for domain in order:
            found = fit_all(snapshot, domains[domain], ask.members, room, extra)
            if found is not None:
                return found
    if any(pod.optional for pod in ask.members):
        fewer = [f for domain in order if (f := fit_fewer(snapshot, domains[domain], ask.members, room))]
        if fewer:
            return max(fewer, key=len)
    return explain(snapshot, ask.members, ask.topology, None, room)


def _place_spare(
    snapshot: Snapshot, spare: PodAsk, topology: str, domain: str | None, room: Room
) -> list[Assignment] | Refusal:
    if domain is None:
        return Refusal("GangNotPlaced", "A spare waits until its gang has a place.", "It is placed beside the gang.")
    found = fit_all(snapshot, snapshot.domains(topology).get(domain, []), [spare], room)
    return found if found is not None else explain(snapshot, [spare], topology, domain, room, "NoRoomForSpare")


def _left_over(
    snapshot: Snapshot, ask: GangAsk, placed: Sequence[Assignment], room: Room
) -> list[tuple[PodAsk, Refusal]]:
    """Those the gang is placed without."""
    there = {assignment.pod.uid for assignment in placed}
    left = [pod for pod in ask.members if pod.uid not in there]
    if not left:
        return []
    domain = snapshot.domain_of(placed[0].node, ask.topology)
    why = explain(snapshot, left, ask.topology, domain, room, NO_ROOM_FOR_ALL)
    return [(pod, why) for pod in left]


def _keep(snapshot: Snapshot, room: Room, keepers: list[GangAsk]) -> None:
    """From here on nobody gets what those gangs wait for."""
    for ask in keepers:
        keep_nodes_for_gang(snapshot, room, ask.keeps, (pod.requests for pod in ask.members), ask.key)
    keepers.clear()


def _take(snapshot: Snapshot, room: Room, assignments: Iterable[Assignment]) -> None:
    spend(snapshot, room, assignments)
    room.settle()
