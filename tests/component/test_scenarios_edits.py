"""Jobs that are edited while they run, or stand still: more ranks go on from the checkpoint, and templates are never mixed."""

from __future__ import annotations

from typing import Any

import pytest

from remuda.api.conditions import find_condition, is_condition_true
from remuda.api.errors import Invalid
from remuda.api.training import PodTemplate, Role, TrainingJob, TrainingJobSpec
from remuda.api.validation.training_changes import TEMPLATE_IN_USE
from remuda.embedded.apiserver import own_kinds
from tests.builders.world import NAMESPACE, World, in_world, training_job
from tests.component.world_rig import change_job, gang_at_work, suspend_job


async def grow(world: World, *sizes: int) -> None:
    roles = world.job().spec.roles
    wire = [
        {"name": r.name, "replicas": n, "gpus": r.gpus, "template": {"spec": r.template.spec}}
        for r, n in zip(roles, sizes, strict=True)
    ]
    await change_job(world, {"roles": wire})


async def resume(world: World, ranks: int) -> None:
    await change_job(world, {"suspend": False})
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
    await suspend_job(world)
    saved = world.job().status.progress.checkpoint_step
    assert saved > 20
    await resume(world, 5)
    assert resumed_at(world) == {saved}


@in_world()
async def test_a_suspended_job_that_grows_goes_on_from_its_checkpoint(world: World) -> None:
    await gang_at_work(world)
    await suspend_job(world)
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
        await suspend_job(world)
        saved = world.job().status.progress.checkpoint_step
        await grow(world, size)
        await resume(world, size)
        assert resumed_at(world) == {saved}
        await world.step("job", saved + 5)


@in_world()
async def test_a_job_of_an_older_release_that_grows_goes_on_from_its_checkpoint(world: World) -> None:
    """Its sizes were never written down."""
    await gang_at_work(world)
    await suspend_job(world)
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


# --- another template -------------------------------------------------------------------------------------------------


def template_of(command: str) -> dict[str, Any]:
    return {"spec": {"containers": [{"name": "main", "command": [command]}]}}


async def edit(world: World, command: str) -> None:
    role = world.job().spec.roles[0]
    wire = {"name": role.name, "replicas": role.replicas, "gpus": role.gpus, "template": template_of(command)}
    await change_job(world, {"roles": [wire]})


def commands(world: World) -> set[str]:
    """Of the pods that stay, ranks and spares."""
    return {pod.spec.containers[0].command[0] for pod in world.pods() if not pod.is_deleting}


def is_in_use(world: World) -> bool:
    return is_condition_true(world.job().status.conditions, TEMPLATE_IN_USE)


@pytest.fixture
def checks_types_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """An API server that knows CRDs and no rules of ours."""
    monkeypatch.setattr(own_kinds, "validate_change", lambda old, new: None)


@in_world()
async def test_the_template_of_a_running_job_cannot_be_changed(world: World) -> None:
    await gang_at_work(world)
    with pytest.raises(Invalid, match="TemplateInUse") as said:
        await edit(world, "other")
    assert "remuda suspend job" in str(said.value)
    assert commands(world) == {"train"}
    await change_job(world, {"totalSteps": 1000})  # what is not in the pods may be
    await world.kill_process(rank=1)
    await world.running("job", attempt=2)
    with pytest.raises(Invalid, match="TemplateInUse"):
        await change_job(world, {"suspend": True, "roles": [{"name": "worker", "template": template_of("other")}]})


@in_world()
async def test_a_role_of_a_running_job_cannot_be_taken_away_or_renamed(world: World) -> None:
    await gang_at_work(world)
    before = world.gang()
    renamed = {"name": "other", "replicas": 4, "gpus": 8, "template": template_of("train")}
    with pytest.raises(Invalid, match="RoleInUse: Role `worker` has pods that run") as said:
        await change_job(world, {"roles": [renamed]})
    assert "remuda suspend job" in str(said.value)
    await world.sleep(30.0)
    world.assert_kept(before)
    await suspend_job(world)
    await change_job(world, {"roles": [renamed]})
    await resume(world, 4)
    assert {m.role for m in world.job().status.members} == {"other"}


