"""Jobs that are edited while they run, or stand still: more ranks go on from the checkpoint, and templates are never mixed."""

from __future__ import annotations

from typing import Any

from remuda.api.training import PodTemplate, Role, TrainingJob, TrainingJobSpec
from tests.builders.world import NAMESPACE, World, in_world, training_job
from tests.component.world_rig import gang_at_work


async def patch(world: World, spec: dict[str, Any]) -> None:
    await world.cluster.api.patch(TrainingJob, "job", {"spec": spec}, NAMESPACE)


async def grow(world: World, *sizes: int) -> None:
    roles = world.job().spec.roles
    wire = [
        {"name": r.name, "replicas": n, "gpus": r.gpus, "template": {"spec": r.template.spec}}
        for r, n in zip(roles, sizes, strict=True)
    ]
    await patch(world, {"roles": wire})


async def suspend(world: World) -> None:
    await patch(world, {"suspend": True})
    await world.until(lambda: world.job().status.phase == "Suspended" and not world.pods(), what="it is suspended")


async def resume(world: World, ranks: int) -> None:
    await patch(world, {"suspend": False})
    await world.until(
        lambda: world.is_running("job") and len(world.job().status.members) == ranks, what="it runs again"
    )


def resumed_at(world: World) -> set[int]:
    return {child.resumed_at for _, child in world.children()}


# --- more ranks -------------------------------------------------------------------------------------------------------


@in_world()
async def test_a_running_job_that_grows_goes_on_from_its_checkpoint_after_a_fault(world: World) -> None:
    await gang_at_work(world)
    await grow(world, 5)
    await world.sleep(2.0)
    assert len(world.job().status.members) == 4, "nobody is stopped for it"
    await world.kill_process(rank=1)
    await world.until(lambda: world.is_running("job", 2) and len(world.job().status.members) == 5)
    assert world.recovery().resume_step == 20
    assert resumed_at(world) == {20}
    assert world.job().status.worlds[-1].ranks == 5


@in_world()
async def test_a_running_job_that_grows_goes_on_from_its_checkpoint_after_a_suspension(world: World) -> None:
    await gang_at_work(world)
    await grow(world, 5)
    await suspend(world)
    saved = world.job().status.progress.checkpoint_step
    assert saved > 20
    await resume(world, 5)
    assert resumed_at(world) == {saved}


@in_world()
async def test_a_suspended_job_that_grows_goes_on_from_its_checkpoint(world: World) -> None:
    await gang_at_work(world)
    await suspend(world)
    saved = world.job().status.progress.checkpoint_step
    await grow(world, 5)
    await resume(world, 5)
    assert resumed_at(world) == {saved}
    await world.step("job", saved // 10 * 10 + 21)  # the new world saves its own
    await world.kill_process(rank=4)
    await world.running("job", attempt=3)
    assert resumed_at(world) == {saved // 10 * 10 + 20}


@in_world()
async def test_a_job_that_shrinks_and_grows_again_goes_on_from_its_checkpoint(world: World) -> None:
    await gang_at_work(world)
    for size in (3, 5, 4):
        await suspend(world)
        saved = world.job().status.progress.checkpoint_step
        await grow(world, size)
        await resume(world, size)
        assert resumed_at(world) == {saved}
        await world.step("job", saved + 5)


@in_world()
async def test_a_job_of_an_older_release_that_grows_goes_on_from_its_checkpoint(world: World) -> None:
    """Its sizes were never written down."""
    await gang_at_work(world)
    await suspend(world)
    saved = world.job().status.progress.checkpoint_step
    await world.cluster.api.patch(TrainingJob, "job", {"status": {"worlds": None}}, NAMESPACE, subresource="status")
    await grow(world, 5)
    await resume(world, 5)
    assert resumed_at(world) == {saved}


@in_world()
async def test_a_role_that_grows_before_another_moves_the_ranks_of_that_one(world: World) -> None:
    job = training_job("job", gpus=8)
    template = PodTemplate(spec={"containers": [{"name": "main", "command": ["train"]}]})
    roles = [Role(name=name, replicas=2, gpus=8, template=template) for name in ("lead", "worker")]
    await world.cluster.api.create(TrainingJob, TrainingJob(metadata=job.metadata, spec=TrainingJobSpec(roles=roles)))
    await world.running()
    await world.step("job", 25)
    await grow(world, 3, 2)
    await world.kill_process(rank=3)
    await world.until(lambda: world.is_running("job", 2) and len(world.job().status.members) == 5)
    assert [m.role for m in world.job().status.members] == ["lead"] * 3 + ["worker"] * 2
    assert resumed_at(world) == {20}
