"""When the Node came to name a resource: asked until it does, and not after."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from remuda.agent.plugin.published_resources import PublishedResources
from remuda.sim.virtual_time_loop import run_virtual


class Node:
    def __init__(self) -> None:
        self.capacity: dict[str, int | str] = {}
        self.is_away = False
        self.asked = 0
        self.found: list[str] = []

    async def __call__(self) -> Mapping[str, int | str]:
        self.asked += 1
        if self.is_away:
            raise OSError("no answer")
        return self.capacity


def test_each_resource_is_found_once_and_then_nobody_asks() -> None:
    async def play() -> None:
        node = Node()
        publication = PublishedResources(node, node.found.append)
        publication.want({"a/x", "a/y"})
        node.is_away = True  # an API that is away is asked again
        await asyncio.sleep(3)
        node.is_away, node.capacity = False, {"a/x": 1, "cpu": 4}
        await asyncio.sleep(20)
        assert node.found == ["a/x"]
        node.capacity["a/y"] = 2
        await asyncio.sleep(20)
        assert node.found == ["a/x", "a/y"]
        asked = node.asked
        await asyncio.sleep(100)
        assert node.asked == asked < 12
        publication.want({"a/x"})  # registered anew
        await asyncio.sleep(1)
        assert node.found[-1] == "a/x"
        assert len(node.found) == 3

    run_virtual(play())


def test_stopped_it_asks_no_more() -> None:
    async def play() -> None:
        node = Node()
        publication = PublishedResources(node, node.found.append)
        publication.want({"a/x"})
        publication.stop()
        await asyncio.sleep(100)
        assert (node.asked, node.found) == (0, [])

    run_virtual(play())
