"""Many writes at a time: all that were begun end, and what is refused is found out early."""

from __future__ import annotations

import asyncio

import pytest

from remuda.api.errors import Unavailable
from remuda.kube.runtime.bulk_writes import AT_ONCE, write_all_objects, write_objects_from_few


@pytest.mark.parametrize(("allowed", "tried"), [(0, 1), (1, 3), (3, 7), (5, 7), (100, 127)])
async def test_what_is_refused_is_tried_for_few(allowed: int, tried: int) -> None:
    done: list[int] = []

    async def write(item: int) -> None:
        done.append(item)
        if item >= allowed:
            raise Unavailable("exceeded quota")

    with pytest.raises(Unavailable):
        await write_objects_from_few(write, range(1000))
    assert len(done) == tried


async def test_all_are_written_in_batches_that_double_up_to_the_bound() -> None:
    done: list[int] = []
    batches: list[int] = []
    running = 0

    async def write(item: int) -> None:
        nonlocal running
        done.append(item)
        running += 1
        await asyncio.sleep(0)  # until all of the batch have begun
        batches.append(running)
        running = 0

    await write_objects_from_few(write, range(1000))
    assert done == list(range(1000))
    assert [n for n in batches if n] == [1, 2, 4, 8, 16, 32, 64, 128, AT_ONCE, AT_ONCE, 1000 - 255 - 2 * AT_ONCE]
    batches.clear()
    await write_all_objects(write, range(2 * AT_ONCE + 1))
    assert [n for n in batches if n] == [AT_ONCE, AT_ONCE, 1]
