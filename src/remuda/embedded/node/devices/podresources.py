"""The podresources v1 service on `pod-resources/kubelet.sock`: which container of which pod has which devices.

As a kubelet answers it: every active pod is listed, with devices or without; of init containers only sidecars; and each device
is an entry of its own, one for every NUMA node it is near to.

Calls come from monitoring agents that poll; as on a kubelet, a bucket of 10 calls that fills with 100 a second bounds them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import grpc
import grpc.aio

from remuda.api.kubernetes.core_v1 import Pod
from remuda.embedded.node.devices.device_ledger import NO_NUMA, KubeletDeviceGrant
from remuda.embedded.node.devices.device_manager import KubeletDeviceManager
from remuda.embedded.node.devices.sockets import KubeletSocket
from remuda.link.kubelet_proto import POD_RESOURCES_ALLOCATABLE, POD_RESOURCES_GET, POD_RESOURCES_LIST, KubeletMethod

QPS, BURST = 100.0, 10


class PodResourcesTokenBucket:
    """A token bucket. Pure but for the time it is told."""

    def __init__(self, rate: float, burst: int, now: float) -> None:
        self._rate = rate
        self._burst = burst
        self._tokens = float(burst)
        self._at = now

    def take(self, now: float) -> bool:
        self._tokens = min(self._burst, self._tokens + max(0.0, now - self._at) * self._rate)
        self._at = now
        if self._tokens < 1.0:
            return False
        self._tokens -= 1.0
        return True


class PodResourcesServer:
    def __init__(self, directory: Path, manager: KubeletDeviceManager, now: Callable[[], float] | None = None) -> None:
        """`now`: seconds that only grow; the loop's time unless told."""
        self._socket = KubeletSocket(directory)
        self._manager = manager
        self._now = now
        self._bucket: PodResourcesTokenBucket | None = None

    async def start(self) -> None:
        self._now = self._now or asyncio.get_running_loop().time
        self._bucket = PodResourcesTokenBucket(QPS, BURST, self._now())
        answers: dict[KubeletMethod[Any, Any], Callable[..., Any]] = {
            POD_RESOURCES_LIST: self._list,
            POD_RESOURCES_ALLOCATABLE: self._allocatable,
            POD_RESOURCES_GET: self._get,
        }
        handlers = {
            method.name: grpc.unary_unary_rpc_method_handler(
                answer, request_deserializer=method.request.decode, response_serializer=_serialized_podresources_message
            )
            for method, answer in answers.items()
        }
        await self._socket.serve(POD_RESOURCES_LIST.service, handlers)

    async def stop(self) -> None:
        await self._socket.close()

    async def _list(self, request: None, context: grpc.aio.ServicerContext) -> Any:
        await self._limit(context)
        pods = self._manager.active()
        self._manager.free()
        return POD_RESOURCES_LIST.response.message(pod_resources=[self._of(pod) for pod in pods])

    async def _allocatable(self, request: None, context: grpc.aio.ServicerContext) -> Any:
        await self._limit(context)
        found = self._manager.ledger.healthy().items()
        rows = [row for resource, devices in found for d in devices for row in _device_rows(resource, d.id, d.numa)]
        return POD_RESOURCES_ALLOCATABLE.response.message(devices=rows)

    async def _get(self, request: tuple[str, str], context: grpc.aio.ServicerContext) -> Any:
        await self._limit(context)
        namespace, name = request
        pod = next((p for p in self._manager.active() if (p.namespace, p.name) == (namespace, name)), None)
        if pod is None:
            return await context.abort(grpc.StatusCode.UNKNOWN, f"pod {name} in namespace {namespace} not found")
        return POD_RESOURCES_GET.response.message(pod_resources=self._of(pod))

    def _of(self, pod: Pod) -> dict[str, Any]:
        return {
            "name": pod.name,
            "namespace": pod.namespace,
            "containers": [
                {"name": name, "devices": [row for grant in grants for row in _granted_rows(grant)]}
                for name, grants in self._manager.by_container(pod).items()
            ],
        }

    async def _limit(self, context: grpc.aio.ServicerContext) -> None:
        if self._bucket is not None and self._now is not None and not self._bucket.take(self._now()):
            await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, "rejected by rate limit")


def _granted_rows(grant: KubeletDeviceGrant) -> list[dict[str, Any]]:
    near = {device: [n for n, ids in grant.numa.items() if n != NO_NUMA and device in ids] for device in grant.devices}
    return [row for device, nodes in near.items() for row in _device_rows(grant.resource, device, nodes)]


def _device_rows(resource: str, device: str, nodes: Sequence[int]) -> list[dict[str, Any]]:
    row: dict[str, Any] = {"resource_name": resource, "device_ids": [device]}
    return [{**row, "topology": {"nodes": [{"ID": node}]}} for node in nodes] or [row]


def _serialized_podresources_message(message: Any) -> bytes:
    data: bytes = message.SerializeToString()
    return data
