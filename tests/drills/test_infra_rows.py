"""Rows 7-11, 20-22: pods that their node refuses, nodes that refuse everything, and nodes that do not answer."""

from __future__ import annotations

from itertools import pairwise

import pytest

from remuda.api.conditions import is_condition_true
from remuda.api.drills import DrillKind
from remuda.api.kubernetes.apps_v1 import Deployment
from remuda.api.kubernetes.batch_v1 import Job
from remuda.api.kubernetes.core_v1 import Node, Pod
from remuda.api.meta import JsonObject
from remuda.api.names import ANNOTATION_REPLACE_UNREACHABLE, ANNOTATION_RETRY_ADMISSION, RESOURCE_GPU
from remuda.cli.devices.device_operations import release_device_resource_by_command
from remuda.core.foreign.device_failures import DISRUPTION_TARGET
from remuda.core.foreign.refused_pods import KEPT_PODS, LONGEST_RETRY_S
from remuda.core.foreign.unreachable import NODE_UNREACHABLE
from remuda.core.foreign.withheld_resources import BLACK_HOLE, FIRST_PROBE_S
from remuda.core.state.snapshot import snapshot_devices_of_pod
from remuda.embedded.builtin.planners.pod_state import is_active_pod
from tests.builders.evidence import note
from tests.builders.foreign import (
    bare,
    break_plugin,
    condition,
    deploy,
    one_running,
    only,
    pods_of,
    read,
    refused,
    reopen,
    running,
    submit_job,
    tell,
)
from tests.builders.world import NAMESPACE, World

TOLERATED_S = 300.0  # what admission gives every pod


async def ghost(world: World) -> None:
    """A node without a kubelet, which stands for one that refuses everything: see `refuse`."""
    status = {"allocatable": {"cpu": "800", "pods": "1000"}, "conditions": [{"type": "Ready", "status": "True"}]}
    await world.cluster.api.create(Node, {"metadata": {"name": "ghost"}})
    await world.cluster.api.patch(Node, "ghost", {"status": status}, subresource="status")


def placed(world: World, app: str) -> list[Pod]:
    return [p for p in pods_of(world, app) if p.spec.node_name and not p.is_terminal]


async def refuse(world: World, *pods: Pod) -> None:
    no: JsonObject = {"phase": "Failed", "reason": "OutOfcpu", "message": "Pod was rejected"}
    for pod in pods:
        await world.cluster.api.patch(Pod, pod.name, {"status": no}, NAMESPACE, subresource="status")


# --- refused at admission ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["bare", "job", "deployment", "training job"])
def test_row_7_a_pod_before_its_plugin_is_tried_again(kind: str) -> None:
    """The node reboots under the workload: its pod is admitted again before the plugin has registered, and refused."""

    async def story(world: World) -> None:
        match kind:
            case "bare":
                await bare(world, "work", annotations={ANNOTATION_RETRY_ADMISSION: "true", "note": "kept"})
            case "job":
                await submit_job(world, "work", backoffLimit=0, restart="OnFailure")
            case "deployment":
                await deploy(world, "work")
            case _:
                await world.submit("work", replicas=1, gpus=2)
        if kind == "training job":
            await world.running("work")
            before = world.pods("work")[0]
        else:
            before = await one_running(world, "work")
        await world.drill(DrillKind.PLUGIN_KILL, node="node-01", resource=RESOURCE_GPU, seconds=8.0)
        await world.drill(DrillKind.NODE_REBOOT, node="node-01")
        await world.until(lambda: refused(world), 20.0, "a pod is refused")
        begun = world.now
        assert refused(world)[0].uid == before.uid
        reason = refused(world)[0].status.reason
        if kind == "training job":
            await world.running("work", attempt=2, within=120.0)
            assert world.job("work").status.used == {
                "infra": 1,
                "admission": 1,
            }  # the reboot, and nothing for the refusal
        else:
            pod = await one_running(world, "work", 120.0)
            assert pod.uid != before.uid
            assert kind != "bare" or pod.annotations["note"] == "kept"
        if kind == "job":
            assert not is_condition_true(read(world, Job, "work").status.conditions, "Failed")
        assert not world.devices("node-01").withheld, "a plugin that is away is no black hole"
        note(f"{kind}: {reason} after the reboot, running {world.now - begun:.0f} s later")

    tell(story, nodes=1)


def test_row_8_a_job_without_a_try_to_lose_survives_refusals() -> None:
    async def story(world: World) -> None:
        await break_plugin(world, "node-01")
        await only(world, "node-01")
        await submit_job(world, backoffLimit=0)
        await world.until(lambda: len(refused(world)) >= 2, 60.0)
        await only(world)
        await ghost(world)
        await submit_job(world, "plain", gpus=0, backoffLimit=0)
        for _ in range(3):
            await world.until(lambda: placed(world, "plain"), 60.0, "its pod is placed")
            await refuse(world, *placed(world, "plain"))
        reasons = sorted({p.status.reason for p in refused(world)})
        assert reasons == ["OutOfcpu", "UnexpectedAdmissionError"]
        await world.cluster.api.delete(Node, "ghost")
        await reopen(world)
        for name in ("batch", "plain"):
            await one_running(world, name, 120.0)
            job = read(world, Job, name)
            assert (job.status.failed, is_condition_true(job.status.conditions, "Failed")) == (0, False)
        note(f"Jobs with backoffLimit 0: refused with {' and '.join(reasons)}, failed 0, both run")

    tell(story)


