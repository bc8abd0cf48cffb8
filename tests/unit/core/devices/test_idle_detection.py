"""When a held device is idle: since its first low sample, after so long; used again above the higher mark only."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from remuda.core.devices.idle_detection import IdleRule, IdleTrack, with_usage_sample

RULE = IdleRule(low=0.05, high=0.15, after_s=60.0, sample_s=15.0)


def after(*shares: float | None, held: bool = True) -> IdleTrack:
    state = IdleTrack()
    for number, share in enumerate(shares):
        state = with_usage_sample(state, share, held, number * 15.0, RULE)
    return state


def test_idle_since_the_first_low_sample() -> None:
    assert not after(0.9, 0.0, 0.0, 0.0, 0.0).is_idle
    idle = after(0.9, 0.0, 0.0, 0.04, 0.0, 0.01)
    assert (idle.since, idle.is_idle, idle.utilisation) == (15.0, True, 0.01)


def test_between_the_marks_nothing_changes() -> None:
    idle = after(0.0, 0.1, 0.1, 0.1, 0.1)
    assert (idle.since, idle.is_idle, idle.utilisation) == (0.0, True, 0.08)
    assert after(0.1, 0.1, 0.1, 0.1, 0.1) == IdleTrack()


def test_used_again_or_let_go() -> None:
    assert after(*[0.0] * 9, 0.2) == IdleTrack()
    assert with_usage_sample(IdleTrack(0.0, True), 0.0, False, 90.0, RULE) == IdleTrack()


def test_no_answer_is_no_evidence() -> None:
    assert after(None, None, None, None, None, None) == IdleTrack()
    assert with_usage_sample(IdleTrack(0.0, True), None, True, 900.0, RULE) == IdleTrack(0.0, True)


@given(st.lists(st.one_of(st.none(), st.floats(0.0, 1.0)), max_size=40))
def test_whoever_is_idle_was_never_above_the_high_mark_since(shares: list[float | None]) -> None:
    state = IdleTrack()
    for number, share in enumerate(shares):
        state = with_usage_sample(state, share, True, number * 15.0, RULE)
        if state.is_idle:
            assert state.since is not None
            quiet = shares[int(state.since // 15) : number + 1]
            assert number * 15.0 - state.since >= RULE.after_s
            assert all(s is None or s <= RULE.high for s in quiet)
