"""Random schedules of our own stalls, outages, partitions, full disks and clock jumps, in virtual time: they harm nobody.

What is drawn is in `tests.builders.stall_schedules`, what is demanded in `tests.builders.stall_demands`. With a guard switched
off the schedules that concern it fail, so they can. One again, alone:

    .venv/bin/python -m pytest tests/component/test_random_stalls.py::test_stalls --seed 1234
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import msgspec
import pytest

from remuda.core.health.mass_silence import MassSilenceRule
from tests.builders.led_cluster import Election
from tests.builders.seeds import parametrize, play_out, run_all
from tests.builders.stall_schedules import KINDS, StallSchedule, act_out, draw, options

TEST = "tests/component/test_random_stalls.py::test_stalls"
NO_MASS_SILENCE = MassSilenceRule(is_on=False)
UNGUARDED, FAILURES = 15, 3  # seeds to try, and how many of them have to fail


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "seeds" in metafunc.fixturenames:
        parametrize(metafunc, share=0.2, chunk=5)


def run(schedule: StallSchedule, *, keeps_history: bool = False) -> str:
    return play_out(act_out, schedule, options(schedule), keeps_history=keeps_history)


def test_stalls(seeds: range) -> None:
    run_all(seeds, draw, run, TEST)


class Guard(msgspec.Struct, frozen=True):
    """`kinds`: of acts that it guards against. `off`: options of a world without it. `beside`: what is switched off with and
    without it, where two guards do for one another."""

    kinds: tuple[str, ...]
    off: Callable[[StallSchedule], Mapping[str, object]]
    beside: Mapping[str, object] = {}


def _without_terms(schedule: StallSchedule) -> Mapping[str, object]:
    return {"election": Election(schedule.timing, checks_terms=False)} if schedule.timing is not None else {}


GUARDS = {
    "nobody minds their own stalls": Guard(
        ("stop", "api-stop"), lambda s: {"guards_stalls": False}, {"mass_silence": NO_MASS_SILENCE}
    ),
    "the manager promises nothing": Guard(("api-away", "api-cut", "api-stop"), lambda s: {"vouches": False}),
    "mass silence is like any other": Guard(("cut-off", "partition"), lambda s: {"mass_silence": NO_MASS_SILENCE}),
    "a full disk refuses renewals": Guard(("disk",), lambda s: {"keeps_leases": False}, {"vouches": False}),
    "a term does not end": Guard(("partition",), _without_terms),
}


@pytest.mark.parametrize("name", GUARDS)
def test_without_a_guard_the_schedules_fail(name: str) -> None:
    guard, failed = GUARDS[name], list[int]()
    for seed in range(UNGUARDED):
        schedule = draw(seed, guard.kinds, most=1)
        if _fails(schedule, {**guard.beside, **guard.off(schedule)}):
            assert not _fails(schedule, guard.beside), f"seed {seed} of {guard.kinds} fails with the guard as well"
            failed.append(seed)
        if len(failed) == FAILURES:
            return
    pytest.fail(f"of {UNGUARDED} schedules of {guard.kinds} only {failed} notice")


def _fails(schedule: StallSchedule, switched_off: Mapping[str, object]) -> bool:
    try:
        play_out(act_out, schedule, {**options(schedule), **switched_off})
    except AssertionError:
        return True
    return False


def test_every_kind_is_drawn() -> None:
    drawn = [draw(seed) for seed in range(60)]
    assert {act.kind for s in drawn for act in s.acts} == set(KINDS)
    assert {s.is_overlapping for s in drawn} == {True, False}
    assert {s.timing is None for s in drawn} == {True, False}
