"""Which step a gang goes on from, and when doubt about it holds the barrier."""

from __future__ import annotations

import pytest

from remuda.api.devices import LauncherReport
from remuda.api.meta import ObjectMeta
from remuda.api.training import (
    Checkpoint,
    CheckpointFallBack,
    KeptCheckpoint,
    Member,
    Progress,
    ResumeFrom,
    TrainingJob,
    TrainingJobSpec,
    TrainingJobStatus,
    World,
)
from remuda.core.gang.pod_view import MemberProgress
from remuda.core.training.kept_checkpoints import (
    MISSING,
    UNREADABLE,
    BarrierHold,
    ResumeStep,
    decide_resume_step,
    kept_after_beats,
    kept_after_start,
)

Steps = tuple[int, ...]


def rank_report(number: int, steps: Steps = (), **fields: object) -> LauncherReport:
    return LauncherReport(f"job-{number}", f"uid-{number}", "ready", 2, checkpoints=list(steps), **fields)  # type: ignore[arg-type]


def a_job(*kept: int, ranks: int = 2, opened: int = 1, **checkpoint: object) -> TrainingJob:
    return TrainingJob(
        metadata=ObjectMeta(name="job"),
        spec=TrainingJobSpec(checkpoint=Checkpoint(**checkpoint)),  # type: ignore[arg-type]
        status=TrainingJobStatus(
            attempt=2,
            opened_attempt=opened,
            members=[Member(n, "worker", f"job-{n}", f"uid-{n}", f"node-{n}") for n in range(4)],
            progress=Progress(kept=[KeptCheckpoint(step, ranks) for step in kept]),
        ),
    )


def beat(step: int, kept: int | None = None) -> MemberProgress:
    return MemberProgress(attempt=1, step=step, time=0.0, first_step_time=0.0, kept=kept)


@pytest.mark.parametrize(
    ("ranks", "step"),
    [
        (((), ()), None),
        (((20, 10), (20, 10)), 20),
        (((20, 10), (10,)), 10),
        (((20, 10), ()), 20),  # one writes for all, as far as anybody knows
        (((20,), (10,)), None),
    ],
)
def test_with_nothing_known_the_newest_common_step_counts(ranks: tuple[Steps, ...], step: int | None) -> None:
    found = decide_resume_step(a_job(), [rank_report(n, steps) for n, steps in enumerate(ranks)], [])
    assert isinstance(found, ResumeStep)
    assert found.step == step


@pytest.mark.parametrize("ranks", [((), ()), ((20, 10), ()), ((20,), (10,)), ((10,), (10,)), ((20, 10), (10,))])
def test_below_what_is_known_it_holds_and_names_who_lacks_it(ranks: tuple[Steps, ...]) -> None:
    found = decide_resume_step(a_job(10, 20), [rank_report(n, steps) for n, steps in enumerate(ranks)], [])
    assert isinstance(found, BarrierHold)
    assert found.reason == MISSING
    assert "rank 1 (job-1 on node-1)" in found.message
    assert ("rank 0 (" in found.message) == (20 not in ranks[0])


def test_damaged_copies_are_said_of_the_rank_that_misses_them() -> None:
    lacking = rank_report(1, (10,), not_copied="the copy of step 20 is damaged on node-7 (CopyCorrupt)")
    found = decide_resume_step(a_job(10, 20), [rank_report(0, (20, 10)), lacking], [])
    assert isinstance(found, BarrierHold)
    assert found.reason == MISSING
    assert "Of rank 1 (job-1 on node-1): the copy of step 20 is damaged on node-7" in found.message


def test_what_failed_its_check_is_not_missing() -> None:
    ready = [rank_report(0, (20, 10)), rank_report(1, (10,), corrupt=[20])]
    assert decide_resume_step(a_job(10, 20), ready, []) == ResumeStep(10, 2)
    ready = [rank_report(0, (20, 10)), rank_report(1, (), corrupt=[20])]
    assert isinstance(decide_resume_step(a_job(10, 20), ready, []), BarrierHold)
    ready = [rank_report(0, (20,)), rank_report(1, (), corrupt=[20])]
    assert decide_resume_step(a_job(20), ready, []) == ResumeStep(None), "it was the only one"


