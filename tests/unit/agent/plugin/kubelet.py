"""A kubelet's side of the device-plugin sockets, over real gRPC, that does as it is told: refuse, hang, garble, restart."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest

from remuda.link import kubelet_proto as proto
from remuda.link.device_plugin_port import (
    ContainerAllocation,
    ContainerDevices,
    PluginDevice,
    PluginOptions,
    PreferredRequest,
    RegisterRequest,
)
from tests.builders.waiting import PATIENCE_S


class Kubelet:
    """`refusal`: what Register answers instead of taking the plugin. `hangs`: it answers nothing."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.registered: list[RegisterRequest] = []
        self.lists: dict[str, list[tuple[PluginDevice, ...]]] = {}  # by endpoint
        self.ended: list[str] = []
        self.refusal = ""
        self.hangs = False
        self.listens = True
        self._changed = asyncio.Event()
        self._server: Any = None
        self._streams: dict[str, asyncio.Task[None]] = {}

    # --- life -----------------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """As a kubelet does: every socket in the directory goes, then a new one is made."""
        for file in os.listdir(self.directory):
            os.unlink(os.path.join(self.directory, file))
        method = proto.REGISTER
        handler = grpc.unary_unary_rpc_method_handler(
            self._register, request_deserializer=method.request.decode, response_serializer=method.response.encode
        )
        self._server = grpc.aio.server()
        self._server.add_generic_rpc_handlers(
            (grpc.method_handlers_generic_handler(method.service, {method.name: handler}),)
        )
        self._server.add_insecure_port(f"unix:{self.directory}/kubelet.sock")
        await self._server.start()

    async def stop(self) -> None:
        for task in self._streams.values():
            task.cancel()
        await asyncio.gather(*self._streams.values(), return_exceptions=True)
        self._streams.clear()
        await self._server.stop(grace=None)

    async def restart(self) -> None:
        await self.stop()
        await self.start()

    async def until(self, condition: Callable[[], Any], what: str) -> None:
        try:
            async with asyncio.timeout(PATIENCE_S):
                while not condition():
                    self._changed.clear()
                    await self._changed.wait()
        except TimeoutError:
            pytest.fail(f"waited in vain for {what}: {self.registered}, {self.lists}, ended {self.ended}")

    def wake(self, *ignored: object) -> None:
        self._changed.set()

    # --- what plugins ask -----------------------------------------------------------------------------------------------

    async def _register(self, request: RegisterRequest, context: Any) -> None:
        if self.hangs:
            await asyncio.Event().wait()
        if self.refusal:
            await context.abort(grpc.StatusCode.UNKNOWN, self.refusal)
        self.registered.append(request)
        if self.listens:
            self._streams[request.endpoint] = asyncio.create_task(self._listen(request.endpoint))
        self.wake()

    async def _listen(self, endpoint: str) -> None:
        method = proto.LIST_AND_WATCH
        try:
            async with self.channel(endpoint) as channel:
                call = channel.unary_stream(
                    method.path,
                    request_serializer=method.request.encode,
                    response_deserializer=method.response.decode,
                )
                async for devices in call(None):
                    self.lists.setdefault(endpoint, []).append(devices)
                    self.wake()
        except grpc.aio.AioRpcError:
            pass
        finally:
            self.ended.append(endpoint)
            self.wake()

    # --- what it asks of plugins ----------------------------------------------------------------------------------------

    def channel(self, endpoint: str) -> Any:
        return grpc.aio.insecure_channel(f"unix:{self.directory}/{endpoint}")

    @property
    def newest(self) -> str:
        return self.registered[-1].endpoint

    def list_of(self, endpoint: str = "") -> dict[str, str]:
        """The newest list: id -> health."""
        lists = self.lists.get(endpoint or self.newest, [])
        return {device.id: device.health for device in lists[-1]} if lists else {}

    async def ask(
        self, method: proto.KubeletMethod[Any, Any], value: Any, endpoint: str = "", within_s: float = PATIENCE_S
    ) -> Any:
        async with self.channel(endpoint or self.newest) as channel:
            call = channel.unary_unary(
                method.path, request_serializer=method.request.encode, response_deserializer=method.response.decode
            )
            return await call(value, timeout=within_s)

    async def options(self) -> PluginOptions:
        answer: PluginOptions = await self.ask(proto.OPTIONS, None)
        return answer

    async def allocate(self, *ids: str) -> ContainerAllocation:
        answer: tuple[ContainerAllocation, ...] = await self.ask(proto.ALLOCATE, (ids,))
        return answer[0]

    async def prefer(self, available: Sequence[str], size: int, must: Sequence[str] = ()) -> tuple[str, ...]:
        request = (PreferredRequest(tuple(available), tuple(must), size),)
        answer: tuple[tuple[str, ...], ...] = await self.ask(proto.PREFERRED, request)
        return answer[0]


class PodResources:
    """The podresources socket. `hangs` and `garbage` as they say."""

    def __init__(self, socket: Path) -> None:
        self.socket = socket
        self.rows: list[ContainerDevices] = []
        self.asked = 0
        self.hangs = False
        self.garbage = b""
        self._server: Any = None

    async def start(self) -> None:
        method = proto.POD_RESOURCES_LIST
        handler = grpc.unary_unary_rpc_method_handler(
            self._list, request_deserializer=method.request.decode, response_serializer=lambda data: data
        )
        self._server = grpc.aio.server()
        self._server.add_generic_rpc_handlers(
            (grpc.method_handlers_generic_handler(method.service, {method.name: handler}),)
        )
        self._server.add_insecure_port(f"unix:{self.socket}")
        await self._server.start()

    async def stop(self) -> None:
        await self._server.stop(grace=None)

    async def _list(self, request: None, context: Any) -> bytes:
        self.asked += 1
        if self.hangs:
            await asyncio.Event().wait()
        return self.garbage or proto.POD_RESOURCES_LIST.response.encode(tuple(self.rows))


@asynccontextmanager
async def a_kubelet(directory: Path) -> AsyncIterator[Kubelet]:
    kubelet = Kubelet(directory)
    await kubelet.start()
    try:
        yield kubelet
    finally:
        await kubelet.stop()
