"""Whatever numbers a script, a launcher or an agent says: nothing raises, and every answer can be written down and read again.

A number that breaks arithmetic is looked at again and again, by the one controller that looks after everybody.
"""

from __future__ import annotations

import math
from datetime import UTC, datetime

import msgspec
from hypothesis import example, given
from hypothesis import strategies as st

from remuda.api.codec import decode, encode
from remuda.api.meta import to_seconds, to_time
from remuda.api.number_bounds import MAX_COUNT
from remuda.api.training import Cause, Goodput, Progress, Recovery, Remedy, TrainingJob, TrainingJobStatus
from remuda.core.gang.pod_view import MemberProgress
from remuda.core.training.goodput import book_recovery_loss, goodput_at
from remuda.core.training.progress import training_job_eta, training_step_pace_s
from tests.builders.gang_model import GangModel, a_gang
from tests.builders.gangs import a_job, racks

WILD = st.one_of(
    st.floats(allow_nan=True, allow_infinity=True),
    st.sampled_from([0.0, -1.0, 1e15, 1e300, math.inf, -math.inf, math.nan, 253402300800.0, -62135596801.0]),
)
COUNTS = st.one_of(st.integers(), st.sampled_from([0, 1, -1, 2**53, 2**62, 2**63 - 1, 10**400]))
TIMES = st.one_of(st.datetimes(), st.datetimes(timezones=st.just(UTC)))


@given(WILD)
@example(math.nan)
@example(2.0**62)
@example(10**400)
def test_every_number_has_a_time(seconds: float) -> None:
    moment = to_time(seconds)
    assert moment.tzinfo is not None
    assert math.isfinite(to_seconds(moment))


@given(WILD, WILD)
def test_a_later_number_is_no_earlier_time(one: float, other: float) -> None:
    if one <= other:
        assert to_time(one) <= to_time(other)


@given(st.integers(0, 10**10).map(lambda n: n / 10))
def test_a_number_of_this_age_keeps_its_time(seconds: float) -> None:
    assert abs(to_seconds(to_time(seconds)) - seconds) < 1e-5


@given(TIMES)
@example(datetime(1, 1, 1))  # noqa: DTZ001 - without a zone: that is the case
@example(datetime(9999, 12, 31, 23, 59, 59, 999_999))  # noqa: DTZ001
def test_every_time_has_a_number(moment: datetime) -> None:
    assert math.isfinite(to_seconds(moment))


@given(COUNTS, COUNTS, WILD, WILD, st.floats(0, 4e9))
@example(1, 2**62, 1.0, 1.0, 1.8e9)
@example(1, 9_000_000_000_000_000, 0.5, 1.0, 1.8e9)
def test_an_estimate_is_a_time_to_come_or_none(step: int, total: int, pace: float, ettr: float, now: float) -> None:
    at = training_job_eta(step, total, pace, ettr, now)
    assert at is None or now <= at < now + 101 * 365 * 86_400


def wild_beats() -> st.SearchStrategy[MemberProgress]:
    return st.builds(
        MemberProgress,
        attempt=st.just(1),
        step=COUNTS,
        time=WILD,
        first_step_time=WILD,
        step_seconds=st.none() | WILD,
        checkpoint=st.none() | COUNTS,
        checkpoint_time=WILD,
        checkpoint_seconds=WILD,
        total_steps=st.none() | COUNTS,
        kept=st.none() | COUNTS,
    )


@given(st.lists(wild_beats(), min_size=1, max_size=3), COUNTS, WILD)
def test_a_pace_is_a_number(beats: list[MemberProgress], resumed: int, median: float) -> None:
    training_step_pace_s(beats, min(abs(resumed), 10**15), median)


WILD_KEPT = MemberProgress(attempt=1, step=5, time=1.8e9, first_step_time=1.8e9, kept=10**400)


def trained(total: int = 0) -> GangModel:
    gang = a_gang(a_job().spec(total_steps=total), racks(2)).settle()
    gang.train(3)
    return gang


@given(wild_beats(), wild_beats(), st.sampled_from([0, 100, 10**15]))
@example(WILD_KEPT, WILD_KEPT, 0)
def test_a_gang_with_wild_reports_is_planned_and_its_status_can_be_read_again(
    one: MemberProgress, other: MemberProgress, total: int
) -> None:
    gang = trained(total)
    attempt, beats = gang.status.attempt, [one, other]
    gang.beats = {
        uid: msgspec.structs.replace(beats[at % 2], attempt=attempt) for at, uid in enumerate(sorted(gang.beats))
    }
    gang.look()
    gang.advance(5.0)
    gang.look()
    assert gang.status.attempt == attempt, "what a rank says of its numbers costs nobody an attempt"
    assert decode(TrainingJob, encode(gang.job)) == gang.job
    assert all(0 < found.step <= MAX_COUNT for found in gang.status.progress.kept)


@given(COUNTS, COUNTS, WILD, st.integers(0, 10**6))
def test_losses_are_booked_whatever_a_step_takes(at_fault: int, resumed: int, step_s: float, gpus: int) -> None:
    began = datetime(2027, 1, 1, tzinfo=UTC)
    seen = {"detected_at": began, "signal_at": began, "first_step_at": began}
    steps = {"step_at_fault": at_fault, "resume_step": resumed}
    recovery = Recovery(attempt=2, cause=Cause.CODE, remedy=Remedy.RESTART_IN_PLACE, reason="x", **seen, **steps)  # type: ignore[arg-type]
    status = TrainingJobStatus(started_at=began, progress=Progress(), goodput=Goodput())
    goodput, booked = book_recovery_loss(status, recovery, to_seconds(began), step_s, gpus)
    after = goodput_at(goodput, began, 0.0, to_seconds(began) + 10)
    for value in (goodput.lost_seconds, booked.lost_gpu_seconds, after.ettr, *goodput.lost_gpu_seconds.values()):
        assert math.isfinite(value)
    assert 0 <= after.ettr <= 1
