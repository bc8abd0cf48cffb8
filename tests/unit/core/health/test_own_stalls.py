"""Our own stalls: nobody's countdown runs while we could not hear, and nobody gains by it who was silent before."""

from __future__ import annotations

import pytest

from remuda.core.health.own_stalls import API, LOOP, NO_STALLS, DeafTime, OwnStalls, StallHistory


def listening(*proofs: float, late_s: float = 1.5, kind: str = LOOP) -> OwnStalls:
    stalls = OwnStalls()
    stalls.expect(kind, late_s, proofs[0])
    for at in proofs[1:]:
        stalls.proved(kind, at)
    return stalls


def test_without_a_stall_a_countdown_is_plain_arithmetic() -> None:
    stalls = listening(*range(100, 200))
    assert stalls.known(199.5).countdown_ends_at(190.0, 8.0) == 198.0
    assert NO_STALLS.countdown_ends_at(190.0, 8.0) == 198.0


@pytest.mark.parametrize("kind", [LOOP, API])
def test_a_countdown_begins_anew_when_a_deaf_time_ends(kind: str) -> None:
    stalls = listening(100.0, 101.0, 113.0, kind=kind)
    assert stalls.known(113.2).countdown_ends_at(100.0, 8.0) == 121.0
    assert stalls.known(113.2).counted_from(100.0, 8.0) == 113.0
    assert stalls.known(113.2).countdown_ends_at(113.1, 8.0) == pytest.approx(121.1)


def test_who_asks_before_the_watch_had_its_turn_is_told_as_well() -> None:
    """After SIGSTOP every timer is late at once, and any of them may be first."""
    stalls = listening(100.0, 101.0)
    assert stalls.known(113.0).countdown_ends_at(100.0, 8.0) == 121.0


def test_whoever_was_silent_too_long_before_it_stays_so() -> None:
    stalls = listening(100.0, 101.0, 113.0)
    assert stalls.known(113.2).countdown_ends_at(90.0, 8.0) == 98.0


def test_several_deaf_times_each_count() -> None:
    history = StallHistory((DeafTime(101, 113), DeafTime(118, 130)))
    assert history.countdown_ends_at(100.0, 8.0) == 138.0
    apart = StallHistory((DeafTime(101, 113), DeafTime(122, 130)))
    assert apart.countdown_ends_at(100.0, 8.0) == 121.0, "run out between the two"


def test_a_renewal_a_little_ahead_of_the_look_counts_by_itself() -> None:
    stalls = OwnStalls()
    stalls.was_deaf_until(100.0)
    stalls.expect(LOOP, 1.5, 100.0)
    stalls.proved(LOOP, 101.0)
    for ahead in (0.0, 1e-7, 0.5, 2.0):
        assert stalls.known(101.0).countdown_ends_at(101.0 + ahead, 8.0) == pytest.approx(109.0 + ahead)


@pytest.mark.parametrize("by", [-3600.0, -10.0, 10.0, 3600.0])
def test_a_clock_that_jumps_is_a_deaf_time(by: float) -> None:
    stalls = listening(1e6, 1e6 + 1, 1e6 + 2 + by)
    ends = stalls.known(1e6 + 2 + by).countdown_ends_at(1e6 + 0.5, 8.0)
    assert 1e6 + 2 + by < ends <= 1e6 + 10 + by


def test_the_api_that_begins_forgives_what_was_before() -> None:
    stalls = OwnStalls()
    stalls.was_deaf_until(100.0)
    assert stalls.known(100.0).countdown_ends_at(10.0, 8.0) == 108.0


def test_without_the_guard_nothing_is_forgiven() -> None:
    stalls = OwnStalls(is_on=False)
    stalls.expect(LOOP, 1.5, 100.0)
    stalls.proved(LOOP, 112.0)
    assert stalls.known(112.0).countdown_ends_at(100.0, 8.0) == 108.0


def test_what_is_kept_is_bounded() -> None:
    stalls = listening(*(100.0 * n for n in range(1000)))
    assert len(stalls.known(1e5).times) < 40
