from __future__ import annotations

import asyncio
import math

import pytest

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


# --- nobody starves ---------------------------------------------------------------------------------------------------


async def test_namespaces_take_turns() -> None:
    queue: WorkQueue[tuple[str, str]] = WorkQueue()
    for number in range(1000):
        queue.add(("crowd", str(number)))
    queue.add(("alice", "job"))
    queue.add(("bob", "job"))
    first = [await queue.get() for _ in range(4)]
    assert first == [("crowd", "0"), ("alice", "job"), ("bob", "job"), ("crowd", "1")]
    assert len(queue) == 998


async def test_who_comes_back_at_once_is_not_served_before_those_who_wait() -> None:
    queue: WorkQueue[tuple[str, str]] = WorkQueue()
    for name in "abc":
        queue.add(("alice", name))
    queue.add(("eve", "x"))
    order = []
    for _ in range(6):
        key = await queue.get()
        order.append(key[0])
        queue.done(key)
        if key[0] == "eve":
            queue.add(key)
    assert order == ["alice", "eve", "alice", "eve", "alice", "eve"]


async def test_a_held_key_waits_out_its_pause_whatever_happens_to_its_object() -> None:
    queue: WorkQueue[str] = WorkQueue(backoff=Backoff(base_s=100, max_s=1000))
    queue.add("a")
    assert await queue.get() == "a"
    queue.add("a")  # it changes while the look fails
    queue.retry("a", hold=True)
    queue.done("a")
    for _ in range(50):
        queue.add("a")
        queue.add_after("a", 0.001)
    assert len(queue) == 0
    wait = queue._timers["a"].when() - asyncio.get_running_loop().time()
    assert 99 < wait <= 100
    queue.add("b")
    assert await drain(queue, 1) == ["b"], "nobody else waits for it"
    queue.forget("a")
    queue.add("a")
    assert await drain(queue, 1) == ["a"]
    queue.close()


async def test_a_held_key_comes_back_by_itself() -> None:
    queue: WorkQueue[str] = WorkQueue(backoff=Backoff(base_s=0.001, max_s=0.002))
    for _ in range(3):
        queue.retry("a", hold=True)
        assert await drain(queue, 1) == ["a"]
    queue.add("a")
    assert await drain(queue, 1) == ["a"], "its pause is over"


@pytest.mark.parametrize("delay_s", [math.inf, math.nan, 1e300])
async def test_a_wait_beyond_all_reason_is_a_day(delay_s: float) -> None:
    queue: WorkQueue[str] = WorkQueue()
    queue.add_after("a", delay_s)
    queue.add_after("b", 0.001)
    assert await drain(queue, 1) == ["b"]
    assert 86_000 < queue._timers["a"].when() - asyncio.get_running_loop().time() <= 86_400
    queue.close()
