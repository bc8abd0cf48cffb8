"""A device plugin such as a vendor ships: its own gRPC server on a socket, raw messages, and every bad habit on demand."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable
from pathlib import Path
from typing import Any

import grpc
import grpc.aio

from remuda.embedded.node.devices.sockets import SocketDirectory
from remuda.link.kubelet_facts import MESSAGES
from tests.builders.waiting import PATIENCE_S

V1BETA1 = MESSAGES["v1beta1"]
Listed = Iterable[tuple[str, str]]  # (id, health)


def message(name: str, **fields: Any) -> bytes:
    return V1BETA1[name](**fields).SerializeToString()


def device_list(devices: Listed) -> bytes:
    return message("ListAndWatchResponse", devices=[{"ID": name, "health": health} for name, health in devices])


def healthy(*names: str) -> list[tuple[str, str]]:
    return [(name, "Healthy") for name in names]


class StockPlugin:
    """`hang`: methods that never answer. `fail`: methods that answer with an error. `preferred`: what it prefers, None: it does
    not offer to be asked. `answers`: container responses of Allocate."""

    def __init__(
        self,
        directory: Path,
        resource: str = "nvidia.com/gpu",
        devices: Listed = (),
        *,
        socket: str = "stock.sock",
        preferred: Iterable[str] | None = None,
        pre_start: bool = False,
    ) -> None:
        self.directory = directory
        self._places = SocketDirectory(directory)
        self.resource = resource
        self.socket = socket
        self.preferred = None if preferred is None else list(preferred)
        self.pre_start = pre_start
        self.hang: set[str] = set()
        self.fail: set[str] = set()
        self.answers: list[dict[str, Any]] | None = None
        self.calls: list[tuple[str, Any]] = []
        self._list = device_list(devices)
        self._changed = asyncio.Event()
        self._server: grpc.aio.Server | None = None

    def say(self, devices: Listed) -> None:
        self.send(device_list(devices))

    def send(self, data: bytes) -> None:
        """Whatever bytes, as the next list."""
        self._list = data
        self._changed.set()

    async def serve(self) -> StockPlugin:
        unary, stream = grpc.unary_unary_rpc_method_handler, grpc.unary_stream_rpc_method_handler
        handlers = {
            "GetDevicePluginOptions": unary(self._options),
            "ListAndWatch": stream(self._list_and_watch),
            "GetPreferredAllocation": unary(self._preferred),
            "Allocate": unary(self._allocate),
            "PreStartContainer": unary(self._pre_start),
        }
        self._server = grpc.aio.server(options=[("grpc.max_send_message_length", -1)])
        self._server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("v1beta1.DevicePlugin", handlers),))
        self._server.add_insecure_port(self._places.address(self.socket))
        await self._server.start()
        return self

    async def register(
        self, *, version: str = "v1beta1", resource: str | None = None, socket: str | None = None
    ) -> None:
        """Raises grpc.aio.AioRpcError when it is refused."""
        request = message(
            "RegisterRequest",
            version=version,
            endpoint=self.socket if socket is None else socket,
            resource_name=self.resource if resource is None else resource,
        )
        async with grpc.aio.insecure_channel(self._places.address("kubelet.sock")) as channel:
            await channel.unary_unary("/v1beta1.Registration/Register")(request, timeout=PATIENCE_S)

    async def stop(self) -> None:
        if self._server is not None:
            await self._server.stop(None)
            self._server = None
            self._places.close()

    async def _meet(self, name: str, context: grpc.aio.ServicerContext) -> None:
        if name in self.hang:
            await asyncio.Event().wait()
        if name in self.fail:
            await context.abort(grpc.StatusCode.UNKNOWN, f"{name} is broken")

    async def _options(self, request: bytes, context: grpc.aio.ServicerContext) -> bytes:
        await self._meet("GetDevicePluginOptions", context)
        asks = self.preferred is not None
        return message(
            "DevicePluginOptions", pre_start_required=self.pre_start, get_preferred_allocation_available=asks
        )

    async def _list_and_watch(self, request: bytes, context: grpc.aio.ServicerContext) -> AsyncIterator[bytes]:
        await self._meet("ListAndWatch", context)
        while True:
            self._changed.clear()
            yield self._list
            await self._changed.wait()

    async def _preferred(self, request: bytes, context: grpc.aio.ServicerContext) -> bytes:
        (asked,) = _parsed("PreferredAllocationRequest", request).container_requests
        self.calls.append(
            (
                "preferred",
                (sorted(asked.available_deviceIDs), list(asked.must_include_deviceIDs), asked.allocation_size),
            )
        )
        await self._meet("GetPreferredAllocation", context)
        return message("PreferredAllocationResponse", container_responses=[{"deviceIDs": self.preferred}])

    async def _allocate(self, request: bytes, context: grpc.aio.ServicerContext) -> bytes:
        (asked,) = _parsed("AllocateRequest", request).container_requests
        ids = list(asked.devices_ids)
        self.calls.append(("allocate", ids))
        await self._meet("Allocate", context)
        answers = [{"envs": {"VISIBLE": ",".join(ids)}}] if self.answers is None else self.answers
        return message("AllocateResponse", container_responses=answers)

    async def _pre_start(self, request: bytes, context: grpc.aio.ServicerContext) -> bytes:
        self.calls.append(("pre_start", list(_parsed("PreStartContainerRequest", request).devices_ids)))
        await self._meet("PreStartContainer", context)
        return message("PreStartContainerResponse")


def _parsed(name: str, data: bytes) -> Any:
    return V1BETA1[name].FromString(data)
