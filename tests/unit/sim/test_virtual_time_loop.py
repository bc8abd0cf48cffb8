"""The virtual loop: time jumps, order holds, and what would hang in real time fails."""

from __future__ import annotations

import asyncio

import pytest

from remuda.sim.virtual_time_loop import EPOCH, NothingLeftToDo, TimeStandsStill, VirtualLoop, run_virtual


def test_sleeping_costs_nothing_and_moves_the_clock() -> None:
    loop = VirtualLoop()

    async def main() -> float:
        await asyncio.sleep(86_400.0)
        return loop.time()

    assert run_virtual(main(), loop) == pytest.approx(86_400.0), "a loop that really slept would not be here for a day"


def test_clock_starts_at_a_fixed_moment() -> None:
    loop = VirtualLoop()

    async def main() -> list[float]:
        before = loop.clock()
        await asyncio.sleep(1.5)
        return [before, loop.clock()]

    assert run_virtual(main(), loop) == [EPOCH, EPOCH + 1.5]


def test_timers_fire_in_the_order_of_their_times() -> None:
    loop = VirtualLoop()
    seen: list[tuple[float, str]] = []

    async def wait(name: str, seconds: float) -> None:
        await asyncio.sleep(seconds)
        seen.append((loop.time(), name))

    async def main() -> None:
        await asyncio.gather(wait("c", 3.0), wait("a", 0.001), wait("b", 2.999))

    run_virtual(main(), loop)
    assert [name for _, name in seen] == ["a", "b", "c"]
    assert [at for at, _ in seen] == pytest.approx([0.001, 2.999, 3.0])


def test_time_does_not_pass_while_there_is_work() -> None:
    loop = VirtualLoop()

    async def main() -> float:
        for _ in range(1_000):
            await asyncio.sleep(0)
        return loop.time()

    assert run_virtual(main(), loop) == 0.0


def test_timeouts_are_virtual() -> None:
    async def main() -> None:
        async with asyncio.timeout(3600.0):
            await asyncio.Event().wait()

    with pytest.raises(TimeoutError):
        run_virtual(main())


def test_a_hang_is_an_error() -> None:
    async def main() -> None:
        await asyncio.Event().wait()

    with pytest.raises(NothingLeftToDo):
        run_virtual(main())


def test_a_busy_loop_is_an_error() -> None:
    async def main() -> None:
        while True:  # noqa: ASYNC110 - this is the mistake that is looked for
            await asyncio.sleep(0)

    with pytest.raises(TimeStandsStill, match=r"100 turns of the loop at 0\.000 s"):
        run_virtual(main(), VirtualLoop(max_turns=100))


def test_turns_count_anew_when_time_passes() -> None:
    async def main() -> int:
        turns = 0
        for _ in range(5):
            for _ in range(80):
                await asyncio.sleep(0)
                turns += 1
            await asyncio.sleep(0.1)
        return turns

    assert run_virtual(main(), VirtualLoop(max_turns=100)) == 400


def test_leftover_tasks_are_cancelled() -> None:
    ended: list[str] = []

    async def forever() -> None:
        try:
            await asyncio.sleep(1e9)
        except asyncio.CancelledError:
            ended.append("cancelled")
            raise

    async def main() -> None:
        task = asyncio.create_task(forever())
        await asyncio.sleep(1.0)
        assert not task.done()

    run_virtual(main())
    assert ended == ["cancelled"]


def test_an_error_comes_out() -> None:
    async def main() -> None:
        await asyncio.sleep(1.0)
        raise ValueError("as it is")

    with pytest.raises(ValueError, match="as it is"):
        run_virtual(main())


def test_long_runs_do_not_drift() -> None:
    """Many small steps: rounding must not add up to something a deadline would notice."""
    loop = VirtualLoop()

    async def main() -> float:
        for _ in range(20_000):
            await asyncio.sleep(0.001)
        return loop.time()

    assert run_virtual(main(), loop) == pytest.approx(20.0, abs=1e-6)
