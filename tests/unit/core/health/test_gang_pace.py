"""The gang as a whole against its own past: slow, why nobody is named, and two ranks that have no majority."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pytest

from remuda.core.health.gang_pace import (
    ONE_OF_TWO,
    UNIFORM,
    UNKNOWN_PART,
    WAITING,
    GangPace,
    GangPaceLook,
    judge_gang_pace,
)
from remuda.core.health.step_samples import StepSample

Gang = Mapping[int, Sequence[StepSample]]


def gang(own: Mapping[int, float | None], rest: float = 0.1, *, first: int = 1, steps: int = 40) -> Gang:
    """Coupled: everybody's step takes the slowest's own time and the rest."""
    draw = np.random.default_rng(first)
    noise = np.exp(draw.normal(0.0, 0.03, (len(own), steps)))
    known = {rank: seconds or 1.0 for rank, seconds in own.items()}
    times = {rank: noise[i] * seconds for i, (rank, seconds) in enumerate(known.items())}
    took = np.max(list(times.values()), axis=0) + rest
    return {
        rank: [
            StepSample(first + n, float(times[rank][n]) if own[rank] is not None else None, float(took[n]))
            for n in range(steps)
        ]
        for rank in own
    }


def then(before: Gang, after: Gang, known: Sequence[int] = ()) -> GangPaceLook:
    pace = judge_gang_pace([before], 1.3).pace
    return judge_gang_pace([after], 1.3, known, pace)


def even(ranks: int, seconds: float | None = 1.0) -> dict[int, float | None]:
    return dict.fromkeys(range(ranks), seconds)


def test_a_steady_gang_is_not_slow() -> None:
    look = then(gang(even(8)), gang(even(8), first=100))
    assert (look.speeds.slow, look.gang, look.is_enough) == ((), None, True)


def test_everybody_slower_is_a_slow_gang_and_blames_nobody() -> None:
    look = then(gang(even(8)), gang(even(8, 1.6), first=100))
    assert look.speeds.slow == ()
    assert look.gang is not None
    assert look.gang.reason == UNIFORM
    assert look.gang.factor == pytest.approx(1.55, abs=0.1)


def test_longer_waits_are_told_from_longer_work() -> None:
    look = then(gang(even(8)), gang(even(8), rest=0.8, first=100))
    assert look.gang is not None
    assert look.gang.reason == WAITING


def test_without_own_times_only_the_gang_is_slow() -> None:
    look = then(gang(even(8, None)), gang(even(8, None), rest=0.8, first=100))
    assert look.speeds.slow == ()
    assert look.gang is not None
    assert look.gang.reason == UNKNOWN_PART


def test_a_named_straggler_explains_the_slow_gang() -> None:
    look = then(gang(even(8)), gang({**even(8), 5: 2.0}, first=100))
    assert [s.rank for s in look.speeds.slow] == [5]
    assert look.gang is None


def test_a_straggler_does_not_spoil_the_pace_it_is_measured_by() -> None:
    slow = then(gang(even(8)), gang({**even(8), 5: 2.0}, first=100))
    again = judge_gang_pace([gang(even(8), first=200)], 1.3, (), slow.pace)
    assert again.gang is None


def test_a_gang_of_another_size_begins_a_new_pace() -> None:
    look = judge_gang_pace([gang(even(4, 2.0), first=100)], 1.3, (), judge_gang_pace([gang(even(8))], 1.3).pace)
    assert look.gang is None
    assert look.pace.ranks == (0, 1, 2, 3)


def test_roles_are_compared_within_themselves() -> None:
    learners = gang(even(4))
    actors = {rank + 4: s for rank, s in gang({**even(4, 5.0), 1: 9.0}).items()}
    assert [s.rank for s in judge_gang_pace([learners, actors], 1.3).speeds.slow] == [5]


def test_of_two_the_one_that_became_slower_is_named() -> None:
    look = then(gang(even(2)), gang({0: 1.0, 1: 2.0}, first=100))
    assert [s.rank for s in look.speeds.slow] == [1]


def test_of_two_nobody_is_named_without_a_past() -> None:
    look = judge_gang_pace([gang({0: 1.0, 1: 2.0})], 1.3)
    assert (look.speeds.slow, look.gang) == ((), None)


def test_of_two_nobody_is_named_when_both_became_slower() -> None:
    look = then(gang(even(2)), gang({0: 1.5, 1: 3.0}, first=100))
    assert look.speeds.slow == ()
    assert look.gang is not None
    assert look.gang.reason == UNIFORM


def test_of_two_with_a_lasting_difference_the_gang_is_slow() -> None:
    look = then(gang({0: 1.0, 1: 2.0}), gang({0: 1.0, 1: 2.0}, rest=1.2, first=100))
    assert look.gang is not None
    assert look.gang.reason == ONE_OF_TWO


def test_a_lone_rank_is_never_blamed() -> None:
    look = then(gang(even(1)), gang(even(1, 3.0), first=100))
    assert look.speeds.slow == ()
    assert look.gang is not None


def test_one_called_slow_is_slow_until_it_is_normal_also_of_two() -> None:
    assert [s.rank for s in judge_gang_pace([gang({0: 1.0, 1: 1.8})], 1.3, (1,), GangPace()).speeds.slow] == [1]
    assert 1 in judge_gang_pace([gang(even(2))], 1.3, (1,), GangPace()).speeds.normal


def joined(before: Gang, after: Gang) -> Gang:
    return {rank: (*before[rank], *after[rank]) for rank in after}


def test_who_looks_for_the_first_time_knows_what_the_samples_still_tell() -> None:
    """A manager that is new, told the window: the gang slowed down within it."""
    slower = judge_gang_pace([joined(gang(even(4)), gang(even(4, 2.0), first=100, steps=20))], 1.3)
    assert slower.gang is not None
    assert slower.gang.reason == UNIFORM
    of_two = judge_gang_pace([joined(gang(even(2)), gang({0: 1.0, 1: 1.8}, first=100, steps=20))], 1.3)
    assert [s.rank for s in of_two.speeds.slow] == [1]


def test_who_takes_over_says_what_was_said_until_the_gang_is_as_fast_as_it_was() -> None:
    slow = then(gang(even(4)), gang(even(4, 2.0), first=100)).gang
    assert slow is not None
    assert slow.best_seconds == pytest.approx(1.1, rel=0.05)
    first = judge_gang_pace([gang(even(4, 2.0), first=300)], 1.3, was=slow)  # the window has no better past
    assert first.gang == slow
    again = judge_gang_pace([gang(even(4, 2.0), first=400)], 1.3, pace=first.pace, was=slow)
    assert again.gang == slow
    over = judge_gang_pace([gang(even(4), first=500)], 1.3, pace=again.pace, was=slow)
    assert (over.gang, over.is_enough, over.pace.is_inherited) == (None, True, False)
    smaller = judge_gang_pace([gang(even(3, 2.0), first=600)], 1.3, pace=again.pace, was=slow)
    assert (smaller.gang, smaller.pace.is_inherited) == (None, False), "a gang of another size has another best"