def test_row_8_a_training_job_is_not_charged_either() -> None:
    async def story(world: World) -> None:
        await break_plugin(world, "node-01", seconds=8.0)
        await only(world, "node-01")
        await world.submit(replicas=1, gpus=2)
        await world.running(within=200.0)
        used = world.job().status.used
        assert set(used) == {"admission"}
        assert used["admission"] >= 1
        note(f"TrainingJob: {used['admission']} refused tries, no cause charged")

    tell(story)


def test_row_9_a_thousand_refusals_leave_three_pods_and_back_off() -> None:
    """Nothing is withheld for want of cpu, so it would go on for ever."""

    async def story(world: World) -> None:
        await only(world)
        await ghost(world)
        await deploy(world, gpus=0)
        refusals: list[float] = []
        most = 0
        while len(refusals) < 1000:
            last = refusals[-1] if refusals else world.now
            while not (pods := placed(world, "web")):
                assert world.now - last <= 2 * LONGEST_RETRY_S, "it is not tried again"
                await world.sleep(1.0 if len(refusals) <= 12 else 20.0)
            await refuse(world, *pods)
            refusals += [world.now] * len(pods)
            await world.sleep(3.0)
            most = max(most, len(refused(world)))
            if len(refusals) == 12:  # one by one a thousand would take days
                await world.cluster.api.patch(Deployment, "web", {"spec": {"replicas": 100}}, NAMESPACE)
        gaps = [later - earlier for earlier, later in pairwise(refusals[:12])]
        assert all(later >= min(LONGEST_RETRY_S, 1.5 * earlier) for earlier, later in pairwise(gaps[3:])), gaps
        rounds = sorted(set(refusals[12:]))
        assert all(later - earlier >= LONGEST_RETRY_S for earlier, later in pairwise(rounds)), rounds
        assert most <= KEPT_PODS + 1
        assert len(refused(world)) <= KEPT_PODS
        waits = ", ".join(f"{gap:.0f}" for gap in gaps)
        note(f"{len(refusals)} refusals left {len(refused(world))} pods; waits of {waits} s, then never under 300 s")

    tell(story, nodes=1)


# --- black holes ------------------------------------------------------------------------------------------------------


def test_row_10_a_node_that_goes_on_refusing_is_left() -> None:
    async def story(world: World) -> None:
        hole = sorted(world.rack_of)[0]
        await break_plugin(world, hole)
        await deploy(world, "others", gpus=7, replicas=3)
        await only(world, hole)
        await submit_job(world, backoffLimit=0)
        begun = world.now
        await world.until(lambda: world.devices(hole).withheld, 120.0)
        took = world.now - begun
        order = world.devices(hole).withheld[RESOURCE_GPU]
        assert order.reason == BLACK_HOLE
        evidence = [e.pod for e in world.devices(hole).rejections[RESOURCE_GPU]]
        assert len(evidence) == 5
        assert all(pod in order.message for pod in evidence)
        await world.until(lambda: len([p for p in refused(world) if p in pods_of(world, "batch")]) <= KEPT_PODS)
        await reopen(world)
        await world.until(lambda: len(running(world, "others")) == 3, 400.0)
        assert hole not in {p.spec.node_name for p in running(world, "others")}
        pod = await one_running(world, "batch", 400.0)
        assert pod.spec.node_name != hole
        job = read(world, Job, "batch")
        assert (job.status.failed, is_condition_true(job.status.conditions, "Failed")) == (0, False)
        note(f"{hole} withheld after {len(evidence)} refusals in {took:.0f} s, each named; 4 pods run on the 3 others")

    tell(story)


async def black_hole(world: World) -> str:
    """A node that refused so many pods that it is withheld; it is the only one they could go to."""
    hole = sorted(world.rack_of)[0]
    await break_plugin(world, hole)
    await only(world, hole)
    await deploy(world)
    await world.until(lambda: world.devices(hole).withheld, 120.0)
    return hole


def test_row_11_a_withheld_node_stays_so_over_restarts_until_a_probe_passes() -> None:
    async def story(world: World) -> None:
        hole = await black_hole(world)
        order = world.devices(hole).withheld[RESOURCE_GPU]
        await world.restart_control_plane()
        await deploy(world, "burst", replicas=20)  # however many wait for room
        await world.sleep(FIRST_PROBE_S / 2)
        assert world.devices(hole).withheld == {RESOURCE_GPU: order}
        assert not running(world, "web") + running(world, "burst")
        await break_plugin(world, hole, undo=True, may_be_refused=True)
        await world.restart_control_plane()
        begun = world.now
        await world.until(lambda: not world.devices(hole).withheld, FIRST_PROBE_S, "the probe gives it back")
        probed = [a.outcome for a in world.devices(hole).observed.answers if a.id.startswith("withheld-")]
        assert probed == ["Succeeded"] * 8
        await world.cluster.api.delete(Deployment, "burst", NAMESPACE)
        assert (await one_running(world, "web", 400.0)).spec.node_name == hole
        assert not world.devices(hole).orders
        note(
            f"withheld over 2 restarts and 20 waiting pods; given back {world.now - begun:.0f} s on by 8 passed probes"
        )

    tell(story)


