"""The pods of the GPU guides, applied as written with kubectl: one GPU, two MIG slices, a resource nobody has."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.builders.waiting import until
from tests.e2e.clusters import Up
from tests.e2e.kubectl import Kubectl

EXAMPLES = Path(__file__).parents[2] / "examples"
HALVES = ["gpu-0-3g.40gb-0", "gpu-0-3g.40gb-4"]


class Guide:
    def __init__(self, cluster: Up, kubectl: Kubectl) -> None:
        self.remuda = cluster.run
        self.kubectl = kubectl

    async def apply(self, example: str) -> None:
        await self.kubectl.run("apply", "-f", str(EXAMPLES / example))

    async def pod(self, name: str) -> Any:
        return await self.kubectl.get("pod", name)

    async def reason(self, name: str, *reasons: str) -> None:
        """The pod's status gives one of these reasons, or is in one of these phases."""

        async def says() -> bool:
            status = (await self.pod(name))["status"]
            return bool({status.get("reason"), status["phase"]} & set(reasons))

        await until(f"{name} to be {reasons}", says)

    async def offers(self, expected: dict[str, str]) -> None:
        """Every node names exactly these device resources, with its next status."""

        async def named() -> bool:
            found = [n["status"]["allocatable"] for n in (await self.kubectl.get("nodes"))["items"]]
            return all({r: n for r, n in node.items() if "/" in r} == expected for node in found)

        await until(f"nodes with {expected}", named)

    async def events(self, name: str, reason: str) -> list[str]:
        """Messages of the events of that reason, once there is one."""
        found: list[str] = []

        async def told() -> bool:
            chosen = f"--field-selector=involvedObject.name={name},reason={reason}"
            found[:] = [str(e["message"]) for e in (await self.kubectl.get("events", chosen))["items"]]
            return bool(found)

        await until(f"the event {reason} of {name}", told)
        return found

    async def log(self, name: str) -> str:
        return await self.kubectl.run("logs", name)


@pytest.fixture
async def guide(state: Path, tmp_path: Path) -> AsyncIterator[Guide]:
    cluster = Up(state)
    cluster.start("--mig=gpu-0=3g.40gb,3g.40gb")
    try:
        yield Guide(cluster, Kubectl(state / "kubeconfig", tmp_path / "home"))
    finally:
        cluster.kill()


async def test_the_guides_pods_work_as_written(guide: Guide) -> None:
    await guide.offers({"nvidia.com/gpu": "7", "nvidia.com/mig-3g.40gb": "2"})

    await guide.apply("03-vector-add/pod.yaml")
    await guide.apply("04-mig/pod.yaml")
    await guide.apply("04-mig/unknown-profile.yaml")

    # Vector add: one whole GPU, never the one that is cut; simulated, says so, and ends.
    await guide.reason("cuda-vector-add", "NoLocalCommand", "Succeeded")
    (told,) = await guide.events("cuda-vector-add", "NoLocalCommand")
    assert "the pod is simulated" in told
    chosen = (await guide.pod("cuda-vector-add"))["metadata"]["annotations"]["remuda.dev/devices"]
    assert chosen in {f"gpu-{n}" for n in range(1, 8)}
    assert f"It would see devices: {chosen}\n" in await guide.log("cuda-vector-add")
    await guide.reason("cuda-vector-add", "Succeeded")

    # Both halves of gpu-0 for one container.
    await guide.reason("mig-example", "Running")
    mig = await guide.pod("mig-example")
    assert mig["metadata"]["annotations"]["remuda.dev/devices"].split(",") == HALVES
    code, said = await guide.remuda("devices", "-o", "wide")
    held = [line.split()[1] for line in said.splitlines() if "default/mig-example" in line]
    assert (code, held) == (0, HALVES)

    # Nobody has the third: never bound, and the reason and the fix are where users look.
    (why,) = await guide.events("mig-unknown", "FailedScheduling")
    assert why.startswith(
        "NoSuchResource: No node has nvidia.com/mig-3g.30gb. Ask for one that a node has: nvidia.com/gpu"
    )
    unbound = await guide.pod("mig-unknown")
    assert "nodeName" not in unbound["spec"]
    (condition,) = [c for c in unbound["status"]["conditions"] if c["type"] == "PodScheduled"]
    assert (condition["status"], condition["reason"]) == ("False", "NoSuchResource")
    assert f"NoSuchResource: {condition['message']}" == why
    code, said = await guide.remuda("explain", "pod", "mig-unknown")
    assert code == 1
    assert "No plugin on any of the 4 nodes serves nvidia.com/mig-3g.30gb." in " ".join(said.split())
    assert "Stuck at plugin up." in said

    # A third half is not there: it waits, and is bound the moment the halves are free.
    second = _sleeper("second", {"nvidia.com/mig-3g.40gb": 2})
    second["spec"]["nodeSelector"] = {"kubernetes.io/hostname": mig["spec"]["nodeName"]}
    await guide.kubectl.apply(second)
    (full,) = await guide.events("second", "FailedScheduling")
    assert "Needs 1 pod of 2 nvidia.com/mig-3g.40gb; the cluster has room for 0" in full
    await guide.kubectl.run("delete", "pod", "mig-example", "--grace-period=1")
    await guide.reason("second", "Running")


