"""Two hundred random fault schedules of the whole control plane with simulated pods, in virtual time.

Each must end with every job at work, done, or stopped for a reason that is true, with every invariant of
`tests.builders.invariants` holding at every commit in between. With the three hundred of `test_random_recoveries` they make the
five hundred of `--schedules 500`. One schedule again, alone:

    python -m pytest tests/component/test_random_schedules.py --seed 1234
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from tests.builders.schedules import Schedule, act_out, draw, options
from tests.builders.world import World, play

CHUNK = 10
SHARE = 0.4  # of --schedules; the others are recoveries
ROOT = Path(__file__).parents[2]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "seeds" in metafunc.fixturenames:
        one = metafunc.config.getoption("--seed")
        count = round(metafunc.config.getoption("--schedules") * SHARE)
        chunks = [range(one, one + 1)] if one is not None else _chunks(count)
        metafunc.parametrize("seeds", chunks, ids=lambda seeds: f"{seeds.start}-{seeds.stop - 1}")


def _chunks(count: int) -> list[range]:
    return [range(start, min(start + CHUNK, count)) for start in range(0, count, CHUNK)]


def test_schedules(seeds: range) -> None:
    failed = []
    for seed in seeds:
        schedule = draw(seed)
        try:
            run(schedule)
        except Exception as error:
            failed.append(report(schedule, error))
    assert not failed, "\n\n".join(failed)


def run(schedule: Schedule, *, keeps_history: bool = False) -> str:
    """The digest of the history, when it is kept."""

    async def story(world: World) -> str:
        await act_out(world, schedule)
        return world.digest.hexdigest() if world.digest is not None else ""

    return play(story, keeps_history=keeps_history, **options(schedule))


def report(schedule: Schedule, error: Exception) -> str:
    acts = "\n".join(f"  +{act.wait:6.3f} {act.kind} pick={act.pick:.3f} count={act.count}" for act in schedule.acts)
    shape = msgspec.structs.replace(schedule, acts=())
    command = f"python -m pytest tests/component/test_random_schedules.py --seed {schedule.seed}"
    return (
        f"seed {schedule.seed} failed; to see it again:\n  {command}\n{shape}\n{acts}\n{type(error).__name__}: {error}"
    )


@pytest.mark.slow
@pytest.mark.parametrize("seed", [3, 17, 42])
def test_same_seed_same_history(seed: int) -> None:
    """Byte for byte, also in another process where strings hash differently: a seed is a reproduction, not a hint."""
    here = run(draw(seed), keeps_history=True)
    assert here == run(draw(seed), keeps_history=True)
    code = f"from tests.component.test_random_schedules import *; print(run(draw({seed}), keeps_history=True))"
    environment = {**os.environ, "PYTHONHASHSEED": str(seed + 1), "PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path])}
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == here


def test_schedules_differ() -> None:
    drawn = [draw(seed) for seed in range(50)]
    assert len({msgspec.json.encode(s.acts) for s in drawn}) == 50
    assert {act.kind for s in drawn for act in s.acts} >= {"process", "hang", "device", "node", "power-at-commit"}
