"""A gang that goes on with fewer ranks when there is no room for all, and takes the others in again when there is.

A role that says `minReplicas` may have any size between that and `replicas`. `status.sizes` holds the size of each role that is
smaller than asked for; a look works with roles of that size (`Look.spec`), so ranks, vacancies and the barrier follow by
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

from remuda.api.meta import to_seconds
from remuda.api.training import Cause, Member, Remedy, Role
from remuda.api.validation.validate import gpus_of
from remuda.core.gang.budgets import charge, exhausted
from remuda.core.gang.gang_remedy import Choice, Costs, Fault
from remuda.core.gang.pod_view import CLOSED, OPEN, seconds_of
from remuda.core.scheduling.gang_placement import NO_ROOM_FOR_ALL
from remuda.core.training.checkpoint_handshake import ready_to_stop
from remuda.core.training.job_status import refused, waiting_pods
from remuda.core.training.placement_options import expected_s
from remuda.core.training.planning_context import Look

ROOM_IS_BACK = "RoomIsBack"
SHRINK_AFTER_S = 60.0  # a replacement that waits longer is done without
GROW_AFTER_S = 120.0  # of running at one size, before another is tried


def least(role: Role) -> int:
    """The fewest pods the role goes on with."""
    return min(role.min_replicas, role.replicas) if role.min_replicas else role.replicas


def asked_sizes(look: Look) -> dict[str, int]:
    """What the user asked for, by role that is there."""
    whole = {role.name: role.replicas for role in look.whole_spec.roles}
    return {role.name: whole.get(role.name, role.replicas) for role in look.spec.roles}


def missing_of(look: Look, role: str) -> int:
    """Ranks of a role that the gang goes on without."""
    here = next((r.replicas for r in look.spec.roles if r.name == role), 0)
    return max(0, asked_sizes(look).get(role, 0) - here)


# -- shrinking --------------------------------------------------------------------------------------------------------


def sizes_without(look: Look, lost: Iterable[str]) -> dict[str, int] | None:
    """The size of each role once those pods are gone and whoever stands by has taken a rank; None when that is too few, or no
    fewer than now."""
    if look.spec.topology.required and look.spec.topology.segment_size:
        return None
    gone = set(lost)
    left = Counter(m.role for m in look.status.members if m.uid not in gone and m.uid in look.views)
    left.update(v.role for v in look.free() if v.is_bound and v.uid not in gone)
    sizes = {role.name: min(role.replicas, left[role.name]) for role in look.spec.roles}
    asked = {role.name: role for role in look.whole_spec.roles}
    if any(sizes[r.name] < least(asked[r.name]) for r in look.spec.roles):
        return None
    return sizes if any(sizes[r.name] < r.replicas for r in look.spec.roles) else None


def shrinks_to(look: Look, faults: Iterable[Fault]) -> int:
    sizes = sizes_without(look, [f.uid for f in faults if f.lost])
    return sum(sizes.values()) if sizes is not None else 0


def resize(look: Look, sizes: Mapping[str, int]) -> None:
    """Another size, and ranks without gaps. Only with a new attempt, or before a rank was given."""
    asked = asked_sizes(look)
    look.update(sizes={name: size for name, size in sizes.items() if size < asked.get(name, size)})
    look.restage()
    look.update(members=_renumbered(look))


def _renumbered(look: Look) -> list[Member]:
    found: list[Member] = []
    first = 0
    for role in look.spec.roles:
        old = sorted((m for m in look.status.members if m.role == role.name), key=lambda m: m.rank)
        kept = old[: role.replicas]
        found += [msgspec.structs.replace(m, rank=first + number) for number, m in enumerate(kept)]
        first += role.replicas
    return found


def stranded_sizes(look: Look) -> dict[str, int] | None:
    """The sizes a gang that waits for room should go on with instead; None = wait."""
    status = look.status
    if status.barrier == OPEN or not waiting_pods(look):
        return None
    refusal = refused(look)
    if refusal is None:
        return None
    waited = look.now - seconds_of(status.attempt_raised_at, look.now)
    if refusal.reason != NO_ROOM_FOR_ALL and (not status.members or waited < SHRINK_AFTER_S):
        return None
    return sizes_without(look, ())


def next_shrink_look(look: Look) -> float | None:
    if look.status.barrier != CLOSED or not any(role.min_replicas for role in look.spec.roles):
        return None
    return seconds_of(look.status.attempt_raised_at, look.now) + SHRINK_AFTER_S


# -- growing ----------------------------------------------------------------------------------------------------------


def larger_sizes(look: Look) -> dict[str, int] | None:
    """The sizes the gang could have with the pods that stand by beyond its spares; None = no larger than now."""
    if not look.status.sizes:
        return None
    sizes: dict[str, int] = {}
    for number, role in enumerate(look.spec.roles):
        parked = sum(1 for v in look.free(role.name) if v.is_parked)
        extra = parked - (look.spec.spares if number == 0 else 0)
        sizes[role.name] = role.replicas + max(0, min(missing_of(look, role.name), extra))
    return sizes if any(sizes[r.name] > r.replicas for r in look.spec.roles) else None


def growth(look: Look) -> tuple[dict[str, int], Choice] | None:
    """The sizes to go on with and the record of it, when the gang is to grow now. May ask for a checkpoint instead."""
    sizes = larger_sizes(look) if look.status.barrier == OPEN and may_grow_at(look) <= look.now else None
    if sizes is None or exhausted(look.spec.failure.budgets, charge(look.status.used, [Cause.MAINTENANCE])) is not None:
        return None
    more = sum((sizes[r.name] - r.replicas) * (gpus_of(r) or 1) for r in look.spec.roles)
    costs = Costs(gang_gpus=look.gang_gpus or len(look.ranks), moved_gpus=more, rollback_s=0.0)
    price = costs.gang_gpus * (costs.stop_s + costs.restart_s)
    if more * expected_s(look) <= price or not ready_to_stop(look, ROOM_IS_BACK):
        return None
    total = sum(sizes.values())
    words = f"There is room for {total - len(look.ranks)} more: {len(look.ranks)} ranks become {total}."
    return sizes, Choice(Remedy.GROW, Cause.MAINTENANCE, ROOM_IS_BACK, words, price / 3600)


def may_grow_at(look: Look) -> float:
    opened = look.last_recovery.first_step_at if look.last_recovery is not None else look.status.started_at
    return (to_seconds(opened) if opened is not None else look.now) + GROW_AFTER_S


def next_growth_look(look: Look) -> float | None:
    return may_grow_at(look) if look.status.sizes and look.status.barrier == OPEN else None
