"""Failed devices under Deployments, Jobs and bare pods, in virtual time. Rows 34 and 35 are in tests/drills."""

from __future__ import annotations

import pytest

from remuda.api.conditions import is_condition_true
from remuda.api.drills import DrillKind
from remuda.api.kubernetes.batch_v1 import Job
from remuda.api.kubernetes.core_v1 import Pod
from remuda.api.kubernetes.policy_v1 import PodDisruptionBudget
from remuda.api.meta import JsonObject
from remuda.api.names import ANNOTATION_DEVICE_FAILED, LABEL_GANG, RESOURCE_GPU
from remuda.api.remedies import Mode, RemedyPolicy
from remuda.core.foreign.device_failures import DEVICE_FAILED, EVICT_FOR_S
from tests.builders.foreign import bare, condition, deploy, one_running, pods_of, read, running, submit_job, tell
from tests.builders.world import NAMESPACE, World

IGNORED: JsonObject = {"rules": [{"action": "Ignore", "onPodConditions": [{"type": DEVICE_FAILED}]}]}
FATAL: JsonObject = {"rules": [{"action": "FailJob", "onPodConditions": [{"type": DEVICE_FAILED}]}]}


def test_a_sidecars_device_counts_as_well() -> None:
    """Rows 49 and 50: its health is shown under the upstream names, and its failure is the pod's."""

    async def story(world: World) -> None:
        sidecar: JsonObject = {"name": "side", "image": "x:1", "restartPolicy": "Always"}
        sidecar["resources"] = {"limits": {RESOURCE_GPU: 1}}
        meta = {"name": "solo", "namespace": NAMESPACE, "labels": {"app": "solo"}}
        spec = {"initContainers": [sidecar], "containers": [{"name": "main", "image": "x:1"}]}
        await world.cluster.api.create(Pod, {"metadata": meta, "spec": spec})
        pod = await one_running(world, "solo")
        held = [h for h in world.devices(pod.spec.node_name).observed.holdings if h.pod == f"{NAMESPACE}/solo"]
        assert [h.container for h in held] == ["side"]

        def shown() -> list[tuple[str, str, str]]:
            found = world.pod("solo")
            statuses = found.status.init_container_statuses if found is not None else []
            return [
                (r.name, d.resource_id, d.health)
                for s in statuses
                for r in s.allocated_resources_status
                for d in r.resources
            ]

        assert shown() == [(RESOURCE_GPU, held[0].devices[0], "Healthy")]
        await world.fail_device_of("solo")
        await world.until(lambda: shown() == [(RESOURCE_GPU, held[0].devices[0], "Unhealthy")])
        await world.until(lambda: is_condition_true(pods_of(world, "solo")[0].status.conditions, DEVICE_FAILED))
        mark = {"metadata": {"annotations": {ANNOTATION_DEVICE_FAILED: "delete"}}}
        await world.cluster.api.patch(Pod, "solo", mark, NAMESPACE)
        await world.until(lambda: world.pod("solo") is None)

    tell(story)


def test_a_stock_job_can_ignore_a_failed_device() -> None:
    async def story(world: World) -> None:
        await submit_job(world, podFailurePolicy=IGNORED, backoffLimit=0)
        before = await one_running(world, "batch")
        await world.fail_device_of(before.name)
        await world.until(lambda: [p.uid for p in running(world, "batch")] not in ([], [before.uid]), 60.0)
        job = read(world, Job, "batch")
        assert (job.status.failed, is_condition_true(job.status.conditions, "Failed")) == (0, False)

    tell(story)


def test_a_stock_job_can_fail_by_a_failed_device() -> None:
    async def story(world: World) -> None:
        await submit_job(world, podFailurePolicy=FATAL)
        await world.fail_device_of((await one_running(world, "batch")).name)
        await world.until(lambda: is_condition_true(read(world, Job, "batch").status.conditions, "Failed"), 60.0)
        failed = next(c for c in read(world, Job, "batch").status.conditions if c.type == "Failed")
        assert failed.reason == "PodFailurePolicy"
        assert DEVICE_FAILED in failed.message

    tell(story)


@pytest.mark.parametrize("restart", ["Never", "OnFailure"])
def test_a_jobs_pod_is_replaced(restart: str) -> None:
    async def story(world: World) -> None:
        await submit_job(world, restart=restart)
        before = await one_running(world, "batch")
        await world.fail_device_of(before.name)
        await world.until(lambda: [p.uid for p in running(world, "batch")] not in ([], [before.uid]), 60.0)

    tell(story)


def policy(word: str) -> dict[str, str]:
    return {ANNOTATION_DEVICE_FAILED: word}


