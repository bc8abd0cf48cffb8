"""Checklist rows 14-16 over real sockets: our agent's plugin registers with the node's registry, again and again."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager
from pathlib import Path
from typing import cast

import grpc.aio
import pytest

from remuda.agent.agent import Agent
from remuda.agent.config import AgentConfig
from remuda.agent.hardware.fake_backend import FakeBackend
from remuda.agent.plugin.plugin_server import LOST, REGISTERED, STARTING, PluginServer
from remuda.agent.plugin.resource_plugin import ResourcePlugin
from remuda.api.devices import NodeDevices, PluginReport
from remuda.api.kubernetes.core_v1 import Node
from remuda.api.names import RESOURCE_GPU as GPU
from remuda.api.training import TrainingJob
from remuda.core.devices.machine_models import load_built_in_machine_model
from remuda.embedded.node.devices.device_service import PLUGINS, KubeletDeviceSettings
from remuda.embedded.node.devices.plugin_connections import PluginDeadlines
from remuda.kube.runtime.informer import Informer
from remuda.link.progress_board import ProgressBoard
from remuda.sim.virtual_time_loop import VirtualLoop, run_virtual
from tests.builders.evidence import note
from tests.builders.nodes import Rig, until
from tests.builders.pods import pod_wire
from tests.builders.runtimes import simulated
from tests.builders.stock_plugin import StockPlugin

NODE = "node-01"


class Place(Rig):
    """A node with sockets and no plugin; agents come and go."""

    def __init__(self, root: Path) -> None:
        super().__init__(time.time)
        self.home = root
        self.jobs = Informer(self.cluster, TrainingJob)
        self._tokens = itertools.count(1)
        self._agents: list[Agent] = []
        self.history: list[str] = []  # allocatable, as it was published over time
        self.add_node(
            simulated(time.time),
            devices=KubeletDeviceSettings(str(root), deadlines=PluginDeadlines(dial_s=5.0)),
        )

    @asynccontextmanager
    async def up(self) -> AsyncIterator[Place]:
        async with self.running():
            watching = [asyncio.create_task(self._watch()), asyncio.create_task(self.jobs.run())]
            await self.jobs.synced()
            try:
                yield self
            finally:
                for agent in self._agents:
                    await agent.stop()
                for task in watching:
                    task.cancel()
                await asyncio.gather(*watching, return_exceptions=True)

    async def _watch(self) -> None:
        async with aclosing(self.cluster.watch(Node, "0")) as stream:
            async for event in stream:
                if event.obj is not None:
                    self.history.append(str(event.obj.status.allocatable.get(GPU, "")))

    async def an_agent(self) -> Agent:
        agent = Agent(
            AgentConfig(NODE, str(self.home / "alloc"), str(self.home / "checkpoints"), plugin_dir=self.plugins),
            cluster=self.cluster,
            backend=FakeBackend(load_built_in_machine_model("dgx-h100"), NODE, time.time),
            jobs=self.jobs,
            board=ProgressBoard(),
            clock=time.time,
            token=lambda: f"t{next(self._tokens)}",
        )
        self._agents.append(agent)
        await agent.start()
        return agent

    @property
    def plugins(self) -> str:
        return str(self.home / PLUGINS)

    def has(self, socket: str) -> bool:
        return Path(self.plugins, socket).exists()

    def remove(self, socket: str) -> None:
        Path(self.plugins, socket).unlink(missing_ok=True)

    def instances(self) -> list[str]:
        assert self.node.devices is not None
        return [e.key for e in self.node.devices.manager.ledger.instances(GPU)]

    async def allocatable(self, number: int) -> None:
        await self.node_object(lambda n: n.status.allocatable.get(GPU) == str(number))

    async def report(self, state: str, words: str = "") -> PluginReport:
        def said(found: NodeDevices) -> bool:
            return any(p.state == state and words in p.message for p in found.observed.plugins)

        found = await self.seen(NodeDevices, NODE, said)
        return found.observed.plugins[0]


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


def is_listened_to(agent: Agent) -> bool:
    """The kubelet has opened its list, and not merely taken its registration."""
    return agent.plugin_set is not None and bool(agent.plugin_set.plugins[GPU].streams)


async def test_row_14_two_instances_overlap_without_a_dip_and_either_may_be_killed(place: Place) -> None:
    async with place.up():
        old = await place.an_agent()
        await place.allocatable(8)
        begun = len(place.history)
        new = await place.an_agent()  # the upgrade: both serve
        await until(lambda: len(place.instances()) == 2)
        await old.stop()
        await until(lambda: len(place.instances()) == 1)
        await place.create(pod_wire("a", limits={GPU: 2}))
        await place.running_pod("a")
        assert len(new.grants.table.grants) == 1  # it was the new one that was asked
        newest = await place.an_agent()
        await until(lambda: len(place.instances()) == 2 and is_listened_to(newest))
        await newest.stop()  # and back again: the upgrade was bad
        await until(lambda: len(place.instances()) == 1)
        await place.create(pod_wire("b", limits={GPU: 2}))
        await place.running_pod("b")
        assert len(new.grants.table.grants) == 2
        assert set(place.history[begun:]) <= {"8"}, place.history
        note(
            "two instances over two upgrades, either stopped: allocatable 8 throughout, pods start at the one that is left"
        )


async def test_row_15_a_bad_registration_fails_with_a_specific_error(place: Place) -> None:
    async with place.up():
        plugin = StockPlugin(Path(place.plugins), GPU, [("a", "Healthy")])
        await plugin.serve()
        try:
            for words, wrong in (
                ('requested API version "v1alpha" is not supported by kubelet', {"version": "v1alpha"}),
                ('the ResourceName "cpu" is invalid', {"resource": "cpu"}),
                ('the ResourceName "kubernetes.io/gpu" is invalid', {"resource": "kubernetes.io/gpu"}),
                ("failed to dial device plugin", {"socket": "nobody.sock"}),
            ):
                with pytest.raises(grpc.aio.AioRpcError) as refused:
                    await plugin.register(**wrong)
                assert words in (refused.value.details() or "")
            await plugin.register()
            await place.allocatable(1)
            note("version v1alpha, resource cpu, resource kubernetes.io/gpu and a dead socket each refused by name")
        finally:
            await plugin.stop()


def test_row_15_our_plugin_tries_again_with_back_off(tmp_path: Path) -> None:
    """In virtual time: the registry's directory is empty, so nothing but the waiting happens."""
    loop = VirtualLoop()
    looks: list[float] = []

    class Counting:
        resource = GPU

        @property
        def fault(self) -> str:
            looks.append(loop.time())
            return ""

    async def main() -> None:
        said: list[tuple[str, str]] = []
        plugin = cast("ResourcePlugin", Counting())
        server = PluginServer(plugin, str(tmp_path), report=lambda *s: said.append(s), token=lambda: "t")
        task = asyncio.create_task(server.run())
        await asyncio.sleep(200.0)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        assert [(state, words.partition(":")[0]) for state, words in said] == [(STARTING, "KubeletNotFound")]

    run_virtual(main(), loop)
    gaps = [round(b - a, 3) for a, b in itertools.pairwise(looks)]
    assert gaps[:8] == [0.25, 0.5, 1, 2, 4, 8, 16, 30]
    assert set(gaps[8:]) == {30.0}
    note("no kubelet: tried again after 0.25, 0.5, 1, 2, 4, 8, 16 s, then every 30 s")


