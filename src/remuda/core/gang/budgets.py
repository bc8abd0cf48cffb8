"""Budgets per cause: how many interruptions of each kind a workload may have before it is called failed.

A fault of the hardware never eats the budget of the code. Budgets live in the job's status, so no restart of Remuda and no
re-created pod resets them; they refill when training has got far enough past the last refill.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from remuda.api.training import UNLIMITED, Budgets, Cause


def charge_budgets(used: Mapping[str, int], causes: Iterable[Cause]) -> dict[str, int]:
    """Each distinct cause once: ranks that die of one another are one interruption."""
    after = dict(used)
    for cause in sorted(set(causes)):
        after[cause.value] = after.get(cause.value, 0) + 1
    return after


def refund_budget(used: Mapping[str, int], cause: str) -> dict[str, int]:
    """Takes back one charge: a crash that turned out to be the device's fault is not the code's."""
    after = dict(used)
    if after.get(cause, 0) > 0:
        after[cause] -= 1
        if not after[cause]:
            del after[cause]
    return after


def exhausted_budget(budgets: Budgets, used: Mapping[str, int]) -> Cause | None:
    """The cause whose budget is overdrawn, if any. A limit of n allows n interruptions; the next one is too many."""
    for cause in Cause:
        limit = budgets.limit(cause)
        if limit != UNLIMITED and used.get(cause.value, 0) > limit:
            return cause
    return None


def refill_budgets(
    budgets: Budgets, used: Mapping[str, int], refill_step: int, step: int
) -> tuple[dict[str, int], int]:
    """(used, refill_step) after progress to `step`."""
    if budgets.refill_after_steps and step >= refill_step + budgets.refill_after_steps:
        return {}, step
    return dict(used), refill_step
