"""Three hundred random schedules of recovery in full, in virtual time: every kind of drill, ladders, limits, operators, crashes.

With the two hundred of `test_random_schedules` they make five hundred. Every invariant of `tests.builders.invariants`,
`tests.builders.remedy_invariants` and `tests.builders.limit_rules` holds at every commit, the end is that of
`tests.builders.recovery_end`, and every charge to a budget is explained by `tests.builders.stops`. One again, alone:

    .venv/bin/python -m pytest tests/component/test_random_recoveries.py::test_recoveries --seed 1234
"""

from __future__ import annotations

import pytest

from tests.builders.recoveries import KINDS, RecoverySchedule, draw, options
from tests.builders.recovery_actor import act_out
from tests.builders.seeds import history_elsewhere, parametrize, play_out, run_all

TEST = "tests/component/test_random_recoveries.py::test_recoveries"


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    parametrize(metafunc, share=0.6, chunk=6)


def run(schedule: RecoverySchedule, *, keeps_history: bool = False) -> str:
    return play_out(act_out, schedule, options(schedule), keeps_history=keeps_history)


def test_recoveries(seeds: range) -> None:
    run_all(seeds, draw, run, TEST)


@pytest.mark.slow
@pytest.mark.parametrize("seed", [5, 23])
def test_same_seed_same_history(seed: int) -> None:
    """Byte for byte, also in another process where strings hash differently."""
    assert run(draw(seed), keeps_history=True) == history_elsewhere(__name__, seed)


def test_every_kind_is_drawn() -> None:
    drawn = [draw(seed) for seed in range(100)]
    assert {act.kind for s in drawn for act in s.acts} == set(KINDS)
    policies = [s.policy for s in drawn if s.policy is not None]
    assert {p.mode for p in policies} == {"Auto", "Approve", "Observe"}
    for limit in ("pool", "rack", "tenant", "reservation", "cause", "per_hour"):
        assert {bool(getattr(p.limits, limit)) for p in policies} == {False, True}, limit
    assert any(s.quota for s in drawn)
    assert len({f.namespace for s in drawn for f in s.foreign}) == 2
    assert any(0 < s.reserved < s.nodes for s in drawn)
    assert {(bool(g.least), bool(g.segment)) for s in drawn for g in s.gangs} == {
        (False, False),
        (True, False),
        (False, True),
    }
