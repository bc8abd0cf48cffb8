"""Embedded nodes on an in-process API, with an agent that only keeps books, and ways to wait for what they do."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import aclosing, asynccontextmanager
from typing import Any, TypeVar

from remuda.api.drills import Drill
from remuda.api.errors import NotFound, Refusal, Unavailable
from remuda.api.kubernetes.core_v1 import Node, Pod
from remuda.api.meta import JsonObject, KObject
from remuda.embedded.apiserver.local_cluster import LocalCluster
from remuda.embedded.apiserver.store import MemoryJournal, ObjectStore
from remuda.embedded.node.devices.device_service import KubeletDeviceSettings
from remuda.embedded.node.drill_actions import DrillActions
from remuda.embedded.node.images import ImageStore
from remuda.embedded.node.node import EmbeddedNode
from remuda.embedded.node.node_registration import NodeConfig
from remuda.embedded.node.pod_addresses import PodAddresses
from remuda.embedded.node.pod_feed import PodFeed
from remuda.embedded.node.runtime_port import PodRuntime
from remuda.kube.cluster import Cluster
from remuda.kube.runtime.informer import Informer
from remuda.link.allocation_port import Allocation, Deliver, HardwareFaultLink, Message
from remuda.link.device_plugin_port import PluginPort
from remuda.link.drill_runner import DrillRunner
from tests.builders.waiting import PATIENCE_S

K = TypeVar("K", bound=KObject)

DEVICES = tuple(f"gpu-{n}" for n in range(8))


class BookkeepingAgent:
    """A NodeAgent that hands out devices, refuses what is held, and writes down everything it is told."""

    def __init__(self, node: str = "node-01", directory: str = "") -> None:
        self.node = node
        self.directory = directory
        self.held: dict[str, str] = {}  # device -> uid
        self.calls: list[tuple[Any, ...]] = []
        self.links: dict[str, Deliver] = {}
        self.heard: dict[str, list[Message]] = {}
        self.is_fenced = 0
        self.is_silent = False
        self.on_release: Callable[[str], None] = lambda uid: None
        self.served: dict[str, PluginPort] = {}  # plugins by resource

    def plugins(self) -> dict[str, PluginPort]:
        return self.served

    async def attach(
        self, pod: Pod, container: str, resource: str, devices: Sequence[str], *, simulated: bool = False
    ) -> Allocation:
        self.calls.append(("attach", pod.name, container, resource, tuple(devices), simulated))
        for device in devices:
            if self.held.get(device, pod.uid) != pod.uid:
                raise Refusal("DeviceHeld", f"{device} is held by {self.held[device]}.", "Wait.")
        self.held.update(dict.fromkeys(devices, pod.uid))
        return Allocation(tuple(devices), self.directory, {})

    def inject_plugin_fault(self, resource: str, fault: str) -> None:
        self.calls.append(("plugin fault", resource, fault))

    async def allocate(self, pod: Pod, devices: Sequence[str], *, simulated: bool = False) -> Allocation:
        self.calls.append(("allocate", pod.name, tuple(devices), simulated))
        for device in devices:
            if device not in DEVICES:
                raise Refusal("UnknownDevice", f"{self.node} has no device {device}.", "Choose another.")
            if self.held.get(device, pod.uid) != pod.uid:
                raise Refusal("DeviceHeld", f"{device} is held by {self.held[device]}.", "Wait.")
        self.held.update(dict.fromkeys(devices, pod.uid))
        env = {"REMUDA_VISIBLE_DEVICES": ",".join(devices), "REMUDA_ALLOC_DIR": self.directory}
        return Allocation(tuple(devices), self.directory, env)

    def connect(self, uid: str, deliver: Deliver) -> Deliver:
        self.links[uid] = deliver
        return self.heard.setdefault(uid, []).append

    def container_exited(self, uid: str, code: int) -> None:
        self.calls.append(("exited", uid, code))

    async def release(self, uid: str) -> None:
        self.on_release(uid)
        self.calls.append(("release", uid))
        self.held = {device: holder for device, holder in self.held.items() if holder != uid}

    def inject_fault(self, device: str, code: str, heals: str = "") -> None:
        if device not in {f"gpu-{n}" for n in range(8)}:
            raise Refusal("UnknownDevice", f"There is no {device}.", "Name another.")
        self.calls.append(("fault", device, code))

    def hardware(self) -> HardwareFaultLink:
        raise Refusal("RealHardware", "There is none.", "Use an agent with a backend.")

    def isolate(self, is_cut_off: bool) -> None:
        self.calls.append(("isolate", is_cut_off))

    def fence(self) -> None:
        self.is_fenced += 1

    def vouch(self, seconds: float) -> None:
        pass

    def unfence(self) -> None:
        self.calls.append(("unfence",))

    def silence(self) -> None:
        self.is_silent = True

    def said(self, uid: str, kind: str) -> list[Message]:
        return [m for m in self.heard.get(uid, []) if m["type"] == kind]


class Outage:
    """A Cluster whose writes fail while `is_down`, as when the API server is out of reach."""

    def __init__(self, inner: Cluster) -> None:
        self._inner = inner
        self.is_down = False

    def __getattr__(self, name: str) -> Any:
        inner = getattr(self._inner, name)
        if name not in ("get", "create", "patch", "delete"):
            return inner

        async def call(*args: Any, **options: Any) -> Any:
            if self.is_down:
                raise Unavailable("the API server does not answer")
            return await inner(*args, **options)

        return call


RuntimeOf = Callable[[str, BookkeepingAgent], PodRuntime]


class Rig:
    """A cluster with nodes. `reach` is what the nodes see of it, `cluster` what the test does."""

    def __init__(self, clock: Callable[[], float], *, deadline_s: float = PATIENCE_S, uid_prefix: str = "uid") -> None:
        uids = itertools.count(1)
        self.clock = clock
        self.deadline_s = deadline_s
        self.store = ObjectStore(MemoryJournal())
        self.cluster = LocalCluster(self.store, clock=clock, new_uid=lambda: f"{uid_prefix}-{next(uids)}")
        self.reach = Outage(self.cluster)
        self.addresses = PodAddresses()
        self.nodes: dict[str, EmbeddedNode] = {}
        self.agents: dict[str, BookkeepingAgent] = {}

    @property
    def agent(self) -> BookkeepingAgent:
        return self.agents["node-01"]

    @property
    def node(self) -> EmbeddedNode:
        return self.nodes["node-01"]

    def add_node(
        self,
        runtime_of: RuntimeOf,
        name: str = "node-01",
        *,
        lease_s: float = 8.0,
        images: ImageStore | None = None,
        directory: str = "",
        devices: KubeletDeviceSettings | None = None,
        plugins: dict[str, PluginPort] | None = None,
    ) -> EmbeddedNode:
        agent = self.agents[name] = BookkeepingAgent(name, directory)
        agent.served = plugins or {}
        node = self.nodes[name] = EmbeddedNode(
            NodeConfig(name, {"topology.remuda.dev/rack": "rack-1"}, DEVICES, lease_s),
            cluster=self.reach,
            agent=agent,
            runtime=runtime_of(name, agent),
            addresses=self.addresses,
            clock=self.clock,
            images=images,
            silence=agent.silence,
            devices=devices,
        )
        return node

    @asynccontextmanager
    async def running(self) -> AsyncIterator[Rig]:
        """Nodes, feed and drills, until the end of the block; containers are left as they are."""
        pods, drills = Informer(self.cluster, Pod), Informer(self.cluster, Drill)
        feed = PodFeed(pods, self.nodes.values(), self.addresses)
        runner = DrillRunner(
            self.cluster, drills, DrillActions(self.cluster, self.nodes.values(), self.clock), self.clock
        )
        tasks = [asyncio.create_task(t) for t in (pods.run(), drills.run(), runner.run())]
        try:
            for node in self.nodes.values():
                await node.start()
            await feed.start()
            yield self
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            for node in self.nodes.values():
                await node.stop()

    # What tests do and wait for.

    async def create(self, body: JsonObject) -> Pod:
        return await self.cluster.create(Pod, body)

    async def pod(self, name: str, test: Callable[[Pod], bool]) -> Pod:
        return await self.seen(Pod, name, test, "default")

    async def running_pod(self, name: str = "worker-0", *, restarts: int = 0) -> Pod:
        def is_running(pod: Pod) -> bool:
            states = pod.status.container_statuses
            return bool(states) and states[0].state.running is not None and states[0].restart_count >= restarts

        return await self.pod(name, is_running)

    async def node_object(self, test: Callable[[Node], bool], name: str = "node-01") -> Node:
        return await self.seen(Node, name, test)

    async def seen(self, kind: type[K], name: str, test: Callable[[K], bool], namespace: str = "") -> K:
        """The first version of the object that passes the test."""
        last: K | None = None
        try:
            async with asyncio.timeout(self.deadline_s), aclosing(self.cluster.watch(kind, "0", namespace)) as stream:
                async for event in stream:
                    if event.obj is not None and event.obj.name == name:
                        last = event.obj
                        if event.type != "DELETED" and test(event.obj):
                            return event.obj
        except TimeoutError:
            pass
        raise AssertionError(f"{name} never got there; last seen: {last}")

    async def gone(self, name: str) -> None:
        async with asyncio.timeout(self.deadline_s), aclosing(self.cluster.watch(Pod, "0", "default")) as stream:
            try:
                await self.cluster.get(Pod, name, "default")
            except NotFound:
                return
            async for event in stream:
                if event.type == "DELETED" and event.obj is not None and event.obj.name == name:
                    return


async def until(test: Callable[[], bool], *, within: float = PATIENCE_S, every: float = 0.005) -> None:
    """For what no event tells: look until it is so."""
    async with asyncio.timeout(within):
        while not test():  # noqa: ASYNC110
            await asyncio.sleep(every)
