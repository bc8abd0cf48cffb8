"""Slow ranks that are left where they are: who, since when, by how much, why nothing is done, and what would help.

`moves` decides and leaves its reason on the look; here it becomes the job's condition SlowRanks, which `remuda job` shows. A
condition is a transition: as long as the same ranks stay for the same reason its words stay, too, although prices and room change
with every look.
"""

from __future__ import annotations

from collections.abc import Sequence

from remuda.api.conditions import find_condition, with_condition
from remuda.api.devices import Verdict
from remuda.api.meta import Condition, to_time
from remuda.api.training import Member
from remuda.core.training.planning_context import Look, Stay

SLOW_RANKS = "SlowRanks"  # condition
CARRY_ON = "CarryOn"
NO_ROOM = "NoRoomToMove"
NO_BUDGET = "BudgetSpent"
NOT_WORTH_IT = "SwapCostsMore"
WAITS = "WaitsForCheckpoint"
ALL_ALIKE = "AllAlike"
MOST_NAMED = 3


def stay(slow: Sequence[tuple[Member, Verdict, float]], reason: str, why: str, fix: str) -> Stay:
    """`slow`: members, what is said of their device, and how many times slower they are."""
    named = [_said(*one) for one in slow[:MOST_NAMED]]
    more = [f"{len(slow) - MOST_NAMED} more."] if len(slow) > MOST_NAMED else []
    return Stay(reason, " ".join([*named, *more]), why, fix)


def with_slow_ranks(look: Look, conditions: list[Condition]) -> list[Condition]:
    if look.is_finished or not look.status.members:
        return [c for c in conditions if c.type != SLOW_RANKS]
    said, old = look.stays, find_condition(conditions, SLOW_RANKS)
    if said is None or (not said.who and old is None):
        return conditions  # nothing was decided, or there is nothing to take back
    now = to_time(look.now)
    if not said.who:
        return with_condition(conditions, SLOW_RANKS, False, "NoSlowRank", "Every rank keeps up.", now)
    if old is not None and (old.status, old.reason) == ("True", said.reason) and old.message.startswith(said.who):
        return conditions
    return with_condition(conditions, SLOW_RANKS, True, said.reason, f"{said.who} {said.why} {said.fix}", now)


def _said(member: Member, verdict: Verdict, factor: float) -> str:
    how = f"{factor:g} times slower than its peers" if factor > 1.0 else verdict.reason or "Degraded"
    since = f" since {verdict.since.isoformat(timespec='seconds')}" if verdict.since is not None else ""
    return f"Rank {member.rank} ({member.pod} on {member.node}, {verdict.device}): {how}{since}."
