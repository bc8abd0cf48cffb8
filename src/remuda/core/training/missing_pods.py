"""Pods that a gang lacks, or has too many of: vacant ranks and spares ask for pods; what is not needed any more goes.

Back to the same node: where a replaced pod sat is the best place for the next one. Image, weights and caches are there, and the
rest of the gang is as near as it was. That holds when the node is open and all its devices are well; a pod that was moved because
of its device or its node, or because it kept failing there, does not go back.
"""

from __future__ import annotations

from collections.abc import Iterable

from remuda.api.meta import to_seconds
from remuda.api.training import Cause, Member, Recovery, Remedy, RetiredPod, Role
from remuda.core.training import segments
from remuda.core.training.elastic_size import missing_of
from remuda.core.training.job_pods import build_pod
from remuda.core.training.lent_spares import lent_count, places_called_back, places_returned
from remuda.core.training.planning_context import Look

LOST_BY = (Cause.DEVICE, Cause.INFRA)
AWAY_FROM = (Cause.DEVICE, Cause.MAINTENANCE, Cause.CODE, Cause.HANG)


def ask_for_pods(look: Look) -> None:
    for role in look.spec.roles:
        _ask_for_role(look, role)
    if any(is_pausing(pod, look.now) for pod in look.status.retired):
        look.create.clear()


def _ask_for_role(look: Look, role: Role) -> None:
    """Pods for vacant ranks first, then spares (of the first role).

    A pod made for a rank that waits unplaced while the rank is no longer vacant is not kept as a spare: the scheduler places
    it as a member, so a gang could wait for room it does not need.
    """
    if segments.is_segmented(look):
        _ask_for_segments(look, role)
        return
    free, vacant = look.free(role.name), look.vacant(role)
    spares_wanted = max(0, look.spec.spares - lent_count(look, role.name)) if role is look.spec.roles[0] else 0
    wanted = spares_wanted + missing_of(look, role.name)
    placed = sum(1 for v in free if v.is_bound and not v.is_spare)
    waiting = [v for v in free if not v.is_bound and not v.is_spare]
    missing = max(0, vacant - placed)
    for view in waiting[missing:]:
        look.doom(view.uid)
    old_places = [*places_called_back(look, role.name), *nodes_to_return_to(look, role.name)][len(waiting) :]
    lost = nodes_lost_by_role(look, role.name)[len(waiting) :]
    for number in range(missing - len(waiting)):
        place = placed + len(waiting) + number
        optional = 0 < role.min_replicas <= place and not look.status.members
        _make(
            look,
            role,
            prefer=old_places[number] if number < len(old_places) else "",
            lost=lost[number] if number < len(lost) else "",
            optional=optional,
        )
    spares = [v for v in free if v.is_spare or (v.is_bound and placed > vacant)]
    count = sum(1 for v in free if v.is_spare) + max(0, placed - vacant)
    for view in spares[::-1][: max(0, count - wanted)]:
        look.doom(view.uid)
    returned = places_returned(look, role.name)
    for number in range(wanted - count):
        _make(look, role, spare=True, prefer=returned[number] if number < len(returned) else "")


def _ask_for_segments(look: Look, role: Role) -> None:
    """The same for a gang in segments: a pod is made for the segment whose rank is vacant, in that segment's domain."""
    free, vacant, domains = look.free(role.name), segments.vacancies(look, role), segments.domains_of(look)
    for number, where in enumerate(domains):
        mine = [v for v in free if v.segment == number]
        waiting = [v for v in mine if not v.is_bound]
        missing = max(0, vacant[number] - (len(mine) - len(waiting)))
        for view in waiting[missing:]:
            look.doom(view.uid)
        for view in [v for v in mine if v.is_bound][vacant[number] :]:
            look.doom(view.uid)
        for _ in range(missing - len(waiting)):
            _make(look, role, segment=number, domain=where)
    spares = [v for v in free if v.segment < 0]
    wanted = look.spec.spares if role is look.spec.roles[0] else 0
    for view in spares[::-1][: max(0, len(spares) - wanted)]:
        look.doom(view.uid)
    for _ in range(wanted - len(spares)):
        _make(look, role, spare=True)


def _make(
    look: Look,
    role: Role,
    *,
    spare: bool = False,
    prefer: str = "",
    lost: str = "",
    optional: bool = False,
    segment: int = -1,
    domain: str | None = None,
) -> None:
    """The next free name. `pods_created` counts pods that were *seen*, so asking twice asks for the same pod."""
    index = look.status.pods_created + len(look.create)
    where = look.status.placement.domain if domain is None else domain
    look.create.append(
        build_pod(
            look.job,
            role,
            index,
            spare=spare,
            domain=where,
            prefer=prefer,
            lost=lost,
            optional=optional,
            segment=segment,
        )
    )


# -- back to the same node ---------------------------------------------------------------------------------------------


def nodes_to_return_to(look: Look, role: str) -> list[str]:
    """Nodes that the replaced pods of a role had and could have again, one for each."""
    under_way = look.under_way
    if under_way is None or under_way.cause in AWAY_FROM or under_way.remedy is Remedy.REPLACE_GANG:
        return []
    here = look.member_uids
    return [s.node for s in under_way.seats if s.role == role and s.uid not in here and _is_seat_usable(look, s)]


def nodes_lost_by_role(look: Look, role: str) -> list[str]:
    """Nodes of replaced pods that went because of a device or of the node: what is left there is kept for the next ones."""
    under_way = look.under_way
    if under_way is None or under_way.cause not in LOST_BY or under_way.remedy is Remedy.REPLACE_GANG:
        return []
    here = look.member_uids
    return [s.node for s in under_way.seats if s.role == role and s.uid not in here]


def _is_seat_usable(look: Look, seat: Member) -> bool:
    ix = look.snapshot.index.get(seat.node)
    if ix is None or look.snapshot.nodes[ix].closed:
        return False
    return all(look.snapshot.is_usable(seat.node, device) for device in seat.devices)


def with_returned_pods(recovery: Recovery, new: Iterable[Member]) -> str:
    """The recovery's message, and who went back to the node its predecessor had."""
    had = {seat.node for seat in recovery.seats}
    back = [f"{m.pod} is on {m.node} again: its image and caches are there." for m in new if m.node in had]
    return " ".join([recovery.message, *(text for text in back if text not in recovery.message)]).strip()


def is_pausing(pod: RetiredPod, now: float) -> bool:
    """No pod is made in its place yet."""
    return pod.until is not None and to_seconds(pod.until) > now
