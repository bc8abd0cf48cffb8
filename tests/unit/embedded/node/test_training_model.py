"""The model of a training program."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable

import pytest

from remuda.embedded.node.training_model import SimulatedBehaviour, SimulatedCheckpoints, SimulatedTraining
from remuda.launch.protocol import Progress
from remuda.sim.virtual_time_loop import run_virtual

JOB = ("default", "job")


class Watcher:
    def __init__(self) -> None:
        self.steps: list[int] = []
        self.checkpoints: list[int] = []
        self.ends: list[tuple[int, int | None, str]] = []
        self.ended_at = 0.0

    def report(self, progress: Progress) -> None:
        self.steps.append(progress.step or 0)
        if progress.checkpoint is not None:
            self.checkpoints.append(progress.checkpoint)

    def ended(self, code: int, signal: int | None, message: str) -> None:
        self.ends.append((code, signal, message))
        self.ended_at = asyncio.get_running_loop().time()


def live(
    behaviour: SimulatedBehaviour,
    act: Callable[[SimulatedTraining], object] = lambda child: None,
    at: float = 0.0,
    for_s: float = 100.0,
    env: dict[str, str] | None = None,
    store: SimulatedCheckpoints | None = None,
    seed: int = 1,
) -> Watcher:
    async def main() -> Watcher:
        watcher = Watcher()
        child = SimulatedTraining(
            behaviour,
            env or {},
            JOB,
            store or SimulatedCheckpoints(),
            random.Random(seed),
            watcher.report,
            watcher.ended,
        )
        await asyncio.sleep(at)
        act(child)
        await asyncio.sleep(for_s - at)
        child.vanish()
        return watcher

    return run_virtual(main())


STEADY = SimulatedBehaviour(child_start_s=0.5, step_s=1.0, checkpoint_every=3, stop_s=0.25)


def test_it_steps_and_checkpoints_until_it_is_done() -> None:
    store = SimulatedCheckpoints()
    watcher = live(SimulatedBehaviour(child_start_s=0.5, step_s=1.0, checkpoint_every=3, steps=7), store=store)
    assert watcher.steps == [1, 2, 3, 4, 5, 6, 7]
    assert watcher.checkpoints == [3, 6]
    assert watcher.ends == [(0, None, "")]
    assert watcher.ended_at == pytest.approx(7.5)
    assert store.usable(JOB, 0) == (6, 3)


def test_it_resumes_where_it_is_told_with_the_rank_it_is_given() -> None:
    store = SimulatedCheckpoints()
    watcher = live(STEADY, env={"REMUDA_RESUME_STEP": "40", "REMUDA_RANK": "5"}, for_s=3.0, store=store)
    assert watcher.steps == [41, 42]
    assert store.usable(JOB, 5) == (42,)
    assert store.usable(JOB, 0) == ()


def test_a_hung_process_says_nothing_and_dies_of_term() -> None:
    def hang(child: SimulatedTraining) -> None:
        child.hang()
        asyncio.get_running_loop().call_later(5.0, child.terminate)

    watcher = live(STEADY, hang, at=2.0)
    assert watcher.steps == [1]
    assert watcher.ends == [(143, 15, "killed by SIGTERM")]
    assert watcher.ended_at == pytest.approx(7.25)


def test_kill_is_at_once_and_only_one_end_is_told() -> None:
    def kill(child: SimulatedTraining) -> None:
        child.terminate()
        child.kill()
        child.fail(1, "late")

    watcher = live(STEADY, kill, at=2.0)
    assert watcher.ends == [(137, 9, "killed by SIGKILL")]
    assert watcher.ended_at == pytest.approx(2.0)


def test_it_can_be_told_to_fail() -> None:
    assert live(STEADY, lambda child: child.fail(3, "ValueError: nan"), at=1.0).ends == [(3, None, "ValueError: nan")]


def test_a_checkpoint_can_be_asked_for() -> None:
    store = SimulatedCheckpoints()
    live(STEADY, lambda child: child.save(), at=2.0, for_s=3.0, store=store)
    assert store.usable(JOB, 0) == (2,)


def test_the_same_seed_gives_the_same_run() -> None:
    shaky = SimulatedBehaviour(child_start_s=0.0, step_s=1.0, jitter=0.4, steps=20)
    assert live(shaky, seed=7).ended_at == live(shaky, seed=7).ended_at
    assert live(shaky, seed=7).ended_at != live(shaky, seed=8).ended_at


def test_a_corrupt_checkpoint_is_not_usable() -> None:
    store = SimulatedCheckpoints()
    for step in (10, 20, 30):
        store.save(JOB, 1, step)
    assert store.corrupt(JOB, 1) == 30
    assert store.usable(JOB, 1) == (20, 10)
    assert store.corrupt(JOB, 1, 10) == 10
    assert store.usable(JOB, 1) == (20,)
    store.save(JOB, 1, 30)
    assert store.usable(JOB, 1) == (30, 20)
    assert store.corrupt(JOB, 2) is None
