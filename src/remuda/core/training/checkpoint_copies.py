"""Copies of checkpoints that lie on single nodes: which belong to the gang's history, who takes them, which are kept. Pure.

A rank's checkpoints are on the node where it saved them (its home), and the home's agent copies them to one other node. A step is
*safe* when the copy has been acknowledged and the job's status names the node that has it (`status.copies`): then whoever hosts
the rank next knows from the API alone whom to ask.

*Histories.* A gang that goes on from step 10 leaves copies of an old step 20 behind, on nodes that may be away at that moment.
Given out later, beside a new step 20 of the other ranks, such a copy would mix two histories. So a copy says in which attempt it
was saved, and the status says which attempts went on from where (`status.resumes`). A copy of attempt A belongs to the history as
far as no attempt after A went on from an earlier step. Of the list only what can still decide is kept: an attempt that went on
from an earlier step says all that those before it could say.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence

import msgspec

from remuda.api.training import RankCopies, Resume, TrainingJob, TrainingJobStatus

KEPT_RESUMES = 32
KEPT_COPIES = 3  # of a rank, the newest
MOST_COPIES = 8  # of a rank, with those that other ranks may not have got past yet
FETCHED = 2  # the newest so many are brought to a rank's new home, beside the newest that is safe for the whole gang


class CopyCandidate(msgspec.Struct, frozen=True):
    """A node that may take copies. `apart`: in another failure domain than the one that asks."""

    node: str
    apart: bool = False


def has_checkpoints_per_node(job: TrainingJob) -> bool:
    """Whether each rank's checkpoints lie on its node: nobody has named a directory or a volume that all of them share."""
    return not job.spec.checkpoint.path and not job.spec.checkpoint.volume


def resumes_after_start(resumes: Sequence[Resume], attempt: int, step: int) -> list[Resume]:
    earlier = [r for r in resumes if r.step < step and r.attempt < attempt]
    return [*earlier, Resume(attempt, step)][-KEPT_RESUMES:]


def newest_step_in_history(status: TrainingJobStatus, attempt: int) -> int | None:
    """Of what was saved up to and in that attempt: up to which step it is of the history that the gang is in; None = all."""
    if attempt >= status.opened_attempt:
        return None
    resumes = status.resumes
    if not resumes or resumes[-1].attempt != status.opened_attempt:
        return 0  # written by a manager that did not note it
    if len(resumes) == KEPT_RESUMES and resumes[0].attempt > attempt:
        return 0  # too long ago to tell
    return min(r.step for r in resumes if r.attempt > attempt)


def is_in_history(status: TrainingJobStatus, step: int, attempt: int) -> bool:
    newest = newest_step_in_history(status, attempt)
    return newest is None or step <= newest


def kept_checkpoint_step_of_rank(status: TrainingJobStatus, rank: int) -> int | None:
    """The newest step that is known to be safe for the whole gang and that this rank has its part of."""
    kept = status.progress.kept
    if not kept or (kept[-1].ranks == 1 and len(status.members) > 1 and copies_of_rank(status, rank) is None):
        return None  # where one writes for all, the others have none
    return kept[-1].step


def copies_of_rank(status: TrainingJobStatus, rank: int) -> RankCopies | None:
    return next((c for c in status.copies if c.rank == rank), None)


def is_rank_hosted_by(job: TrainingJob | None, uid: str, rank: int, node: str) -> bool:
    """Whether that node may ask for, or bring, copies of this rank: the manager has placed the rank there."""
    return job is not None and job.uid == uid and any(m.rank == rank and m.node == node for m in job.status.members)


def copy_candidates_in_order(
    own: str, uid: str, rank: int, candidates: Iterable[CopyCandidate], current: str, spares: Iterable[str]
) -> list[str]:
    """Whom to give copies, best first: who has them already; then in another failure domain, there first who could take the rank
    over; then anybody else. Among equals each rank has an order of its own, so that no node is everybody's first."""
    spare = set(spares)

    def order(candidate: CopyCandidate) -> tuple[bool, bool, bool, bytes]:
        lot = hashlib.sha256(f"{uid}/{rank}/{candidate.node}".encode()).digest()
        is_spare = candidate.apart and candidate.node in spare
        return candidate.node != current, not candidate.apart, not is_spare, lot

    return [c.node for c in sorted(candidates, key=order) if c.node != own]


def next_step_to_copy(waiting: Iterable[int]) -> int | None:
    """Of steps that wait to be copied. When copying is slower than saving, not all can be; ranks that choose alike by the number
    alone get the same ones, and only those that all have are of use: the most even number, the newest of those."""
    return max(waiting, key=lambda step: (step & -step, step), default=None)


def copies_to_drop(steps: Iterable[int], gang_steps: Iterable[int]) -> list[int]:
    """Of one rank's copies, given the steps that are safe for the whole gang as far as the holder knows. The newest stay, and the
    newest of those that are safe, whatever else comes; between the two what other ranks may have, too, as long as it is few."""
    ordered = sorted(steps, reverse=True)
    safe = max((s for s in gang_steps if s in ordered), default=None)
    wanted = {*ordered[:KEPT_COPIES], *([safe] if safe is not None else [])}
    between = [s for s in ordered if s not in wanted and (safe is None or s > safe)]
    room = max(0, MOST_COPIES - len(wanted))
    wanted.update(between[:room] if safe is not None else ())
    return [s for s in ordered if s not in wanted]
