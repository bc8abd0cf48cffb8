"""A gang that the cluster could not hold even if it were empty makes no pods: they would wait for ever, and everybody would store
them and look at them. It says what is there and what would fit, and is looked at again when nodes come.

Ranks are judged by the fewest the gang goes on with. A gang with ranks makes the few pods it lost, whatever the cluster has now.
Of what it can do without (spares, ranks beyond the fewest) no more pods are made than the cluster could hold. Where no node could
take even one such pod, the scheduler says why on the pods themselves, as long as they are few.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from remuda.api.errors import Refusal
from remuda.api.training import Role, TrainingJob, gpus_in_role_spec
from remuda.core.state.cluster_capacity import ClusterCapacity
from remuda.core.training.elastic_size import asked_role_sizes, least_replicas, resize_elastic_training_job
from remuda.core.training.placement_options import role_pod_ask, trial_ask_for_training_role
from remuda.core.training.planning_context import FEW_PODS, GANG_TOO_LARGE, PODS_A_LOOK, PlanningContext
from remuda.core.training.role_stages import present_roles


def hold_too_large_training_gang(ctx: PlanningContext) -> None:
    """Sets `ctx.too_large`: nothing is made then, and pods that were made and have no node yet go."""
    missing = len(ctx.ranks) - len(ctx.status.members)
    if ctx.take_capacity is None or missing <= (max(FEW_PODS, len(ctx.status.members)) if ctx.status.members else 0):
        return
    capacity = ctx.take_capacity()
    rooms = {role.name: room_for_role(ctx, role, capacity) for role in ctx.spec.roles}
    ctx.is_size_judged = True
    ctx.too_large = training_gang_size_refusal(ctx.spec.roles, rooms, capacity)
    if ctx.too_large is None:
        _begin_with_what_fits(ctx, rooms)
        return
    for view in [v for v in ctx.free() if not v.is_bound][:PODS_A_LOOK]:
        ctx.delete_pod(view.uid)


def room_for_role(ctx: PlanningContext, role: Role, capacity: ClusterCapacity) -> int:
    return capacity.room_for(trial_ask_for_training_role(ctx, role).requests)


def job_too_large(job: TrainingJob, capacity: ClusterCapacity) -> Refusal | None:
    """The same of a job that is yet to be made."""
    roles = present_roles(job.spec, job.status)
    rooms = {role.name: capacity.room_for(role_pod_ask(job, role).requests) for role in roles}
    return training_gang_size_refusal(roles, rooms, capacity)


def training_gang_size_refusal(
    roles: Sequence[Role], rooms: Mapping[str, int], capacity: ClusterCapacity
) -> Refusal | None:
    """`rooms`: how many pods of each role an empty cluster would hold."""
    least = {role.name: least_replicas(role) for role in roles}
    is_small = sum(least.values()) <= FEW_PODS
    for role in roles:
        need, room = least[role.name], rooms[role.name]
        if need <= room or (not room and is_small):
            continue
        field = "minReplicas" if role.min_replicas else "replicas"
        fix = f"Ask for at most {room} {field}, or add nodes for {need - room} more."
        return Refusal(
            GANG_TOO_LARGE,
            f"Role {role.name} needs {need} pods of {_gpus_text(gpus_in_role_spec(role))}; {_capacity_text(capacity)} "
            f"has room for {room}, were it empty.",
            fix if room else "Add nodes that can take such pods, or ask for less in each.",
        )
    need = sum(least[role.name] * gpus_in_role_spec(role) for role in roles)
    if need > capacity.gpus and not (is_small and not all(rooms.values())):
        return Refusal(
            GANG_TOO_LARGE,
            f"The roles need {_gpus_text(need)} in all; {_capacity_text(capacity)} has {capacity.gpus}.",
            f"Ask for {need - capacity.gpus} fewer, or add nodes with as many more.",
        )
    return None


def _begin_with_what_fits(ctx: PlanningContext, rooms: Mapping[str, int]) -> None:
    """A gang that may be smaller, and asks for far more than there is: it starts as large as it ever could be here."""
    asked = asked_role_sizes(ctx)
    if ctx.status.members or not any(asked[r.name] > max(FEW_PODS, rooms[r.name]) for r in ctx.spec.roles):
        return
    whole = {role.name: role for role in ctx.whole_spec.roles}
    resize_elastic_training_job(
        ctx, {n: max(least_replicas(whole[n]), min(size, rooms[n])) for n, size in asked.items()}
    )


def most_spares(ctx: PlanningContext, role: Role, wanted: int) -> int:
    """Of the pods a role would like to have beside its ranks, as many as the cluster could hold."""
    if wanted <= FEW_PODS or ctx.take_capacity is None:
        return wanted
    return min(wanted, max(FEW_PODS, room_for_role(ctx, role, ctx.take_capacity())))


def _gpus_text(count: int) -> str:
    return f"{count} GPU{'' if count == 1 else 's'}"


def _capacity_text(capacity: ClusterCapacity) -> str:
    nodes = capacity.nodes
    return f"the cluster ({_gpus_text(capacity.gpus)} on {nodes} node{'' if nodes == 1 else 's'})"
