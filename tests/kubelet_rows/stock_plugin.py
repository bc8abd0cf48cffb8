"""A device plugin as a vendor would write it from the API's documentation: it lists, it allocates, it does no more.

It shows what a device manager does by itself, without the care that Remuda's own plugin takes. Tests change its devices, make its
answers fail or wait, kill it and start another; `calls` is what it was asked, in order.
"""

from __future__ import annotations

import asyncio
import contextlib
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

import grpc

from remuda.link.device_plugin_port import (
    HEALTHY,
    KUBELET_SOCKET,
    UNHEALTHY,
    ContainerAllocation,
    PluginDevice,
    PluginOptions,
    PreferredRequest,
    RegisterRequest,
)
from remuda.link.kubelet_proto import ALLOCATE, LIST_AND_WATCH, OPTIONS, PRE_START, PREFERRED, REGISTER, KubeletMethod
from tests.builders.waiting import PATIENCE_S

Allocate = Callable[[tuple[str, ...]], Awaitable[ContainerAllocation]]
Prefer = Callable[[PreferredRequest], Awaitable[tuple[str, ...]]]


async def env_of_devices(ids: tuple[str, ...]) -> ContainerAllocation:
    return ContainerAllocation(envs={"TEST_DEVICES": ",".join(sorted(ids))})


class StockPlugin:
    def __init__(
        self,
        directory: Path,
        resource: str,
        devices: Sequence[str],
        *,
        allocate: Allocate = env_of_devices,
        prefer: Prefer | None = None,
        socket: str = "",
        pre_start: bool = False,
    ) -> None:
        self.resource = resource
        self.socket = socket or f"t-{uuid.uuid4().hex[:8]}.sock"
        self.calls: list[tuple[str, tuple[str, ...]]] = []
        self.watched = asyncio.Event()  # somebody reads the list
        self._directory = directory
        self._health = dict.fromkeys(devices, HEALTHY)
        self._changed = asyncio.Condition()
        self._allocate = allocate
        self._prefer = prefer
        self._pre_start = pre_start
        self._server: Any = None

    # --- life ---------------------------------------------------------------------------------------------------------

    async def __aenter__(self) -> StockPlugin:
        await self.serve()
        await self.register()
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.stop()

    async def serve(self) -> None:
        self._server = grpc.aio.server()
        handlers = {
            OPTIONS.name: _unary(OPTIONS, self._get_options),
            LIST_AND_WATCH.name: grpc.unary_stream_rpc_method_handler(
                self._list_and_watch,
                request_deserializer=LIST_AND_WATCH.request.decode,
                response_serializer=LIST_AND_WATCH.response.encode,
            ),
            PREFERRED.name: _unary(PREFERRED, self._get_preferred),
            ALLOCATE.name: _unary(ALLOCATE, self._do_allocate),
            PRE_START.name: _unary(PRE_START, self._do_pre_start),
        }
        self._server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(OPTIONS.service, handlers),))
        self._server.add_insecure_port(f"unix:{self._directory / self.socket}")
        await self._server.start()

    async def register(self, *, version: str = "v1beta1", endpoint: str = "", resource: str = "") -> None:
        """grpc.aio.AioRpcError when the device manager refuses."""
        request = RegisterRequest(endpoint or self.socket, resource or self.resource, version, self._options)
        # Not the process's shared connections: one that failed a moment ago would wait before it is tried again.
        options = [("grpc.use_local_subchannel_pool", 1)]
        async with grpc.aio.insecure_channel(f"unix:{self._directory / KUBELET_SOCKET}", options) as channel:
            call = channel.unary_unary(
                REGISTER.path,
                request_serializer=REGISTER.request.encode,
                response_deserializer=REGISTER.response.decode,
            )
            await call(request, timeout=PATIENCE_S)

    def register_at_once(self) -> Awaitable[None]:
        """While the kubelet is down: serve and register as soon as its socket is made anew."""
        return self._register_after(_made_at(self._directory / KUBELET_SOCKET))

    async def _register_after(self, old: int) -> None:
        while _made_at(self._directory / KUBELET_SOCKET) in (0, old):  # noqa: ASYNC110 - a file tells nobody
            await asyncio.sleep(0.005)
        await self.serve()
        while True:
            try:
                return await self.register()
            except grpc.aio.AioRpcError as error:
                if error.code() is not grpc.StatusCode.UNAVAILABLE:
                    raise
                await asyncio.sleep(0.005)

    async def stop(self) -> None:
        """As a killed process: the stream breaks at once. The socket file goes too."""
        if self._server is not None:
            await self._server.stop(0)
            self._server = None
        with contextlib.suppress(OSError):
            (self._directory / self.socket).unlink()

    # --- what tests change --------------------------------------------------------------------------------------------

    async def set_health(self, device: str, health: str = UNHEALTHY) -> None:
        async with self._changed:
            self._health[device] = health
            self._changed.notify_all()

    async def drop(self, device: str) -> None:
        async with self._changed:
            del self._health[device]
            self._changed.notify_all()

    def asked(self, call: str) -> list[tuple[str, ...]]:
        return [ids for name, ids in self.calls if name == call]

    # --- the service --------------------------------------------------------------------------------------------------

    @property
    def _options(self) -> PluginOptions:
        return PluginOptions(self._pre_start, self._prefer is not None)

    async def _get_options(self, request: None, context: object) -> PluginOptions:
        self.calls.append(("options", ()))
        return self._options

    async def _list_and_watch(self, request: None, context: object) -> AsyncIterator[tuple[PluginDevice, ...]]:
        self.calls.append(("list", ()))
        self.watched.set()
        sent: dict[str, str] | None = None
        while True:
            async with self._changed:
                while sent == self._health:
                    await self._changed.wait()
                sent = dict(self._health)
            yield tuple(PluginDevice(id, health) for id, health in sent.items())

    async def _get_preferred(
        self, requests: tuple[PreferredRequest, ...], context: object
    ) -> tuple[tuple[str, ...], ...]:
        self.calls.append(("prefer", tuple(sorted(requests[0].available))))
        assert self._prefer is not None
        return tuple([await self._prefer(request) for request in requests])

    async def _do_allocate(
        self, requests: tuple[tuple[str, ...], ...], context: object
    ) -> tuple[ContainerAllocation, ...]:
        self.calls.extend(("allocate", tuple(sorted(ids))) for ids in requests)
        return tuple([await self._allocate(ids) for ids in requests])

    async def _do_pre_start(self, ids: tuple[str, ...], context: object) -> None:
        self.calls.append(("prestart", tuple(sorted(ids))))


def _made_at(socket: Path) -> int:
    try:
        return socket.stat().st_ctime_ns
    except OSError:
        return 0


def _unary(method: KubeletMethod[Any, Any], behaviour: Callable[[Any, Any], Awaitable[Any]]) -> Any:
    return grpc.unary_unary_rpc_method_handler(
        behaviour, request_deserializer=method.request.decode, response_serializer=method.response.encode
    )
