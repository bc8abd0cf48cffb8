"""Which step a gang resumes from when its size has changed: only ranks that were there can have a checkpoint of a step.

`status.worlds` says how many ranks wrote the checkpoints behind which step, oldest first. It is written when the barrier opens,
with the ranks that are there: what the spec asks for may have changed since. A step counts when every rank of the world that
wrote it, as far as it is here now, has it. Ranks beyond that world load what another one saved (`REMUDA_CHECKPOINT_RANKS`): how
a state is spread over more or fewer ranks is the program's business.
"""

from __future__ import annotations

from collections.abc import Sequence

from remuda.api.devices import LauncherReport
from remuda.api.training import TrainingJobStatus, World

KEPT_WORLDS = 8


def resume_step_of_ranks(ready: Sequence[LauncherReport], worlds: Sequence[World]) -> int | None:
    """`ready`: of all ranks, in their order."""
    if not worlds:
        return common_checkpoint(ready)
    steps = sorted({step for report in ready for step in report.checkpoints}, reverse=True)
    return next((s for s in steps if _ranks_have_step(ready[: checkpoint_ranks_at(worlds, s)], s)), None)


def _ranks_have_step(ready: Sequence[LauncherReport], step: int) -> bool:
    """Every one of them has that step; or the single one that writes for all does."""
    kept = [report for report in ready if report.checkpoints]
    return len(kept) in (1, len(ready)) and all(step in report.checkpoints for report in kept)


def checkpoint_ranks_at(worlds: Sequence[World], step: int) -> int:
    """How many ranks wrote the checkpoint of that step."""
    behind = [world.ranks for world in worlds if world.from_step < step]
    return behind[-1] if behind else worlds[0].ranks


def worlds_so_far(status: TrainingJobStatus) -> list[World]:
    """Also of a job whose first size was never written down (by an older release): as many as last reported a step."""
    if status.worlds or status.started_at is None or not status.progress.steps:
        return status.worlds
    return [World(len(status.progress.steps))]


def with_world_size(worlds: Sequence[World], ranks: int, resume: int | None) -> list[World]:
    """The record once `ranks` go on from `resume`. What was written behind that is history given up."""
    if resume is None:
        return [World(ranks)]
    kept = [world for world in worlds if world.from_step < resume] or list(worlds[:1])
    if kept and kept[-1].ranks == ranks:
        return kept
    return [*kept, World(ranks, resume)][-KEPT_WORLDS:]


def common_checkpoint(ready: Sequence[LauncherReport]) -> int | None:
    """The newest step every rank can resume from.

    Ranks that keep none are left out only when a single rank (usually 0) writes for all; as soon as two ranks have
    checkpoints of their own, a rank without any means its shard is lost and nothing later than a common step can be used.
    """
    kept = [set(report.checkpoints) for report in ready if report.checkpoints]
    if not kept or (len(kept) > 1 and len(kept) < len(ready)):
        return None
    shared = set.intersection(*kept)
    return max(shared, default=None)
