"""Random schedules as tests: which seeds are run, how one is told that failed, and that a seed is a reproduction.

A module of schedules has `draw(seed)` and `run(schedule)`, and one test that takes `seeds`. What is printed of a failed schedule
is the command that runs it again, alone.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Coroutine, Sequence
from pathlib import Path
from typing import Any, Protocol, TypeVar

import msgspec
import pytest

from tests.builders.acts import Act
from tests.builders.world import World, play

ROOT = Path(__file__).parents[2]


class Drawn(Protocol):
    """A schedule: plain data."""

    @property
    def seed(self) -> int: ...

    @property
    def acts(self) -> tuple[Act, ...]: ...


S = TypeVar("S", bound=Drawn)
W = TypeVar("W", bound=World)


def parametrize(metafunc: pytest.Metafunc, *, share: float, chunk: int) -> None:
    """`share`: of --schedules. So many are one test that a worker is not kept busy with the telling."""
    if "seeds" not in metafunc.fixturenames:
        return
    one, count = metafunc.config.getoption("--seed"), round(metafunc.config.getoption("--schedules") * share)
    all_of_them = [range(start, min(start + chunk, count)) for start in range(0, count, chunk)]
    chunks = all_of_them if one is None else [range(one, one + 1)]
    metafunc.parametrize("seeds", chunks, ids=lambda seeds: f"{seeds.start}-{seeds.stop - 1}")


def run_all(seeds: Sequence[int], draw: Callable[[int], S], run: Callable[[S], object], test: str) -> None:
    """`test`: path and name of the test, for whoever wants to see one again."""
    failed = []
    for seed in seeds:
        schedule = draw(seed)
        try:
            run(schedule)
        except Exception as error:
            failed.append(report(schedule, error, test))
    assert not failed, "\n\n".join(failed)


def report(schedule: Any, error: Exception, test: str) -> str:
    acts = "\n".join(
        f"  +{a.wait:6.3f} {a.kind} pick={a.pick:.3f} count={a.count} {a.code} {a.heals}".rstrip()
        for a in schedule.acts
    )
    shape = msgspec.structs.replace(schedule, acts=())
    command = f".venv/bin/python -m pytest {test} --seed {schedule.seed}"
    return (
        f"seed {schedule.seed} failed; to see it again:\n  {command}\n{shape}\n{acts}\n{type(error).__name__}: {error}"
    )


def play_out(
    act_out: Callable[[W, S], Coroutine[Any, Any, None]],
    schedule: S,
    options: dict[str, Any],
    *,
    keeps_history: bool = False,
) -> str:
    """The digest of the history, when it is kept."""

    async def story(world: W) -> str:
        await act_out(world, schedule)
        return world.digest.hexdigest() if world.digest is not None else ""

    return play(story, keeps_history=keeps_history, **options)


def history_elsewhere(module: str, seed: int) -> str:
    """The same digest from another process, where strings hash differently."""
    code = f"from {module} import draw, run; print(run(draw({seed}), keeps_history=True))"
    environment = {**os.environ, "PYTHONHASHSEED": str(seed + 1), "PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path])}
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, cwd=ROOT, capture_output=True, text=True, check=True
    )
    return done.stdout.strip()
