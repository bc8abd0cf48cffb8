"""What may be changed of a TrainingJob that is there: its roles, their pods' templates and the place of its checkpoints only
while no rank is given to a pod.

Pods are made one by one, for as long as the job lives. Were the template of a running gang another one from some moment on, the
next pod that is replaced would run the new command beside ranks that run the old one. A job that is suspended, or has no ranks
yet, has nothing to mix with. Likewise a role that goes (or gets another name, or another place among the roles) would take its
ranks with it and number the others anew. Raises a Refusal with the field and the way to do it.
"""

from __future__ import annotations

from remuda.api.errors import Refusal
from remuda.api.training import Role, TrainingJob, gpus_in_role_spec

TEMPLATE_IN_USE = "TemplateInUse"
ROLE_IN_USE = "RoleInUse"


def check_training_job_change(old: TrainingJob, new: TrainingJob) -> None:
    if not must_suspend_before_training_change(old):
        return
    before = {role.name: role for role in old.spec.roles}
    gone = before.keys() - {role.name for role in new.spec.roles}
    if gone:
        raise Refusal(
            ROLE_IN_USE,
            f"Role `{min(gone)}` has pods that run. Without it their ranks would be stopped and the others numbered anew.",
            _suspend_first(old, "the roles"),
            "spec.roles",
        )
    if [role.name for role in new.spec.roles][: len(before)] != list(before):
        raise Refusal(
            ROLE_IN_USE,
            "Pods of this job run, and ranks are numbered by the order of its roles. In another order they would change.",
            f"Keep the order, with new roles at the end. Or: {_suspend_first(old, 'the roles')}",
            "spec.roles",
        )
    places = (old.spec.checkpoint, new.spec.checkpoint)
    if places[0].volume != places[1].volume or places[0].directory != places[1].directory:
        raise Refusal(
            TEMPLATE_IN_USE,
            "Pods of this job run with the place for checkpoints that they were made with. Others would look elsewhere.",
            _suspend_first(old, "it"),
            "spec.checkpoint.volume" if places[0].volume != places[1].volume else "spec.checkpoint.path",
        )
    for index, role in enumerate(new.spec.roles):
        if role.name in before and not training_change_keeps_pods(before[role.name], role):
            raise Refusal(
                TEMPLATE_IN_USE,
                f"Pods of role `{role.name}` run with the template they were made from. A new one would be mixed with them.",
                _suspend_first(old, "the template"),
                f"spec.roles[{index}].template",
            )


def _suspend_first(job: TrainingJob, what: str) -> str:
    return (
        f"Suspend the job (`remuda suspend {job.name}`), wait until it is Suspended, change {what}, then "
        f"`remuda resume {job.name}`: the whole gang starts with it, from the checkpoint."
    )


def must_suspend_before_training_change(job: TrainingJob) -> bool:
    return bool(job.status.members) and job.status.suspended_at is None and not job.is_finished


def training_change_keeps_pods(one: Role, other: Role) -> bool:
    """Both roles make the same pods; how many is another question."""
    return one.template == other.template and gpus_in_role_spec(one) == gpus_in_role_spec(other)
