"""Three hundred random schedules of recovery in full, in virtual time: every kind of drill, ladders, limits, operators, crashes.

With the two hundred of `test_random_schedules` they make five hundred. Every invariant of `tests.builders.invariants` and
`tests.builders.remedy_invariants` holds at every commit, and the end is that of `tests.builders.recovery_end`. One again, alone:

    python -m pytest tests/component/test_random_recoveries.py --seed 1234
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from tests.builders.recoveries import KINDS, RecoverySchedule, draw, options
from tests.builders.recovery_actor import act_out
from tests.builders.world import World, play

CHUNK = 6
SHARE = 0.6  # of --schedules
ROOT = Path(__file__).parents[2]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "seeds" in metafunc.fixturenames:
        one = metafunc.config.getoption("--seed")
        count = round(metafunc.config.getoption("--schedules") * SHARE)
        starts = range(0, count, CHUNK)
        chunks = [range(s, min(s + CHUNK, count)) for s in starts] if one is None else [range(one, one + 1)]
        metafunc.parametrize("seeds", chunks, ids=lambda seeds: f"{seeds.start}-{seeds.stop - 1}")


def test_recoveries(seeds: range) -> None:
    failed = []
    for seed in seeds:
        schedule = draw(seed)
        try:
            run(schedule)
        except Exception as error:
            failed.append(report(schedule, error))
    assert not failed, "\n\n".join(failed)


def run(schedule: RecoverySchedule, *, keeps_history: bool = False) -> str:
    """The digest of the history, when it is kept."""

    async def story(world: World) -> str:
        await act_out(world, schedule)
        return world.digest.hexdigest() if world.digest is not None else ""

    return play(story, keeps_history=keeps_history, **options(schedule))


def report(schedule: RecoverySchedule, error: Exception) -> str:
    acts = "\n".join(
        f"  +{a.wait:6.3f} {a.kind} pick={a.pick:.3f} count={a.count} {a.code} {a.heals}" for a in schedule.acts
    )
    shape = msgspec.structs.replace(schedule, acts=())
    command = f"python -m pytest tests/component/test_random_recoveries.py --seed {schedule.seed}"
    return (
        f"seed {schedule.seed} failed; to see it again:\n  {command}\n{shape}\n{acts}\n{type(error).__name__}: {error}"
    )


@pytest.mark.slow
@pytest.mark.parametrize("seed", [5, 23])
def test_same_seed_same_history(seed: int) -> None:
    """Byte for byte, also in another process where strings hash differently."""
    here = run(draw(seed), keeps_history=True)
    code = f"from tests.component.test_random_recoveries import *; print(run(draw({seed}), keeps_history=True))"
    environment = {**os.environ, "PYTHONHASHSEED": str(seed + 1), "PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path])}
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == here


def test_every_kind_is_drawn() -> None:
    drawn = [draw(seed) for seed in range(100)]
    assert {act.kind for s in drawn for act in s.acts} == set(KINDS)
    assert {s.policy.mode for s in drawn if s.policy is not None} == {"Auto", "Approve", "Observe"}
    assert any(s.quota for s in drawn)
    assert any(s.foreign for s in drawn)
    assert {(bool(g.least), bool(g.segment)) for s in drawn for g in s.gangs} == {
        (False, False),
        (True, False),
        (False, True),
    }
