"""Conditions as Kubernetes keeps them: one per type; the transition time moves only when the status does."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime

from remuda.api.meta import Condition


def find_condition(conditions: Iterable[Condition], type_: str) -> Condition | None:
    return next((c for c in conditions if c.type == type_), None)


def is_condition_true(conditions: Iterable[Condition], type_: str) -> bool:
    condition = find_condition(conditions, type_)
    return condition is not None and condition.status == "True"


def with_condition(
    conditions: list[Condition], type_: str, status: bool | None, reason: str, message: str, now: datetime
) -> list[Condition]:
    """The list with that condition set; the same list object when nothing changed, so callers can skip the write."""
    word = "Unknown" if status is None else str(status)
    old = find_condition(conditions, type_)
    if old is not None and (old.status, old.reason, old.message) == (word, reason, message):
        return conditions
    since = old.last_transition_time if old is not None and old.status == word else now
    new = Condition(type=type_, status=word, reason=reason, message=message, last_transition_time=since)
    if old is None:
        return [*conditions, new]
    return [new if c.type == type_ else c for c in conditions]
