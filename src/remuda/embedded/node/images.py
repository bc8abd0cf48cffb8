"""Which images a node has, and how long it takes to get another. Presence and pull time only: images are not run here.

One pull per image is under way at a time; everyone who needs it waits for the same one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable

PullSeconds = Callable[[str], float]


def no_pull_wait(image: str) -> float:
    return 0.0


class ImageStore:
    def __init__(self, present: Iterable[str] = (), pull_seconds: PullSeconds = no_pull_wait) -> None:
        self._present = set(present)
        self._pull_seconds = pull_seconds
        self._pulls: dict[str, asyncio.Future[None]] = {}

    @property
    def present(self) -> frozenset[str]:
        return frozenset(self._present)

    def __contains__(self, image: object) -> bool:
        return image in self._present

    async def pull(self, image: str) -> None:
        """Return when the image is there."""
        while image not in self._present:
            under_way = self._pulls.get(image)
            if under_way is not None:
                # A plain wait, not an await of the future: the puller may be cancelled (its pod deleted) without us.
                await asyncio.wait({under_way})
                continue
            self._pulls[image] = done = asyncio.get_running_loop().create_future()
            try:
                await asyncio.sleep(self._pull_seconds(image))
                self._present.add(image)
            finally:
                del self._pulls[image]
                done.set_result(None)
