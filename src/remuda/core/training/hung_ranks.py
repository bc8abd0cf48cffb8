"""Hangs of a gang, by its own pace (`failure.hangAfterSteps`). The absolute limit in seconds is the agents' to watch.

Progress is heard beside the API and forgotten with the manager. A new one takes each rank's step from the status and gives the
gang the whole limit again, from when it began to listen: it may hear of a hang late, never of one that is none.
"""

from __future__ import annotations

from remuda.api.meta import to_seconds
from remuda.api.training import Cause, Member
from remuda.core.gang.gang_remedy import Fault
from remuda.core.gang.hangs import STEADY_STEPS, HangLimits, LastStep, hangs_at, hung_ranks
from remuda.core.training.gang_view import OPEN
from remuda.core.training.planning_context import Look


def find_hangs(look: Look) -> list[Fault]:
    members = {m.rank: m for m in look.status.members}
    return [
        Fault(
            members[hung.rank].pod,
            members[hung.rank].uid,
            Cause.HANG,
            "NoProgress",
            f"{members[hung.rank].pod} made no step for {look.now - hung.since:.3g} s; the gang's median step takes "
            f"{hung.median_seconds:.3g} s and {hung.limit_seconds:.3g} s are allowed.",
            lost=False,
            signal_at=hung.since,
        )
        for hung in hung_ranks(_samples(look), look.now, _limits(look))
    ]


def next_hang_look(look: Look) -> float | None:
    return hangs_at(_samples(look), _limits(look))


def _limits(look: Look) -> HangLimits:
    saving = [
        v.progress.checkpoint_seconds for v in look.views.values() if v.progress and v.progress.checkpoint_seconds
    ]
    return HangLimits(
        look.spec.failure.hang_after_steps, max([look.spec.checkpoint.typical_seconds, *saving], default=0.0)
    )


def _samples(look: Look) -> list[LastStep]:
    """Empty unless something is known of every rank in this attempt."""
    status = look.status
    if look.spec.failure.hang_after_steps <= 0 or status.barrier != OPEN:
        return []
    found = [_last(look, member) for member in status.members]
    known = [last for last in found if last is not None]
    return known if len(known) == len(found) else []


def _last(look: Look, member: Member) -> LastStep | None:
    view, status = look.views.get(member.uid), look.status
    beat = view.progress if view is not None else None
    if beat is not None and beat.attempt == status.attempt:
        made = beat.step - (status.resume_step or 0)
        # A beat that tells a checkpoint has no step time of its own.
        took = beat.step_seconds or look.fresh.step_seconds or None
        return LastStep(member.rank, beat.step, beat.time, took, made)
    written, last = status.progress, look.last_recovery
    is_of_this = written.time is not None and (last is None or last.first_step_at is not None)
    if not is_of_this or written.time is None or member.rank >= len(written.steps):
        return None
    step = written.steps[member.rank]
    heard = max(to_seconds(written.time), look.heard_since)
    return LastStep(member.rank, step, heard, written.step_seconds or None, max(STEADY_STEPS, step))
