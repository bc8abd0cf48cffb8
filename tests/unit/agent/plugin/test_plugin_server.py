"""A plugin and a kubelet over real sockets: registration, its refusals, and everything that ends one."""

from __future__ import annotations

import asyncio
import itertools
import os
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import msgspec
import pytest
import pytest_asyncio

from remuda.agent.plugin.plugin_server import LOST, REGISTERED, STARTING, PluginPace, PluginServer
from remuda.agent.plugin.resource_plugin import ResourcePlugin
from remuda.api.names import RESOURCE_GPU
from remuda.link import kubelet_proto as proto
from remuda.link.allocation_port import HANG, KILL, MEND
from remuda.link.device_plugin_port import HEALTHY, UNHEALTHY
from tests.builders.waiting import PATIENCE_S
from tests.unit.agent.plugin.kubelet import Kubelet, a_kubelet
from tests.unit.agent.scene import Scene, a_pod, short_directory

FAST = PluginPace(register_s=PATIENCE_S, look_s=0.01, retry_first_s=0.01, retry_max_s=0.05)
GPUS = [f"gpu-{i}" for i in range(8)]
tokens = itertools.count(1)


class Served:
    """A plugin that is served, and what it reported."""

    def __init__(self, plugin: ResourcePlugin, kubelet: Kubelet, pace: PluginPace = FAST) -> None:
        self.plugin = plugin
        self.kubelet = kubelet
        self.said: list[tuple[str, str]] = []
        self.server = PluginServer(
            plugin, str(kubelet.directory), report=self._report, token=lambda: f"t{next(tokens)}", pace=pace
        )
        self.task = asyncio.create_task(self.server.run())

    def _report(self, state: str, message: str) -> None:
        self.said.append((state, message))
        self.kubelet.wake()

    async def reports(self, state: str, *words: str) -> None:
        def is_said() -> bool:
            return any(s == state and all(word in m for word in words) for s, m in self.said)

        try:
            await self.kubelet.until(is_said, f"{state} {words}")
        except BaseException:
            print("reported:", self.said)
            raise

    async def end(self) -> None:
        self.task.cancel()
        await asyncio.gather(self.task, return_exceptions=True)


@pytest.fixture
def directory() -> Iterator[Path]:
    with short_directory() as found:
        yield found


@pytest_asyncio.fixture
async def kubelet(directory: Path) -> AsyncIterator[Kubelet]:
    async with a_kubelet(directory) as made:
        yield made


@pytest_asyncio.fixture
async def scene(tmp_path: Path) -> AsyncIterator[Scene]:
    made = Scene(tmp_path)
    yield made
    made.close()


@asynccontextmanager
async def served(scene: Scene, kubelet: Kubelet, pace: PluginPace = FAST, **fields: Any) -> AsyncIterator[Served]:
    made = Served(scene.plugin(**fields), kubelet, pace)
    try:
        yield made
    finally:
        await made.end()


async def test_it_registers_lists_allocates_and_pushes_changes(scene: Scene, kubelet: Kubelet) -> None:
    async with served(scene, kubelet) as plugin:
        await kubelet.until(lambda: kubelet.registered and kubelet.list_of(), "a list")
        request = kubelet.registered[0]
        assert (request.resource_name, request.version) == (RESOURCE_GPU, "v1beta1")
        assert request.options.preferred_allocation_available
        assert (kubelet.directory / request.endpoint).is_socket()
        assert await kubelet.options() == request.options
        await plugin.reports(REGISTERED)
        scene.bound = [a_pod("a", 2, "gpu-2,gpu-3")]
        assert await kubelet.prefer(GPUS, 2) == ("gpu-2", "gpu-3")
        answer = await kubelet.allocate("gpu-3", "gpu-2")
        assert answer.envs["CUDA_VISIBLE_DEVICES"] == "2,3"
        scene.backend.inject("gpu-6", "xid-79")
        await kubelet.until(lambda: kubelet.list_of().get("gpu-6") == UNHEALTHY, "gpu-6 Unhealthy")
        assert list(kubelet.list_of().values()).count(HEALTHY) == 7
    assert os.listdir(kubelet.directory) == ["kubelet.sock"]  # it leaves nothing behind


