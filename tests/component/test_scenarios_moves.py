"""Nodes that are about to go, and devices that are slow: a checkpoint, a move, and no work done twice."""

from __future__ import annotations

from remuda.api.core_v1 import Node
from remuda.api.drills import DrillKind
from remuda.api.meta import to_time
from remuda.api.names import ANNOTATION_DRAIN_REQUESTED
from remuda.api.training import Cause, Remedy
from remuda.node.training import Behaviour
from tests.builders.world import World, in_world

SELDOM = Behaviour(step_s=0.5, checkpoint_every=1000)


@in_world(nodes=8, racks=1, behaviour=SELDOM)
async def test_row_76_a_planned_maintenance_finds_the_gang_gone(world: World) -> None:
    await world.submit("job", replicas=4, spares=1)
    await world.running("job")
    await world.parked("job")
    await world.sleep(20.0)
    before, node = world.gang("job"), world.member("job", 2).node
    await world.drill(DrillKind.MAINTENANCE_NOTICE, node=node, seconds=120.0)
    await world.running("job", attempt=2, within=60.0)
    record = world.recovery("job")
    assert (record.cause, record.reason, record.remedy) == (
        Cause.MAINTENANCE,
        "MaintenancePlanned",
        Remedy.PROMOTE_SPARE,
    )
    assert record.step_at_fault - record.resume_step <= 2, "a checkpoint was asked for first"
    assert record.resume_step > 30
    request = world.job("job").status.checkpoint_request
    assert request is not None
    assert request.answered_at is not None
    world.assert_kept(before, but=[2])
    await world.sleep(140.0)
    status = world.job("job").status
    assert (status.attempt, status.used) == (2, {"maintenance": 1}), "the reboot itself met nobody"


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


@in_world(nodes=6, racks=1)
async def test_row_80_a_slow_device_is_swapped_at_a_checkpoint(world: World) -> None:
    await world.submit("job", replicas=4, spares=1)
    await world.running("job")
    await world.parked("job")
    await world.sleep(10.0)
    member = world.member("job", 1)
    await world.drill(DrillKind.DEVICE_SLOW, node=member.node, device=member.devices[0], factor=2.0)
    await world.running("job", attempt=2, within=180.0)
    record = world.recovery("job")
    assert (record.cause, record.reason, record.remedy) == (Cause.DEVICE, "SlowRank", Remedy.PROMOTE_SPARE)
    assert record.step_at_fault - record.resume_step <= 2
    assert world.member("job", 1).node != member.node


@in_world(nodes=6, racks=1, behaviour=SELDOM)
async def test_row_75_a_node_that_is_to_be_drained_is_left_by_the_gang_itself(world: World) -> None:
    """Nobody is evicted, so no disruption budget is asked."""
    await world.submit("job", replicas=4, spares=1)
    await world.running("job")
    await world.parked("job")
    await world.sleep(10.0)
    node = world.member("job", 3).node
    until = to_time(world.loop.clock() + 120.0).isoformat().replace("+00:00", "Z")
    patch = {"metadata": {"annotations": {ANNOTATION_DRAIN_REQUESTED: f"dev-{node}-gpu-0-abc/{until}"}}}
    await world.cluster.api.patch(Node, node, patch)
    await world.running("job", attempt=2, within=60.0)
    record = world.recovery("job")
    assert (record.cause, record.reason) == (Cause.MAINTENANCE, "DrainRequested")
    assert record.step_at_fault - record.resume_step <= 2
    await world.until(
        lambda: not [p for p in world.pods("job") if p.spec.node_name == node], 30.0, "nothing is left there"
    )
