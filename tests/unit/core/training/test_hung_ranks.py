"""No step for many median steps is a hang; a checkpoint, a first step and a slow gang are none."""

from __future__ import annotations

import pytest

from remuda.core.training.hung_ranks import LEAST_S, HangLimits, LastRankStep, first_training_hang_at, hung_ranks

K = HangLimits(10.0)


def ranks(*last: tuple[int, float], step_seconds: float | None = 2.0, steps: int = 50) -> list[LastRankStep]:
    """(step, time) of each."""
    return [LastRankStep(rank, step, time, step_seconds, steps) for rank, (step, time) in enumerate(last)]


def names(samples: list[LastRankStep], now: float, limits: HangLimits = K) -> list[int]:
    return [hung.rank for hung in hung_ranks(samples, now, limits)]


def test_a_rank_quiet_for_k_median_steps_hangs() -> None:
    gang = ranks((50, 100.0), (70, 118.0), (70, 118.0))
    assert names(gang, 120.0) == []
    assert names(gang, 120.1) == [0]
    assert first_training_hang_at(gang, K) == 120.0


def test_in_a_gang_that_stands_still_the_one_that_got_least_far_is_named() -> None:
    assert names(ranks((51, 100.0), (50, 98.0), (51, 100.0)), 200.0) == [1]


def test_where_all_stand_at_the_same_step_all_are() -> None:
    assert names(ranks((51, 100.0), (51, 100.1)), 200.0) == [0, 1]


def test_the_limit_follows_the_gangs_own_pace() -> None:
    assert names(ranks((50, 100.0), (50, 100.0), step_seconds=60.0), 200.0) == []
    assert names(ranks((50, 100.0), (50, 100.0), step_seconds=0.001), 100.0 + LEAST_S) == []


@pytest.mark.parametrize("steps", [0, 1, 2])
def test_first_steps_are_no_hang(steps: int) -> None:
    assert names(ranks((1, 100.0), (1, 100.0), steps=steps), 1e6) == []


def test_a_checkpoint_is_allowed_for() -> None:
    gang = ranks((50, 100.0), (50, 100.0))
    assert names(gang, 139.0, HangLimits(10.0, checkpoint_seconds=10.0)) == []
    assert names(gang, 141.0, HangLimits(10.0, checkpoint_seconds=10.0)) == [0, 1]


def test_off_or_unknown_says_nothing() -> None:
    assert names(ranks((50, 100.0)), 1e6, HangLimits(0.0)) == []
    assert names(ranks((50, 100.0), step_seconds=None), 1e6) == []
    assert names([], 1e6) == []
    assert first_training_hang_at([], K) is None
