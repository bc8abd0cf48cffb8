from __future__ import annotations

import asyncio

import pytest

from remuda.embedded.node.images import ImageStore
from remuda.sim.virtual_time_loop import run_virtual


def test_everyone_waits_for_the_same_pull() -> None:
    pulls: list[str] = []

    def seconds(image: str) -> float:
        pulls.append(image)
        return 30.0

    async def main() -> float:
        images = ImageStore({"there"}, seconds)
        await asyncio.gather(*(images.pull("new") for _ in range(5)), images.pull("there"))
        assert images.present == {"there", "new"}
        return asyncio.get_running_loop().time()

    assert run_virtual(main()) == pytest.approx(30.0)
    assert pulls == ["new"]


def test_a_cancelled_pull_is_taken_over_by_who_still_waits() -> None:
    async def main() -> float:
        images = ImageStore((), lambda image: 30.0)
        first = asyncio.create_task(images.pull("new"))
        second = asyncio.create_task(images.pull("new"))
        await asyncio.sleep(10)
        first.cancel()
        await second
        assert first.cancelled()
        return asyncio.get_running_loop().time()

    assert run_virtual(main()) == pytest.approx(40.0)
