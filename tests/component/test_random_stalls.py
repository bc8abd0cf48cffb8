"""Random schedules of our own stalls, API outages, cuts and clock jumps, in virtual time: they cost nobody anything.

What is demanded is in `tests.builders.stall_schedules`. With the guard switched off the same schedules fail, so they can. One
again, alone:

    .venv/bin/python -m pytest tests/component/test_random_stalls.py::test_stalls --seed 1234
"""

from __future__ import annotations

import pytest

from tests.builders.seeds import parametrize, play_out, run_all
from tests.builders.stall_schedules import KINDS, StallSchedule, act_out, draw, options

TEST = "tests/component/test_random_stalls.py::test_stalls"
UNGUARDED = 6  # seeds to try without the guard


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "seeds" in metafunc.fixturenames:
        parametrize(metafunc, share=0.2, chunk=5)


def run(schedule: StallSchedule, *, keeps_history: bool = False) -> str:
    return play_out(act_out, schedule, options(schedule), keeps_history=keeps_history)


def test_stalls(seeds: range) -> None:
    run_all(seeds, draw, run, TEST)


def test_without_the_guard_the_schedules_fail() -> None:
    failed = [seed for seed in range(UNGUARDED) if _fails_unguarded(draw(seed))]
    assert len(failed) > UNGUARDED / 2, f"only {failed} of {UNGUARDED} schedules notice"


def _fails_unguarded(schedule: StallSchedule) -> bool:
    try:
        play_out(act_out, schedule, {**options(schedule), "guards_stalls": False})
    except AssertionError:
        return True
    return False


def test_every_kind_is_drawn() -> None:
    drawn = [draw(seed) for seed in range(60)]
    assert {act.kind for s in drawn for act in s.acts} == set(KINDS)
    assert {s.is_overlapping for s in drawn} == {True, False}
