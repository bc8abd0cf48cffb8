"""Which ranks hang: no new step for many times as long as the gang's own median step (`failure.hangAfterSteps`). The absolute
limit in seconds is the agents' to watch.

The limit follows the gang: k x the median step its ranks last told, never less than LEAST_S. While a checkpoint is written no
step is made, so the longest one known is allowed for, twice. Until every rank has made STEADY_STEPS steps nobody hangs: the first
ones compile, fill caches and wait for stragglers of the start. In a coupled gang one hanging rank stops all: those that got least
far are named; where all stand at the same step, all are.

Progress is heard beside the API and forgotten with the manager. A new one takes each rank's step from the status and gives the
gang the whole limit again, from when it began to listen: it may hear of a hang late, never of one that is none.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence

import msgspec

from remuda.api.meta import to_seconds
from remuda.api.training import Cause, Member
from remuda.core.gang.gang_remedy import MemberFault
from remuda.core.gang.pod_view import OPEN
from remuda.core.health.own_stalls import NO_STALLS, StallHistory
from remuda.core.training.planning_context import PlanningContext

LEAST_S = 1.0
STEADY_STEPS = 3
CHECKPOINTS_ALLOWED = 2.0


class LastRankStep(msgspec.Struct, frozen=True):
    """The newest sign of progress of one rank."""

    rank: int
    step: int
    time: float
    step_seconds: float | None = None
    steps: int = STEADY_STEPS  # made in this attempt


class HangLimits(msgspec.Struct, frozen=True):
    after_steps: float  # 0 = off
    checkpoint_seconds: float = 0.0  # the longest known


class HungRank(msgspec.Struct, frozen=True):
    rank: int
    since: float
    limit_seconds: float
    median_seconds: float


def training_hang_limit(samples: Sequence[LastRankStep], limits: HangLimits) -> tuple[float, float] | None:
    """(seconds without a step that are allowed, median step); None while nothing can be said."""
    told = [s.step_seconds for s in samples if s.step_seconds]
    if limits.after_steps <= 0 or not told or any(s.steps < STEADY_STEPS for s in samples):
        return None
    median = statistics.median(told)
    return max(LEAST_S, limits.after_steps * median) + CHECKPOINTS_ALLOWED * limits.checkpoint_seconds, median


def hung_ranks(
    samples: Sequence[LastRankStep], now: float, limits: HangLimits, stalls: StallHistory = NO_STALLS
) -> list[HungRank]:
    """`step_samples`: one of each rank of the gang. `stalls`: our own, in which no step could be heard of."""
    found = training_hang_limit(samples, limits)
    if found is None:
        return []
    limit, median = found
    quiet = [s for s in samples if now > stalls.countdown_ends_at(s.time, limit)]
    if len(quiet) == len(samples):
        least = min(s.step for s in quiet)
        quiet = [s for s in quiet if s.step == least]
    return [HungRank(s.rank, s.time, limit, median) for s in quiet]


def first_training_hang_at(
    samples: Sequence[LastRankStep], limits: HangLimits, stalls: StallHistory = NO_STALLS
) -> float | None:
    """When the first rank would hang if nothing were heard any more."""
    found = training_hang_limit(samples, limits)
    return stalls.countdown_ends_at(min(s.time for s in samples), found[0]) if found is not None else None


# -- of one job ---------------------------------------------------------------------------------------------------------


def find_hung_members(ctx: PlanningContext) -> list[MemberFault]:
    members = {m.rank: m for m in ctx.status.members}
    return [
        MemberFault(
            members[hung.rank].pod,
            members[hung.rank].uid,
            Cause.HANG,
            "NoProgress",
            f"{members[hung.rank].pod} made no step for {ctx.now - hung.since:.3g} s (limit {hung.limit_seconds:.3g} s; "
            f"the gang's median step takes {hung.median_seconds:.3g} s).",
            lost=False,
            signal_at=hung.since,
        )
        for hung in hung_ranks(_last_rank_steps(ctx), ctx.now, _hang_limits(ctx), ctx.stalls)
    ]


def next_hang_at(ctx: PlanningContext) -> float | None:
    return first_training_hang_at(_last_rank_steps(ctx), _hang_limits(ctx), ctx.stalls)


def _hang_limits(ctx: PlanningContext) -> HangLimits:
    saving = [v.progress.checkpoint_seconds for v in ctx.views.values() if v.progress and v.progress.checkpoint_seconds]
    return HangLimits(
        ctx.spec.failure.hang_after_steps, max([ctx.spec.checkpoint.typical_seconds, *saving], default=0.0)
    )


def _last_rank_steps(ctx: PlanningContext) -> list[LastRankStep]:
    """Empty unless something is known of every rank in this attempt."""
    status = ctx.status
    if ctx.spec.failure.hang_after_steps <= 0 or status.barrier != OPEN:
        return []
    found = [_last_rank_step(ctx, member) for member in status.members]
    known = [last for last in found if last is not None]
    return known if len(known) == len(found) else []


def _last_rank_step(ctx: PlanningContext, member: Member) -> LastRankStep | None:
    view, status = ctx.views.get(member.uid), ctx.status
    beat = view.progress if view is not None else None
    if beat is not None and beat.attempt == status.attempt:
        made = beat.step - (status.resume_step or 0)
        # A beat that tells a checkpoint has no step time of its own.
        took = beat.step_seconds or ctx.fresh.step_seconds or None
        return LastRankStep(member.rank, beat.step, beat.time, took, made)
    written, last = status.progress, ctx.last_recovery
    is_of_this = written.time is not None and (last is None or last.first_step_at is not None)
    if not is_of_this or written.time is None or member.rank >= len(written.steps):
        return None
    step = written.steps[member.rank]
    heard = max(to_seconds(written.time), ctx.heard_since)
    return LastRankStep(member.rank, step, heard, written.step_seconds or None, max(STEADY_STEPS, step))