async def test_a_refusal_s_words_reach_the_kubelet(scene: Scene, kubelet: Kubelet) -> None:
    async with served(scene, kubelet) as plugin:
        await plugin.reports(REGISTERED)
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await kubelet.allocate("gpu-17")
        assert caught.value.code() == grpc.StatusCode.FAILED_PRECONDITION
        assert caught.value.details().startswith("UnknownDevice: nvidia.com/gpu has no device `gpu-17`")
        await kubelet.allocate("gpu-0")  # nobody else suffers


async def test_garbage_is_answered_with_an_error_and_the_next_call_is_served(scene: Scene, kubelet: Kubelet) -> None:
    async with served(scene, kubelet) as plugin:
        await plugin.reports(REGISTERED)
        async with kubelet.channel(kubelet.newest) as channel:
            for path in (proto.ALLOCATE.path, proto.PREFERRED.path, "/v1beta1.DevicePlugin/Explode"):
                with pytest.raises(grpc.aio.AioRpcError):
                    await channel.unary_unary(path)(b"\xff\xff\xff", timeout=PATIENCE_S)
        assert (await kubelet.ask(proto.ALLOCATE, ())) == ()
        await kubelet.allocate("gpu-0")


async def test_row_17_a_hung_allocate_ends_at_the_caller_s_deadline_and_hinders_no_other_resource(
    scene: Scene, kubelet: Kubelet
) -> None:
    await scene.slicer.cut("gpu-7", ["3g.40gb"])
    async with (
        served(scene, kubelet) as hanging,
        served(scene, kubelet, resource="nvidia.com/mig-3g.40gb") as other,
    ):
        await hanging.reports(REGISTERED)
        await other.reports(REGISTERED)
        endpoints = {r.resource_name: r.endpoint for r in kubelet.registered}
        hanging.plugin.inject(HANG)
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await kubelet.ask(proto.ALLOCATE, (("gpu-0",),), endpoints[RESOURCE_GPU], within_s=0.05)
        assert caught.value.code() == grpc.StatusCode.DEADLINE_EXCEEDED
        piece = other.plugin.devices()[0].id
        assert await kubelet.ask(proto.ALLOCATE, ((piece,),), endpoints["nvidia.com/mig-3g.40gb"])


async def test_row_15_what_the_kubelet_says_against_it_is_reported_and_tried_again(
    scene: Scene, kubelet: Kubelet
) -> None:
    kubelet.refusal = 'requested API version "v1beta1" is not supported by kubelet. Supported version is ["v2"]'
    async with served(scene, kubelet) as plugin:
        await plugin.reports(STARTING, "RegistrationRefused", "not supported by kubelet")
        kubelet.refusal = ""
        await plugin.reports(REGISTERED)
    states = [state for state, _ in plugin.said]
    assert states == [STARTING, REGISTERED]  # the same words are said once, however often it tried


async def test_row_15_a_kubelet_that_does_not_answer_is_not_waited_for(scene: Scene, kubelet: Kubelet) -> None:
    kubelet.hangs = True
    pace = PluginPace(register_s=0.05, look_s=0.01, retry_first_s=0.01, retry_max_s=0.05)
    async with served(scene, kubelet, pace) as plugin:
        await plugin.reports(STARTING, "RegistrationTimeout", "0.05 s")
        kubelet.hangs = False
        # The deadline that showed the hang is too short to rely on under load, so it may take a few tries.
        await plugin.reports(REGISTERED)


async def test_row_15_no_kubelet_there_or_something_else(scene: Scene, directory: Path) -> None:
    kubelet = Kubelet(directory)
    async with served(scene, kubelet) as plugin:
        await plugin.reports(STARTING, "KubeletNotFound", str(directory))
        (directory / "kubelet.sock").write_text("not a socket")
        await plugin.reports(STARTING, "KubeletUnreachable")
        await kubelet.start()
        await plugin.reports(REGISTERED)
    await kubelet.stop()


