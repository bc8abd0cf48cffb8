"""`TurnsQueue`: an asyncio queue whose groups take turns, so that nobody waits for all of somebody else's crowd.

Within a group it is first in, first out. A group that comes back after it was empty goes to the end of the row, like one that has
just had its turn: coming often is no way to be served twice.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Hashable
from typing import TypeVar

Item = TypeVar("Item")


class TurnsQueue(asyncio.Queue[Item]):
    """`group_of` says whose turn an item takes."""

    def __init__(self, group_of: Callable[[Item], Hashable]) -> None:
        self._group_of = group_of
        super().__init__()

    def _init(self, maxsize: int) -> None:
        self._groups: dict[Hashable, deque[Item]] = {}  # in the order of their turns; none is empty

    def _put(self, item: Item) -> None:
        self._groups.setdefault(self._group_of(item), deque()).append(item)

    def _get(self) -> Item:
        group = next(iter(self._groups))
        waiting = self._groups.pop(group)
        item = waiting.popleft()
        if waiting:
            self._groups[group] = waiting  # at the end now
        return item

    def qsize(self) -> int:
        return sum(map(len, self._groups.values()))

    def empty(self) -> bool:
        return not self._groups
