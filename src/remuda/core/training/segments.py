"""Segments of a gang: ranks in blocks of `topology.segmentSize` share one domain; each block may have another.

Where each segment sits is in `status.placement.segments`, by its number; "" = nowhere yet. A pod is made for one segment and says
so; a spare is made for none and serves whichever segment shares its domain. When a segment has no room left in its domain, the
segment moves (`Remedy.MOVE_SEGMENT`) and the others stay.

A gang in segments is not elastic: with other ranks it would have other segments, in the wrong places.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence, Set

from remuda.api.errors import Refusal
from remuda.api.training import Placement, Role
from remuda.core.gang.gang_remedy import Fault, Offer
from remuda.core.gang.pod_view import PodView
from remuda.core.scheduling.explain import explain
from remuda.core.scheduling.first_fit import count_fit
from remuda.core.scheduling.placement_request import Segment, ask_of
from remuda.core.scheduling.segment_placement import place_segments
from remuda.core.state.snapshot import Snapshot
from remuda.core.state.transaction import Room
from remuda.core.training.faults import NOT_STOPPED
from remuda.core.training.placement_options import offer_for, released, trial, with_leavers
from remuda.core.training.planning_context import Look


def is_segmented(look: Look) -> bool:
    topology = look.spec.topology
    return bool(topology.required) and 0 < topology.segment_size < len(look.ranks)


def segment_of(look: Look, rank: int) -> int:
    return rank // look.spec.topology.segment_size


def domains_of(look: Look) -> list[str]:
    """The domain of each segment."""
    size = look.spec.topology.segment_size
    count = -(-len(look.ranks) // size)
    known = look.status.placement.segments[:count]
    return [*known, *[""] * (count - len(known))]


def locate_segments(look: Look) -> None:
    """Writes down where segments sit that sat nowhere before: with their first placed pod."""
    found = domains_of(look)
    if all(found):
        return
    topology = look.status.placement.topology
    seated = [(segment_of(look, m.rank), m.node) for m in look.status.members]
    seated += [(v.segment, v.node) for v in look.free() if v.is_bound and v.segment >= 0 and not v.made_for]
    for number, node in seated:
        if number < len(found) and not found[number] and node:
            found[number] = look.snapshot.domain_of(node, topology)
    if found != look.status.placement.segments and any(found):
        look.update(placement=Placement(topology, segments=found))


def is_misplaced(look: Look, view: PodView) -> bool:
    """Made for a domain that its segment has left since."""
    found = domains_of(look)
    return bool(view.made_for) and 0 <= view.segment < len(found) and view.made_for != found[view.segment]


def serves(look: Look, view: PodView, number: int) -> bool:
    """Whether the pod may have a rank of that segment."""
    if view.segment >= 0:
        return view.segment == number
    where = domains_of(look)[number]
    return bool(where) and look.snapshot.domain_of(view.node, look.status.placement.topology) == where


def vacancies(look: Look, role: Role) -> Counter[int]:
    """Ranks of the role without a pod, by segment."""
    taken = {m.rank for m in look.status.members}
    found = (rank for rank, r in enumerate(look.ranks) if r.name == role.name and rank not in taken)
    return Counter(segment_of(look, rank) for rank in found)


# -- remedies ---------------------------------------------------------------------------------------------------------


def hit_segments(look: Look, uids: Iterable[str]) -> list[int]:
    lost = set(uids)
    return sorted({segment_of(look, m.rank) for m in look.status.members if m.uid in lost})


def pods_of(look: Look, numbers: Iterable[int]) -> list[str]:
    """Pods that have a rank of those segments, or were made for one."""
    wanted = set(numbers)
    members = [m.uid for m in look.status.members if segment_of(look, m.rank) in wanted]
    return [*members, *(v.uid for v in look.free() if v.segment in wanted)]


def offer_of(look: Look, faults: Sequence[Fault], shrinks_to: int = 0) -> Offer:
    """What there is for the pods that the faults cost."""
    if not is_segmented(look):
        return offer_for(look, faults, shrinks_to)
    return offer_in_segments(look, faults, {f.uid for f in faults if f.reason == NOT_STOPPED})


def offer_in_segments(look: Look, faults: Sequence[Fault], unstoppable: Set[str]) -> Offer:
    """As `offer_for`, segment by segment: a replacement must sit where the rest of its segment does."""
    lost = [f.uid for f in faults if f.lost] or [faults[0].uid]
    moving = [m for m in look.status.members if m.uid in lost]
    roles = {role.name: role for role in look.spec.roles}
    picture = with_leavers(look, {f.uid for f in faults if f.lost}, unstoppable)
    room, spares, fits, why = Room.of(picture), 0, 0, ""
    lasting = any(f.planned for f in faults)
    standing_by = [v for v in look.free(lasting=lasting) if v.is_parked and v.segment < 0]
    for member in moving:
        number = segment_of(look, member.rank)
        spare = next((v for v in standing_by if v.role == member.role and serves(look, v, number)), None)
        if spare is not None:
            standing_by.remove(spare)
            spares += 1
            continue
        where, ask = domains_of(look)[number], [trial(look, roles[member.role])]
        nodes = picture.domains(look.status.placement.topology).get(where, [])
        if count_fit(picture, nodes, ask, room, keep=True):
            fits += 1
        else:
            why = explain(picture, ask, look.status.placement.topology, where, room).message
    return Offer(
        spares=spares,
        room_in_domain=fits,
        domain=", ".join(sorted({domains_of(look)[segment_of(look, m.rank)] for m in moving})),
        gang_fits=_fits(look, released(look, look.views.values(), unstoppable), None),
        why_no_room=why,
        is_segmented=True,
        segment_fits=segments_fit(look, hit_segments(look, lost), unstoppable),
    )


def segments_fit(look: Look, numbers: Sequence[int], unstoppable: Set[str] = frozenset()) -> str | None:
    """A domain that would take one of those segments, when there is one for each, with what they hold given back."""
    leaving = set(pods_of(look, numbers))
    views = [v for v in look.views.values() if v.uid in leaving or v.pod.is_deleting or v.uid in look.retired_uids]
    return _fits(look, released(look, views, unstoppable), numbers)


def stranded(look: Look, waiting: Sequence[PodView]) -> list[int]:
    """Segments that wait for room their domain does not have, also once pods on their way out are gone, when others have it."""
    picture, domains = with_leavers(look, set(), set()), domains_of(look)
    room, stuck = Room.of(picture), set()
    for view in waiting:
        if 0 <= view.segment < len(domains) and domains[view.segment]:
            nodes = picture.domains(look.status.placement.topology).get(domains[view.segment], [])
            if not count_fit(picture, nodes, [ask_of(view.pod)], room, keep=True):
                stuck.add(view.segment)
    found = sorted(stuck)
    return found if found and segments_fit(look, found) is not None else []


def _fits(look: Look, picture: Snapshot, numbers: Sequence[int] | None) -> str | None:
    size, ranks = look.spec.topology.segment_size, look.ranks
    wanted = range(-(-len(ranks) // size)) if numbers is None else numbers
    asks = [Segment(tuple(trial(look, role) for role in ranks[n * size : (n + 1) * size])) for n in wanted]
    topology = look.status.placement.topology
    placed = place_segments(picture, topology, asks)
    return None if isinstance(placed, Refusal) or not placed else picture.domain_of(placed[0].node, topology)


def forget_domains(look: Look, numbers: Iterable[int]) -> None:
    """Those segments sit nowhere any more."""
    gone = set(numbers)
    found = ["" if number in gone else where for number, where in enumerate(domains_of(look))]
    look.update(placement=Placement(look.status.placement.topology, segments=found))
