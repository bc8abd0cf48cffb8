"""A gang that goes on with fewer ranks when there is no room for all, and takes the others in again when there is.

A role that says `minReplicas` may have any size between that and `replicas`. `status.sizes` holds the size of each role that is
smaller than asked for; planning works with roles of that size (`PlanningContext.spec`), so ranks, vacancies and barrier follow by
themselves. The world's size is what the members are told at the start of an attempt, so a size changes only with a new attempt
(or before the first rank is given), and ranks are then counted anew, without gaps, in the old order.

Shrinking: as the dearest rung of a fault (`Remedy.SHRINK`) when nothing else is possible and waiting costs more; or later, when a
replacement has waited too long; or at the first placement, when only so many pods found room.

Growing: pods for the missing ranks are asked for as spares from the start, so room that comes back is the gang's first. When they
are parked, the gang has run for a while (or it would grow and shrink in turns) and it pays, it is stopped behind a checkpoint and
goes on with all it has.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

import msgspec

from remuda.api.meta import to_seconds, to_seconds_or
from remuda.api.training import Cause, Member, Remedy, Role, gpus_in_role_spec
from remuda.core.gang.budgets import charge_budgets, exhausted_budget
from remuda.core.gang.gang_remedy import ChosenRemedy, MemberFault, RemedyCosts
from remuda.core.gang.pod_view import CLOSED, OPEN
from remuda.core.scheduling.gang_placement import NO_ROOM_FOR_ALL
from remuda.core.training.checkpoint_handshake import may_stop_training_job
from remuda.core.training.job_status import training_placement_refusal, unplaced_rank_pods
from remuda.core.training.placement_options import expected_training_job_s
from remuda.core.training.planning_context import PlanningContext

ROOM_IS_BACK = "RoomIsBack"
SHRINK_AFTER_S = 60.0  # a replacement that waits longer is done without
GROW_AFTER_S = 120.0  # of running at one size, before another is tried


def least_replicas(role: Role) -> int:
    """The fewest pods the role goes on with."""
    return min(role.min_replicas, role.replicas) if role.min_replicas else role.replicas


def asked_role_sizes(ctx: PlanningContext) -> dict[str, int]:
    """What the user asked for, by role that is there."""
    whole = {role.name: role.replicas for role in ctx.whole_spec.roles}
    return {role.name: whole.get(role.name, role.replicas) for role in ctx.spec.roles}


def missing_ranks(ctx: PlanningContext, role: str) -> int:
    """Ranks of a role that the gang goes on without."""
    here = next((r.replicas for r in ctx.spec.roles if r.name == role), 0)
    return max(0, asked_role_sizes(ctx).get(role, 0) - here)


# -- shrinking --------------------------------------------------------------------------------------------------------


def role_sizes_without(ctx: PlanningContext, lost: Iterable[str]) -> dict[str, int] | None:
    """The size of each role once those pods are gone and whoever stands by has taken a rank; None when that is too few, or no
    fewer than now."""
    if ctx.spec.topology.required and ctx.spec.topology.segment_size:
        return None
    gone = set(lost)
    left = Counter(m.role for m in ctx.status.members if m.uid not in gone and m.uid in ctx.views)
    left.update(v.role for v in ctx.free() if v.is_bound and v.uid not in gone)
    sizes = {role.name: min(role.replicas, left[role.name]) for role in ctx.spec.roles}
    asked = {role.name: role for role in ctx.whole_spec.roles}
    if any(sizes[r.name] < least_replicas(asked[r.name]) for r in ctx.spec.roles):
        return None
    return sizes if any(sizes[r.name] < r.replicas for r in ctx.spec.roles) else None


def ranks_after_shrink(ctx: PlanningContext, faults: Iterable[MemberFault]) -> int:
    sizes = role_sizes_without(ctx, [f.uid for f in faults if f.lost])
    return sum(sizes.values()) if sizes is not None else 0


def resize_elastic_training_job(ctx: PlanningContext, sizes: Mapping[str, int]) -> None:
    """Another size, and ranks without gaps. Only with a new attempt, or before a rank was given."""
    asked = asked_role_sizes(ctx)
    ctx.update(sizes={name: size for name, size in sizes.items() if size < asked.get(name, size)})
    ctx.restage()
    ctx.update(members=renumbered_members(ctx))


def renumbered_members(ctx: PlanningContext) -> list[Member]:
    """The members, each role's in the old order, counted by the sizes that roles have now."""
    found: list[Member] = []
    first = 0
    for role in ctx.spec.roles:
        old = sorted((m for m in ctx.status.members if m.role == role.name), key=lambda m: m.rank)
        kept = old[: role.replicas]
        found += [msgspec.structs.replace(m, rank=first + number) for number, m in enumerate(kept)]
        first += role.replicas
    return found


