"""Pods that a gang lacks, or has too many of: vacant ranks and spares ask for pods; what is not needed any more goes.

Back to the same node: where a replaced pod sat is the best place for the next one. Image, weights and caches are there, and the
rest of the gang is as near as it was. That holds when the node is open and all its devices are well; a pod that was moved because
of its device or its node, or because it kept failing there, does not go back.
"""

from __future__ import annotations

from collections.abc import Iterable

from remuda.api.meta import to_seconds
from remuda.api.names import LABEL_ROLE
from remuda.api.training import Cause, Member, Recovery, Remedy, RetiredPod, Role
from remuda.core.gang.launcher_trouble import LAUNCHER_TROUBLES
from remuda.core.gang.pod_view import PodView
from remuda.core.training import segments
from remuda.core.training.edited_templates import roles_with_template_in_use
from remuda.core.training.elastic_size import missing_ranks
from remuda.core.training.gang_size import hold_too_large_training_gang, most_spares
from remuda.core.training.job_pods import build_job_pod
from remuda.core.training.lent_spares import lent_spare_count, loan_nodes_called_back, loan_nodes_returned
from remuda.core.training.planning_context import PODS_A_LOOK, PlanningContext

LOST_BY = (Cause.DEVICE, Cause.INFRA)
AWAY_FROM = (Cause.DEVICE, Cause.MAINTENANCE, Cause.CODE, Cause.HANG)


def ask_for_missing_pods(ctx: PlanningContext) -> None:
    hold_too_large_training_gang(ctx)
    if ctx.too_large is not None:
        return
    for role in ctx.spec.roles:
        _ask_for_role_pods(ctx, role)
    if any(is_replacement_paused(pod, ctx.now) for pod in ctx.status.retired):
        ctx.create.clear()
    if held := roles_with_template_in_use(ctx):
        ctx.create = [body for body in ctx.create if body["metadata"]["labels"][LABEL_ROLE] not in held]


def _ask_for_role_pods(ctx: PlanningContext, role: Role) -> None:
    """Pods for vacant ranks first, then spares (of the first role).

    A pod made for a rank that waits unplaced while the rank is no longer vacant is not kept as a spare: the scheduler places
    it as a member, so a gang could wait for room it does not need.
    """
    if segments.is_job_segmented(ctx):
        _ask_for_segment_pods(ctx, role)
        return
    free, vacant = ctx.free(role.name), ctx.vacant(role)
    spares_wanted = max(0, ctx.spec.spares - lent_spare_count(ctx, role.name)) if role is ctx.spec.roles[0] else 0
    wanted = most_spares(ctx, role, spares_wanted + missing_ranks(ctx, role.name))
    placed = sum(1 for v in free if v.is_bound and not v.is_spare)
    waiting = [v for v in free if not v.is_bound and not v.is_spare]
    missing = max(0, vacant - placed)
    for view in waiting[missing:]:
        ctx.delete_pod(view.uid)
    old_places = [*loan_nodes_called_back(ctx, role.name), *nodes_to_return_to(ctx, role.name)][len(waiting) :]
    lost = nodes_lost_by_role(ctx, role.name)[len(waiting) :]
    for number in range(missing - len(waiting)):
        place = placed + len(waiting) + number
        optional = 0 < role.min_replicas <= place and not ctx.status.members
        _ask_for_pod(
            ctx,
            role,
            prefer=old_places[number] if number < len(old_places) else "",
            lost=lost[number] if number < len(lost) else "",
            optional=optional,
        )
    spares = [v for v in free if v.is_spare or (v.is_bound and placed > vacant)]
    count = sum(1 for v in free if v.is_spare) + max(0, placed - vacant)
    for view in spares[::-1][: max(0, count - wanted)]:
        ctx.delete_pod(view.uid)
    returned = loan_nodes_returned(ctx, role.name)
    for number in range(wanted - count):
        _ask_for_pod(ctx, role, spare=True, prefer=returned[number] if number < len(returned) else "")


