"""Allocate over the node's real socket: from the embedded device manager to the agent's plugin and back.

One process node with its agent, as `remuda up` makes them: the plugin has registered over gRPC, and the device manager is
connected to the plugin's Unix socket. Both ends run in this process and on one event loop, so a round trip has the Python of both
in it. Every Allocate is a first one: a new directory, its marker file and a listening socket for the launcher.

The bound, in turns with it on the same connection: GetDevicePluginOptions, a call that carries next to nothing either way. The
whole admission of a pod (GetPreferredAllocation, Allocate, the checkpoint file written) is shown beside it.
"""

from __future__ import annotations

import asyncio
import gc
import random
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec

from bench.marks import Broken
from bench.onerun import answer, quiet
from remuda.agent.agent import Agent
from remuda.api.codec import from_wire
from remuda.api.kubernetes.core_v1 import Namespace, Pod
from remuda.api.meta import ObjectMeta
from remuda.api.names import RESOURCE_GPU
from remuda.embedded.apiserver.local_cluster import LocalCluster
from remuda.embedded.apiserver.store import MemoryJournal, ObjectStore
from remuda.embedded.node.devices.device_manager import KubeletDeviceManager
from remuda.embedded.node.devices.plugin_endpoint import PluginClient
from remuda.link.progress_board import ProgressBoard
from remuda.runtime.machines import ClusterMachines
from remuda.runtime.up_config import ClusterConfig

WARM = 50  # rounds before the first that counts


class AllocateAsk(msgspec.Struct, frozen=True):
    calls: int


class AllocateRun(msgspec.Struct, frozen=True):
    """Seconds, one entry a round."""

    empty: list[float]
    allocate: list[float]
    admit: list[float]


async def run_allocate(root: Path, ask: AllocateAsk) -> AllocateRun:
    async with a_node(root) as (agent, manager):
        endpoint = manager.ledger.endpoint(RESOURCE_GPU)
        port = manager.plugins.port(RESOURCE_GPU, endpoint.key) if endpoint is not None else None
        if not isinstance(port, PluginClient):
            raise Broken("the plugin is not connected over its socket")
        run = AllocateRun([], [], [])
        gc.collect()
        for number in range(WARM + ask.calls):
            device, other = f"gpu-{number % 8}", _a_pod(number)
            moments = [time.perf_counter()]
            await port.options()
            moments.append(time.perf_counter())
            given = await port.allocate((device,))
            moments.append(time.perf_counter())
            if given.envs.get("REMUDA_VISIBLE_DEVICES") != device:
                raise Broken(f"asked for {device}, the answer is {given.envs}")
            agent.grants.drop(device)
            began = time.perf_counter()
            await manager.admit(other)
            admitted = time.perf_counter() - began
            for grant in manager.grants(other.uid):
                agent.grants.drop("_".join(grant.devices))
            if number >= WARM:
                run.empty.append(moments[1] - moments[0])
                run.allocate.append(moments[2] - moments[1])
                run.admit.append(admitted)
        return run


@asynccontextmanager
async def a_node(root: Path) -> AsyncIterator[tuple[Agent, KubeletDeviceManager]]:
    cluster = LocalCluster(ObjectStore(MemoryJournal()), clock=time.time, new_uid=lambda: "uid")
    for name in ("default", "kube-node-lease"):
        await cluster.create(Namespace, Namespace(metadata=ObjectMeta(name=name)))
    config = ClusterConfig(nodes=1, racks=1, runtime="process", lease_seconds=60.0)
    machines = ClusterMachines(config, cluster, ProgressBoard(), root=root, clock=time.time, chance=random.Random(0))
    ready = asyncio.Event()
    running = asyncio.create_task(machines.run(ready))
    try:
        async with asyncio.timeout(300):
            await ready.wait()
        (name,) = machines.nodes
        devices = machines.nodes[name].devices
        assert devices is not None
        yield machines.agents[name], devices.manager
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        await machines.halt(1.0)


def _a_pod(number: int) -> Pod:
    return from_wire(
        Pod,
        {
            "metadata": {"name": f"pod-{number}", "namespace": "default", "uid": f"uid-{number}"},
            "spec": {"containers": [{"name": "main", "resources": {"limits": {RESOURCE_GPU: "1"}}}]},
        },
    )


if __name__ == "__main__":
    quiet()
    sys.exit(answer(AllocateAsk, run_allocate))