def role_sizes_if_stranded(ctx: PlanningContext) -> dict[str, int] | None:
    """The sizes a gang that waits for room should go on with instead; None = wait."""
    status = ctx.status
    if status.barrier == OPEN or not unplaced_rank_pods(ctx):
        return None
    refusal = training_placement_refusal(ctx)
    if refusal is None:
        return None
    waited = ctx.now - to_seconds_or(status.attempt_raised_at, ctx.now)
    if refusal.reason != NO_ROOM_FOR_ALL and (not status.members or waited < SHRINK_AFTER_S):
        return None
    return role_sizes_without(ctx, ())


def next_shrink_at(ctx: PlanningContext) -> float | None:
    if ctx.status.barrier != CLOSED or not any(role.min_replicas for role in ctx.spec.roles):
        return None
    return to_seconds_or(ctx.status.attempt_raised_at, ctx.now) + SHRINK_AFTER_S


# -- growing ----------------------------------------------------------------------------------------------------------


def larger_role_sizes(ctx: PlanningContext) -> dict[str, int] | None:
    """The sizes the gang could have with the pods that stand by beyond its spares; None = no larger than now."""
    if not ctx.status.sizes:
        return None
    sizes: dict[str, int] = {}
    for number, role in enumerate(ctx.spec.roles):
        parked = sum(1 for v in ctx.free(role.name) if v.is_parked)
        extra = parked - (ctx.spec.spares if number == 0 else 0)
        sizes[role.name] = role.replicas + max(0, min(missing_ranks(ctx, role.name), extra))
    return sizes if any(sizes[r.name] > r.replicas for r in ctx.spec.roles) else None


def plan_job_growth(ctx: PlanningContext) -> tuple[dict[str, int], ChosenRemedy] | None:
    """The sizes to go on with and the record of it, when the gang is to grow now. May ask for a checkpoint instead."""
    sizes = larger_role_sizes(ctx) if ctx.status.barrier == OPEN and job_may_grow_at(ctx) <= ctx.now else None
    if (
        sizes is None
        or exhausted_budget(ctx.spec.failure.budgets, charge_budgets(ctx.status.used, [Cause.MAINTENANCE])) is not None
    ):
        return None
    more = sum((sizes[r.name] - r.replicas) * (gpus_in_role_spec(r) or 1) for r in ctx.spec.roles)
    costs = RemedyCosts(gang_gpus=ctx.gang_gpus or len(ctx.ranks), moved_gpus=more, rollback_s=0.0)
    price = costs.gang_gpus * (costs.stop_s + costs.restart_s)
    if more * expected_training_job_s(ctx) <= price or not may_stop_training_job(ctx, ROOM_IS_BACK):
        return None
    total = sum(sizes.values())
    words = f"There is room for {total - len(ctx.ranks)} more ranks: the gang grows from {len(ctx.ranks)} to {total}."
    return sizes, ChosenRemedy(Remedy.GROW, Cause.MAINTENANCE, ROOM_IS_BACK, words, price / 3600)


def job_may_grow_at(ctx: PlanningContext) -> float:
    opened = ctx.last_recovery.first_step_at if ctx.last_recovery is not None else ctx.status.started_at
    return (to_seconds(opened) if opened is not None else ctx.now) + GROW_AFTER_S


def next_growth_at(ctx: PlanningContext) -> float | None:
    return job_may_grow_at(ctx) if ctx.status.sizes and ctx.status.barrier == OPEN else None