async def test_row_15_a_plugin_that_came_before_its_kubelet_is_taken_once_that_is_there(place: Place) -> None:
    async with place.up():
        assert place.node.devices is not None
        await place.node.devices.stop()
        place.remove("kubelet.sock")
        await place.an_agent()
        await place.report(STARTING, "KubeletNotFound")
        await place.node.restart()
        await place.report(REGISTERED)
        await place.allocatable(8)
        note("agent first (KubeletNotFound), then the kubelet: registered, 8 allocatable")


async def test_row_16_our_plugin_registers_again_when_the_kubelets_socket_is_made_anew(place: Place) -> None:
    async with place.up():
        await place.an_agent()
        await place.allocatable(8)
        [first] = place.instances()
        for _ in range(2):
            await place.node.restart()  # deletes every socket in the directory
            assert not place.has(first)
            await place.allocatable(0)
            await place.report(LOST, "KubeletRestarted")
            await place.report(REGISTERED)
            await until(lambda gone=first: place.instances() not in ([], [gone]))  # type: ignore[misc]
            [first] = place.instances()
        await place.allocatable(8)
        await place.create(pod_wire("a", limits={GPU: 8}))
        await place.running_pod("a")
        note(
            "kubelet.sock made anew twice: KubeletRestarted, registered again under another socket, a pod gets 8 devices"
        )
