"""Devices held and not used: told, taken away, left alone. On a whole embedded cluster in virtual time."""

from __future__ import annotations

from typing import Any

import pytest

from remuda.api.drills import DrillKind
from remuda.api.kubernetes.core_v1 import Pod
from remuda.api.meta import JsonObject
from remuda.api.remedies import RemedyPolicy
from remuda.core.remedies.idle_devices import DEVICE_IDLE, GRACE_S
from remuda.core.state.snapshot import snapshot_devices_of_pod
from tests.builders.foreign import bare, condition, deploy, one_running, running, tell
from tests.builders.world import World

pytestmark = pytest.mark.slow  # `make test` runs it; `make check` has its two minutes

AFTER_S = 400.0


async def rule(world: World, action: str = "Warn", **more: Any) -> None:
    spec: JsonObject = {"idle": {"afterSeconds": AFTER_S, "action": action, "gpuHourPrice": 2.0, **more}}
    await world.cluster.api.create(RemedyPolicy, {"metadata": {"name": "default"}, "spec": spec})


async def rest(world: World, pod: Pod, count: int | None = None, seconds: float = 0.0) -> None:
    for device in snapshot_devices_of_pod(pod)[:count]:
        await world.drill(DrillKind.DEVICE_IDLE, node=pod.spec.node_name, device=device, seconds=seconds)


def test_an_idle_pod_is_told_and_told_again_when_it_works() -> None:
    async def story(world: World) -> None:
        await rule(world)
        await bare(world, gpus=2)
        await rest(world, await one_running(world, "solo"), seconds=1000.0)
        await world.sleep(AFTER_S - 30)
        assert condition(world.pod("solo"), DEVICE_IDLE) is None
        await world.until(lambda: condition(world.pod("solo"), DEVICE_IDLE), 90.0)
        told = condition(world.pod("solo"), DEVICE_IDLE)
        assert told is not None
        assert "GPU-hours" in told.message
        assert "(0% busy)" in told.message
        await world.until(lambda: (c := condition(world.pod("solo"), DEVICE_IDLE)) and c.status == "False", 600.0)
        await world.sleep(2 * GRACE_S)
        assert world.pod("solo") is not None

    tell(story, nodes=2)


def test_with_reclaim_it_goes_after_the_warning() -> None:
    async def story(world: World) -> None:
        await rule(world, "Reclaim")
        await bare(world)
        await rest(world, await one_running(world, "solo"))
        await world.until(lambda: condition(world.pod("solo"), DEVICE_IDLE), AFTER_S + 60.0)
        await world.sleep(GRACE_S - 20)
        assert world.pod("solo") is not None
        await world.until(lambda: world.pod("solo") is None, 60.0)

    tell(story, nodes=2)


def test_who_uses_one_device_or_is_exempt_is_left_alone() -> None:
    async def story(world: World) -> None:
        await rule(world, "Reclaim", exemptNamespaces=["default"])
        await bare(world)
        await rest(world, await one_running(world, "solo"))
        await world.sleep(AFTER_S + GRACE_S + 300)
        assert condition(world.pod("solo"), DEVICE_IDLE) is None
        await world.cluster.api.patch(RemedyPolicy, "default", {"spec": {"idle": {"exemptNamespaces": None}}})
        await deploy(world, gpus=2)
        partly = await one_running(world, "web")
        await rest(world, partly, 1)
        await world.until(lambda: world.pod("solo") is None, 2 * GRACE_S)
        await world.sleep(AFTER_S + GRACE_S)
        assert [p.uid for p in running(world, "web")] == [partly.uid]

    tell(story, nodes=2)


def test_without_a_policy_nothing_is_said() -> None:
    async def story(world: World) -> None:
        await bare(world)
        await rest(world, await one_running(world, "solo"))
        await world.sleep(1500.0)
        assert condition(world.pod("solo"), DEVICE_IDLE) is None

    tell(story, nodes=2)


def test_an_idle_training_job_is_suspended_and_its_spare_is_no_reason() -> None:
    async def story(world: World) -> None:
        await rule(world, "Reclaim")
        await world.submit(replicas=2, gpus=1, spares=1)
        await world.running()
        await world.parked()
        spare = world.pod(world.parked_spares()[0])
        assert spare is not None
        await rest(world, spare)
        await world.sleep(AFTER_S + GRACE_S + 300)
        assert not world.job().spec.suspend
        member = world.pod(world.member("job", 0).pod)
        assert member is not None
        await rest(world, member)
        await world.until(lambda: world.job().spec.suspend, AFTER_S + GRACE_S + 60)

    tell(story, nodes=2)