def test_row_11_an_operator_gives_a_withheld_node_back() -> None:
    async def story(world: World) -> None:
        hole = await black_hole(world)
        await break_plugin(world, hole, undo=True, may_be_refused=True)
        said = await release_device_resource_by_command(world.cluster.api, hole, RESOURCE_GPU)
        await world.sleep(5.0)
        assert not world.devices(hole).withheld, "old evidence was counted again"
        note(f"remuda release {hole} --resource {RESOURCE_GPU}: {said}")

    tell(story)


# --- nodes that do not answer -----------------------------------------------------------------------------------------


async def replaced(world: World, before: Pod, app: str, within: float) -> Pod:
    def others() -> list[Pod]:
        return [p for p in running(world, app) if p.uid != before.uid]

    await world.until(others, within, f"{app} runs elsewhere")
    return others()[0]


def test_row_20_a_pod_removed_by_force_keeps_its_devices_until_its_node_answers() -> None:
    async def story(world: World) -> None:
        await deploy(world, gpus=8)
        before = await one_running(world, "web")
        node = before.spec.node_name
        await world.drill(DrillKind.NODE_PARTITION, node=node, seconds=60.0)
        await world.sleep(20.0)
        await world.cluster.api.delete(Pod, before.name, NAMESPACE, grace_s=0)
        begun = world.now
        held = [d for h in world.devices(node).observed.holdings for d in h.devices]
        assert set(snapshot_devices_of_pod(before)) <= set(held)
        after = await replaced(world, before, "web", 60.0)
        assert after.spec.node_name != node
        await world.until(lambda: not world.devices(node).observed.holdings, 120.0, "the node lets go once it answers")
        note(
            f"Deployment, pod removed by force: 8 devices stay held for {world.now - begun:.0f} s, until {node} answers"
        )

    tell(story)


def test_row_21_a_job_that_waits_for_the_end_of_its_pods_gets_another() -> None:
    """Told to go after five minutes, and counted as ended a while after that."""

    async def story(world: World) -> None:
        await submit_job(world, podReplacementPolicy="Failed")
        before = await one_running(world, "batch")
        await world.lose_node(before.spec.node_name)
        begun = world.now
        await world.sleep(TOLERATED_S - 20)
        assert len(pods_of(world, "batch")) == 1
        after = await replaced(world, before, "batch", 180.0)
        assert after.spec.node_name != before.spec.node_name
        assert not is_condition_true(read(world, Job, "batch").status.conditions, "Failed")
        note(f"podReplacementPolicy Failed, node without power: running elsewhere after {world.now - begun:.0f} s")

    tell(story)


def test_row_21_a_pod_sets_its_own_time() -> None:
    async def story(world: World) -> None:
        mark = {ANNOTATION_REPLACE_UNREACHABLE: "20"}
        await submit_job(world, podReplacementPolicy="Failed", annotations=mark)
        before = await one_running(world, "batch")
        await world.lose_node(before.spec.node_name)
        begun = world.now
        await replaced(world, before, "batch", 60.0)
        lost = world.pod(before.name)
        told = condition(lost, DISRUPTION_TARGET)
        assert lost is not None
        assert lost.status.phase == "Failed"
        assert told is not None
        assert told.reason == NODE_UNREACHABLE
        note(f"{ANNOTATION_REPLACE_UNREACHABLE}: 20: running elsewhere after {world.now - begun:.0f} s")

    tell(story)


def test_row_22_a_short_silence_evicts_nobody() -> None:
    async def story(world: World) -> None:
        await submit_job(world, podReplacementPolicy="Failed")
        await deploy(world)
        batch, web = await one_running(world, "batch"), await one_running(world, "web")
        nodes = {batch.spec.node_name, web.spec.node_name}
        for node in nodes:
            await world.drill(DrillKind.NODE_PARTITION, node=node, seconds=40.0)
        await world.until(lambda: all(_is_unready(world, node) for node in nodes), 40.0, "the flake is seen")
        await world.sleep(200.0)
        assert not any(_is_unready(world, node) for node in nodes)
        for app, before in (("batch", batch), ("web", web)):
            assert [p.uid for p in pods_of(world, app) if is_active_pod(p)] == [before.uid]
        note("40 s not ready, tolerated 300 s: the same pods of a Job and a Deployment after 200 s")

    tell(story)


def _is_unready(world: World, node: str) -> bool:
    found = world._read(Node, node)
    assert found is not None
    return not is_condition_true(found.status.conditions, "Ready")