async def test_row_16_it_registers_again_when_the_kubelet_s_socket_is_made_anew(scene: Scene, kubelet: Kubelet) -> None:
    async with served(scene, kubelet) as plugin:
        await plugin.reports(REGISTERED)  # the answer has arrived: a restart before it is a registration that failed
        first = kubelet.newest
        await kubelet.restart()
        await kubelet.until(lambda: len(kubelet.registered) >= 2 and kubelet.list_of(), "the second one")
        assert kubelet.newest != first
        await plugin.reports(LOST, "Kubelet")
        await kubelet.allocate("gpu-0")


async def test_it_registers_again_when_the_kubelet_stops_listening(scene: Scene, kubelet: Kubelet) -> None:
    kubelet.listens = False
    async with served(scene, kubelet, msgspec.structs.replace(FAST, stream_s=0.2)) as plugin:
        await plugin.reports(LOST, "StreamEnded")
        kubelet.listens = True
        await kubelet.until(lambda: kubelet.lists, "a list")


async def test_it_makes_its_socket_again_when_somebody_deletes_it(scene: Scene, kubelet: Kubelet) -> None:
    async with served(scene, kubelet) as plugin:
        await plugin.reports(REGISTERED)
        first = kubelet.newest
        os.unlink(kubelet.directory / first)
        await plugin.reports(LOST, "SocketRemoved")
        await kubelet.until(lambda: kubelet.newest != first and kubelet.list_of(), "another socket")


async def test_row_14_two_instances_overlap_and_either_serves(scene: Scene, kubelet: Kubelet) -> None:
    async with served(scene, kubelet) as old:
        await kubelet.until(lambda: kubelet.registered and kubelet.list_of(), "the old one's list")
        one = kubelet.newest
        async with served(scene, kubelet) as new:
            await new.reports(REGISTERED)
            two = kubelet.newest
            assert one != two
            await kubelet.until(lambda: kubelet.list_of(two), "the new one's list")
            await old.end()
            await kubelet.until(lambda: one in kubelet.ended, "the old one's end")
            assert two not in kubelet.ended
            await kubelet.allocate("gpu-0")


async def test_a_drill_takes_it_down_and_lets_it_up_again(scene: Scene, kubelet: Kubelet) -> None:
    async with served(scene, kubelet) as plugin:
        await plugin.reports(REGISTERED)
        first = kubelet.newest
        plugin.plugin.inject(KILL)
        await plugin.reports(LOST, "PluginStopped")
        await kubelet.until(lambda: first in kubelet.ended, "the end of the stream")
        plugin.plugin.inject(MEND)
        await kubelet.until(lambda: kubelet.newest != first and kubelet.list_of(), "it to come back")


async def test_a_directory_with_a_long_name(scene: Scene, directory: Path) -> None:
    """The kubelet's own is short; a state directory's is not. Both sides then go through a file descriptor."""
    deep = directory / ("d" * 60) / ("e" * 60)
    deep.mkdir(parents=True)
    fd = os.open(deep, os.O_RDONLY | os.O_DIRECTORY)
    try:
        kubelet = Kubelet(Path(f"/proc/self/fd/{fd}"))
        await kubelet.start()
        made = Served(scene.plugin(), kubelet)
        made.server = PluginServer(
            made.plugin, str(deep), report=made._report, token=lambda: f"t{next(tokens)}", pace=FAST
        )
        await made.end()
        made.task = asyncio.create_task(made.server.run())
        await kubelet.until(lambda: kubelet.registered and kubelet.list_of(), "a list")
        await made.end()
        await kubelet.stop()
    finally:
        os.close(fd)


async def test_many_shares_of_many_devices_are_listed_whole(scene: Scene, kubelet: Kubelet) -> None:
    async with served(scene, kubelet, replicas=64):
        await kubelet.until(lambda: kubelet.registered and len(kubelet.list_of()) == 512, "512 shares")
