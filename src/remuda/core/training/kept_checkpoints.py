"""Steps that the whole gang is known to have a checkpoint of, and what a restart may make of them. Pure.

`status.progress.kept` holds the newest few. A step gets there when every rank's launcher has seen its checkpoint on disk; when
one rank alone ever saved any, it writes for all, and its step counts once every rank is past it. The step that a barrier opened
with is known, too: every rank said that it has it. Reports of checkpoints that nobody sees on disk count for nothing here: such a
program keeps its own files, and resumes by itself.

At the next restart the gang goes on from the newest common step. Two things make it wait instead (`BarrierHold`):

    CheckpointsUnreadable  a rank could not read what it has. That is not the same as having nothing.
    CheckpointMissing      the newest common step lies below one that is known, and no rank says that that one failed its check.

It waits until the launchers, which look again and again, find what was missing; or until somebody gives consent to a step
(`spec.checkpoint.resumeFrom`, good for one start). What is missing is done without where the job allows it
(`spec.checkpoint.fallBack`).
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from remuda.api.devices import LauncherReport
from remuda.api.training import CheckpointFallBack, KeptCheckpoint, Member, ResumeFrom, TrainingJob, World
from remuda.core.gang.pod_view import MemberProgress
from remuda.core.training.checkpoint_sizes import checkpoint_ranks_at, resume_step_of_ranks, worlds_so_far

UNREADABLE = "CheckpointsUnreadable"
MISSING = "CheckpointMissing"
KEPT_STEPS = 4  # a restart may fall back over as many that are corrupt
NAMED_RANKS = 4  # more are counted


class BarrierHold(msgspec.Struct, frozen=True):
    """Why the barrier stays closed although every rank is ready."""

    reason: str
    message: str


class ResumeStep(msgspec.Struct, frozen=True):
    """The step to go on from; None = from the beginning. `ranks`: how many have it."""

    step: int | None
    ranks: int = 0


def kept_after_beats(kept: list[KeptCheckpoint], beats: Sequence[MemberProgress]) -> list[KeptCheckpoint]:
    """`beats`: of all ranks, in this attempt. Where checkpoints lie on single nodes a step counts when each has a copy of it
    elsewhere; who has saved some and has no copy yet is no rank that saves none."""
    savers = [b for b in beats if b.kept or b.safe is not None]
    if any(b.safe is not None for b in savers):
        step = max(
            set.intersection(*(set(b.safe or ()) if b.safe is not None else {b.kept or 0} for b in savers)), default=0
        )
    else:
        step = min((b.kept or 0 for b in savers), default=0)
    if len(savers) < len(beats):
        is_for_all = len(savers) == 1 and (not kept or kept[-1].ranks == 1)
        if not is_for_all or min(b.step for b in beats) <= step:
            return kept
    if not step or (kept and step <= kept[-1].step):
        return kept
    return [*kept, KeptCheckpoint(step, len(savers))][-KEPT_STEPS:]


def kept_after_start(
    kept: list[KeptCheckpoint], resume: ResumeStep, *, is_per_node: bool = False
) -> list[KeptCheckpoint]:
    """History goes on behind that step: what was known ahead of it is given up. `is_per_node`: that every rank has the step on
    its own node does not make it known; that it has a copy elsewhere does."""
    if not resume.step:
        return []
    if is_per_node:
        return [k for k in kept if k.step <= resume.step]
    before = [k for k in kept if k.step < resume.step]
    return [*before, KeptCheckpoint(resume.step, max(1, resume.ranks))][-KEPT_STEPS:]


def unused_training_resume_consent(job: TrainingJob) -> ResumeFrom | None:
    """Consent that has not been used up."""
    asked, status = job.spec.checkpoint.resume_from, job.status
    return asked if asked is not None and status.opened_attempt < asked.attempt <= status.attempt else None


def decide_resume_step(
    job: TrainingJob, ready: Sequence[LauncherReport], worlds: Sequence[World]
) -> ResumeStep | BarrierHold:
    """`ready`: of all ranks, in their order."""
    consent = unused_training_resume_consent(job)
    if consent is not None:
        return _consented_step(job, consent.step, ready, worlds)
    if (hold := unreadable_checkpoint_barrier_hold(job, ready)) is not None:
        return hold
    kept = job.status.progress.kept
    step = resume_step_of_ranks(ready, worlds)
    holders = sum(1 for r in ready if step in r.checkpoints)
    if holders == 1 and len(ready) > 1 and kept and kept[-1].ranks > 1:
        step, holders = None, 0  # each rank wrote its own: a single one that still has them does not write for all
    lost = [k.step for k in kept if k.step > (step or 0) and not any(k.step in r.corrupt for r in ready)]
    if lost and job.spec.checkpoint.fall_back is CheckpointFallBack.HOLD:
        return BarrierHold(MISSING, _missing_text(job, lost[-1], step, ready))
    return ResumeStep(step, holders)


def unreadable_checkpoint_barrier_hold(job: TrainingJob, ready: Sequence[LauncherReport]) -> BarrierHold | None:
    blind = [r for r in ready if r.unreadable]
    if not blind or unused_training_resume_consent(job) is not None:
        return None
    said = "; ".join(f"{_rank_text(job, r)}: {r.unreadable}" for r in blind[:NAMED_RANKS])
    more = f"; and {len(blind) - NAMED_RANKS} others" if len(blind) > NAMED_RANKS else ""
    fix = f"Make that readable again. To go on without it: `remuda resume {job.name} --from-step N` (0 = from the beginning)."
    return BarrierHold(UNREADABLE, f"Checkpoints cannot be read: {said}{more}. The launchers look again. {fix}")


def _consented_step(
    job: TrainingJob, step: int, ready: Sequence[LauncherReport], worlds: Sequence[World]
) -> ResumeStep | BarrierHold:
    """Also of a history that was given up, as long as all ranks have it of the same one."""
    if step == 0:
        return ResumeStep(None)
    usable, given_up = ([step in getattr(r, name) for r in ready] for name in ("checkpoints", "abandoned"))
    writers = ready[: checkpoint_ranks_at(worlds, step)] if worlds else ready
    for has in (usable, given_up):
        count = sum(has)
        is_by_one = count == 1 and not any(
            r.checkpoints or r.abandoned for r, h in zip(ready, has, strict=True) if not h
        )
        if count and (all(has[: len(writers)]) or is_by_one):
            return ResumeStep(step, count)
    lacking = [r for r, a, b in zip(writers, usable, given_up, strict=False) if not (a or b)]
    if not lacking:
        text = f"Step {step} was asked for, but ranks have it of different histories: some were given up, some not."
    else:
        names = ", ".join(_rank_text(job, r) for r in lacking[:NAMED_RANKS])
        text = f"Step {step} was asked for, but it is not there: {names}{_others_text(lacking)}."
    return BarrierHold(MISSING, f"{text} {_consent_text(job, ready)}")


def _missing_text(job: TrainingJob, lost: int, step: int | None, ready: Sequence[LauncherReport]) -> str:
    lacking = [r for r in ready if lost not in r.checkpoints]
    if any(k.ranks == 1 for k in job.status.progress.kept if k.step == lost):
        lacking = lacking[:1]  # one writes for all: the others never had it
    names = ", ".join(_rank_text(job, r) for r in lacking[:NAMED_RANKS])
    found = f"The newest step that all ranks have is {step}." if step else "There is no step that all ranks have."
    text = f"The checkpoint of step {lost} is not there any more: {names}{_others_text(lacking)}. {found}"
    damaged = [f"{_rank_text(job, r)}: {r.not_copied}" for r in lacking if r.not_copied]
    if damaged:
        text += f" Of {'; '.join(damaged[:NAMED_RANKS])}."
    return f"{text} The launchers look again. {_consent_text(job, ready)}"


def _consent_text(job: TrainingJob, ready: Sequence[LauncherReport]) -> str:
    step = resume_step_of_ranks(ready, worlds_so_far(job.status)) or 0
    where = "from the beginning" if step == 0 else "from there"
    return (
        f"Bring it back, or start {where}: `remuda resume {job.name} --from-step {step}`. "
        "spec.checkpoint.fallBack: Allowed does that without asking."
    )


def _others_text(reports: Sequence[LauncherReport]) -> str:
    return f" and {len(reports) - NAMED_RANKS} others" if len(reports) > NAMED_RANKS else ""


def _rank_text(job: TrainingJob, report: LauncherReport) -> str:
    member: Member | None = next((m for m in job.status.members if m.uid == report.uid), None)
    if member is None:
        return report.pod
    return f"rank {member.rank} ({member.pod} on {member.node})"
