"""Random schedules of our own stalls, API outages, cuts and clock jumps, in virtual time: they cost nobody anything.

What is demanded is in `tests.builders.stall_schedules`. With a guard switched off the same schedules fail, so they can. One
again, alone:

    .venv/bin/python -m pytest tests/component/test_random_stalls.py::test_stalls --seed 1234
"""

from __future__ import annotations

import pytest

from remuda.core.health.mass_silence import MassSilenceRule
from tests.builders.seeds import parametrize, play_out, run_all
from tests.builders.stall_schedules import KINDS, StallSchedule, act_out, draw, options

TEST = "tests/component/test_random_stalls.py::test_stalls"
UNGUARDED = 10  # seeds to try until one fails


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "seeds" in metafunc.fixturenames:
        parametrize(metafunc, share=0.2, chunk=5)


def run(schedule: StallSchedule, *, keeps_history: bool = False) -> str:
    return play_out(act_out, schedule, options(schedule), keeps_history=keeps_history)


def test_stalls(seeds: range) -> None:
    run_all(seeds, draw, run, TEST)


@pytest.mark.parametrize(
    "guards",
    [
        pytest.param({"guards_stalls": False}, id="nobody minds their own stalls"),
        pytest.param({"vouches": False}, id="the manager promises nothing"),
        pytest.param(
            {"guards_stalls": False, "vouches": False, "mass_silence": MassSilenceRule(is_on=False)}, id="none at all"
        ),
    ],
)
def test_without_a_guard_the_schedules_fail(guards: dict[str, object]) -> None:
    assert any(_fails_without(guards, draw(seed)) for seed in range(UNGUARDED)), "no schedule notices"


def _fails_without(guards: dict[str, object], schedule: StallSchedule) -> bool:
    try:
        play_out(act_out, schedule, {**options(schedule), **guards})
    except AssertionError:
        return True
    return False


def test_every_kind_is_drawn() -> None:
    drawn = [draw(seed) for seed in range(60)]
    assert {act.kind for s in drawn for act in s.acts} == set(KINDS)
    assert {s.is_overlapping for s in drawn} == {True, False}
