"""A plugin served to a kubelet: a gRPC server on a socket of its own, and the registration that points the kubelet to it.

The kubelet dials back the moment a plugin registers, so the server is up first. Each life of the server has a socket name of
its own: two instances of one plugin (an upgrade) overlap without a gap, and the kubelet refuses a path it is connected to.

    Starting    not registered yet; the message says why: no kubelet there, it refused, it did not answer
    Registered  the kubelet took it
    Lost        it was registered, and is not any more: kubelet.sock was made anew (the kubelet restarted and deleted every
                socket in its directory), or the kubelet let go of the stream

Whatever ends a registration begins the next one, at once the first time, then with back-off. Every call has a deadline. A file's
inode says whether it was made anew; looking once a second costs nothing and cannot miss it for good.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
from collections.abc import AsyncIterator, Awaitable, Callable
from functools import cache
from pathlib import Path
from typing import Any

import grpc
import msgspec
import structlog

from remuda.agent.plugin.resource_plugin import ResourcePlugin
from remuda.api.errors import Refusal
from remuda.link import kubelet_proto as proto
from remuda.link.device_plugin_port import KUBELET_SOCKET, VERSION, PluginDevice, RegisterRequest

log = structlog.get_logger(__name__)

STARTING, REGISTERED, LOST = "Starting", "Registered", "Lost"
MAX_PATH = 107  # of a Unix socket


@cache
def keep_plugin_server_grpc_alive() -> None:
    """gRPC's asyncio side ends with its last object, whenever that is freed, and waits for its own thread then: in the middle
    of the event loop. One reference more, kept for good, and it never does."""
    grpc.aio.init_grpc_aio()


class PluginPace(msgspec.Struct, frozen=True):
    """Times, in seconds. `stream_s`: how long a kubelet that took us may be without a stream."""

    register_s: float = 5.0
    look_s: float = 1.0
    retry_first_s: float = 0.25
    retry_max_s: float = 30.0
    stream_s: float = 10.0


class PluginServer:
    """`report(state, message)` is called at every change. `token()` tells instances apart: a new text each time."""

    def __init__(
        self,
        plugin: ResourcePlugin,
        directory: str,
        *,
        report: Callable[[str, str], None],
        token: Callable[[], str],
        pace: PluginPace = PluginPace(),  # noqa: B008 (a value)
        is_up: Callable[[], None] = lambda: None,
    ) -> None:
        """`is_up` is called when a life of it listens, before it registers."""
        self.plugin = plugin
        self.socket = ""  # of the present life, as a file name
        self._directory = Path(directory)
        self._report = report
        self._token = token
        self._pace = pace
        self._is_up = is_up
        self._was_registered = False
        self._said = ("", "")

    async def run(self) -> None:
        """Until cancelled. Ends with the socket removed; the kubelet sees the stream end."""
        delay = self._pace.retry_first_s
        while True:
            why = await self._live()
            if why.was_registered:
                delay = self._pace.retry_first_s
                self._say(LOST, why.message)
            else:
                self._say(LOST if self._was_registered else STARTING, why.message)
            await asyncio.sleep(delay)
            delay = min(delay * 2, self._pace.retry_max_s)

    def _say(self, state: str, message: str) -> None:
        if self._said != (state, message):
            self._said = (state, message)
            log.info("plugin.state", resource=self.plugin.resource, state=state, message=message)
            self._report(state, message)

    # --- one life -------------------------------------------------------------------------------------------------------

    async def _live(self) -> _End:
        """Serve, register, watch. Returns why it is over."""
        keep_plugin_server_grpc_alive()
        kubelet = self._directory / KUBELET_SOCKET
        if self.plugin.fault == "kill":
            return _End("PluginStopped: a drill keeps it down.")
        before = _plugin_socket_inode(kubelet)
        if before is None:
            return _End(f"KubeletNotFound: there is no {kubelet}. Is the kubelet running?")
        with _reachable_plugin_dir(self._directory) as base:
            self.socket = f"remuda-{_resource_slug(self.plugin.resource)}-{self._token()}.sock"
            server = grpc.aio.server()
            server.add_generic_rpc_handlers((_plugin_grpc_handlers(self.plugin),))
            try:
                try:
                    server.add_insecure_port(f"unix:{base}/{self.socket}")
                    await asyncio.shield(server.start())  # cut short, it would leave a server that nobody stops
                except (OSError, RuntimeError) as error:
                    return _End(f"CannotListen: {self._directory / self.socket}: {error}")
                self._is_up()
                refused = await self._register(f"{base}/{KUBELET_SOCKET}")
                if refused:
                    return _End(refused)
                self._was_registered = True
                self._say(REGISTERED, "")
                return _End(await self._watch(kubelet, before), was_registered=True)
            finally:
                await server.stop(grace=None)
                with contextlib.suppress(OSError):
                    os.unlink(self._directory / self.socket)

    async def _register(self, kubelet: str) -> str:
        """Empty when the kubelet took us, else why not."""
        request = RegisterRequest(self.socket, self.plugin.resource, VERSION, await self.plugin.options())
        method = proto.REGISTER
        async with grpc.aio.insecure_channel(f"unix:{kubelet}") as channel:
            call = channel.unary_unary(method.path, request_serializer=method.request.encode)
            try:
                await call(request, timeout=self._pace.register_s)
            except grpc.aio.AioRpcError as error:
                return _plugin_registration_error_words(error, self._pace.register_s)
        return ""

    async def _watch(self, kubelet: Path, before: tuple[int, int]) -> str:
        quiet_s = 0.0
        while True:
            await asyncio.sleep(self._pace.look_s)
            now = _plugin_socket_inode(kubelet)
            if now is None:
                return "KubeletGone: its kubelet.sock was removed."
            if now != before:
                return "KubeletRestarted: its kubelet.sock was created again."
            if not (self._directory / self.socket).exists():
                return "SocketRemoved: somebody deleted the plugin's socket."
            if self.plugin.fault == "kill":
                return "PluginStopped: a drill stopped it."
            quiet_s = 0.0 if self.plugin.streams else quiet_s + self._pace.look_s
            if quiet_s >= self._pace.stream_s:
                return f"StreamEnded: the kubelet has not listened for {quiet_s:g} s."


class _End(msgspec.Struct, frozen=True):
    message: str
    was_registered: bool = False


def _plugin_registration_error_words(error: grpc.aio.AioRpcError, deadline_s: float) -> str:
    details = (error.details() or "").strip() or "no reason given"
    match error.code():
        case grpc.StatusCode.DEADLINE_EXCEEDED:
            return f"RegistrationTimeout: the kubelet did not answer within {deadline_s:g} s."
        case grpc.StatusCode.UNAVAILABLE:
            return f"KubeletUnreachable: {details}"
        case grpc.StatusCode.UNIMPLEMENTED:
            return f"NoRegistry: what listens at kubelet.sock is not a device-plugin registry ({details})."
    return f"RegistrationRefused: {details}"


# --- the server's side --------------------------------------------------------------------------------------------------


def _plugin_grpc_handlers(plugin: ResourcePlugin) -> Any:
    async def options(request: None, context: Any) -> Any:
        return await plugin.options()

    async def list_and_watch(request: None, context: Any) -> AsyncIterator[tuple[PluginDevice, ...]]:
        stream = plugin.list_and_watch()
        try:
            async for devices in stream:
                yield devices
        finally:
            await stream.aclose()  # type: ignore[attr-defined]  # an async generator

    async def preferred(request: Any, context: Any) -> Any:
        return tuple([await plugin.preferred(r.available, r.must_include, r.size) for r in request])

    async def allocate(request: Any, context: Any) -> Any:
        return tuple([await plugin.allocate(ids) for ids in request])

    async def pre_start(request: Any, context: Any) -> None:
        await plugin.pre_start(request)

    methods: list[tuple[proto.KubeletMethod[Any, Any], Callable[[Any, Any], Awaitable[Any]]]] = [
        (proto.OPTIONS, options),
        (proto.PREFERRED, preferred),
        (proto.ALLOCATE, allocate),
        (proto.PRE_START, pre_start),
    ]
    table = {
        method.name: grpc.unary_unary_rpc_method_handler(
            _explained_plugin_call(call),
            request_deserializer=method.request.decode,
            response_serializer=method.response.encode,
        )
        for method, call in methods
    }
    stream = proto.LIST_AND_WATCH
    table[stream.name] = grpc.unary_stream_rpc_method_handler(
        list_and_watch, request_deserializer=stream.request.decode, response_serializer=stream.response.encode
    )
    return grpc.method_handlers_generic_handler(stream.service, table)


def _explained_plugin_call(call: Callable[[Any, Any], Awaitable[Any]]) -> Callable[[Any, Any], Awaitable[Any]]:
    """A refusal reaches the kubelet as its own words: it puts them into the pod's status."""

    async def answer(request: Any, context: Any) -> Any:
        try:
            return await call(request, context)
        except Refusal as refusal:
            await context.abort(
                grpc.StatusCode.FAILED_PRECONDITION, f"{refusal.reason}: {refusal.message} {refusal.fix}"
            )
        except OSError as error:
            await context.abort(grpc.StatusCode.INTERNAL, f"AllocationFailed: {error}")

    return answer


# --- paths --------------------------------------------------------------------------------------------------------------


def _plugin_socket_inode(path: Path) -> tuple[int, int] | None:
    """What tells a file made anew from the old one. An inode's number alone is used again at once by some file systems."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_ino, found.st_ctime_ns


@contextlib.contextmanager
def _reachable_plugin_dir(directory: Path) -> Any:
    """The directory, by a name short enough for sockets in it."""
    if len(os.fsencode(directory)) + 64 <= MAX_PATH:
        yield str(directory)
        return
    fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{fd}"
    finally:
        os.close(fd)


def _resource_slug(resource: str) -> str:
    return re.sub(r"[^a-z0-9.]+", "-", resource.rpartition("/")[2].lower())[:32] or "devices"
