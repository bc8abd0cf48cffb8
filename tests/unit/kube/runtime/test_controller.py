from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest

from remuda.api.errors import Conflict, Unavailable
from remuda.kube.runtime.backoff import Backoff
from remuda.kube.runtime.controller import run_controller
from remuda.kube.runtime.work_queue import WorkQueue
from tests.builders.waiting import PATIENCE_S

QUICK = Backoff(base_s=0.0001, max_s=0.001)


class Script:
    """A reconciler that does for each look at a key what the script says next, and nothing when it says no more."""

    def __init__(self, **script: list[Callable[[], float | None]]) -> None:
        self.script = script
        self.looks: list[tuple[str, float]] = []
        self.at_work: set[str] = set()
        self.most_at_work = 0
        self.gate: asyncio.Event | None = None
        self._looked = asyncio.Event()

    async def observe(self, key: str) -> str:
        assert key not in self.at_work
        self.at_work.add(key)
        self.most_at_work = max(self.most_at_work, len(self.at_work))
        return key

    def plan(self, observed: str, now: float) -> tuple[str, float]:
        return observed, now

    async def apply(self, plan: tuple[str, float]) -> float | None:
        key, _ = plan
        try:
            self.looks.append(plan)
            self._looked.set()
            if self.gate is not None:
                await self.gate.wait()
            steps = self.script.get(key, [])
            return steps.pop(0)() if steps else None
        finally:
            self.at_work.discard(key)

    async def until(self, count: int) -> None:
        async with asyncio.timeout(PATIENCE_S):
            while len(self.looks) < count:
                self._looked.clear()
                await self._looked.wait()


def fail(error: Exception) -> Callable[[], float | None]:
    def step() -> float | None:
        raise error

    return step


@asynccontextmanager
async def running(queue: WorkQueue[str], script: Script, workers: int = 1) -> AsyncIterator[None]:
    task = asyncio.create_task(run_controller("test", queue, script, lambda: 42.0, workers))
    try:
        yield
    finally:
        task.cancel()
        await asyncio.wait([task])
        assert task.cancelled()


async def test_it_observes_plans_and_applies() -> None:
    queue: WorkQueue[str] = WorkQueue()
    script = Script()
    async with running(queue, script):
        queue.add("a")
        queue.add("b")
        await script.until(2)
    assert script.looks == [("a", 42.0), ("b", 42.0)]


async def test_no_error_ends_the_loop_and_each_key_is_looked_at_again() -> None:
    queue: WorkQueue[str] = WorkQueue(backoff=QUICK)
    script = Script(
        a=[fail(Conflict("somebody was faster")), fail(Unavailable("no route")), fail(ZeroDivisionError("a bug"))]
    )
    async with running(queue, script):
        queue.add("a")
        await script.until(4)
        await asyncio.sleep(0)
        assert queue.failures("a") == 0  # forgotten after the success
        queue.add("b")
        await script.until(5)


@pytest.mark.parametrize("workers", [1, 8])
async def test_a_conflict_is_looked_at_again_at_once_but_not_for_ever(workers: int) -> None:
    queue: WorkQueue[str] = WorkQueue(backoff=Backoff(base_s=3600, max_s=3600))
    script = Script(a=[fail(Conflict("stale"))] * 100)
    async with running(queue, script, workers):
        queue.add("a")
        await script.until(6)
        while not queue._timers:  # noqa: ASYNC110 - it then waits an hour, by a timer
            await asyncio.sleep(0)
        assert len(script.looks) == 6


async def test_it_comes_back_when_asked_to() -> None:
    queue: WorkQueue[str] = WorkQueue()
    script = Script(a=[lambda: 0.001, lambda: 0.0])
    async with running(queue, script):
        queue.add("a")
        await script.until(3)


async def test_many_workers_take_many_keys_but_never_the_same() -> None:
    queue: WorkQueue[str] = WorkQueue()
    script = Script()
    script.gate = asyncio.Event()
    async with running(queue, script, workers=3):
        for key in "abcde":
            queue.add(key)
        await script.until(3)
        for key in "abcde":
            queue.add(key)  # again, while a, b and c are being worked on
        assert script.most_at_work == 3
        script.gate.set()
        await script.until(8)
    assert sorted(key for key, _ in script.looks) == ["a", "a", "b", "b", "c", "c", "d", "e"]


async def test_work_that_never_waits_still_lets_others_run() -> None:
    queue: WorkQueue[str] = WorkQueue()
    script = Script(a=[lambda: 0.0] * 1000)
    async with running(queue, script):
        queue.add("a")
        for _ in range(20):
            await asyncio.sleep(0)
        assert 0 < len(script.looks) < 1000


async def test_an_object_that_makes_it_fail_costs_few_looks_however_often_it_is_written() -> None:
    queue: WorkQueue[str] = WorkQueue(backoff=Backoff(base_s=3600, max_s=3600))
    script = Script(bad=[fail(ZeroDivisionError("a bug"))] * 1000)
    async with running(queue, script):
        for number in range(100):
            queue.add("bad")
            queue.add(f"good-{number}")
            await script.until(number + 2)
        assert [key for key, _ in script.looks].count("bad") == 1
