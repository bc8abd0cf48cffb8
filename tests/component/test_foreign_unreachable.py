"""Plain Jobs and Deployments on nodes that do not answer: rows 20, 21 and 22, in virtual time."""

from __future__ import annotations

from remuda.api.batch_v1 import Job
from remuda.api.conditions import is_true
from remuda.api.core_v1 import Pod
from remuda.api.drills import DrillKind
from remuda.api.names import ANNOTATION_REPLACE_UNREACHABLE
from remuda.core.builtin.pod_state import is_active
from remuda.core.failure.foreign import DISRUPTION_TARGET
from remuda.core.failure.foreign_unreachable import NODE_UNREACHABLE
from remuda.core.placement.snapshot import devices_of
from tests.builders.foreign import condition, deploy, one_running, pods_of, read, running, submit_job, tell
from tests.builders.world import NAMESPACE, World

TOLERATED_S = 300.0  # what admission gives every pod


async def replaced(world: World, before: Pod, app: str, within: float) -> Pod:
    def others() -> list[Pod]:
        return [p for p in running(world, app) if p.uid != before.uid]

    await world.until(others, within, f"{app} runs elsewhere")
    return others()[0]


def test_a_job_that_waits_for_the_end_of_its_pods_gets_another_in_the_set_time() -> None:
    """Row 21: told to go after five minutes, and counted as ended a while after that."""

    async def story(world: World) -> None:
        await submit_job(world, podReplacementPolicy="Failed")
        before = await one_running(world, "batch")
        await world.lose_node(before.spec.node_name)
        await world.sleep(TOLERATED_S - 20)
        assert len(pods_of(world, "batch")) == 1
        after = await replaced(world, before, "batch", 180.0)
        assert after.spec.node_name != before.spec.node_name
        assert not is_true(read(world, Job, "batch").status.conditions, "Failed")

    tell(story)


def test_a_pod_may_set_its_own_time() -> None:
    async def story(world: World) -> None:
        mark = {ANNOTATION_REPLACE_UNREACHABLE: "20"}
        await submit_job(world, podReplacementPolicy="Failed", annotations=mark)
        before = await one_running(world, "batch")
        await world.lose_node(before.spec.node_name)
        await replaced(world, before, "batch", 60.0)
        lost = world.pod(before.name)
        told = condition(lost, DISRUPTION_TARGET)
        assert lost is not None
        assert lost.status.phase == "Failed"
        assert told is not None
        assert told.reason == NODE_UNREACHABLE

    tell(story)


def test_its_device_is_nobody_elses_until_the_node_answers() -> None:
    """Row 20, also for a pod that somebody removed by force."""

    async def story(world: World) -> None:
        await deploy(world, gpus=8)
        before = await one_running(world, "web")
        node = before.spec.node_name
        await world.drill(DrillKind.NODE_PARTITION, node=node, seconds=60.0)
        await world.sleep(20.0)
        await world.cluster.api.delete(Pod, before.name, NAMESPACE, grace_s=0)
        held = [d for h in world.devices(node).observed.holdings for d in h.devices]
        assert set(devices_of(before)) <= set(held)
        after = await replaced(world, before, "web", 60.0)
        assert after.spec.node_name != node
        await world.until(lambda: not world.devices(node).observed.holdings, 120.0, "the node lets go once it answers")

    tell(story)


def test_a_short_silence_moves_nobody() -> None:
    """Row 22."""

    async def story(world: World) -> None:
        await submit_job(world, podReplacementPolicy="Failed")
        await deploy(world)
        batch, web = await one_running(world, "batch"), await one_running(world, "web")
        for node in {batch.spec.node_name, web.spec.node_name}:
            await world.drill(DrillKind.NODE_PARTITION, node=node, seconds=40.0)
        await world.sleep(200.0)
        for app, before in (("batch", batch), ("web", web)):
            assert [p.uid for p in pods_of(world, app) if is_active(p)] == [before.uid]

    tell(story)
