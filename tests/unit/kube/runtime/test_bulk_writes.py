"""Many writes at a time: all that were begun end, and what is refused is found out early."""

from __future__ import annotations

import pytest

from remuda.api.errors import Unavailable
from remuda.kube.runtime.bulk_writes import AT_ONCE, write_all_objects, write_objects_from_few


async def test_few_come_before_many() -> None:
    done: list[int] = []

    async def write(item: int) -> None:
        done.append(item)

    await write_objects_from_few(write, range(1000))
    assert done == list(range(1000))


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


async def test_no_batch_is_larger_than_the_bound() -> None:
    running, most = 0, 0

    async def write(item: int) -> None:
        nonlocal running, most
        running += 1
        most = max(most, running)
        running -= 1

    await write_objects_from_few(write, range(2000))
    await write_all_objects(write, range(2000))
    assert most <= AT_ONCE
