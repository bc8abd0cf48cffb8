"""A template that was changed while its pods run: they are never mixed with pods of the new one.

Our own API refuses such a change (`api.validation.training_changes`); one that checks types alone lets it in. So every pod
carries a digest of the template it was made from. As long as a rank is given to a pod of another template than the role has now,
no pod is made for that role: what runs goes on, faults are cured with what is there, and what needs a new pod waits. The job
says so (condition `TemplateInUse`). It ends when the change is taken back, or when none of the old pods is left: after a
suspension, or when the gang is replaced as a whole, all start from the new template.

A gang without ranks has nobody to mix with: its pods are simply made anew. A pod without a digest is one of an older release;
nothing is known against it.
"""

from __future__ import annotations

from remuda.api.names import ANNOTATION_TEMPLATE
from remuda.core.gang.pod_view import PodView
from remuda.core.training.job_pods import template_digest
from remuda.core.training.planning_context import PlanningContext


def drop_pods_of_old_templates(ctx: PlanningContext) -> None:
    """While no rank is given, pods of a template that was changed make room for new ones."""
    if not ctx.status.members:
        for view in _pods_of_old_templates(ctx):
            ctx.delete_pod(view.uid)


def roles_with_template_in_use(ctx: PlanningContext) -> list[str]:
    """Roles whose template was changed and whose pods are still of the old one."""
    if ctx.is_finished or ctx.status.suspended_at is not None:
        return []
    return sorted({view.role for view in _pods_of_old_templates(ctx)})


def template_in_use_text(ctx: PlanningContext, roles: list[str]) -> str:
    name = ctx.job.name
    return (
        f"The template of {', '.join(roles)} was changed while pods of the old one run. They go on; no pod of the new one is "
        f"made beside them. Take the change back, or `remuda suspend {name}` and `remuda resume {name}`: then the whole gang "
        "starts with it."
    )


def _pods_of_old_templates(ctx: PlanningContext) -> list[PodView]:
    digests = {role.name: template_digest(role, ctx.spec.checkpoint) for role in ctx.spec.roles}
    gone = ctx.retired_uids | ctx.deletions.keys()
    return [
        view
        for view in ctx.views.values()
        if view.uid not in gone
        and not view.pod.is_deleting
        and (made_of := view.pod.annotations.get(ANNOTATION_TEMPLATE))
        and made_of != digests.get(view.role, made_of)
    ]
