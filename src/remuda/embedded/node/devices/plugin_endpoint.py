"""A device plugin behind a socket, as a `PluginPort`. Thin: the device manager sets the deadlines and keeps the state.

What a plugin may do to us is bounded here: a list over 4 MiB, bytes that are no message, an answer for no container, each
raises with the words a kubelet would use for it, and takes nobody else along.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import TypeVar

import grpc
import grpc.aio

from remuda.api.errors import Refusal
from remuda.link.device_plugin_port import ContainerAllocation, PluginDevice, PluginOptions, PreferredRequest
from remuda.link.kubelet_proto import ALLOCATE, LIST_AND_WATCH, OPTIONS, PRE_START, PREFERRED, KubeletMethod

Q = TypeVar("Q")
R = TypeVar("R")

_OWN_WORDS = frozenset(
    {"EmptyAnswer", "EndpointStopped", "UnknownPlugin"}
)  # refused before or after the call, not by it

MAX_LIST_BYTES = 4 * 1024 * 1024  # gRPC's own default, which the kubelet leaves as it is
_CHANNEL_OPTIONS = [
    ("grpc.max_receive_message_length", MAX_LIST_BYTES),
    ("grpc.default_authority", "localhost"),
    # Each plugin instance has a connection of its own: a shared one would outlive the instance that it was made for.
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.enable_http_proxy", 0),
]


class PluginClient:
    """`address` as gRPC takes it. `await connect()` first, `await close()` in the end."""

    def __init__(self, address: str) -> None:
        self._address = address
        self._channel = grpc.aio.insecure_channel(address, options=_CHANNEL_OPTIONS)

    async def connect(self, within_s: float) -> None:
        """Raises Refusal PluginUnreachable when nobody serves the socket in time."""
        try:
            async with asyncio.timeout(within_s):
                await self._channel.channel_ready()
        except TimeoutError:
            raise Refusal(
                "PluginUnreachable",
                f"failed to dial device plugin: {self._address}: context deadline exceeded",
                "Serve the socket before registering it.",
            ) from None

    async def close(self) -> None:
        await self._channel.close()

    async def options(self) -> PluginOptions:
        return await self._call(OPTIONS, None)

    async def list_and_watch(self) -> AsyncIterator[tuple[PluginDevice, ...]]:
        method = LIST_AND_WATCH
        call = self._channel.unary_stream(
            method.path, request_serializer=method.request.encode, response_deserializer=method.response.decode
        )(None)
        try:
            async for devices in call:
                yield devices
        finally:
            call.cancel()

    async def preferred(self, available: Sequence[str], must_include: Sequence[str], size: int) -> tuple[str, ...]:
        answers = await self._call(PREFERRED, (PreferredRequest(tuple(available), tuple(must_include), size),))
        return answers[0] if answers else ()

    async def allocate(self, devices: Sequence[str]) -> ContainerAllocation:
        answers = await self._call(ALLOCATE, (tuple(devices),))
        if not answers:
            raise Refusal("EmptyAnswer", "no containers return in allocation response {}")
        return answers[0]

    async def pre_start(self, devices: Sequence[str]) -> None:
        await self._call(PRE_START, tuple(devices))

    async def _call(self, method: KubeletMethod[Q, R], request: Q) -> R:
        call = self._channel.unary_unary(
            method.path, request_serializer=method.request.encode, response_deserializer=method.response.decode
        )
        answer: R = await call(request)
        return answer


def device_manager_error_words(error: BaseException) -> str:
    """An error of a plugin's call as the kubelet prints it."""
    if isinstance(error, grpc.aio.AioRpcError):
        return f"rpc error: code = {device_manager_grpc_code_name(error.code())} desc = {error.details()}"
    if isinstance(error, TimeoutError):
        return "rpc error: code = DeadlineExceeded desc = context deadline exceeded"
    if isinstance(error, Refusal):
        if error.reason in _OWN_WORDS:
            return error.message
        return f"rpc error: code = Unknown desc = {error.reason}: {error.message}"
    return f"rpc error: code = Unknown desc = {error}"


def is_plugin_gone(error: BaseException) -> bool:
    """The other side ended; that alone is no fault."""
    over = (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED)
    return isinstance(error, grpc.aio.AioRpcError) and error.code() in over


def device_manager_grpc_code_name(code: grpc.StatusCode) -> str:
    """RESOURCE_EXHAUSTED -> ResourceExhausted, as Go spells it."""
    name: str = code.name
    return "".join(word.capitalize() for word in name.split("_"))
