"""Copies of checkpoints: who takes them, which are kept, and which belong to the history that the gang is in."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from remuda.api.meta import ObjectMeta
from remuda.api.training import (
    Checkpoint,
    KeptCheckpoint,
    Member,
    Progress,
    RankCopies,
    Resume,
    TrainingJob,
    TrainingJobSpec,
    TrainingJobStatus,
)
from remuda.core.gang.pod_view import MemberProgress
from remuda.core.training.checkpoint_copies import (
    KEPT_COPIES,
    KEPT_RESUMES,
    MOST_COPIES,
    CopyCandidate,
    copies_to_drop,
    copy_candidates_in_order,
    has_checkpoints_per_node,
    is_in_history,
    is_rank_hosted_by,
    kept_checkpoint_step_of_rank,
    next_step_to_copy,
    resumes_after_start,
)
from remuda.core.training.kept_checkpoints import ResumeStep, kept_after_beats, kept_after_start

# --- histories ----------------------------------------------------------------------------------------------------------


def status_after(resumed: list[int]) -> TrainingJobStatus:
    """Attempts 1, 2, ... went on from those steps."""
    resumes: list[Resume] = []
    for attempt, step in enumerate(resumed, 1):
        resumes = resumes_after_start(resumes, attempt, step)
    return TrainingJobStatus(opened_attempt=len(resumed), attempt=len(resumed), resumes=resumes)


@given(st.lists(st.integers(0, 12), min_size=1, max_size=20), st.integers(0, 13), st.integers(1, 20))
def test_a_copy_is_of_this_history_while_no_later_attempt_went_on_from_an_earlier_step(
    resumed: list[int], step: int, attempt: int
) -> None:
    later = resumed[attempt:]
    assert is_in_history(status_after(resumed), step, attempt) == all(step <= s for s in later)


@given(st.lists(st.integers(0, 300), min_size=KEPT_RESUMES, max_size=150), st.integers(0, 300), st.integers(1, 150))
def test_what_is_too_long_ago_to_tell_is_not_taken(resumed: list[int], step: int, attempt: int) -> None:
    status = status_after(resumed)
    assert len(status.resumes) <= KEPT_RESUMES
    if is_in_history(status, step, attempt):
        assert all(step <= s for s in resumed[attempt:])


def test_a_manager_that_did_not_note_where_attempts_went_on_leaves_only_the_newest() -> None:
    status = TrainingJobStatus(opened_attempt=3, attempt=3, resumes=[Resume(1, 10)])
    assert is_in_history(status, 20, 3)
    assert not is_in_history(status, 5, 2)


# --- who ----------------------------------------------------------------------------------------------------------------


def test_another_failure_domain_comes_first_then_who_has_a_spare_and_who_has_copies_keeps_them() -> None:
    near, far, spare = CopyCandidate("near"), CopyCandidate("far", apart=True), CopyCandidate("spare", apart=True)
    near_spare = CopyCandidate("near-spare")
    everybody = [near, far, spare, near_spare, CopyCandidate("me", apart=True)]
    spares = ["spare", "near-spare"]

    def order(current: str = "") -> list[str]:
        return copy_candidates_in_order("me", "uid", 0, everybody, current, spares)

    assert order()[:2] == ["spare", "far"]
    assert sorted(order()[2:]) == ["near", "near-spare"]
    assert order("near")[0] == "near", "as long as it takes them"
    assert "me" not in order()


def test_ranks_do_not_all_choose_the_same_node() -> None:
    everybody = [CopyCandidate(f"n{i}", apart=True) for i in range(16)]
    first = [copy_candidates_in_order("me", "uid", rank, everybody, "", ())[0] for rank in range(64)]
    assert len(set(first)) > 10


def test_only_the_node_of_the_rank_may_ask() -> None:
    status = TrainingJobStatus(members=[Member(0, "worker", "a", "ua", "n0"), Member(1, "worker", "b", "ub", "n1")])
    job = TrainingJob(metadata=ObjectMeta(name="job", uid="u"), spec=TrainingJobSpec(roles=[]), status=status)
    assert is_rank_hosted_by(job, "u", 1, "n1")
    assert not is_rank_hosted_by(job, "u", 0, "n1")
    assert not is_rank_hosted_by(job, "other", 1, "n1")
    assert not is_rank_hosted_by(None, "u", 1, "n1")


def test_a_job_with_a_shared_directory_has_no_copies() -> None:
    job = TrainingJob(spec=TrainingJobSpec(roles=[], checkpoint=Checkpoint(path="/shared")))
    assert not has_checkpoints_per_node(job)
    assert has_checkpoints_per_node(TrainingJob(spec=TrainingJobSpec(roles=[])))


# --- which --------------------------------------------------------------------------------------------------------------


@given(st.sets(st.integers(1, 60), max_size=20), st.sets(st.integers(1, 60), max_size=4))
def test_the_newest_stay_and_the_newest_that_is_safe_for_the_gang(steps: set[int], gang: set[int]) -> None:
    left = steps - set(copies_to_drop(steps, gang))
    assert len(left) <= MOST_COPIES
    assert set(sorted(steps, reverse=True)[:KEPT_COPIES]) <= left
    safe = max(steps & gang, default=None)
    assert safe is None or safe in left
    assert copies_to_drop(left, gang) == []


def test_ranks_that_are_behind_choose_the_same_steps() -> None:
    """Their windows overlap; the step that is the most even of both is chosen by both."""
    assert next_step_to_copy([10, 20, 30]) == 20
    assert next_step_to_copy([20, 30, 40]) == 40
    assert next_step_to_copy([30]) == 30
    assert next_step_to_copy([]) is None


def test_where_one_writes_for_all_the_others_miss_nothing() -> None:
    members = [Member(rank, "worker", f"p{rank}", f"u{rank}", f"n{rank}") for rank in range(2)]
    one = Progress(kept=[KeptCheckpoint(10, 1)])
    status = TrainingJobStatus(members=members, progress=one, copies=[RankCopies(0, "n0", "n5")])
    assert kept_checkpoint_step_of_rank(status, 0) == 10
    assert kept_checkpoint_step_of_rank(status, 1) is None
    each = TrainingJobStatus(members=members, progress=Progress(kept=[KeptCheckpoint(10, 2)]))
    assert kept_checkpoint_step_of_rank(each, 1) == 10


# --- what the manager counts --------------------------------------------------------------------------------------------


def beat(step: int, kept: int | None, *safe: int) -> MemberProgress:
    return MemberProgress(1, step, 0.0, 0.0, kept=kept, safe=safe)


def test_a_step_is_safe_for_the_gang_when_each_rank_has_a_copy_of_that_very_step() -> None:
    assert kept_after_beats([], [beat(50, 40, 40, 30, 20), beat(50, 30, 30, 10)]) == [KeptCheckpoint(30, 2)]
    assert kept_after_beats([], [beat(50, 40, 40, 30), beat(50, 20, 20, 10)]) == [], "the older of two is not in both"


def test_a_rank_that_has_saved_and_has_no_copy_yet_is_none_that_saves_nothing() -> None:
    assert kept_after_beats([], [beat(50, 40, 40), beat(50, 0)]) == []
    writes_for_all = MemberProgress(1, 50, 0.0, 0.0)
    assert kept_after_beats([], [beat(50, 40, 40), writes_for_all]) == [KeptCheckpoint(40, 1)]


def test_a_step_that_all_have_on_their_own_disks_is_not_known_by_that() -> None:
    kept = [KeptCheckpoint(20, 8)]
    assert kept_after_start(kept, ResumeStep(40, 8), is_per_node=True) == kept
    assert kept_after_start(kept, ResumeStep(40, 8)) == [*kept, KeptCheckpoint(40, 8)]
    assert kept_after_start(kept, ResumeStep(20, 8), is_per_node=True) == kept
    assert kept_after_start(kept, ResumeStep(10, 8), is_per_node=True) == []