def _ask_for_segment_pods(ctx: PlanningContext, role: Role) -> None:
    """The same for a gang in segments: a pod is made for the segment whose rank is vacant, in that segment's domain."""
    free, vacant, domains = (
        ctx.free(role.name),
        segments.vacant_training_ranks_by_segment(ctx, role),
        segments.training_segment_domains(ctx),
    )
    for number, where in enumerate(domains):
        mine = [v for v in free if v.segment == number]
        waiting = [v for v in mine if not v.is_bound]
        missing = max(0, vacant[number] - (len(mine) - len(waiting)))
        for view in waiting[missing:]:
            ctx.delete_pod(view.uid)
        for view in [v for v in mine if v.is_bound][vacant[number] :]:
            ctx.delete_pod(view.uid)
        for _ in range(missing - len(waiting)):
            _ask_for_pod(ctx, role, segment=number, domain=where)
    for view in [v for v in free if v.segment >= len(domains)]:  # the gang has fewer segments now
        ctx.delete_pod(view.uid)
    spares = [v for v in free if v.segment < 0]
    wanted = most_spares(ctx, role, ctx.spec.spares) if role is ctx.spec.roles[0] else 0
    for view in spares[::-1][: max(0, len(spares) - wanted)]:
        ctx.delete_pod(view.uid)
    for _ in range(wanted - len(spares)):
        _ask_for_pod(ctx, role, spare=True)


def _ask_for_pod(
    ctx: PlanningContext,
    role: Role,
    *,
    spare: bool = False,
    prefer: str = "",
    lost: str = "",
    optional: bool = False,
    segment: int = -1,
    domain: str | None = None,
) -> None:
    """The next free name. `pods_created` counts pods that were *seen*, so asking twice asks for the same pod. What is too much
    for one look is asked for at the next."""
    if len(ctx.create) >= PODS_A_LOOK:
        return
    index = ctx.status.pods_created + len(ctx.create)
    where = ctx.status.placement.domain if domain is None else domain
    ctx.create.append(
        build_job_pod(
            ctx.job,
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


def nodes_to_return_to(ctx: PlanningContext, role: str) -> list[str]:
    """Nodes that the replaced pods of a role had and could have again, one for each."""
    under_way = ctx.under_way
    if under_way is None or under_way.cause in AWAY_FROM or under_way.remedy is Remedy.REPLACE_GANG:
        return []
    if under_way.reason in LAUNCHER_TROUBLES:
        return []  # another node may have what that one lacks
    here = ctx.member_uids
    return [s.node for s in under_way.seats if s.role == role and s.uid not in here and _is_seat_usable(ctx, s)]


def nodes_lost_by_role(ctx: PlanningContext, role: str) -> list[str]:
    """Nodes of replaced pods that went because of a device or of the node: what is left there is kept for the next ones."""
    under_way = ctx.under_way
    if under_way is None or under_way.cause not in LOST_BY or under_way.remedy is Remedy.REPLACE_GANG:
        return []
    here = ctx.member_uids
    return [s.node for s in under_way.seats if s.role == role and s.uid not in here]


def _is_seat_usable(ctx: PlanningContext, seat: Member) -> bool:
    ix = ctx.snapshot.index.get(seat.node)
    if ix is None or ctx.snapshot.nodes[ix].closed:
        return False
    return all(ctx.snapshot.is_usable(seat.node, device) for device in seat.devices)


def with_returned_pods(recovery: Recovery, new: Iterable[PodView]) -> str:
    """The recovery's message, and who went back to the node its predecessor had. A spare of that node never left it."""
    had = {seat.node for seat in recovery.seats}
    returned = (v for v in new if v.node in had and not v.is_spare)
    back = [f"{v.pod.name} is back on {v.node}, where its image and caches are." for v in returned]
    return " ".join([recovery.message, *(text for text in back if text not in recovery.message)]).strip()


def is_replacement_paused(pod: RetiredPod, now: float) -> bool:
    """No pod is made in its place yet."""
    return pod.until is not None and to_seconds(pod.until) > now
