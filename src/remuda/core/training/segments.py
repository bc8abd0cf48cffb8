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
from remuda.api.training import Member, Placement, Role
from remuda.core.gang.gang_remedy import MemberFault, PlacementOptions
from remuda.core.gang.pod_view import PodView
from remuda.core.scheduling.explain import explain_not_placed
from remuda.core.scheduling.first_fit import count_fitting_pods
from remuda.core.scheduling.placement_request import SegmentAsk, placement_ask_of_pod
from remuda.core.scheduling.segment_placement import place_segments
from remuda.core.state.snapshot import Snapshot
from remuda.core.state.transaction import Transaction
from remuda.core.training.faults import NOT_STOPPED
from remuda.core.training.placement_options import (
    snapshot_freed_by_training_pods,
    snapshot_without_training_leavers,
    training_options_in_domain,
    trial_ask_for_training_role,
)
from remuda.core.training.planning_context import PlanningContext


def is_job_segmented(ctx: PlanningContext) -> bool:
    topology = ctx.spec.topology
    return bool(topology.required) and 0 < topology.segment_size < len(ctx.ranks)


def segment_of_rank(ctx: PlanningContext, rank: int) -> int:
    return rank // ctx.spec.topology.segment_size


def training_segment_domains(ctx: PlanningContext) -> list[str]:
    """The domain of each segment."""
    size = ctx.spec.topology.segment_size
    count = -(-len(ctx.ranks) // size)
    known = ctx.status.placement.segments[:count]
    return [*known, *[""] * (count - len(known))]


def locate_segments(ctx: PlanningContext) -> None:
    """Writes down where segments sit that sat nowhere before: with their first placed pod. Forgets those that are no more."""
    found = training_segment_domains(ctx)
    if all(found) and found == ctx.status.placement.segments:
        return
    topology = ctx.status.placement.topology
    seated = [(segment_of_rank(ctx, m.rank), m.node) for m in ctx.status.members]
    seated += [(v.segment, v.node) for v in ctx.free() if v.is_bound and v.segment >= 0 and not v.made_for]
    for number, node in seated:
        if number < len(found) and not found[number] and node:
            found[number] = ctx.snapshot.domain_of(node, topology)
    if found != ctx.status.placement.segments and any(found):
        ctx.update(placement=Placement(topology, segments=found))


def is_segment_pod_misplaced(ctx: PlanningContext, view: PodView) -> bool:
    """Made for a domain that its segment has left since."""
    found = training_segment_domains(ctx)
    return bool(view.made_for) and 0 <= view.segment < len(found) and view.made_for != found[view.segment]


def serves_segment(ctx: PlanningContext, view: PodView, number: int) -> bool:
    """Whether the pod may have a rank of that segment."""
    if view.segment >= 0:
        return view.segment == number
    where = training_segment_domains(ctx)[number]
    return bool(where) and ctx.snapshot.domain_of(view.node, ctx.status.placement.topology) == where


def vacant_training_ranks_by_segment(ctx: PlanningContext, role: Role) -> Counter[int]:
    """Ranks of the role without a pod, by segment."""
    taken = {m.rank for m in ctx.status.members}
    found = (rank for rank, r in enumerate(ctx.ranks) if r.name == role.name and rank not in taken)
    return Counter(segment_of_rank(ctx, rank) for rank in found)


# -- remedies ---------------------------------------------------------------------------------------------------------


def hit_segments(ctx: PlanningContext, uids: Iterable[str]) -> list[int]:
    lost = set(uids)
    return sorted({segment_of_rank(ctx, m.rank) for m in _members_that_stay(ctx) if m.uid in lost})


def _members_that_stay(ctx: PlanningContext) -> list[Member]:
    """Without ranks that the gang has no more, because `replicas` were reduced: they go with the next attempt."""
    return [m for m in ctx.status.members if m.rank < len(ctx.ranks)]


def segment_pods(ctx: PlanningContext, numbers: Iterable[int]) -> list[str]:
    """Pods that have a rank of those segments, or were made for one."""
    wanted = set(numbers)
    members = [m.uid for m in ctx.status.members if segment_of_rank(ctx, m.rank) in wanted]
    return [*members, *(v.uid for v in ctx.free() if v.segment in wanted)]


def placement_options_for(ctx: PlanningContext, faults: Sequence[MemberFault], shrinks_to: int = 0) -> PlacementOptions:
    """What there is for the pods that the faults cost."""
    if not is_job_segmented(ctx):
        return training_options_in_domain(ctx, faults, shrinks_to)
    return training_options_in_segments(ctx, faults, {f.uid for f in faults if f.reason == NOT_STOPPED})


def training_options_in_segments(
    ctx: PlanningContext, faults: Sequence[MemberFault], unstoppable: Set[str]
) -> PlacementOptions:
    """As `training_options_in_domain`, segment by segment: a replacement must sit where the rest of its segment does."""
    lost = [f.uid for f in faults if f.lost] or [faults[0].uid]
    moving = [m for m in _members_that_stay(ctx) if m.uid in lost]
    roles = {role.name: role for role in ctx.spec.roles}
    picture = snapshot_without_training_leavers(ctx, {f.uid for f in faults if f.lost}, unstoppable)
    transaction, spares, why = Transaction.of(picture), 0, ""
    fits = len(lost) - len(moving)  # nobody comes in place of the others
    lasting = any(f.planned for f in faults)
    standing_by = [v for v in ctx.free(lasting=lasting) if v.is_parked and v.segment < 0]
    for member in moving:
        number = segment_of_rank(ctx, member.rank)
        spare = next((v for v in standing_by if v.role == member.role and serves_segment(ctx, v, number)), None)
        if spare is not None:
            standing_by.remove(spare)
            spares += 1
            continue
        where, ask = training_segment_domains(ctx)[number], [trial_ask_for_training_role(ctx, roles[member.role])]
        nodes = picture.domains(ctx.status.placement.topology).get(where, [])
        if count_fitting_pods(picture, nodes, ask, transaction, keep=True):
            fits += 1
        else:
            why = explain_not_placed(picture, ask, ctx.status.placement.topology, where, transaction).message
    return PlacementOptions(
        spares=spares,
        room_in_domain=fits,
        domain=", ".join(sorted({training_segment_domains(ctx)[segment_of_rank(ctx, m.rank)] for m in moving})),
        gang_fits=_domain_that_fits_segments(
            ctx, snapshot_freed_by_training_pods(ctx, ctx.views.values(), unstoppable), None
        ),
        why_no_room=why,
        is_segmented=True,
        segment_fits=domain_for_training_segments(ctx, hit_segments(ctx, lost), unstoppable),
    )


def domain_for_training_segments(
    ctx: PlanningContext, numbers: Sequence[int], unstoppable: Set[str] = frozenset()
) -> str | None:
    """A domain that would take one of those segments, when there is one for each, with what they hold given back."""
    leaving = set(segment_pods(ctx, numbers))
    views = [v for v in ctx.views.values() if v.uid in leaving or v.pod.is_deleting or v.uid in ctx.retired_uids]
    return _domain_that_fits_segments(ctx, snapshot_freed_by_training_pods(ctx, views, unstoppable), numbers)


def stranded_segments(ctx: PlanningContext, waiting: Sequence[PodView]) -> list[int]:
    """Segments that wait for room their domain does not have, also once pods on their way out are gone, when others have it."""
    picture, domains = snapshot_without_training_leavers(ctx, set(), set()), training_segment_domains(ctx)
    transaction, stuck = Transaction.of(picture), set()
    for view in waiting:
        if 0 <= view.segment < len(domains) and domains[view.segment]:
            nodes = picture.domains(ctx.status.placement.topology).get(domains[view.segment], [])
            if not count_fitting_pods(picture, nodes, [placement_ask_of_pod(view.pod)], transaction, keep=True):
                stuck.add(view.segment)
    found = sorted(stuck)
    return found if found and domain_for_training_segments(ctx, found) is not None else []


def _domain_that_fits_segments(ctx: PlanningContext, picture: Snapshot, numbers: Sequence[int] | None) -> str | None:
    size, ranks = ctx.spec.topology.segment_size, ctx.ranks
    wanted = range(-(-len(ranks) // size)) if numbers is None else numbers
    asks = [
        SegmentAsk(tuple(trial_ask_for_training_role(ctx, role) for role in ranks[n * size : (n + 1) * size]))
        for n in wanted
    ]
    topology = ctx.status.placement.topology
    placed = place_segments(picture, topology, asks)
    return None if isinstance(placed, Refusal) or not placed else picture.domain_of(placed[0].node, topology)


def forget_segment_domains(ctx: PlanningContext, numbers: Iterable[int]) -> None:
    """Those segments sit nowhere any more."""
    gone = set(numbers)
    found = ["" if number in gone else where for number, where in enumerate(training_segment_domains(ctx))]
    ctx.update(placement=Placement(ctx.status.placement.topology, segments=found))
