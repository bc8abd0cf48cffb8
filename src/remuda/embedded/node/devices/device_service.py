"""A node's device manager with its doors: the sockets of a process node, or the agent's plugins in the same process.

`directory` is the kubelet's: `device-plugins/kubelet.sock`, the checkpoint beside it and `pod-resources/kubelet.sock`. Without
one, the plugins are those of `agent.plugins()`: connected at the start, again a while after one has ended, and looked through
for new ones whenever a list changes (a device sliced anew brings a resource of its own).

One service is one life of the kubelet. A restart stops it and makes another, which knows what the checkpoint says; without a
directory that memory is handed over in its stead, or read from what the API says of the node's pods (`recall`).
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterable
from pathlib import Path
from typing import Any

import msgspec
import structlog

from remuda.api.errors import Refusal
from remuda.api.kubernetes.core_v1 import NodeStatus, Pod
from remuda.embedded.node.devices.checkpoint import CheckpointFile
from remuda.embedded.node.devices.device_ledger import KubeletDeviceGrant, LedgerMemory
from remuda.embedded.node.devices.device_manager import KubeletDeviceManager
from remuda.embedded.node.devices.plugin_connections import PluginDeadlines
from remuda.embedded.node.devices.plugin_registration import PluginRegistry
from remuda.embedded.node.devices.podresources import PodResourcesServer
from remuda.link.allocation_port import NodeAgentLink
from remuda.link.device_plugin_port import ContainerAllocation, PluginPort

log = structlog.get_logger(__name__)

PLUGINS, POD_RESOURCES = "device-plugins", "pod-resources"
RECONNECT_S = 1.0  # a plugin in the same process that ended is looked for again that often

Amounts = dict[str, int | str]


class KubeletDeviceSettings(msgspec.Struct, frozen=True):
    """`directory`: the kubelet's; None: the plugins are in the same process. `cdi_dirs`: where the runtime finds CDI specs."""

    directory: str | None = None
    cdi_dirs: tuple[str, ...] = ()
    deadlines: PluginDeadlines = PluginDeadlines()