async def test_the_jobs_of_the_examples_train_as_written(state: Path, tmp_path: Path) -> None:
    """By kubectl; test_cli.py sends them by `remuda train -f`."""
    cluster = Up(state)
    cluster.start("--nodes=8", "--racks=1")
    try:
        guide = Guide(cluster, Kubectl(state / "kubeconfig", tmp_path / "home"))
        names = []
        for path in sorted(EXAMPLES.glob("*/job.yaml")):
            names.append(yaml.safe_load(path.read_text())["metadata"]["name"])
            said = await guide.kubectl.run("apply", "-f", str(path))
            assert f"trainingjob.remuda.dev/{names[-1]} created" in said
        assert names == ["hello", "progress-file", "policies", "torch"]
        for name in names:

            async def has_saved(name: str = name) -> bool:
                status = (await guide.kubectl.get("trainingjob", name)).get("status", {})
                return bool(status.get("progress", {}).get("checkpointStep", 0) >= 10)

            await until(f"{name} to save a checkpoint", has_saved)
    finally:
        cluster.kill()


async def test_a_gpu_offered_twice_takes_two_pods(state: Path, tmp_path: Path) -> None:
    cluster = Up(state)
    cluster.start("--nodes=1", "--racks=1", "--replicas=nvidia.com/gpu=2")
    try:
        guide = Guide(cluster, Kubectl(state / "kubeconfig", tmp_path / "home"))
        await guide.offers({"nvidia.com/gpu": "16"})
        pods = [_sleeper(f"p{n}", {"nvidia.com/gpu": 1}) for n in range(17)]
        await guide.kubectl.apply({"apiVersion": "v1", "kind": "List", "items": pods})

        async def phases() -> bool:
            found = [p["status"]["phase"] for p in (await guide.kubectl.get("pods"))["items"]]
            return found.count("Running") == 16

        await until("sixteen pods on eight devices", phases)
        (waiting,) = (await guide.kubectl.get("pods", "--field-selector=status.phase=Pending"))["items"]
        (full,) = await guide.events(waiting["metadata"]["name"], "FailedScheduling")
        assert "room for 0" in full
        seen = [p["metadata"]["name"] for p in (await guide.kubectl.get("pods"))["items"] if p["spec"].get("nodeName")]
        said = [await guide.log(name) for name in seen]
        assert sorted(said) == sorted(f"{n}\n" for n in range(8) for _ in range(2))  # each device twice
    finally:
        cluster.kill()


def _sleeper(name: str, limits: dict[str, int]) -> dict[str, Any]:
    command = ["sh", "-c", "echo $CUDA_VISIBLE_DEVICES; exec sleep 600"]
    container = {"name": "main", "image": "none", "command": command, "resources": {"limits": limits}}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": {"containers": [container]}}
