"""What can befall rank 1 of the gang `job`, one function each: tables of scenarios name them."""

from __future__ import annotations

from tests.builders.world import World


async def process(world: World) -> None:
    await world.kill_process(rank=1)


async def launcher(world: World) -> None:
    await world.kill_launcher(rank=1)


async def device(world: World) -> None:
    await world.fail_device(rank=1)


async def pod(world: World) -> None:
    await world.delete_pod(world.member("job", 1).pod)


async def node(world: World) -> None:
    await world.lose_node(world.member("job", 1).node)
