"""`remuda explain pod` on a running cluster: six steps with their times, and the stuck one named, for each way to break."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from remuda.api.drills import DrillKind
from remuda.api.kubernetes.core_v1 import Pod
from tests.builders.waiting import until
from tests.e2e.clusters import Up
from tests.e2e.rig import Rig

NAMES = ["plugin up", "registered", "capacity published", "bound", "Allocate", "started"]
GPU = "nvidia.com/gpu"


class Scene:
    def __init__(self, cluster: Up, rig: Rig) -> None:
        self.rig = rig
        self._cluster = cluster

    async def create(self, name: str, resource: str = GPU, count: int = 1) -> None:
        container = {
            "name": "main",
            "image": "none",
            "command": ["sleep", "600"],
            "resources": {"limits": {resource: count}},
        }
        meta = {"name": name, "namespace": "default"}
        body: dict[str, Any] = {"metadata": meta, "spec": {"restartPolicy": "Never", "containers": [container]}}
        await self.rig.api.create(Pod, body)

    async def steps(self, name: str) -> tuple[int, list[dict[str, Any]]]:
        code, said = await self._cluster.run("explain", "pod", name, "-o", "json")
        return code, json.loads(said)["steps"]

    async def stuck(self, name: str, step: str, words: str) -> str:
        """The command says that the pod is stuck at the step, for that reason, and exits with 1. Returns the fix."""
        seen: list[dict[str, Any]] = []

        async def there() -> bool:
            code, seen[:] = await self.steps(name)
            return code == 1 and next(s["name"] for s in seen if s["state"] != "Done") == step

        await until(f"{name} to be stuck at {step}", there)
        at = [s["name"] for s in seen].index(step)
        assert [s["state"] for s in seen] == ["Done"] * at + ["Stuck"] + ["Later"] * (5 - at), seen
        assert words in seen[at]["message"]
        code, screen = await self._cluster.run("explain", "pod", name)
        assert code == 1
        assert f"Stuck at {step}." in screen
        return str(seen[at]["fix"])

    async def running(self, name: str) -> list[dict[str, Any]]:
        """All its steps, once it runs and the times of all are known."""
        seen: list[dict[str, Any]] = []

        async def there() -> bool:
            code, seen[:] = await self.steps(name)
            return code == 0 and all(s["state"] == "Done" and s["at"] for s in seen)

        await until(f"{name} to have come through", there)
        return seen


@pytest.fixture
async def scene(state: Path) -> AsyncIterator[Scene]:
    cluster = Up(state)
    cluster.start("--nodes=1", "--racks=1")
    try:
        async with cluster.rig() as rig:
            yield Scene(cluster, rig)
    finally:
        cluster.kill()


async def test_each_step_has_its_time_and_the_stuck_one_its_reason(scene: Scene) -> None:
    # A pod that runs: every step done, each at its time, in their order.
    await scene.create("fine")
    steps = await scene.running("fine")
    assert [s["name"] for s in steps] == NAMES
    up, registered, published, bound, given, started = (s["at"] for s in steps)
    assert up <= registered <= published
    assert bound[:19] <= given[:19] <= started[:19]  # Kubernetes' own times are whole seconds
    assert all(s["tookSeconds"] is not None for s in steps[1:])
    assert steps[2]["message"] == "8 of 8 nvidia.com/gpu"
    assert steps[4]["message"] == "gpu-0"

    # A resource nobody has.
    await scene.create("nothing", "nvidia.com/mig-3g.40gb")
    fix = await scene.stuck("nothing", "plugin up", "No plugin on node-01 serves nvidia.com/mig-3g.40gb.")
    assert GPU in fix

    # No room.
    await scene.create("large", count=8)
    await scene.stuck("large", "bound", "InsufficientDevices: Needs 1 pod of 8 GPUs")
    await scene.rig.api.delete(Pod, "large", "default")

    # Allocate fails: the kubelet rejects the pod for good, with the plugin's words.
    await scene.rig.drill(DrillKind.ALLOCATE_FAIL, node="node-01", resource=GPU)
    await scene.create("refused")
    fix = await scene.stuck("refused", "Allocate", "UnexpectedAdmissionError: ")
    assert "owner must make another one" in fix

    # The plugin dies: who has its devices is past that, who comes now is not.
    await scene.rig.drill(DrillKind.PLUGIN_KILL, node="node-01", resource=GPU)
    await scene.create("late")
    await scene.stuck("late", "registered", "The plugin for nvidia.com/gpu on node-01 is lost.")
    code, steps = await scene.steps("fine")
    assert (code, {s["state"] for s in steps}) == (0, {"Done"})
    assert "was done; since then" in steps[1]["message"]
