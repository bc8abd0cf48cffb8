"""The kubelet rows' port on a real node: pods through the API server, podresources over its socket, containers through ctr."""

from __future__ import annotations

import asyncio
import contextlib
import json
import shutil
from collections.abc import Awaitable
from pathlib import Path
from typing import Any

from remuda.link.device_plugin_port import ContainerDevices
from remuda.link.kubelet_proto import POD_RESOURCES_ALLOCATABLE, POD_RESOURCES_LIST
from tests.builders.waiting import until
from tests.kube.control_plane import ControlPlane, Response
from tests.kube.real_node import DEVICE_PLUGINS, RealNode
from tests.kubelet_rows.rig import Body, ask_pod_resources, container_status


class RealRig:
    """One namespace of its own on a shared node."""

    def __init__(self, node: RealNode, namespace: str) -> None:
        self.real = node
        self.name = node.name
        self.namespace = namespace
        self.plugin_directory: Path = DEVICE_PLUGINS
        self._pods = f"/api/v1/namespaces/{namespace}/pods"

    @property
    def plane(self) -> ControlPlane:
        return self.real.plane

    async def _request(self, method: str, path: str, body: object = None) -> Response:
        return await asyncio.to_thread(self.plane.request, method, path, body)

    async def open(self) -> None:
        for path, body in (
            ("/api/v1/namespaces", {"metadata": {"name": self.namespace}}),
            (f"/api/v1/namespaces/{self.namespace}/serviceaccounts", {"metadata": {"name": "default"}}),
        ):
            answer = await self._request("POST", path, body)
            assert answer.status in (201, 409), answer

    async def close(self) -> None:
        """Every pod of the namespace is gone, containers too; the kubelet runs, whatever a failed test did to it."""
        if not self.real.is_kubelet_running:
            await self.start_kubelet()
        await self._request("DELETE", self._pods, {"gracePeriodSeconds": 0})

        async def gone() -> bool:
            listed = await self._request("GET", self._pods)
            return not listed.body["items"]

        await until("the pods to be gone", gone)

    async def create_pod(self, body: Body) -> None:
        bound = {**body, "spec": {**body["spec"], "nodeName": self.name}}
        answer = await self._request("POST", self._pods, bound)
        assert answer.status == 201, answer

    async def bind_pod(self, body: Body, annotations: dict[str, str]) -> None:
        """As a scheduler does; the API server copies the Binding's annotations to the pod."""
        name = body["metadata"]["name"]
        created = await self._request("POST", self._pods, {**body, "spec": {**body["spec"], "schedulerName": "nobody"}})
        assert created.status == 201, created
        metadata = {"name": name, "annotations": annotations}
        binding = {"metadata": metadata, "target": {"apiVersion": "v1", "kind": "Node", "name": self.name}}
        bound = await self._request("POST", f"{self._pods}/{name}/binding", binding)
        assert bound.status == 201, bound

    async def pod(self, name: str) -> Body:
        answer = await self._request("GET", f"{self._pods}/{name}")
        found: Body = answer.body if answer.status == 200 else {}
        return found

    async def delete_pod(self, name: str, grace_s: int = 0) -> None:
        await self._request("DELETE", f"{self._pods}/{name}", {"gracePeriodSeconds": grace_s})

    async def node(self) -> Body:
        return await asyncio.to_thread(self.real.node)

    async def pod_resources(self) -> tuple[ContainerDevices, ...]:
        rows = await ask_pod_resources(self.real.places.pod_resources, POD_RESOURCES_LIST)
        return tuple(row for row in rows if row.namespace == self.namespace)

    async def healthy_devices(self) -> dict[str, tuple[str, ...]]:
        return await ask_pod_resources(self.real.places.pod_resources, POD_RESOURCES_ALLOCATABLE)

    async def output(self, pod: str, container: str = "main") -> str:
        """The runtime's log files, with time, stream and tag taken off each line."""
        found = self.real.places.pod_logs.glob(f"{self.namespace}_{pod}_*/{container}/*.log")
        lines = [line for path in sorted(found) for line in path.read_text(errors="replace").splitlines()]
        return "\n".join(line.split(" ", 3)[-1] for line in lines)

    async def kill_container(self, pod: str, container: str = "main") -> None:
        found = await self.pod(pod)
        identity = container_status(found, container)["containerID"].removeprefix("containerd://")
        await asyncio.to_thread(self.real.ctr, "tasks", "kill", "--signal", "SIGKILL", identity)

    def pid(self, container_id: str) -> int:
        """Of the container's first process, on this machine."""
        listed = self.real.ctr("tasks", "list").stdout.split()
        return int(listed[listed.index(container_id.removeprefix("containerd://")) + 1])

    async def stop_kubelet(self) -> None:
        await asyncio.to_thread(self.real.stop_kubelet)

    async def start_kubelet(self, first: Awaitable[None] | None = None) -> None:
        waiting = asyncio.to_thread(self.real.wait_kubelet, self.real.spawn_kubelet())
        await asyncio.gather(waiting, *([first] if first is not None else []))

    async def lose_containers(self) -> None:
        """The runtime must have noticed: what it still calls running is spared by the next kubelet."""
        for task in await self._tasks():
            await asyncio.to_thread(self._ctr, "tasks", "kill", "--signal", "SIGKILL", task)

        async def gone() -> bool:
            return not await self._tasks()

        await until("the containers to be gone", gone)

    async def _tasks(self) -> list[str]:
        return (await asyncio.to_thread(self._ctr, "tasks", "list", "-q")).split()

    def _ctr(self, *arguments: str) -> str:
        return self.real.ctr(*arguments, check=False).stdout

    async def lose_checkpoint(self) -> None:
        for path in DEVICE_PLUGINS.iterdir():  # a node made anew has none of it
            path.unlink()

    def checkpoint(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads((DEVICE_PLUGINS / "kubelet_internal_checkpoint").read_bytes())
        return found

    def keep_log(self, path: Path) -> None:
        with contextlib.suppress(OSError):
            shutil.copy(self.real.places.base / "kubelet.log", path)
