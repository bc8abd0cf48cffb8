"""A TrainingJob that contradicts itself: it is told so and left as it is, until its spec is corrected.

Admission refuses such a job. Where the API server checks types alone, it may be there all the same: made so, or edited while it
ran. What runs goes on; nothing is made, moved or ended on the word of a spec that cannot be acted on. Pure.
"""

from __future__ import annotations

import msgspec

from remuda.api.conditions import find_condition, with_condition
from remuda.api.errors import Refusal
from remuda.api.meta import Condition, to_time
from remuda.api.training import TrainingJob, TrainingJobStatus
from remuda.api.validation.validate import validate

INVALID = "Invalid"


def refusal_of(job: TrainingJob) -> Refusal | None:
    try:
        validate(job)
    except Refusal as refusal:
        return refusal
    return None


def left_alone(status: TrainingJobStatus, refused: Refusal, now: float) -> TrainingJobStatus:
    """The status of a job that is not looked after."""
    message = f"{refused.message} {refused.fix} Until then nobody looks after the job."
    conditions = with_condition(status.conditions, INVALID, True, refused.reason, message, to_time(now))
    return msgspec.structs.replace(status, reason=refused.reason, message=message, conditions=conditions)


def looked_after(conditions: list[Condition], now: float) -> list[Condition]:
    """Once it was invalid, afterwards it says that it is not."""
    if find_condition(conditions, INVALID) is None:
        return conditions
    return with_condition(conditions, INVALID, False, "Valid", "", to_time(now))
