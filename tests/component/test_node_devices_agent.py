"""The embedded node and the real agent, over the node's sockets: Remuda's plugin under Remuda's kubelet."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import time
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path

import pytest
import pytest_asyncio

from remuda.api.kubernetes.core_v1 import Pod
from remuda.api.names import RESOURCE_GPU
from remuda.embedded.node import process_tree
from remuda.embedded.node.container_environment import CONTAINER_ID
from remuda.embedded.node.devices.device_service import PLUGINS
from remuda.embedded.node.node import EmbeddedNode
from remuda.link.allocation_port import FAIL, HANG, KILL, MEND
from remuda.link.progress_board import ProgressBoard
from remuda.link.rank_logs import rank_log_path
from remuda.runtime.machines import ClusterMachines
from remuda.runtime.up_config import ClusterConfig
from tests.builders.nodes import Rig, until
from tests.builders.pods import pod_wire
from tests.builders.waiting import PATIENCE_S

SLEEP = ["sh", "-c", "echo $REMUDA_VISIBLE_DEVICES $CUDA_VISIBLE_DEVICES $REMUDA_ALLOC_DIR; exec sleep 600"]


class Place(Rig):
    """One process node with its agent, as `remuda up` makes them."""

    def __init__(self, root: Path) -> None:
        super().__init__(time.time, deadline_s=30.0, uid_prefix=os.urandom(4).hex())
        self.root = root
        self.machines = ClusterMachines(
            ClusterConfig(nodes=1, racks=1, runtime="process"),
            self.cluster,
            ProgressBoard(),
            root=root,
            clock=time.time,
            chance=random.Random(1),
        )

    @property
    def node(self) -> EmbeddedNode:
        return self.machines.nodes["node-01"]

    def log(self, pod: Pod) -> str:
        path = rank_log_path(self.root / "logs", pod, "main")
        return path.read_text() if path.exists() else ""

    def has_door(self, directory: str) -> bool:
        return Path(directory, "agent.sock").is_socket()

    async def counts(self, capacity: int, allocatable: int) -> None:
        want = (str(capacity), str(allocatable))
        await self.node_object(
            lambda n: (n.status.capacity.get(RESOURCE_GPU), n.status.allocatable.get(RESOURCE_GPU)) == want
        )

    def pids(self) -> list[int]:
        ids = {f"{path.parent.name}/{path.name}" for path in (self.root / "nodes").glob("*/pods/*/*")}
        return process_tree.processes_tagged(CONTAINER_ID, ids).pids


@pytest_asyncio.fixture
async def place(tmp_path: Path) -> AsyncIterator[Place]:
    made = Place(tmp_path)
    ready = asyncio.Event()
    running = asyncio.create_task(made.machines.run(ready))
    try:
        async with asyncio.timeout(PATIENCE_S):
            await ready.wait()
        yield made
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        await made.machines.let_go()
        for pid in made.pids():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


async def test_a_pod_gets_the_devices_that_were_chosen_for_it(place: Place) -> None:
    await place.counts(8, 8)
    await place.create(pod_wire("worker-0", SLEEP, devices=("gpu-5", "gpu-2")))
    pod = await place.running_pod()
    await until(lambda: place.log(pod).endswith("\n"))
    ids, numbers, directory = place.log(pod).split()
    assert (ids, numbers) == ("gpu-2,gpu-5", "2,5")
    assert place.has_door(directory)  # the machine's path, not the container's
    told = [d.resource_id for r in pod.status.container_statuses[0].allocated_resources_status for d in r.resources]
    assert sorted(told) == ["gpu-2", "gpu-5"]


async def test_row_6_the_plugin_comes_again_after_a_kubelet_restart_and_nobody_moves(place: Place) -> None:
    await place.create(pod_wire("worker-0", SLEEP, devices=("gpu-5", "gpu-2")))
    before = await place.running_pod()
    await until(lambda: place.log(before).endswith("\n"))
    await until(lambda: len(place.pids()) == 2)  # the shim, and the program, which has no environment while it execs
    pids = place.pids()
    await place.node.restart()
    await place.counts(0, 0)
    await place.counts(8, 8)
    after = await place.cluster.get(Pod, "worker-0", "default")
    assert place.pids() == pids
    assert (after.uid, after.status) == (before.uid, before.status)
    await place.create(pod_wire("worker-1", SLEEP, devices=("gpu-0",)))
    await place.running_pod("worker-1")
    assert len(place.machines.agents["node-01"].holders()) == 3


@pytest.mark.slow
async def test_faults_of_our_own_plugin_are_met_as_a_kubelet_meets_them(place: Place) -> None:
    agent = place.machines.agents["node-01"]
    agent.inject_plugin_fault(RESOURCE_GPU, FAIL)
    await place.create(pod_wire("failed", SLEEP, devices=("gpu-0",)))
    pod = await place.pod("failed", lambda p: p.status.phase == "Failed")
    assert pod.status.reason == "UnexpectedAdmissionError"
    assert "AllocateFailed" in pod.status.message
    agent.inject_plugin_fault(RESOURCE_GPU, HANG)
    await place.create(pod_wire("stuck", SLEEP, devices=("gpu-1",)))
    await place.create(pod_wire("other", SLEEP))
    await place.running_pod("other")  # row 17
    agent.inject_plugin_fault(RESOURCE_GPU, KILL)
    await place.counts(8, 0)
    agent.inject_plugin_fault(RESOURCE_GPU, MEND)
    await place.counts(8, 8)
    await place.create(pod_wire("fine", SLEEP, devices=("gpu-0",)))
    await place.running_pod("fine")


async def test_the_state_of_the_node_is_where_a_kubelet_keeps_it(place: Place) -> None:
    home = place.root / "nodes" / "node-01"
    assert (home / PLUGINS / "kubelet.sock").is_socket()
    assert (home / PLUGINS / "kubelet_internal_checkpoint").is_file()
    assert (home / "pod-resources" / "kubelet.sock").is_socket()
