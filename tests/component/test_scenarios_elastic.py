"""Gangs that go on with fewer ranks and grow again, and gangs in segments, on the whole control plane."""

from __future__ import annotations

import msgspec

from remuda.api.training import Remedy, Topology, TrainingJob
from remuda.runtime.up_config import RACK_LABEL
from tests.builders.world import NAMESPACE, World, in_world, training_job


async def submit(world: World, job: TrainingJob, *, least: int = 0, segment: int = 0) -> None:
    role = msgspec.structs.replace(job.spec.roles[0], min_replicas=least)
    topology = Topology(required=RACK_LABEL, segment_size=segment)
    spec = msgspec.structs.replace(job.spec, roles=[role], topology=topology)
    await world.cluster.api.create(TrainingJob, msgspec.structs.replace(job, spec=spec))


@in_world(nodes=5, racks=1)
async def test_a_gang_shrinks_and_grows_again(world: World) -> None:
    await world.submit("other", replicas=1)
    await world.running("other")
    await submit(world, training_job("job", replicas=4), least=2)
    await world.running("job")
    await world.sleep(20.0)
    lost = world.member("job", 1)
    await world.lose_node(lost.node)
    await world.running("job", attempt=2, within=60.0)
    status = world.job("job").status
    assert (len(status.members), status.sizes) == (3, {"worker": 3})
    assert world.recovery("job").remedy is Remedy.SHRINK
    await world.cluster.api.delete(TrainingJob, "other", NAMESPACE)
    await world.until(lambda: len(world.job("job").status.members) == 4, 240.0, "it has grown")
    await world.running("job", attempt=3, within=60.0)
    record = world.recovery("job")
    assert record.remedy is Remedy.GROW
    assert record.step_at_fault - record.resume_step <= 3, "a checkpoint was asked for first"
    assert record.resume_step > 100
    assert not world.job("job").status.sizes


@in_world(nodes=3, racks=1)
async def test_a_gang_starts_with_what_there_is_room_for(world: World) -> None:
    await submit(world, training_job("job", replicas=4), least=2)
    await world.running("job")
    status = world.job("job").status
    assert ([m.rank for m in status.members], status.sizes) == ([0, 1, 2], {"worker": 3})


@in_world(nodes=6, racks=3)
async def test_a_segment_moves_and_the_other_stays(world: World) -> None:
    await submit(world, training_job("job", replicas=4), segment=2)
    await world.running("job")
    before = world.gang("job")
    racks = [{world.rack_of[before[rank].node] for rank in block} for block in ((0, 1), (2, 3))]
    assert [len(here) for here in racks] == [1, 1]
    await world.lose_node(before[3].node)
    await world.running("job", attempt=2, within=90.0)
    assert world.recovery("job").remedy is Remedy.MOVE_SEGMENT
    after = world.gang("job")
    assert (after[0], after[1]) == (before[0], before[1])
    moved = {world.rack_of[after[rank].node] for rank in (2, 3)}
    assert len(moved) == 1
    assert moved.isdisjoint(racks[1])
