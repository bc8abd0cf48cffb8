"""Roles that come after others.

`after: [{role: prepare, is: Succeeded}]`: one world after the other. The role's pods are made when every rank of the other ended
with code 0. That role has then left for good: its pods go, the attempt is raised, and the roles that are there now start as a
gang of their own, ranks counted from 0, from the beginning. A role that is still running then is restarted with them; what
belongs to the next stage only should wait for it as well. Nobody is charged.

`after: [{role: server, is: Running}]`: one world, joined late. The role's pods are made when every rank of the other runs. They
take the ranks behind those that are there and join the attempt that is open: the role is *held* until all of its ranks are ready,
then all of them start. The others are not touched. From then on it belongs to the gang: after a fault, or a suspension,
everybody goes through one barrier together; the order is that of the first start.

What has been decided is in the status: `doneRoles` have ended and left, `joinedRoles` have had their turn, `heldRoles` are
waiting for themselves although the barrier is open. A role that nobody waits for, and that waits for nobody, is never
mentioned there.
"""

from __future__ import annotations

from collections.abc import Sequence

from remuda.api.training import Role, TrainingJob, TrainingJobSpec, TrainingJobStatus

RUNNING, SUCCEEDED = "Running", "Succeeded"


def present_roles(spec: TrainingJobSpec, status: TrainingJobStatus) -> list[Role]:
    """Roles that have pods now: those that wait for nothing in the order of the spec, then those that joined, as they did."""
    if not any(role.after for role in spec.roles):
        return spec.roles
    done = set(status.done_roles)
    ready = [r for r in spec.roles if r.name not in done and _has_role_stage_come(r, done)]
    first = [r for r in ready if not _waits_for_running_role(r, done)]
    joined = [r for name in status.joined_roles for r in ready if r.name == name and r not in first]
    return [*first, *joined]


def roles_to_join(spec: TrainingJobSpec, status: TrainingJobStatus, running: Sequence[str]) -> list[str]:
    """Roles whose turn has come, given the names of those whose ranks all run."""
    done = set(status.done_roles)
    return [
        role.name
        for role in spec.roles
        if role.name not in (*done, *status.joined_roles)
        and _has_role_stage_come(role, done)
        and _waits_for_running_role(role, done)
        and all(a.role in running or a.role in done for a in role.after if a.is_ == RUNNING)
    ]


def roles_awaited_to_end(spec: TrainingJobSpec) -> set[str]:
    """Roles whose end somebody waits for."""
    return {after.role for role in spec.roles for after in role.after if after.is_ == SUCCEEDED}


def roles_still_to_come(spec: TrainingJobSpec, status: TrainingJobStatus) -> list[str]:
    there = {role.name for role in present_roles(spec, status)}
    return [r.name for r in spec.roles if r.name not in there and r.name not in status.done_roles]


def world_size(job: TrainingJob) -> int:
    """Ranks of the world the members belong to, those that will join it included."""
    members, done = job.status.members, set(job.status.done_roles)
    there = {m.role for m in members}
    coming = [
        r
        for r in job.spec.roles
        if r.name not in there
        and r.name not in done
        and _has_role_stage_come(r, done)
        and _waits_for_running_role(r, done)
    ]
    return len(members) + sum(r.replicas for r in coming)


def _has_role_stage_come(role: Role, done: set[str]) -> bool:
    return all(after.role in done for after in role.after if after.is_ == SUCCEEDED)


def _waits_for_running_role(role: Role, done: set[str]) -> bool:
    return any(after.is_ == RUNNING and after.role not in done for after in role.after)
