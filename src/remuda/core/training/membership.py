"""Who has which rank: pods without one are judged, ranks are filled, missing pods are asked for.

The status alone decides who is a member. A pod that was one and is dropped is *retired*: written down with the status that
drops it, deleted on every look until it is seen gone, and never given a rank again. So a crash between the two writes, or a
view that lags behind, cannot bring back a pod that the gang was moved away from.

Ranks are filled only while the barrier is closed. First placement gives all ranks at once, in topology order, when every pod
is placed; later each vacant rank goes to a parked spare, else to a pod that was made for it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime

import msgspec

from remuda.api.meta import to_time
from remuda.api.names import ANNOTATION_GANG_SIZE
from remuda.api.training import Cause, Member, Placement, RetiredPod, TrainingJob
from remuda.core.foreign.refused_pods import ADMISSION_BUDGET as REJECTION_BUDGET
from remuda.core.foreign.refused_pods import ADMISSION_USED as REJECTIONS
from remuda.core.foreign.refused_pods import BUDGET_EXHAUSTED, is_pod_refused_by_node, refused_pod_retry_s
from remuda.core.gang.budgets import charge_budgets, exhausted_budget
from remuda.core.gang.pod_view import CLOSED, PodView
from remuda.core.training import segments
from remuda.core.training.elastic_size import renumbered_members
from remuda.core.training.faults import NOT_STOPPED, spare_start_deadline, training_pod_stop_deadline
from remuda.core.training.job_pods import job_pod_sizes
from remuda.core.training.job_status import (
    fail_job_over_budget,
    mark_training_job_failed,
    training_placement_refusal,
    unplaced_rank_pods,
)
from remuda.core.training.missing_pods import is_replacement_paused, with_returned_pods
from remuda.core.training.planning_context import PlanningContext

SURPLUS = "ReplicasReduced"
NOT_PLACED = "InsufficientDevices"  # the scheduler's word for a gang that sits nowhere yet
RETRY_S = 2.0  # pause after a pod that ended before it had a rank: what refused it may need a moment to let go


def retire_pod(ctx: PlanningContext, uid: str, reason: str, until: float | None = None) -> None:
    """Takes the pod out of the gang for good."""
    view = ctx.views.get(uid)
    if view is not None and uid not in ctx.retired_uids:
        entry = RetiredPod(view.pod.name, uid, reason, None if until is None else to_time(until))
        ctx.update(retired=[*ctx.status.retired, entry])
    ctx.delete_pod(uid)


def delete_retired_training_pods(ctx: PlanningContext) -> None:
    """Retired pods are deleted until they are gone; then they are forgotten. One that may still run when it should have
    stopped long ago is written down as such, which takes its devices out of use."""
    kept = [r for r in ctx.status.retired if r.uid in ctx.views or is_replacement_paused(r, ctx.now)]
    late = {r.uid for r in kept if (v := ctx.views.get(r.uid)) and _is_stop_overdue(ctx, v)}
    kept = [msgspec.structs.replace(r, reason=NOT_STOPPED) if r.uid in late else r for r in kept]
    if kept != ctx.status.retired:
        ctx.update(retired=kept)
    for pod in kept:
        ctx.delete_pod(pod.uid)


def _is_stop_overdue(ctx: PlanningContext, view: PodView) -> bool:
    may_be_at_work = view.may_run or view.may_start(ctx.status.attempt)
    return may_be_at_work and ctx.now > training_pod_stop_deadline(ctx.job, view, ctx.now, ctx.stalls)


# -- pods without a rank ----------------------------------------------------------------------------------------------


def keep_training_job_domain(ctx: PlanningContext) -> None:
    """Keeps the domain that the gang sits in: that of its first placed pod. A gang that has run keeps it even when nothing of
    it is left there, so that the scheduler gives freed room back to it first; one that never ran is free to go anywhere."""
    if segments.is_job_segmented(ctx):
        segments.locate_segments(ctx)
        return
    where, has_run = ctx.status.placement, ctx.status.started_at is not None
    if not where.topology or ctx.status.members:
        return
    placed = [v for v in ctx.free() if v.is_bound and not _is_pod_misplaced(ctx, v)]
    if where.domain and (placed or has_run):
        return
    domain = ctx.snapshot.domain_of(placed[0].node, where.topology) if placed else ""
    if domain != where.domain:
        ctx.update(placement=Placement(where.topology, domain))


def drop_unfit_training_pods(ctx: PlanningContext) -> None:
    """Pods without a rank that went bad. No attempt is raised for them: nobody runs there."""
    out = ctx.member_uids | ctx.retired_uids
    ended: list[PodView] = []
    has_place, job = any(v.is_bound and v.is_usable for v in ctx.views.values()), ctx.job
    for view in [v for v in ctx.views.values() if v.uid not in out]:
        if view.is_usable:
            if (
                _is_pod_misplaced(ctx, view)
                or _is_pod_start_overdue(ctx, view)
                or _waits_with_old_size(job, view, has_place=has_place)
            ):
                ctx.delete_pod(view.uid)
        elif view.pod.is_terminal and not (view.pod.is_deleting or view.bad_device or view.node_dead):
            ended.append(view)
        else:
            ctx.delete_pod(view.uid)
    if ended:
        _drop_ended_pods(ctx, ended)


def _drop_ended_pods(ctx: PlanningContext, ended: list[PodView]) -> None:
    """Refused by its node, or its launcher gave up. Charged unless a spare's: making the same pod for ever helps nobody. Refusals
    are charged to none of the budgets: they have a count of their own and are tried ever more seldom."""
    is_new = not any(is_replacement_paused(pod, ctx.now) for pod in ctx.status.retired)
    refused = [v for v in ended if is_pod_refused_by_node(v.pod)]
    if is_new and any(not view.is_spare for view in refused):
        ctx.update(used={**ctx.status.used, REJECTIONS: ctx.status.used.get(REJECTIONS, 0) + 1})
    until = replacement_pause_until(ctx, ctx.status.used) if refused else ctx.now + RETRY_S
    for view in ended:
        retire_pod(ctx, view.uid, view.pod.status.reason or "PodEnded", until)
    if fail_if_pods_rejected(ctx, _job_pod_end_text(refused[-1]) if refused else ""):
        return
    meant = [v for v in ended if not v.is_spare and v not in refused]
    if meant and is_new:
        used = charge_budgets(ctx.status.used, [Cause.INFRA])
        ctx.update(used=used)
        over = exhausted_budget(ctx.spec.failure.budgets, used)
        if over is not None:
            first = meant[0].pod
            text = first.status.message or first.status.reason or "ended before it had a rank"
            fail_job_over_budget(ctx, over, f"{first.name}: {text}.")


def _job_pod_end_text(view: PodView) -> str:
    status = view.pod.status
    return f"{view.pod.name}: {status.message or status.reason}."


def replacement_pause_until(ctx: PlanningContext, used: Mapping[str, int]) -> float:
    """Until when no pod is made for one that its node refused: longer with every refusal."""
    return ctx.now + max(RETRY_S, refused_pod_retry_s(used.get(REJECTIONS, 0)))


def fail_if_pods_rejected(ctx: PlanningContext, why: str) -> bool:
    """Ends a gang whose pods were refused more often than anybody would wait for."""
    is_over = ctx.status.used.get(REJECTIONS, 0) > REJECTION_BUDGET
    if is_over and not ctx.is_finished:
        mark_training_job_failed(
            ctx,
            BUDGET_EXHAUSTED,
            f"Nodes refused pods of the job more than {REJECTION_BUDGET} times. {why}".strip(),
        )
    return is_over


def _is_pod_misplaced(ctx: PlanningContext, view: PodView) -> bool:
    """Made for a domain that the gang has left since."""
    if segments.is_job_segmented(ctx):
        return segments.is_segment_pod_misplaced(ctx, view)
    return bool(view.made_for) and view.made_for != ctx.status.placement.domain


def _waits_with_old_size(job: TrainingJob, view: PodView, *, has_place: bool) -> bool:
    """It waits to be placed together with more pods than there will be, or with fewer: `replicas` was changed since it was made.
    Where the gang has a place, each pod is placed by itself; only a segment may still wait to be whole."""
    if view.is_bound:
        return False
    sizes = job_pod_sizes(job, view.segment)
    if has_place:
        sizes.pop(ANNOTATION_GANG_SIZE)
    return any(view.pod.annotations.get(name) != size for name, size in sizes.items())


def _is_pod_start_overdue(ctx: PlanningContext, view: PodView) -> bool:
    """Placed, but its launcher never spoke: no use as a spare."""
    at = view.bound_at if view.is_bound and view.is_silent and not view.node_held else None
    return at is not None and ctx.now > spare_start_deadline(ctx.job, view, at, ctx.stalls)


# -- ranks ------------------------------------------------------------------------------------------------------------


def fill_training_job_ranks(ctx: PlanningContext) -> None:
    if ctx.status.barrier == CLOSED:
        _drop_surplus_members(ctx)
        if _has_role_grown(ctx):
            ctx.update(members=renumbered_members(ctx))
    members = {m.rank: _refreshed_member(ctx, m) for m in ctx.status.members}
    if ctx.status.barrier == CLOSED:
        taken = _fill_ranks_first(ctx, members) if not members else []
        if members or _has_spare_to_stand_in(ctx):
            taken += _fill_vacant_ranks(ctx, members)
        under_way = ctx.under_way
        if under_way is not None and taken:
            ctx.amend_recovery(
                replaced=[*under_way.replaced, *(p for p in taken if p not in under_way.replaced)],
                message=with_returned_pods(under_way, [ctx.views[m.uid] for m in members.values() if m.pod in taken]),
            )
    elif ctx.status.held_roles:
        _fill_vacant_ranks(ctx, members, ctx.status.held_roles)
    ctx.update(members=[members[rank] for rank in sorted(members)])


def _drop_surplus_members(ctx: PlanningContext) -> None:
    """`replicas` are fewer than when the ranks were given: the last ranks go, now that nobody runs."""
    members = ctx.status.members
    if segments.is_job_segmented(ctx):  # the others stay where their segment is
        kept = [m for m in members if m.rank < len(ctx.ranks)]
    elif all(ctx.vacant(role) >= 0 for role in ctx.spec.roles):
        return
    else:
        kept = renumbered_members(ctx)
    staying = {m.uid for m in kept}
    for member in members:
        if member.uid not in staying:
            retire_pod(ctx, member.uid, SURPLUS)
    ctx.update(members=kept)


def _has_role_grown(ctx: PlanningContext) -> bool:
    """A role before others has more replicas than when the ranks were given: those of the others lie further back now."""
    if segments.is_job_segmented(ctx):
        return False  # a pod is made for its segment
    members = ctx.status.members
    is_elsewhere = any(m.rank < len(ctx.ranks) and ctx.ranks[m.rank].name != m.role for m in members)
    return is_elsewhere and all(ctx.vacant(role) >= 0 for role in ctx.spec.roles)


def _has_spare_to_stand_in(ctx: PlanningContext) -> bool:
    """No rank is taken, a spare stands by, and nobody better is on the way: every member was lost at once, or one was refused.

    The spare takes its rank now. Were it to wait until all the others are placed, a domain with room for the rest but not
    for all would keep the gang waiting for ever. Pods that are merely being bound, one after another, are waited for; what
    was said of them before the gang had a place is no refusal any more.
    """
    refusal = training_placement_refusal(ctx)
    is_coming = bool(unplaced_rank_pods(ctx)) and (refusal is None or refusal.reason == NOT_PLACED)
    return not is_coming and any(v.is_bound and v.is_spare for v in ctx.free())


def _fill_ranks_first(ctx: PlanningContext, members: dict[int, Member]) -> list[str]:
    """First placement: ranks follow topology order, so they are given only when all pods are placed. A spare that is placed
    stands in for a member that was refused: it may sit in the very room that the member waits for."""
    if segments.is_job_segmented(ctx):
        return _fill_segment_ranks(ctx, members)
    chosen: dict[str, list[PodView]] = {}
    may_stand_in = _has_spare_to_stand_in(ctx)
    for role in ctx.spec.roles:
        free = [v for v in ctx.free(role.name) if v.is_bound and (may_stand_in or not v.is_spare)]
        placed = sorted(free, key=lambda v: (v.is_spare, _topology_order(v)))
        if len(placed) < role.replicas:
            return []
        chosen[role.name] = sorted(placed[: role.replicas], key=_topology_order)
    for rank, role in enumerate(ctx.ranks):
        members[rank] = _member_with_rank(rank, chosen[role.name].pop(0), to_time(ctx.now))
    return [m.pod for m in members.values()]


def _fill_segment_ranks(ctx: PlanningContext, members: dict[int, Member]) -> list[str]:
    """The same for a gang in segments: each rank gets a pod of its own segment."""
    free = sorted((v for v in ctx.free() if v.is_bound and v.segment >= 0), key=_topology_order)
    found: dict[int, PodView] = {}
    for rank, role in enumerate(ctx.ranks):
        number = segments.segment_of_rank(ctx, rank)
        view = next((v for v in free if (v.segment, v.role) == (number, role.name)), None)
        if view is None:
            return []
        free.remove(view)
        found[rank] = view
    members.update((rank, _member_with_rank(rank, view, to_time(ctx.now))) for rank, view in found.items())
    return [view.pod.name for view in found.values()]


def _topology_order(view: PodView) -> tuple[str, tuple[str, ...], int]:
    return view.node, view.devices, view.index


def _fill_vacant_ranks(
    ctx: PlanningContext, members: dict[int, Member], only: Sequence[str] | None = None
) -> list[str]:
    placed = {role.name: [v for v in ctx.free(role.name) if v.is_bound] for role in ctx.spec.roles}
    taken: list[str] = []
    for rank, role in enumerate(ctx.ranks):
        if rank in members or (only is not None and role.name not in only):
            continue
        view = next((v for v in placed[role.name] if _may_have_rank(ctx, v, rank)), None)
        if view is not None:
            placed[role.name].remove(view)
            members[rank] = _member_with_rank(rank, view, to_time(ctx.now))
            taken.append(members[rank].pod)
    return taken


def _may_have_rank(ctx: PlanningContext, view: PodView, rank: int) -> bool:
    return not segments.is_job_segmented(ctx) or segments.serves_segment(ctx, view, segments.segment_of_rank(ctx, rank))


def _refreshed_member(ctx: PlanningContext, member: Member) -> Member:
    view = ctx.views.get(member.uid)
    return _member_with_rank(member.rank, view, member.since) if view else member


def _member_with_rank(rank: int, view: PodView, since: datetime | None) -> Member:
    pod = view.pod
    return Member(rank, view.role, pod.name, pod.uid, view.node, list(view.devices), pod.status.pod_ip, since)


# -- pods that are missing, or too many -------------------------------------------------------------------------------


def count_training_pods_created(ctx: PlanningContext) -> None:
    """Names go on behind the highest that was seen."""
    seen = max((v.index for v in ctx.views.values()), default=-1)
    if seen >= ctx.status.pods_created:
        ctx.update(pods_created=seen + 1)


def start_first_attempt(ctx: PlanningContext) -> None:
    """The first attempt."""
    if ctx.status.attempt == 0:
        where = Placement(topology=ctx.spec.topology.required)
        ctx.update(attempt=1, barrier=CLOSED, attempt_raised_at=to_time(ctx.now), placement=where)
