"""What a user may ask for: checks of our kinds beyond their types. One Refusal at a time, with the field and the fix.

Runs in the CLI before anything is sent and in admission before anything is stored, so nothing is ever half-created.
"""

from __future__ import annotations

from remuda.api.drills import DRILLS, NEEDS, Drill, DrillKind
from remuda.api.errors import Refusal
from remuda.api.incidents import Incident
from remuda.api.meta import KObject
from remuda.api.remedies import RemedyPolicy
from remuda.api.rollouts import NodeRollout, check_rollout
from remuda.api.training import TrainingJob
from remuda.api.validation.incidents import check_incident
from remuda.api.validation.numbers import validate_number_range
from remuda.api.validation.remedy_policies import check_policy
from remuda.api.validation.training import check_training_job
from remuda.api.validation.training_changes import check_training_job_change


def validate(obj: KObject) -> None:
    """Raises Refusal. Kinds without rules pass."""
    if isinstance(obj, TrainingJob):
        check_training_job(obj)
    elif isinstance(obj, Drill):
        _validate_drill(obj)
    elif isinstance(obj, NodeRollout):
        check_rollout(obj)
    elif isinstance(obj, RemedyPolicy):
        check_policy(obj)
    elif isinstance(obj, Incident):
        check_incident(obj)


CHANGE_CHECKED: tuple[type[KObject], ...] = (TrainingJob,)  # kinds that `validate_change` has rules for


def validate_change(old: KObject, new: KObject) -> None:
    """What may not become of an object that is there. Raises Refusal. `new` by itself has been validated."""
    if isinstance(old, TrainingJob) and isinstance(new, TrainingJob):
        check_training_job_change(old, new)


def _validate_drill(drill: Drill) -> None:
    spec = drill.spec
    facts = DRILLS[spec.type]
    for field in (*NEEDS[facts.aim], *(("code",) if spec.type is DrillKind.DEVICE_FAIL else ())):
        if not getattr(spec, field):
            raise Refusal(
                "IncompleteDrill", f"A {spec.type} drill needs spec.{field}.", f"Set spec.{field}.", f"spec.{field}"
            )
    validate_number_range(spec.seconds, 0, 86_400, "InvalidSeconds", "spec.seconds")
    validate_number_range(spec.times, 0, 100_000, "InvalidTimes", "spec.times")
    if spec.factor:
        validate_number_range(spec.factor, 1, 100, "InvalidFactor", "spec.factor")
    if spec.undo and not facts.lasts:
        raise Refusal("CannotBeUndone", f"A {spec.type} drill cannot be undone.", "Leave out spec.undo.", "spec.undo")
