"""The kubelet rows' port on an embedded node: real processes below a state directory, the node's own sockets, an API in memory.

A kubelet that is stopped is a node that lets go of everything; started, it is another node on the same directory.
"""

from __future__ import annotations

import os
import signal
import time
import uuid
from collections.abc import Awaitable
from contextlib import AsyncExitStack, suppress
from pathlib import Path

from remuda.api.codec import to_wire
from remuda.api.errors import NotFound
from remuda.api.kubernetes.core_v1 import Node, Pod
from remuda.embedded.node import process_tree
from remuda.embedded.node.container_environment import CONTAINER_ID
from remuda.embedded.node.devices.device_service import PLUGINS, POD_RESOURCES, KubeletDeviceSettings
from remuda.launch.zipapp import build_zipapp
from remuda.link.device_plugin_port import ContainerDevices
from remuda.link.kubelet_proto import POD_RESOURCES_ALLOCATABLE, POD_RESOURCES_LIST
from remuda.link.rank_logs import rank_log_path
from tests.builders.nodes import Rig
from tests.builders.runtimes import processes
from tests.builders.waiting import until
from tests.kubelet_rows.rig import Body, ask_pod_resources

NAMESPACE = "default"


class EmbeddedRig:
    """`state` must have a short path: sockets below it have 107 bytes at most."""

    def __init__(self, state: Path) -> None:
        self.name = "node-01"
        self._state = state
        self._home = state / "nodes" / self.name
        self.plugin_directory = self._home / PLUGINS
        self._launcher = build_zipapp(state / "launch.pyz")
        self._rig = Rig(time.time, uid_prefix=uuid.uuid4().hex)
        self._life: AsyncExitStack | None = None

    # --- the kubelet --------------------------------------------------------------------------------------------------

    async def start_kubelet(self, first: Awaitable[None] | None = None) -> None:
        settings = KubeletDeviceSettings(str(self._home))
        node = self._rig.add_node(
            processes(self._state, self._launcher), directory=str(self._state / "alloc"), devices=settings
        )
        self._life = AsyncExitStack()
        if first is not None:
            await node.open()
            opened = await self._life.enter_async_context(AsyncExitStack())
            opened.push_async_callback(node.stop)
            await first

            async def told() -> bool:
                return node.devices is not None and any(node.devices.manager.counts().allocatable.values())

            await until("the plugin's list", told)
            opened.pop_all()  # from here on its end is that of what runs
        await self._life.enter_async_context(self._rig.running())

    async def stop_kubelet(self) -> None:
        if self._life is not None:
            await self._life.aclose()
            self._life = None

    async def close(self) -> None:
        await self.lose_containers()
        await self.stop_kubelet()
        await self.lose_containers()

    async def lose_containers(self) -> None:
        ids = {f"{path.parent.name}/{path.name}" for path in self._home.glob("pods/*/*")}

        async def gone() -> bool:
            pids = process_tree.processes_tagged(CONTAINER_ID, ids).pids
            _kill(pids)
            return not pids

        await until("the processes to be gone", gone)

    async def lose_checkpoint(self) -> None:
        for path in self.plugin_directory.iterdir():
            path.unlink()

    # --- pods ---------------------------------------------------------------------------------------------------------

    async def create_pod(self, body: Body) -> None:
        metadata = {**body["metadata"], "namespace": NAMESPACE}
        await self._rig.create({**body, "metadata": metadata, "spec": {**body["spec"], "nodeName": self.name}})

    async def _pod(self, name: str) -> Pod | None:
        try:
            return await self._rig.cluster.get(Pod, name, NAMESPACE)
        except NotFound:
            return None

    async def pod(self, name: str) -> Body:
        found = await self._pod(name)
        return to_wire(found) if found is not None else {}

    async def delete_pod(self, name: str, grace_s: int = 0) -> None:
        await self._rig.cluster.delete(Pod, name, NAMESPACE, grace_s=grace_s)

    async def node(self) -> Body:
        return to_wire(await self._rig.cluster.get(Node, self.name))

    async def healthy_devices(self) -> dict[str, tuple[str, ...]]:
        return await ask_pod_resources(self._home / POD_RESOURCES / "kubelet.sock", POD_RESOURCES_ALLOCATABLE)

    async def output(self, pod: str, container: str = "main") -> str:
        found = await self._pod(pod)
        path = rank_log_path(self._state / "logs", found, container) if found is not None else None
        return path.read_text() if path is not None and path.exists() else ""

    async def kill_container(self, pod: str, container: str = "main") -> None:
        found = await self._pod(pod)
        assert found is not None
        pids = process_tree.processes_tagged(CONTAINER_ID, {f"{found.uid}/{container}"}).pids
        assert pids
        _kill(pids)

    async def pod_resources(self) -> tuple[ContainerDevices, ...]:
        return await ask_pod_resources(self._home / POD_RESOURCES / "kubelet.sock", POD_RESOURCES_LIST)


def _kill(pids: list[int]) -> None:
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
