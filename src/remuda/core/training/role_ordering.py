"""The order of roles at work: stages end, roles join. See `role_stages` for what the order means."""

from __future__ import annotations

from remuda.core.gang.pod_view import OPEN
from remuda.core.training.barrier import has_ended_well
from remuda.core.training.membership import retire
from remuda.core.training.planning_context import Look
from remuda.core.training.recovery import raise_attempt
from remuda.core.training.role_stages import awaited_end, next_to_join

STAGE_DONE = "RoleSucceeded"


def end_stage(look: Look) -> bool:
    """Roles that have ended well and whose end others wait for leave the gang; what is there then starts as a new attempt."""
    if look.status.barrier != OPEN:
        return False
    awaited = awaited_end(look.whole_spec)
    ended = [r.name for r in look.spec.roles if r.name in awaited and _has_ended(look, r.name)]
    if not ended:
        return False
    look.update(done_roles=[*look.status.done_roles, *ended])
    for view in list(look.views.values()):
        if view.role in ended:
            retire(look, view.uid, STAGE_DONE)
    look.restage()
    is_empty = all(m.role in ended for m in look.status.members)
    raise_attempt(look, is_move=is_empty)
    _count_anew(look)
    return True


def _count_anew(look: Look) -> None:
    """Who is still there gives up its rank and takes another: ranks are those of the new stage, from 0, and so are its steps."""
    look.update(members=[], progress=look.fresh, refill_step=0)


def join_roles(look: Look) -> None:
    """Roles that waited for others to run have their turn; those that are complete are let go."""
    if look.status.barrier != OPEN:
        return
    running = [r.name for r in look.spec.roles if r.name not in look.status.held_roles and _runs(look, r.name)]
    if coming := next_to_join(look.whole_spec, look.status, running):
        look.update(joined_roles=[*look.status.joined_roles, *coming], held_roles=[*look.status.held_roles, *coming])
        look.restage()


def let_go(look: Look) -> None:
    """A held role starts when all of its ranks are ready."""
    if look.status.barrier != OPEN or not look.status.held_roles:
        return
    ready = [
        r.name for r in look.spec.roles if r.name in look.status.held_roles and _is_ready(look, r.name, r.replicas)
    ]
    if ready:
        look.update(held_roles=[name for name in look.status.held_roles if name not in ready])


def _has_ended(look: Look, role: str) -> bool:
    members = [m for m in look.status.members if m.role == role]
    return bool(members) and all(has_ended_well(look, m) for m in members)


def _runs(look: Look, role: str) -> bool:
    """Every rank runs, or has run to its end."""
    members = [m for m in look.status.members if m.role == role]
    wanted = next(r.replicas for r in look.spec.roles if r.name == role)
    reports = [v.report for m in members if (v := look.views.get(m.uid)) and v.report]
    at_work = [r for r in reports if r.state in ("running", "exited") and r.attempt == look.status.attempt]
    return len(members) >= wanted and len(at_work) == len(members)


def _is_ready(look: Look, role: str, replicas: int) -> bool:
    views = [v for m in look.status.members if m.role == role and (v := look.views.get(m.uid))]
    ready = [v for v in views if v.is_ready_for(look.status.attempt) and v.is_usable and v.pod.status.pod_ip]
    return len(ready) >= replicas
