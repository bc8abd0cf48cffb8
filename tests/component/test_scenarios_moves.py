"""Nodes that are about to go: a spot node, and one that nobody could leave in time. Planned maintenance, drains and slow devices
are drills (tests/drills)."""

from __future__ import annotations

from remuda.api.drills import DrillKind
from remuda.api.training import Cause, Remedy
from remuda.embedded.node.training_model import SimulatedBehaviour
from tests.builders.world import World, in_world

SELDOM = SimulatedBehaviour(step_s=0.5, checkpoint_every=1000)


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


@in_world(nodes=4, racks=1)
async def test_a_maintenance_that_finds_the_gang_still_there_is_charged_to_maintenance(world: World) -> None:
    """There was nowhere to go. What was announced is no fault of the infrastructure, whose budget would end the job in time."""
    await world.submit("job", replicas=4, start_deadline_seconds=20.0)
    await world.running("job")
    await world.drill(DrillKind.MAINTENANCE_NOTICE, node=world.member("job", 0).node, seconds=15.0)
    await world.sleep(14.0)
    assert world.job("job").status.attempt == 1
    await world.running("job", attempt=2, within=60.0)
    used = {cause: n for cause, n in world.job("job").status.used.items() if cause != "admission"}
    assert used == {"maintenance": 1}, world.describe()


@in_world(nodes=4, racks=1)
async def test_a_spare_on_the_node_that_goes_takes_nobody_s_place(world: World) -> None:
    """It would have to leave at once again, and the gang would be stopped twice for one notice."""
    await world.submit("job", replicas=3, gpus=2, spares=1)
    await world.running("job")
    await world.parked("job", spares=1)
    members = world.job("job").status.members
    spare = next(p for p in world.pods("job") if p.uid not in {m.uid for m in members})
    node = spare.spec.node_name
    assert node in {m.node for m in members}, "the story needs a spare beside the ranks"
    await world.drill(DrillKind.MAINTENANCE_NOTICE, node=node, seconds=60.0)
    await world.running("job", attempt=2, within=60.0)
    await world.sleep(90.0)
    status = world.job("job").status
    assert status.attempt == 2, world.describe()
    assert node not in {m.node for m in status.members}
