"""A spot node that is about to go. Planned maintenance, drains and slow devices are drills (tests/drills)."""

from __future__ import annotations

from remuda.api.drills import DrillKind
from remuda.api.training import Cause, Remedy
from remuda.node.training import Behaviour
from tests.builders.world import World, in_world

SELDOM = Behaviour(step_s=0.5, checkpoint_every=1000)


@in_world(nodes=6, racks=1, behaviour=SELDOM)
async def test_a_spot_node_is_left_before_it_is_taken(world: World) -> None:
    await world.submit("job", replicas=4)
    await world.running("job")
    await world.sleep(10.0)
    node = world.member("job", 0).node
    await world.drill(DrillKind.SPOT_NOTICE, node=node, seconds=60.0)
    await world.running("job", attempt=2, within=60.0)
    record = world.recovery("job")
    assert (record.cause, record.remedy) == (Cause.PREEMPTION, Remedy.REPLACE_POD)
    await world.sleep(90.0)
    assert world.job("job").status.attempt == 2
    assert node not in {m.node for m in world.job("job").status.members}
