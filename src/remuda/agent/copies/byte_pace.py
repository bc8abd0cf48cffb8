"""So many bytes a second and no more, for all copies of a node together: a token bucket over the loop's clock."""

from __future__ import annotations

import asyncio

BURST_S = 0.25


class BytePace:
    """`per_s` 0: as fast as it goes."""

    def __init__(self, per_s: float) -> None:
        self._per_s = per_s
        self._free_at = 0.0  # when everything that was let through would have been at exactly that pace

    async def take(self, count: int) -> None:
        if self._per_s <= 0:
            return
        now = asyncio.get_running_loop().time()
        self._free_at = max(self._free_at, now - BURST_S) + count / self._per_s
        if self._free_at > now:
            await asyncio.sleep(self._free_at - now)
