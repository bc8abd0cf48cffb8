"""Somebody else's device plugin misbehaves on a node of a running cluster: it is refused by name, and pods go on starting.

`remuda up` runs as a process of its own; the plugin is here and talks gRPC to the node's kubelet.sock as a vendor's would.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable
from pathlib import Path
from typing import Any

import grpc.aio
import pytest

from remuda.api.kubernetes.core_v1 import Node, Pod
from tests.builders.stock_plugin import StockPlugin, healthy
from tests.builders.waiting import until
from tests.e2e.clusters import Up
from tests.e2e.rig import Rig

NODE, OTHER = "node-01", "vendor.example/card"


class Machine:
    """One node, its kubelet's directory, and what the cluster says in its log."""

    def __init__(self, rig: Rig) -> None:
        self.rig = rig
        self.directory = rig.state / "nodes" / NODE / "device-plugins"
        self._pods = 0

    def plugin(self, *names: str, socket: str = "vendor.sock") -> StockPlugin:
        return StockPlugin(self.directory, OTHER, healthy(*names), socket=socket)

    async def pod_starts(self) -> None:
        """A pod with one of our own GPUs runs."""
        self._pods += 1
        name = f"p{self._pods}"
        asks = {"limits": {"nvidia.com/gpu": 1}}
        container = {"name": "main", "image": "none", "command": ["sleep", "600"], "resources": asks}
        wire: dict[str, Any] = {"metadata": {"name": name, "namespace": "default"}, "spec": {"containers": [container]}}
        await self.rig.api.create(Pod, wire)

        async def runs() -> bool:
            return (await self.rig.api.get(Pod, name, "default")).status.phase == "Running"

        await until(f"{name} to run", runs)

    async def capacity(self) -> int | str | None:
        return (await self.rig.api.get(Node, NODE)).status.capacity.get(OTHER)

    async def logged(self, *words: str) -> None:
        log = self.rig.state / "up.log"

        async def there() -> bool:
            return any(all(w in line for w in words) for line in log.read_text().splitlines())

        await until(f"the log to say {words}", there)


@pytest.fixture
async def machine(state: Path) -> AsyncIterator[Machine]:
    cluster = Up(state)
    cluster.start("--nodes=1", "--racks=1")
    try:
        async with cluster.rig() as rig:
            yield Machine(rig)
    finally:
        cluster.kill()


async def refused(call: Awaitable[None]) -> str:
    with pytest.raises(grpc.aio.AioRpcError) as error:
        await call
    return str(error.value.details())


async def test_a_bad_plugin_is_refused_by_name_and_our_own_serves_on(machine: Machine) -> None:
    plugin = await machine.plugin("card-0").serve()
    try:
        # Words that are wrong: refused at the door.
        assert 'API version "v1alpha1" is not supported' in await refused(plugin.register(version="v1alpha1"))
        assert 'the ResourceName "card" is invalid' in await refused(plugin.register(resource="card"))
        assert "is invalid" in await refused(plugin.register(resource="kubernetes.io/card"))
        assert "not a socket name" in await refused(plugin.register(socket="../kubelet.sock"))
        await machine.pod_starts()
        assert await machine.capacity() is None

        # Bytes that are no message: that plugin's list ends, and it is named.
        plugin.send(b"\xff" * 64)
        await plugin.register()
        await machine.logged("devices.complaint", OTHER, "ListAndWatchFailed")
        await machine.pod_starts()
    finally:
        await plugin.stop()


@pytest.mark.parametrize(
    ("names", "reason"),
    [
        (["card-0", "card-0", "card-1"], "DuplicateDevices"),
        ([f"card-{n}" for n in range(10_000)], "TooManyDevices"),
        ([f"card-{n:050}" for n in range(80_000)], "ListAndWatchFailed"),  # longer than a message may be
    ],
    ids=["duplicates", "ten thousand", "over 4 MiB"],
)
async def test_a_list_nobody_can_mean_is_refused_by_name(machine: Machine, names: list[str], reason: str) -> None:
    plugin = await machine.plugin(*names).serve()
    try:
        await plugin.register()
        await machine.logged("devices.complaint", OTHER, reason)
        await machine.pod_starts()
        assert await machine.capacity() in (None, "0", 0)
    finally:
        await plugin.stop()


@pytest.mark.parametrize("method", ["GetDevicePluginOptions", "ListAndWatch"])
async def test_a_plugin_that_never_answers_holds_up_nobody(machine: Machine, method: str) -> None:
    plugin = await machine.plugin("card-0").serve()
    plugin.hang.add(method)
    try:
        if method == "ListAndWatch":
            await plugin.register()  # taken, with nothing to give
            await machine.pod_starts()
            assert await machine.capacity() in (None, "0", 0)
        else:
            waiting = asyncio.create_task(refused(plugin.register()))
            await machine.pod_starts()
            assert "failed to get device plugin options" in await waiting
    finally:
        await plugin.stop()
