"""The order of roles at work: stages end, roles join. See `role_stages` for what the order means."""

from __future__ import annotations

from remuda.core.gang.pod_view import OPEN
from remuda.core.training.barrier import has_rank_succeeded
from remuda.core.training.membership import retire_pod
from remuda.core.training.planning_context import PlanningContext
from remuda.core.training.recovery import raise_attempt
from remuda.core.training.role_stages import roles_awaited_to_end, roles_to_join

STAGE_DONE = "RoleSucceeded"


def end_role_stage(ctx: PlanningContext) -> bool:
    """Roles that have ended well and whose end others wait for leave the gang; what is there then starts as a new attempt."""
    if ctx.status.barrier != OPEN:
        return False
    awaited = roles_awaited_to_end(ctx.whole_spec)
    ended = [r.name for r in ctx.spec.roles if r.name in awaited and _has_role_ended(ctx, r.name)]
    if not ended:
        return False
    ctx.update(done_roles=[*ctx.status.done_roles, *ended])
    for view in list(ctx.views.values()):
        if view.role in ended:
            retire_pod(ctx, view.uid, STAGE_DONE)
    ctx.restage()
    is_empty = all(m.role in ended for m in ctx.status.members)
    raise_attempt(ctx, is_move=is_empty)
    _recount_ranks(ctx)
    return True


def _recount_ranks(ctx: PlanningContext) -> None:
    """Who is still there gives up its rank and takes another: ranks are those of the new stage, from 0, and so are its steps."""
    ctx.update(members=[], progress=ctx.fresh, refill_step=0)


def join_roles(ctx: PlanningContext) -> None:
    """Roles that waited for others to run have their turn; those that are complete are let go."""
    if ctx.status.barrier != OPEN:
        return
    running = [r.name for r in ctx.spec.roles if r.name not in ctx.status.held_roles and _is_role_running(ctx, r.name)]
    if coming := roles_to_join(ctx.whole_spec, ctx.status, running):
        ctx.update(joined_roles=[*ctx.status.joined_roles, *coming], held_roles=[*ctx.status.held_roles, *coming])
        ctx.restage()


def start_held_roles(ctx: PlanningContext) -> None:
    """A held role starts when all of its ranks are ready."""
    if ctx.status.barrier != OPEN or not ctx.status.held_roles:
        return
    ready = [
        r.name for r in ctx.spec.roles if r.name in ctx.status.held_roles and _is_role_ready(ctx, r.name, r.replicas)
    ]
    if ready:
        ctx.update(held_roles=[name for name in ctx.status.held_roles if name not in ready])


def _has_role_ended(ctx: PlanningContext, role: str) -> bool:
    members = [m for m in ctx.status.members if m.role == role]
    return bool(members) and all(has_rank_succeeded(ctx, m) for m in members)


def _is_role_running(ctx: PlanningContext, role: str) -> bool:
    """Every rank runs, or has run to its end."""
    members = [m for m in ctx.status.members if m.role == role]
    wanted = next(r.replicas for r in ctx.spec.roles if r.name == role)
    reports = [v.report for m in members if (v := ctx.views.get(m.uid)) and v.report]
    at_work = [r for r in reports if r.state in ("running", "exited") and r.attempt == ctx.status.attempt]
    return len(members) >= wanted and len(at_work) == len(members)


def _is_role_ready(ctx: PlanningContext, role: str, replicas: int) -> bool:
    views = [v for m in ctx.status.members if m.role == role and (v := ctx.views.get(m.uid))]
    ready = [v for v in views if v.is_ready_for(ctx.status.attempt) and v.is_usable and v.pod.status.pod_ip]
    return len(ready) >= replicas
