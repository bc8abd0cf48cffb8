"""The end of all containers of a node at once: asked first, by force what is left after the grace."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable

from remuda.embedded.node.container_record import ContainerExit
from remuda.embedded.node.runtime_port import ContainerKey, ExitListener, PodRuntime


async def end_all_containers(
    runtime: PodRuntime,
    keys: Iterable[ContainerKey],
    end: Callable[[ContainerKey], None],
    grace_s: float,
    told: ExitListener | None = None,
) -> None:
    """Returns when they are gone, or after twice the grace. Exits come here meanwhile: whoever heard them before has to ask
    for them again. `told`: hears them too; without it the next start of the node finds them."""
    live = set(keys)
    ended = asyncio.Event()

    def exited(key: ContainerKey, run: int, exit: ContainerExit) -> None:
        if told is not None:
            told(key, run, exit)
        live.discard(key)
        if not live:
            ended.set()

    runtime.on_exit(exited)
    for key in tuple(live):
        end(key)
    if not await _ended_within(grace_s, ended, live):
        for key in tuple(live):
            runtime.kill(key)
        await _ended_within(grace_s, ended, live)


async def _ended_within(seconds: float, ended: asyncio.Event, live: set[ContainerKey]) -> bool:
    if not live:
        return True
    try:
        async with asyncio.timeout(seconds):
            await ended.wait()
    except TimeoutError:
        return False
    return True