@in_world()
async def test_roles_of_a_running_job_keep_their_order(world: World) -> None:
    await gang_at_work(world)
    worker = {"name": "worker", "replicas": 4, "gpus": 8, "template": template_of("train")}
    first = {"name": "reader", "replicas": 1, "template": template_of("train")}
    with pytest.raises(Invalid, match="RoleInUse: Pods of this job run, and ranks are numbered by the order") as said:
        await change_job(world, {"roles": [first, worker]})
    assert "with new roles at the end" in str(said.value)


@in_world()
async def test_a_suspended_job_starts_whole_with_its_new_template_from_the_checkpoint(world: World) -> None:
    await gang_at_work(world)
    await suspend_job(world)
    saved = world.job().status.progress.checkpoint_step
    await edit(world, "other")
    await resume(world, 4)
    await world.parked()
    assert commands(world) == {"other"}
    assert resumed_at(world) == {saved}
    assert find_condition(world.job().status.conditions, TEMPLATE_IN_USE) is None


@in_world(nodes=4)
async def test_a_job_that_still_waits_for_room_may_be_changed(world: World) -> None:
    await world.submit("first", replicas=2)
    await world.running("first")
    await world.submit(replicas=4)
    await world.until(lambda: len(world.pods()) == 4)
    await edit(world, "other")
    await world.until(lambda: commands(world) == {"other"} and len(world.pods()) == 4)


@in_world()
@pytest.mark.usefixtures("checks_types_alone")
async def test_a_change_that_the_api_lets_in_is_told_and_never_mixed(world: World) -> None:
    await gang_at_work(world)
    before, (spare,) = world.gang(), world.parked_spares()
    await edit(world, "other")
    await world.until(lambda: is_in_use(world))
    assert world.job().status.phase == "Running"
    await world.kill_process(rank=1)  # cured in place
    await world.running("job", attempt=2)
    world.assert_kept(before)
    await world.delete_pod(before[3].pod)  # cured by the spare, which is of the old template
    await world.running("job", attempt=3)
    assert world.gang()[3].pod == spare
    assert commands(world) == {"train"}, "no spare of the new one"
    await world.delete_pod(world.gang()[2].pod)  # needs a new pod: there will be none
    await world.until(lambda: world.job().status.reason == TEMPLATE_IN_USE)
    await world.sleep(120.0)
    assert commands(world) == {"train"}
    assert "remuda suspend job" in world.job().status.message
    saved = world.common_checkpoint()
    await suspend_job(world)
    await resume(world, 4)
    assert commands(world) == {"other"}
    assert not is_in_use(world)
    assert resumed_at(world) == {saved}
    assert saved >= 20


@in_world()
@pytest.mark.usefixtures("checks_types_alone")
async def test_a_change_that_is_taken_back_ends_the_wait(world: World) -> None:
    await gang_at_work(world, spares=0)
    await edit(world, "other")
    await world.until(lambda: is_in_use(world))
    await world.delete_pod(world.gang()[2].pod)
    await world.until(lambda: world.job().status.reason == TEMPLATE_IN_USE)
    await edit(world, "train")
    await world.running("job", attempt=2)
    assert (commands(world), is_in_use(world)) == ({"train"}, False)
    assert world.recovery().resume_step == 20


@in_world()
@pytest.mark.usefixtures("checks_types_alone")
async def test_when_every_pod_is_lost_the_whole_gang_is_made_of_the_new_template(world: World) -> None:
    await gang_at_work(world, spares=0)
    await edit(world, "other")
    await world.until(lambda: is_in_use(world))
    for seat in world.gang().values():
        await world.delete_pod(seat.pod)
    await world.running("job", attempt=2)
    assert (commands(world), is_in_use(world)) == ({"other"}, False)
    assert resumed_at(world) == {20}
