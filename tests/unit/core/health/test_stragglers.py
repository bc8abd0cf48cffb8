"""Who is slow: one rank among many, several at once, nobody when all are, and nobody because of a stall."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from remuda.core.health.step_samples import WINDOW, StepSample
from remuda.core.health.stragglers import CLEAR_STEPS, STRETCHES, Matrix, judge_rank_speeds, straggler_step_matrix


def gang(ranks: int = 8, steps: int = WINDOW, noise: float = 0.05, seed: int = 1) -> Matrix:
    return np.exp(np.random.default_rng(seed).normal(0.0, noise, (ranks, steps)))


def slow(own: Matrix, factor: float = 1.3, known: tuple[int, ...] = ()) -> list[int]:
    return [found.rank for found in judge_rank_speeds(own, factor, known).slow]


@pytest.mark.parametrize("factor", [1.4, 2.0, 3.0])
@pytest.mark.parametrize("ranks", [3, 4, 8, 512])
def test_a_slow_rank_is_named_with_its_factor(ranks: int, factor: float) -> None:
    own = gang(ranks)
    own[2] *= factor
    [found] = judge_rank_speeds(own, 1.3).slow
    assert found.rank == 2
    assert found.factor == pytest.approx(factor, rel=0.1)
    assert found.confidence >= 4.0


def test_the_larger_the_factor_the_fewer_steps_prove_it() -> None:
    fast, late = gang(noise=0.15), gang(noise=0.15)
    fast[2] *= 3.0
    late[2] *= 1.3
    assert judge_rank_speeds(fast, 1.3).slow[0].steps == STRETCHES[0]
    assert judge_rank_speeds(late, 1.3).slow[0].steps > STRETCHES[0]


def test_a_quarter_of_the_gang_may_be_slow_at_once() -> None:
    own = gang(16)
    own[[1, 5, 9, 13]] *= 1.5
    assert slow(own) == [1, 5, 9, 13]


@pytest.mark.parametrize("factor", [1.3, 2.0, 10.0])
def test_a_uniform_slow_down_blames_nobody(factor: float) -> None:
    own = gang()
    own[:, 20:] *= factor
    assert slow(own) == []


def test_steps_of_very_different_length_blame_nobody() -> None:
    own = gang()
    own *= np.random.default_rng(2).uniform(0.2, 5.0, WINDOW)
    assert slow(own) == []


@pytest.mark.parametrize("length", [1, 3, 5, 10])
def test_a_stall_of_one_rank_blames_nobody(length: int) -> None:
    for at in range(WINDOW - length + 1):
        own = gang(noise=0.02)
        own[3, at : at + length] *= 10.0
        assert slow(own[:, : at + length]) == []


def test_a_rank_that_writes_every_checkpoint_is_not_slow() -> None:
    own = gang()
    own[0, ::5] *= 4.0
    assert slow(own) == []


def test_a_rank_below_the_factor_is_let_be() -> None:
    own = gang(noise=0.02)
    own[3] *= 1.12
    assert slow(own) == []
    assert slow(own, factor=1.1) == [3]


def test_one_called_slow_stays_so_until_it_is_surely_normal() -> None:
    own = gang(noise=0.02)
    own[3] *= 1.2  # between the two lines: not enough to be called slow, too much to be called normal
    assert slow(own) == []
    assert slow(own, known=(3,)) == [3]
    own = gang(noise=0.02)
    own[3, :-CLEAR_STEPS] *= 2.0
    found = judge_rank_speeds(own, 1.3, (3,))
    assert found.slow == ()
    assert 3 in found.normal
    assert 3 not in judge_rank_speeds(own[:, :-8], 1.3, (3,)).normal


def test_missing_samples_are_no_evidence() -> None:
    own = gang()
    own[2] *= 2.0
    own[2, -STRETCHES[0] :][::2] = np.nan
    own[:, -30:-20] = np.nan  # nobody was heard
    assert slow(own) == [2]
    own[2, 4:] = np.nan
    assert slow(own) == []
    assert judge_rank_speeds(np.full((4, 40), np.nan), 1.3).slow == ()


def test_noise_that_hides_everything_blames_nobody() -> None:
    for seed in range(10):
        assert slow(gang(512, noise=0.8, seed=seed)) == []


@pytest.mark.parametrize("ranks", [1, 2])
def test_without_a_majority_nobody_is_named(ranks: int) -> None:
    own = gang(ranks)
    own[0] *= 3.0
    assert slow(own) == []


@given(st.integers(0, 10_000), st.integers(3, 40), st.floats(0.01, 0.2), st.floats(0.3, 3.0))
@settings(max_examples=150, deadline=None)
def test_a_healthy_gang_is_never_blamed_whatever_its_steps_cost(
    seed: int, ranks: int, noise: float, spread: float
) -> None:
    own = gang(ranks, noise=noise, seed=seed)
    own *= np.exp(np.random.default_rng(seed).normal(0.0, spread, WINDOW))
    assert slow(own) == []


@given(st.integers(0, 10_000), st.integers(4, 40), st.floats(1.5, 5.0), st.floats(0.01, 0.15), st.floats(0.001, 1e4))
@settings(max_examples=100, deadline=None)
def test_what_is_found_depends_neither_on_order_nor_on_the_unit(
    seed: int, ranks: int, factor: float, noise: float, unit: float
) -> None:
    own = gang(ranks, noise=noise, seed=seed)
    own[1] *= factor
    order = np.random.default_rng(seed).permutation(ranks)
    assert slow(own) == [1]
    assert [int(order[row]) for row in slow(own[order] * unit)] == [1]


# --- the table ------------------------------------------------------------------------------------------------------------


def samples(*steps: int, own: float = 1.0, late: float = 0.0) -> list[StepSample]:
    return [StepSample(step, own, 2.0, time=step - late) for step in steps]


def test_ranks_are_compared_step_by_step() -> None:
    both = {rank: samples(*range(1, 21)) for rank in (7, 8)}
    ranks, own = straggler_step_matrix({**both, 4: samples(*range(5, 21), own=2.0), 5: samples(*range(1, 21, 2))})
    assert ranks == [4, 5, 7, 8]
    np.testing.assert_array_equal(own[0], [np.nan] * 4 + [2.0] * 16)
    np.testing.assert_array_equal(own[1], [1.0, np.nan] * 10)
    np.testing.assert_array_equal(own[2], [1.0] * 20)
    assert straggler_step_matrix({7: samples(1, 2)}, steps=True)[1].tolist() == [[2.0, 2.0]]


def test_ranks_whose_steps_do_not_meet_are_compared_by_age() -> None:
    ranks, own = straggler_step_matrix({0: samples(1, 2, 3), 1: samples(11, 12), 2: samples(21, 22, 23)})
    assert ranks == [0, 1, 2]
    np.testing.assert_array_equal(own, [[1, 1, 1], [np.nan, 1, 1], [1, 1, 1]])


def test_a_rank_that_falls_behind_the_others_is_still_compared_while_it_is_heard() -> None:
    fast = {rank: samples(*range(101, 151)) for rank in (0, 1, 2)}
    behind = samples(*range(51, 76), own=2.0, late=-75.0)
    _, own = straggler_step_matrix({**fast, 3: behind})
    np.testing.assert_array_equal(own[3], [np.nan] * 25 + [2.0] * 25)
    _, own = straggler_step_matrix({**fast, 3: samples(*range(51, 76), own=2.0)})
    assert np.isnan(own[3]).all(), "what it told long ago says nothing of now"


def test_nothing_told_is_an_empty_table() -> None:
    assert straggler_step_matrix({0: [], 1: []})[1].shape == (2, 0)
    assert (
        judge_rank_speeds(
            straggler_step_matrix({0: [], 1: [], 2: [StepSample(1, None, 1.0), StepSample(2, 0.0, 1.0)]})[1], 1.3
        ).slow
        == ()
    )
