"""Many writes of one kind at a time, as a gang needs them: all pods made, bound or deleted together.

One after another, each write waits for its own commit and is seen by every watcher before the next, so that a gang of n pods
costs n commits and n looks of every controller at n pods. Together they share commits, and a look sees them all.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

T = TypeVar("T")

AT_ONCE = 256  # requests under way together; a bound for an API server far away, none is needed in process


async def write_objects_from_few(write: Callable[[T], Awaitable[None]], items: Sequence[T]) -> None:
    """`write` each of them: one, then two, four, and so on, as kube-controller-manager makes pods. What is refused for one is
    mostly refused for all (a quota, a bad template), and is found out with the first instead of with hundreds."""
    start, many = 0, 1
    while start < len(items):
        await write_all_objects(write, items[start : start + many])
        start, many = start + many, min(many * 2, AT_ONCE)


async def write_all_objects(write: Callable[[T], Awaitable[None]], items: Sequence[T]) -> None:
    """`write` each of them. Those under way together run to their end; then the first error is raised and the rest is left."""
    for start in range(0, len(items), AT_ONCE):
        results = await asyncio.gather(
            *(write(item) for item in items[start : start + AT_ONCE]), return_exceptions=True
        )
        for result in results:
            if isinstance(result, BaseException):
                raise result