@pytest.mark.parametrize("writes", range(1, 9))
def test_a_gang_whose_controller_dies_halfway_still_goes_as_one(writes: int) -> None:
    async def story(world: World) -> None:
        gang = {**policy("gang"), LABEL_GANG: "ring"}
        await deploy(world, "ring", replicas=3, gpus=8, annotations=gang)
        await world.until(lambda: len(running(world, "ring")) == 3)
        before = {p.uid for p in running(world, "ring")}
        world.manager.after(writes)
        await world.fail_device_of(sorted(running(world, "ring"), key=lambda p: p.name)[0].name)
        assert await world.kill_control_plane()
        await world.until(lambda: not before & {p.uid for p in running(world, "ring")}, 120.0)

    tell(story)


def test_a_bare_pod_is_told_and_kept_unless_it_asks_to_go() -> None:
    async def story(world: World) -> None:
        await bare(world, "kept")
        await bare(world, "gone", annotations=policy("delete"))
        await one_running(world, "kept")
        await one_running(world, "gone")
        await world.fail_device_of("kept")
        await world.fail_device_of("gone")
        await world.until(lambda: world.pod("gone") is None, 90.0)
        told = condition(world.pod("kept"), DEVICE_FAILED)
        assert told is not None
        assert told.status == "True"

    tell(story)


def test_a_degraded_device_touches_nobody() -> None:
    async def story(world: World) -> None:
        await deploy(world)
        pod = await one_running(world, "web")
        await world.fail_device_of(pod.name, code="xid-63")
        await world.sleep(60.0)
        found = running(world, "web")
        assert [p.uid for p in found] == [pod.uid]
        assert condition(found[0], DEVICE_FAILED) is None

    tell(story)


def test_a_budget_is_honoured_until_the_deadline() -> None:
    async def story(world: World) -> None:
        meta: JsonObject = {"namespace": NAMESPACE, "name": "web"}
        spec: JsonObject = {"minAvailable": 1, "selector": {"matchLabels": {"app": "web"}}}
        await world.cluster.api.create(PodDisruptionBudget, {"metadata": meta, "spec": spec})
        await deploy(world)
        pod = await one_running(world, "web")
        await world.until(lambda: read(world, PodDisruptionBudget, "web").status.expected_pods == 1)
        await world.fail_device_of(pod.name)
        await world.sleep(EVICT_FOR_S - 20)
        assert [p.uid for p in running(world, "web")] == [pod.uid]
        await world.until(lambda: [p.uid for p in running(world, "web")] not in ([], [pod.uid]), 80.0)

    tell(story)


def test_a_policy_that_only_observes_sends_nobody_away() -> None:
    async def story(world: World) -> None:
        spec: JsonObject = {"metadata": {"name": "default"}, "spec": {"mode": Mode.OBSERVE.value}}
        await world.cluster.api.create(RemedyPolicy, spec)
        await deploy(world)
        pod = await one_running(world, "web")
        await world.fail_device_of(pod.name)
        await world.until(lambda: is_condition_true(pods_of(world, "web")[0].status.conditions, DEVICE_FAILED))
        await world.sleep(60.0)
        assert [p.uid for p in running(world, "web")] == [pod.uid]

    tell(story)


def test_while_the_breaker_is_open_nobody_is_sent_away() -> None:
    """So much fails at once that it is hardly the devices. What was told stays told, and is done when the breaker closes."""

    async def story(world: World) -> None:
        breaker: JsonObject = {"share": "1%", "atLeast": 1, "windowSeconds": 60, "cooldownSeconds": 120}
        await world.cluster.api.create(
            RemedyPolicy, {"metadata": {"name": "default"}, "spec": {"breaker": breaker, "mode": "Approve"}}
        )
        await deploy(world)
        pod = await one_running(world, "web")
        others = sorted(n for n in world.cluster.machines.nodes if n != pod.spec.node_name)[:2]
        for name in others:
            await world.drill(DrillKind.DEVICE_FAIL, node=name, device="gpu-7", code="xid-79")
        await world.until(lambda: read(world, RemedyPolicy, "default").status.breaker.open, 30.0)
        await world.fail_device_of(pod.name)
        await world.until(lambda: is_condition_true(pods_of(world, "web")[0].status.conditions, DEVICE_FAILED))
        await world.sleep(60.0)
        assert [p.uid for p in running(world, "web")] == [pod.uid]
        await world.until(lambda: [p.uid for p in running(world, "web")] not in ([], [pod.uid]), 120.0)
        assert not read(world, RemedyPolicy, "default").status.breaker.open

    tell(story)
