"""Labels as GPU feature discovery writes them, and nobody else's touched."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest

from remuda.agent.hardware.backend_port import NodeFacts
from remuda.agent.hardware.fake_backend import FakeBackend
from remuda.agent.node_labels import DISCOVERY_STAMP, WRITTEN, NodeLabelWriter, node_labels, plan_node_labels
from remuda.api.kubernetes.core_v1 import Node
from remuda.core.devices.machine_models import load_built_in_machine_model
from remuda.embedded.apiserver.local_cluster import LocalCluster
from remuda.embedded.apiserver.store import MemoryJournal, ObjectStore
from remuda.kube.runtime.informer import Informer
from tests.builders.waiting import PATIENCE_S
from tests.unit.agent.hardware.rig import Clock

FACTS = NodeFacts("570.124.06", "12.8", "9.0", "hopper", True, "DGX H100")


@pytest.fixture
def backend() -> FakeBackend:
    return FakeBackend(load_built_in_machine_model("dgx-h100"), "node-01", Clock())


def labels_of(backend: FakeBackend) -> dict[str, str]:
    return node_labels(backend.inventory(), backend.present(), FACTS)


def test_names_users_know(backend: FakeBackend) -> None:
    labels = labels_of(backend)
    wanted = {
        "nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3",
        "nvidia.com/gpu.count": "8",
        "nvidia.com/gpu.memory": "81559",
        "nvidia.com/gpu.family": "hopper",
        "nvidia.com/gpu.machine": "DGX-H100",
        "nvidia.com/gpu.compute.major": "9",
        "nvidia.com/mig.capable": "true",
        "nvidia.com/mig.strategy": "none",
        "nvidia.com/cuda.driver-version.full": "570.124.06",
        "nvidia.com/cuda.driver.rev": "06",
        "nvidia.com/cuda.runtime.minor": "8",
    }
    assert {name: labels.get(name) for name in wanted} == wanted


def test_what_is_not_known_is_not_said(backend: FakeBackend) -> None:
    labels = node_labels(backend.inventory(), backend.present(), NodeFacts())
    assert not [name for name in labels if "cuda" in name or "family" in name]
    assert node_labels([], frozenset(), FACTS) == {}


def test_a_device_that_is_gone_is_not_counted(backend: FakeBackend) -> None:
    backend.drop("gpu-3")
    assert labels_of(backend)["nvidia.com/gpu.count"] == "7"


def test_shared_devices_say_so(backend: FakeBackend) -> None:
    labels = node_labels(backend.inventory(), backend.present(), FACTS, replicas=4)
    assert labels["nvidia.com/gpu.product"] == "NVIDIA-H100-80GB-HBM3-SHARED"
    assert (labels["nvidia.com/gpu.count"], labels["nvidia.com/gpu.replicas"]) == ("8", "4")
    assert labels["nvidia.com/gpu.sharing-strategy"] == "time-slicing"
    assert labels_of(backend)["nvidia.com/gpu.sharing-strategy"] == "none"


async def test_slices(backend: FakeBackend) -> None:
    await backend.apply_slices("gpu-0", ["3g.40gb", "3g.40gb"])
    labels = labels_of(backend)
    assert labels["nvidia.com/mig.strategy"] == "mixed"
    assert labels["nvidia.com/mig-3g.40gb.count"] == "2"
    assert labels["nvidia.com/mig-3g.40gb.product"] == "NVIDIA-H100-80GB-HBM3-MIG-3g.40gb"
    for n in range(1, 8):
        await backend.apply_slices(f"gpu-{n}", ["3g.40gb", "3g.40gb"])
    assert labels_of(backend)["nvidia.com/mig.strategy"] == "single"


def test_amd() -> None:
    backend = FakeBackend(load_built_in_machine_model("mi300x-8x"), "node-01", Clock())
    labels = node_labels(backend.inventory(), backend.present(), NodeFacts(family="gfx942"))
    assert labels["amd.com/gpu.product-name"] == backend.inventory()[0].type
    assert labels["amd.com/gpu.family"] == "GFX942"
    assert not [name for name in labels if name.startswith("nvidia.com/")]


def apply(labels: dict[str, str], annotations: dict[str, str], patch: dict[str, Any] | None) -> None:
    assert patch is not None
    for target, changes in ((labels, patch["metadata"]["labels"]), (annotations, patch["metadata"]["annotations"])):
        for name, value in changes.items():
            if value is None:
                target.pop(name, None)
            else:
                target[name] = value


def test_ours_are_renewed_and_removed_and_others_left_alone() -> None:
    labels, annotations = {"zone": "a", "nvidia.com/gpu.family": "set-by-hand"}, dict[str, str]()
    wanted = {"nvidia.com/gpu.count": "8", "nvidia.com/gpu.family": "hopper", "nvidia.com/mig-x.count": "1"}
    apply(labels, annotations, plan_node_labels(labels, annotations, wanted))
    assert labels == {
        "zone": "a",
        "nvidia.com/gpu.family": "set-by-hand",
        "nvidia.com/gpu.count": "8",
        "nvidia.com/mig-x.count": "1",
    }
    assert annotations[WRITTEN] == "nvidia.com/gpu.count,nvidia.com/mig-x.count"
    assert plan_node_labels(labels, annotations, wanted) is None
    wanted = {"nvidia.com/gpu.count": "7", "nvidia.com/gpu.family": "hopper"}
    apply(labels, annotations, plan_node_labels(labels, annotations, wanted))
    assert labels == {"zone": "a", "nvidia.com/gpu.family": "set-by-hand", "nvidia.com/gpu.count": "7"}
    apply(labels, annotations, plan_node_labels(labels, annotations, {}))
    assert labels == {"zone": "a", "nvidia.com/gpu.family": "set-by-hand"}
    assert annotations == {}


def test_beside_feature_discovery_nothing_is_written() -> None:
    assert plan_node_labels({DISCOVERY_STAMP: "1"}, {}, {"nvidia.com/gpu.count": "8"}) is None


async def test_they_are_written_when_the_node_is_there_and_follow_it(backend: FakeBackend) -> None:
    cluster = LocalCluster(ObjectStore(MemoryJournal()), clock=time.time, new_uid=lambda: "uid-1")
    nodes, seen = Informer(cluster, Node), asyncio.Queue[dict[str, str]]()
    nodes.subscribe(lambda old, new: seen.put_nowait(new.labels if new is not None else {}))
    watching = asyncio.create_task(nodes.run())
    writer = NodeLabelWriter(cluster, "node-01", backend)
    backend.subscribe_inventory(writer.mark)
    try:
        async with asyncio.timeout(PATIENCE_S):
            await nodes.synced()
            writer.mark()  # before there is a node
            await cluster.create(Node, {"metadata": {"name": "node-01", "labels": {"zone": "a"}}})
            while (await seen.get()).get("nvidia.com/gpu.count") != "8":
                pass
            backend.drop("gpu-2")
            labels = await seen.get()
    finally:
        await writer.close()
        watching.cancel()
        await asyncio.wait([watching])
    assert (labels["nvidia.com/gpu.count"], labels["zone"]) == ("7", "a")
