from __future__ import annotations

import asyncio

from remuda.kube.runtime.backoff import Backoff
from remuda.kube.runtime.work_queue import WorkQueue
from tests.builders.waiting import PATIENCE_S


async def drain(queue: WorkQueue[str], count: int) -> list[str]:
    found = []
    async with asyncio.timeout(PATIENCE_S):
        for _ in range(count):
            key = await queue.get()
            found.append(key)
            queue.done(key)
    return found


async def test_a_key_is_queued_once_and_in_order() -> None:
    queue: WorkQueue[str] = WorkQueue()
    for key in ("a", "b", "a", "c", "b"):
        queue.add(key)
    assert await drain(queue, 3) == ["a", "b", "c"]
    assert queue.is_idle


async def test_a_key_is_never_worked_on_twice_at_once() -> None:
    queue: WorkQueue[str] = WorkQueue()
    queue.add("a")
    assert await queue.get() == "a"
    queue.add("a")
    queue.add("a")
    assert len(queue) == 0
    queue.done("a")
    assert len(queue) == 1
    assert await queue.get() == "a"
    queue.done("a")
    assert len(queue) == 0


async def test_the_earliest_time_wins() -> None:
    queue: WorkQueue[str] = WorkQueue()
    queue.add_after("far", 3600)
    queue.add_after("far", 0.001)
    queue.add_after("far", 1800)
    queue.add_after("now", 0)
    assert await drain(queue, 2) == ["now", "far"]
    assert not queue._timers


async def test_adding_at_once_overrides_a_timer() -> None:
    queue: WorkQueue[str] = WorkQueue()
    queue.add_after("a", 3600)
    queue.add("a")
    assert await drain(queue, 1) == ["a"]
    assert not queue._timers


async def test_retries_back_off_per_key_until_forgotten() -> None:
    queue: WorkQueue[str] = WorkQueue(backoff=Backoff(base_s=100, max_s=1000))
    loop = asyncio.get_running_loop()

    def wait_of(key: str) -> float:
        return round(queue._timers.pop(key).when() - loop.time())

    waits = []
    for _ in range(5):
        queue.retry("a")
        waits.append(wait_of("a"))
    assert waits == [100, 200, 400, 800, 1000]
    queue.retry("b")
    assert wait_of("b") == 100
    queue.forget("a")
    assert queue.failures("a") == 0
    queue.retry("a")
    assert wait_of("a") == 100
    queue.close()


async def test_a_timer_that_fires_during_the_work_is_not_lost() -> None:
    queue: WorkQueue[str] = WorkQueue()
    queue.add("a")
    assert await queue.get() == "a"
    queue.add_after("a", 0.001)
    async with asyncio.timeout(PATIENCE_S):
        while not queue._again:  # noqa: ASYNC110 - the timer itself is what is waited for
            await asyncio.sleep(0)
    queue.done("a")
    assert await drain(queue, 1) == ["a"]