def test_a_policy_allows_to_fall_back_but_not_to_read_what_cannot_be_read() -> None:
    job = a_job(10, 20, fall_back=CheckpointFallBack.ALLOWED)
    assert decide_resume_step(job, [rank_report(0, (20, 10)), rank_report(1, (10,))], []) == ResumeStep(10, 2)
    blind = [rank_report(0, (20, 10)), rank_report(1, (10,), unreadable="/ckpt: a loop")]
    found = decide_resume_step(job, blind, [])
    assert isinstance(found, BarrierHold)
    assert found.reason == UNREADABLE
    assert "rank 1 (job-1 on node-1): /ckpt: a loop" in found.message


@pytest.mark.parametrize(
    ("given", "opened", "counts"), [(1, 1, False), (2, 1, True), (2, 2, False), (1, 0, True), (3, 1, False)]
)
def test_consent_counts_until_an_attempt_has_opened_with_it(given: int, opened: int, counts: bool) -> None:
    job = a_job(20, opened=opened, resume_from=ResumeFrom(0, given))
    found = decide_resume_step(job, [rank_report(0), rank_report(1)], [])
    assert isinstance(found, ResumeStep) == counts


def test_consent_needs_the_step_on_every_rank_and_of_one_history() -> None:
    job = a_job(20, resume_from=ResumeFrom(30, 2))
    given_up = [rank_report(n, (20,), abandoned=[30]) for n in range(2)]
    assert decide_resume_step(job, given_up, []) == ResumeStep(30, 2)
    mixed = [rank_report(0, (20,), abandoned=[30]), rank_report(1, (30, 20))]
    found = decide_resume_step(job, mixed, [])
    assert isinstance(found, BarrierHold)
    assert "different histories" in found.message
    lacking = [rank_report(0, (20,), abandoned=[30]), rank_report(1, (20,))]
    found = decide_resume_step(job, lacking, [])
    assert isinstance(found, BarrierHold)
    assert "it is not there: rank 1 (job-1 on node-1)" in found.message
    alone = [rank_report(0, (20,), abandoned=[30]), rank_report(1)]
    assert decide_resume_step(job, alone, []) == ResumeStep(30, 1), "one writes for all"


def test_ranks_that_came_later_need_not_have_it() -> None:
    job = a_job(20, resume_from=ResumeFrom(10, 2))
    ready = [rank_report(0, (20, 10)), rank_report(1, (20, 10)), rank_report(2)]
    assert decide_resume_step(job, ready, [World(2)]) == ResumeStep(10, 2)
    assert decide_resume_step(a_job(20), ready, [World(2)]) == ResumeStep(20, 2)


def test_a_step_is_known_when_every_rank_has_been_seen_to_keep_it() -> None:
    assert kept_after_beats([], [beat(12, 10), beat(12)]) == [KeptCheckpoint(10, 1)], (
        "all are past it: one writes for all"
    )
    assert kept_after_beats([], [beat(12, 10), beat(10)]) == [], "rank 1 may be about to save"
    assert kept_after_beats([], [beat(12, 10), beat(12, 10), beat(12)]) == [], "rank 2 has yet to save its own"
    known = kept_after_beats([], [beat(21, 20), beat(21, 10)])
    assert known == [KeptCheckpoint(10, 2)]
    assert kept_after_beats(known, [beat(32, 30), beat(32)]) == known, "a new pod has yet to save: nobody writes for it"
    assert kept_after_beats(known, [beat(9, 8), beat(9, 8)]) == known
    steps: list[KeptCheckpoint] = []
    for step in range(10, 100, 10):
        steps = kept_after_beats(steps, [beat(step, step)])
    assert [k.step for k in steps] == [60, 70, 80, 90]


def test_a_start_gives_up_what_lies_ahead() -> None:
    known = [KeptCheckpoint(step, 2) for step in (10, 20, 30)]
    assert kept_after_start(known, ResumeStep(20, 2)) == known[:2]
    assert kept_after_start(known, ResumeStep(None)) == []
    assert kept_after_start([], ResumeStep(40, 1)) == [KeptCheckpoint(40, 1)]