class KubeletDeviceService:
    def __init__(
        self,
        node: str,
        settings: KubeletDeviceSettings,
        *,
        agent: NodeAgentLink,
        clock: Callable[[], float],
        pods: Callable[[], Iterable[Pod] | None],
        counts_changed: Callable[[], None],
        health_changed: Callable[[frozenset[str]], None],
        memory: LedgerMemory | None = None,
    ) -> None:
        self._agent = agent
        self._node = node
        self._told = counts_changed
        self._root = None if settings.directory is None else Path(settings.directory)
        self.manager = KubeletDeviceManager(
            node,
            clock=clock,
            pods=pods,
            checkpoint=None if self._root is None else CheckpointFile(self._root / PLUGINS, node),
            memory=memory,
            deadlines=settings.deadlines,
            cdi_dirs=settings.cdi_dirs,
            counts_changed=self._counts_changed,
            health_changed=health_changed,
        )
        self._registry = self._pod_resources = None
        if self._root is not None:
            self._registry = PluginRegistry(self._root / PLUGINS, self.manager)
            self._pod_resources = PodResourcesServer(self._root / POD_RESOURCES, self.manager)
        self._connected: set[str] = set()  # resources of plugins in the same process
        self._instance = 0
        self._tasks: dict[asyncio.Task[None], None] = {}
        self._closing: asyncio.Task[None] | None = None
        self._is_open = False

    async def start(self) -> None:
        """Open the sockets. Does nothing the second time."""
        if self._is_open:
            return
        self._is_open = True
        if self._registry is not None and self._pod_resources is not None:
            await self._registry.start()
            await self._pod_resources.start()

    async def connect(self) -> None:
        """The plugins in the same process, if they are there; returns when each has said what it has."""
        if self._root is not None or not self._is_open:
            return
        for resource in self._agent.plugins():
            await self._connect(resource)

    def connect_later(self) -> None:
        """As when plugins first have to notice that their kubelet began anew."""
        for resource in self._agent.plugins() if self._root is None else ():
            self._later(resource)

    async def stop(self) -> None:
        self._is_open = False
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await (self._closing or self._close_sockets())
        await self.manager.plugins.close()

    async def _close_sockets(self) -> None:
        if self._registry is not None and self._pod_resources is not None:
            await self._registry.stop()
            await self._pod_resources.stop()

    def silence(self) -> None:
        """The power is gone: nothing is asked or answered from here on."""
        self._is_open = False
        for task in self._tasks:
            task.cancel()
        self.manager.plugins.silence()
        if self._registry is not None and self._closing is None:
            self._closing = asyncio.get_running_loop().create_task(self._close_sockets())

    async def listed(self, resources: Iterable[str]) -> None:
        """Returns when plugins have told what they have of each."""
        for resource in resources:
            await self.manager.plugins.listed(resource)

    def amounts(self, old: NodeStatus) -> tuple[Amounts, Amounts]:
        """Capacity and allocatable as the node's status should say them. What is not a plugin's stays as it is, also on a node
        that was made anew: a kubelet means to take its old amounts back and does not (docs/kubelet-behaviour.md)."""
        counts = self.manager.counts()
        capacity, allocatable = dict(old.capacity), dict(old.allocatable)
        capacity.update({name: str(n) for name, n in counts.capacity.items()})
        allocatable.update({name: str(n) for name, n in counts.allocatable.items()})
        self.manager.published = allocatable
        return capacity, allocatable

    def recall(self, pods: Iterable[Pod]) -> None:
        """All pods of the node, before the first is admitted: where no file is kept, their statuses are the checkpoint."""
        if self._root is None:
            self.manager.ledger.recall(
                grant for pod in pods if not pod.is_terminal for grant in kubelet_grants_in_status(pod)
            )

    def memory(self) -> LedgerMemory | None:
        """For the next life of a node without a directory."""
        return self.manager.ledger.memory() if self._root is None else None

    # --- plugins in the same process ------------------------------------------------------------------------------------

    async def _connect(self, resource: str) -> None:
        port = self._agent.plugins().get(resource)
        if port is None or resource in self._connected or not self._is_open:
            return
        self._connected.add(resource)
        self._instance += 1

        async def gone() -> None:
            self._connected.discard(resource)
            self._later(resource)

        try:
            await self._dial(resource, port)
            await self.manager.plugins.connect(resource, f"in-process-{self._instance}", port, gone)
        except Refusal as refusal:
            self._connected.discard(resource)
            log.warning("devices.not_connected", node=self._node, resource=resource, why=str(refusal))
            self._later(resource)
            return
        try:
            async with asyncio.timeout(RECONNECT_S):
                await self.manager.plugins.listed(resource)
        except TimeoutError:
            log.warning("devices.no_list", node=self._node, resource=resource)

    async def _dial(self, resource: str, port: PluginPort) -> None:
        """A plugin that is down must not look as if it had come and gone: its grace runs from when it really went."""
        stream = port.list_and_watch()
        try:
            async with asyncio.timeout(self.manager.deadlines.dial_s):
                await anext(stream)
        except (StopAsyncIteration, TimeoutError):
            raise Refusal("PluginUnreachable", f"failed to dial device plugin: {resource} lists nothing") from None
        except Exception as error:
            raise Refusal("PluginUnreachable", f"failed to dial device plugin: {error}") from error
        finally:
            if isinstance(stream, AsyncGenerator):
                await stream.aclose()

    def _later(self, resource: str) -> None:
        if self._is_open:
            self._spawn(self._reconnect(resource))

    async def _reconnect(self, resource: str) -> None:
        await asyncio.sleep(RECONNECT_S)
        await self._connect(resource)

    def _counts_changed(self) -> None:
        self._told()
        if self._root is None and self._is_open:
            for resource in self._agent.plugins():
                if resource not in self._connected:
                    self._spawn(self._connect(resource))

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks[task] = None
        task.add_done_callback(self._tasks.pop)


def kubelet_grants_in_status(pod: Pod) -> tuple[KubeletDeviceGrant, ...]:
    """The devices of a pod's containers as its status has them; what the plugin said beside the ids is lost."""
    return tuple(
        KubeletDeviceGrant(
            pod.uid, status.name, resource.name, tuple(d.resource_id for d in resource.resources), ContainerAllocation()
        )
        for status in (*pod.status.init_container_statuses, *pod.status.container_statuses)
        for resource in status.allocated_resources_status
    )
