"""Pods that their nodes refuse: retries, what is kept, black holes. On a whole embedded cluster in virtual time."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest

from remuda.api.batch_v1 import Job
from remuda.api.conditions import is_true
from remuda.api.core_v1 import Node, Pod
from remuda.api.devices import NodeDevices
from remuda.api.drills import DrillKind
from remuda.api.meta import JsonObject
from remuda.api.names import ANNOTATION_RETRY_ADMISSION, RESOURCE_GPU
from remuda.core.failure.rejections import ADMISSION_REJECTED, BLACK_HOLE, KEPT_PODS, is_rejection
from remuda.core.failure.withheld import FIRST_PROBE_S, release
from tests.builders.foreign import bare, condition, deploy, one_running, pods_of, read, running, submit_job, tell
from tests.builders.world import NAMESPACE, World


def refused(world: World) -> list[Pod]:
    return [p for p in world.all_pods() if is_rejection(p)]


async def break_plugin(world: World, node: str, **options: Any) -> None:
    await world.drill(DrillKind.ALLOCATE_FAIL, node=node, resource=RESOURCE_GPU, **options)


async def only(world: World, *nodes: str) -> None:
    """Cordons the others."""
    for node in world.rack_of:
        if node not in nodes:
            await world.cluster.api.patch(Node, node, {"spec": {"unschedulable": True}})


async def reopen(world: World) -> None:
    for node in world.rack_of:
        await world.cluster.api.patch(Node, node, {"spec": {"unschedulable": None}})


def test_a_node_that_goes_on_refusing_is_left_and_the_others_go_on() -> None:
    """Rows 8 and 10: a Job with no tries to lose gets through, on another node."""

    async def story(world: World) -> None:
        hole = sorted(world.rack_of)[0]
        await break_plugin(world, hole)
        await only(world, hole)
        await submit_job(world, backoffLimit=0)
        await world.until(lambda: world.devices(hole).withheld, 120.0)
        order = world.devices(hole).withheld[RESOURCE_GPU]
        assert order.reason == BLACK_HOLE
        evidence = [e.pod for e in world.devices(hole).rejections[RESOURCE_GPU]]
        assert len(evidence) == 5
        assert all(pod in order.message for pod in evidence)
        await world.until(lambda: len(refused(world)) <= KEPT_PODS)
        await reopen(world)
        pod = await one_running(world, "batch", 120.0)
        assert pod.spec.node_name != hole
        job = read(world, Job, "batch")
        assert (job.status.failed, is_true(job.status.conditions, "Failed")) == (0, False)

    tell(story)


def test_a_withheld_resource_stays_so_over_restarts_until_a_probe_passes() -> None:
    """Row 11."""

    async def story(world: World) -> None:
        hole = sorted(world.rack_of)[0]
        await break_plugin(world, hole)
        await only(world, hole)
        await deploy(world)
        await world.until(lambda: world.devices(hole).withheld, 120.0)
        await world.restart_control_plane()
        await world.sleep(FIRST_PROBE_S / 2)
        assert RESOURCE_GPU in world.devices(hole).withheld
        assert not running(world, "web")
        await break_plugin(world, hole, undo=True, may_be_refused=True)
        await world.restart_control_plane()
        await world.until(lambda: not world.devices(hole).withheld, FIRST_PROBE_S, "the probe gives it back")
        assert (await one_running(world, "web", 400.0)).spec.node_name == hole
        assert not world.devices(hole).orders

    tell(story)


def test_an_operator_gives_a_withheld_resource_back() -> None:
    async def story(world: World) -> None:
        hole = sorted(world.rack_of)[0]
        await break_plugin(world, hole)
        await only(world, hole)
        await deploy(world)
        await world.until(lambda: world.devices(hole).withheld, 120.0)
        before = len(world.devices(hole).rejections[RESOURCE_GPU])
        assert before == 5
        patch = release(world.devices(hole), RESOURCE_GPU)
        await world.cluster.api.patch(NodeDevices, hole, patch)
        await world.sleep(5.0)
        assert not world.devices(hole).withheld, "old evidence was counted again"

    tell(story)


def test_a_thousand_refusals_leave_three_pods_and_come_ever_slower() -> None:
    """Row 9. Nothing is withheld for want of cpu, so it would go on for ever. A node without a kubelet stands for one that
    refuses everything."""

    async def story(world: World) -> None:
        api = world.cluster.api
        status = {"allocatable": {"cpu": "8", "pods": "100"}, "conditions": [{"type": "Ready", "status": "True"}]}
        await only(world)
        await api.create(Node, {"metadata": {"name": "ghost"}})
        await api.patch(Node, "ghost", {"status": status}, subresource="status")
        await deploy(world, gpus=0)
        refusals: list[float] = []
        most = 0
        while world.now < 3600:
            for pod in [p for p in pods_of(world, "web") if p.spec.node_name and not p.is_terminal]:
                no: JsonObject = {"phase": "Failed", "reason": "OutOfcpu", "message": "Pod was rejected"}
                await api.patch(Pod, pod.name, {"status": no}, NAMESPACE, subresource="status")
                refusals.append(world.now)
            await world.sleep(1.0)
            most = max(most, len(refused(world)))
        gaps = [later - earlier for earlier, later in pairwise(refusals)]
        assert len(refusals) >= 12
        assert all(later >= min(300.0, 1.5 * earlier) for earlier, later in pairwise(gaps[3:])), gaps
        assert most <= KEPT_PODS + 1
        assert len(refused(world)) <= KEPT_PODS

    tell(story, nodes=1)


def test_a_refused_pod_says_so() -> None:
    async def story(world: World) -> None:
        await break_plugin(world, "node-01")
        await only(world, "node-01")
        await bare(world)
        await world.until(lambda: condition(world.pod("solo"), ADMISSION_REJECTED) is not None)
        await world.sleep(60.0)
        assert [p.name for p in pods_of(world, "solo")] == ["solo"]

    tell(story)


@pytest.mark.parametrize("kind", ["bare", "job", "deployment"])
def test_pods_refused_before_the_plugin_is_back_run_in_the_end(kind: str) -> None:
    """Row 7, as after a reboot of the node."""

    async def story(world: World) -> None:
        await break_plugin(world, "node-01", seconds=8.0)
        await only(world, "node-01")
        match kind:
            case "bare":
                await bare(world, "work", annotations={ANNOTATION_RETRY_ADMISSION: "true", "note": "kept"})
            case "job":
                await submit_job(world, "work", backoffLimit=0)
            case _:
                await deploy(world, "work")
        await world.until(lambda: refused(world), what="a refused pod")
        pod = await one_running(world, "work", 120.0)
        if kind == "bare":
            assert pod.annotations["note"] == "kept"
            assert len(pods_of(world, "work")) == 1
        assert not world.devices("node-01").withheld

    tell(story)


def test_a_training_jobs_budget_is_not_charged_for_refusals() -> None:
    """Row 8, for our own."""

    async def story(world: World) -> None:
        await break_plugin(world, "node-01", seconds=8.0)
        await only(world, "node-01")
        await world.submit(replicas=1, gpus=2)
        await world.running(within=200.0)
        used = world.job().status.used
        assert used.get("infra", 0) == 0
        assert used["admission"] >= 1

    tell(story)
