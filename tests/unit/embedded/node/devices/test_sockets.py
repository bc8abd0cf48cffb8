"""The device manager over real sockets, with a stock plugin at the other end."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import msgspec
import pytest
import pytest_asyncio

from remuda.api.errors import Refusal
from remuda.api.kubernetes.core_v1 import Pod
from remuda.embedded.node.devices.checkpoint import CheckpointFile
from remuda.embedded.node.devices.device_manager import KubeletDeviceManager
from remuda.embedded.node.devices.plugin_connections import PluginDeadlines
from remuda.embedded.node.devices.plugin_registration import (
    PluginRegistry,
    device_manager_takes_resource_name,
    validate_registration,
)
from remuda.embedded.node.devices.podresources import BURST, PodResourcesServer, PodResourcesTokenBucket
from remuda.embedded.node.devices.sockets import MAX_PATH
from remuda.link.device_plugin_port import ContainerDevices, RegisterRequest
from remuda.link.kubelet_facts import MESSAGES
from tests.builders.nodes import until
from tests.builders.pods import a_pod
from tests.builders.stock_plugin import StockPlugin, device_list, healthy, message
from tests.builders.waiting import PATIENCE_S

GPU = "nvidia.com/gpu"
PATIENT = PluginDeadlines(dial_s=PATIENCE_S, call_s=PATIENCE_S, pre_start_s=PATIENCE_S)


class Kubelet:
    """The device manager of one node, its sockets, and plugins to go with them."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.plugins = root / "device-plugins"
        self.pods: list[Pod] | None = []
        self.changes = 0
        self.told: list[frozenset[str]] = []
        self.now = 1000.0
        self._stack = AsyncExitStack()

    async def up(self) -> None:
        def changed() -> None:
            self.changes += 1

        self.manager = KubeletDeviceManager(
            "node-01",
            clock=lambda: self.now,
            pods=lambda: self.pods,
            checkpoint=CheckpointFile(self.plugins),
            deadlines=PATIENT,
            counts_changed=changed,
            health_changed=self.told.append,
        )
        self.registry = PluginRegistry(self.plugins, self.manager)
        self.resources = PodResourcesServer(self.root / "pod-resources", self.manager, lambda: self.now)
        await self.registry.start()
        await self.resources.start()

    def hurry(self, **seconds: float) -> None:
        """Deadlines for what hangs on purpose; without any it is patient again, and takes no busy machine for a hang."""
        self.manager.deadlines = self.manager.plugins._deadlines = msgspec.structs.replace(PATIENT, **seconds)

    async def down(self) -> None:
        await self.registry.stop()
        await self.resources.stop()
        await self.manager.plugins.close()

    async def plugin(self, *devices: str, **options: Any) -> StockPlugin:
        """Serving and registered, its list heard."""
        plugin = StockPlugin(self.plugins, devices=healthy(*devices), **options)
        await plugin.serve()
        self._stack.push_async_callback(plugin.stop)
        await plugin.register()
        await self.heard(lambda: plugin.resource in self.manager.ledger.counts().capacity)
        return plugin

    async def unregistered(self, *devices: str, **options: Any) -> StockPlugin:
        plugin = StockPlugin(self.plugins, devices=healthy(*devices), **options)
        await plugin.serve()
        self._stack.push_async_callback(plugin.stop)
        return plugin

    async def heard(self, test: Callable[[], bool]) -> None:
        await until(test, within=10.0)

    def counts(self, resource: str = GPU) -> tuple[int, int]:
        counts = self.manager.counts()
        return counts.capacity[resource], counts.allocatable[resource]

    async def admit(self, uid: str, count: int = 1, resource: str = GPU) -> tuple[str, ...]:
        pod = self.pod(uid, count, resource)
        await self.manager.admit(pod)
        return tuple(d for grant in self.manager.grants(uid) for d in grant.devices)

    def pod(self, uid: str, count: int = 1, resource: str = GPU) -> Pod:
        pod = a_pod(f"pod-{uid}", uid=uid, limits={resource: count})
        if self.pods is not None and all(p.uid != uid for p in self.pods):
            self.pods.append(pod)
        return pod

    async def close(self) -> None:
        await self._stack.aclose()
        await self.down()


@pytest_asyncio.fixture
async def kubelet(tmp_path: Path) -> AsyncIterator[Kubelet]:
    found = Kubelet(tmp_path)
    await found.up()
    yield found
    await found.close()


def refused(error: grpc.aio.AioRpcError) -> str:
    return str(error.details())


# --- registration -------------------------------------------------------------------------------------------------------


async def test_a_stock_plugin_registers_and_serves_a_pod(kubelet: Kubelet) -> None:
    plugin = await kubelet.plugin("a", "b", "c", preferred=["c", "b"])
    assert kubelet.counts() == (3, 3)
    assert kubelet.changes
    assert await kubelet.admit("uid", 2) == ("c", "b")
    assert plugin.calls == [("preferred", (["a", "b", "c"], [], 2)), ("allocate", ["c", "b"])]
    (grant,) = kubelet.manager.grants("uid")
    assert grant.allocation.envs == {"VISIBLE": "c,b"}
    memory = CheckpointFile(kubelet.plugins).read()
    assert memory is not None
    assert memory.grants == (grant,)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        pytest.param({"version": "v1alpha1"}, 'requested API version "v1alpha1" is not supported', id="wrong version"),
        pytest.param({"version": ""}, 'requested API version "" is not supported', id="no version"),
        pytest.param({"resource": "gpu"}, 'the ResourceName "gpu" is invalid', id="no domain"),
        pytest.param({"resource": "kubernetes.io/gpu"}, "is invalid", id="Kubernetes' own"),
        pytest.param({"socket": "nobody.sock"}, "failed to dial device plugin", id="dead endpoint"),
        pytest.param({"socket": "../other.sock"}, "is not a socket name", id="outside of the directory"),
        pytest.param({"socket": "kubelet.sock"}, "is not a socket name", id="the registry itself"),
    ],
)
async def test_row_15_a_bad_registration_says_what_is_wrong(
    kubelet: Kubelet, options: dict[str, str], words: str
) -> None:
    plugin = await kubelet.unregistered("a")
    kubelet.hurry(dial_s=0.5)
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await plugin.register(**options)
    assert words in refused(caught.value)
    kubelet.hurry()
    await plugin.register()  # the same plugin, asking properly
    await kubelet.heard(lambda: kubelet.manager.ledger.serves(GPU))


async def test_the_same_socket_twice_is_refused_and_the_first_serves_on(kubelet: Kubelet) -> None:
    plugin = await kubelet.plugin("a")
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await plugin.register()
    assert "device plugin already connected: stock.sock" in refused(caught.value)
    assert await kubelet.admit("uid") == ("a",)


async def test_a_file_nobody_listens_on_is_a_dead_endpoint(kubelet: Kubelet) -> None:
    with socket.socket(socket.AF_UNIX) as stale:
        stale.bind(str(kubelet.plugins / "stale.sock"))
    plugin = await kubelet.unregistered("a")
    kubelet.hurry(dial_s=0.5)
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await plugin.register(socket="stale.sock")
    assert "failed to dial device plugin" in refused(caught.value)


async def test_row_16_a_start_removes_every_socket_and_nothing_else(kubelet: Kubelet) -> None:
    await kubelet.plugin("a")
    (kubelet.plugins / "DEPRECATION").write_text("kept")
    before = (kubelet.plugins / "kubelet.sock").stat()
    await kubelet.down()
    await kubelet.up()
    names = {p.name for p in kubelet.plugins.iterdir()}
    assert names == {"kubelet.sock", "kubelet_internal_checkpoint", "DEPRECATION"}
    after = (kubelet.plugins / "kubelet.sock").stat()  # the number of an inode may come back at once; its time does not
    assert (after.st_ino, after.st_ctime_ns) != (before.st_ino, before.st_ctime_ns)


@pytest.mark.parametrize(
    ("name", "good"),
    [
        ("nvidia.com/gpu", True),
        ("nvidia.com/mig-3g.40gb", True),
        ("amd.com/gpu", True),
        ("example.com/A_b.c", True),
        ("gpu", False),
        ("cpu", False),
        ("kubernetes.io/x", False),
        ("a.kubernetes.io/x", False),
        ("requests.nvidia.com/gpu", False),
        ("/gpu", False),
        ("nvidia.com/", False),
        ("nvidia.com/a/b", False),
        ("NVIDIA.com/gpu", False),
        ("nvidia.com/" + "x" * 64, False),
    ],
)
def test_extended_resource_names(name: str, good: bool) -> None:
    assert device_manager_takes_resource_name(name) is good
    if not good:
        with pytest.raises(Refusal, match="is invalid"):
            validate_registration(RegisterRequest("a.sock", name))


# --- a plugin that misbehaves, while another is served ------------------------------------------------------------------


def too_large() -> bytes:
    return device_list(healthy(*(f"{n:063d}" for n in range(70_000))))  # about 5 MiB


@pytest.mark.parametrize(
    ("data", "reason", "words"),
    [
        pytest.param(b"\xff\xff\xff\xff", "ListAndWatchFailed", "rpc error", id="garbage"),
        pytest.param(None, "ListAndWatchFailed", "ResourceExhausted", id="over 4 MiB"),
        pytest.param(b"\x0a\x02\x12\x00", "InvalidDeviceList", "without an id", id="a device without an id"),
    ],
)
async def test_a_list_that_breaks_the_contract_ends_that_plugin_only(
    kubelet: Kubelet, data: bytes | None, reason: str, words: str
) -> None:
    good = await kubelet.plugin("x", "y", resource="amd.com/gpu", socket="good.sock")
    bad = await kubelet.plugin("a", "b")
    bad.send(too_large() if data is None else data)
    await kubelet.heard(lambda: kubelet.counts() == (2, 0))
    complaint = kubelet.manager.plugins.complaints[-1]
    assert (complaint.resource, complaint.endpoint, complaint.reason) == (GPU, "stock.sock", reason)
    assert words in complaint.message
    assert kubelet.counts("amd.com/gpu") == (2, 2)
    assert await kubelet.admit("uid", 2, "amd.com/gpu") == ("x", "y")
    good.say(healthy("x"))
    await kubelet.heard(lambda: kubelet.counts("amd.com/gpu") == (1, 1))


@pytest.mark.parametrize(
    ("devices", "reason"),
    [
        pytest.param([("a", "Healthy"), ("b", "Healthy"), ("a", "Unhealthy")], "DuplicateDevices", id="duplicates"),
        pytest.param([(f"device-{n:05d}", "Healthy") for n in range(10_000)], "TooManyDevices", id="ten thousand"),
    ],
)
async def test_a_list_nobody_can_mean_is_refused_by_name(
    kubelet: Kubelet, devices: list[tuple[str, str]], reason: str
) -> None:
    await kubelet.plugin("x", resource="amd.com/gpu", socket="good.sock")
    bad = await kubelet.plugin("a", "b")
    bad.say(devices)
    await kubelet.heard(lambda: kubelet.counts() == (2, 0))  # as if it had gone
    assert kubelet.manager.plugins.complaints[-1].reason == reason
    assert await kubelet.admit("uid", 1, "amd.com/gpu") == ("x",)


async def test_four_thousand_devices_are_served(kubelet: Kubelet) -> None:
    names = [f"device-{n:05d}" for n in range(4_000)]
    await kubelet.plugin(*names, preferred=names[-2:])
    assert kubelet.counts() == (4_000, 4_000)
    assert await kubelet.admit("uid", 2) == tuple(names[-2:])


@pytest.mark.parametrize("method", ["Allocate", "GetPreferredAllocation"])
async def test_row_17_a_call_that_never_returns_fails_its_pod_and_delays_no_other(
    kubelet: Kubelet, method: str
) -> None:
    other = await kubelet.plugin("x", resource="amd.com/gpu", socket="other.sock")
    plugin = await kubelet.plugin("a", "b", preferred=[])
    plugin.hang.add(method)
    kubelet.hurry(call_s=3.0)
    stuck = asyncio.create_task(kubelet.admit("stuck"))
    await kubelet.heard(lambda: len(plugin.calls) > 0)
    kubelet.hurry()
    assert await kubelet.admit("uid", 1, "amd.com/gpu") == ("x",)
    assert not stuck.done()
    assert other.calls == [("allocate", ["x"])]
    with pytest.raises(Refusal, match="code = DeadlineExceeded desc = "):
        await stuck
    plugin.hang.clear()
    assert await kubelet.admit("next", 2) == ("a", "b")  # nothing stays set aside for the one that failed


async def test_a_plugin_that_never_answers_is_not_registered(kubelet: Kubelet) -> None:
    plugin = await kubelet.unregistered("a")
    plugin.hang.add("GetDevicePluginOptions")
    kubelet.hurry(call_s=0.5)
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await plugin.register()
    assert "failed to get device plugin options" in refused(caught.value)
    assert kubelet.manager.ledger.counts().capacity == {}


async def test_a_plugin_that_never_lists_leaves_nothing_to_give(kubelet: Kubelet) -> None:
    plugin = await kubelet.unregistered("a")
    plugin.hang.add("ListAndWatch")
    await plugin.register()
    assert kubelet.manager.ledger.counts().capacity == {}
    assert await kubelet.admit("uid") == ()  # the resource is unknown, so the pod is let through without it


@pytest.mark.parametrize(
    ("fail", "answers", "words"),
    [
        pytest.param("Allocate", None, "rpc error: code = Unknown desc = Allocate is broken", id="Allocate"),
        pytest.param(
            "GetPreferredAllocation",
            None,
            "device plugin GetPreferredAllocation rpc failed with err: rpc error: code = Unknown",
            id="row 18: the embedded node keeps the flaw",
        ),
        pytest.param("", [], "no containers return in allocation response", id="an answer for nobody"),
    ],
)
async def test_an_error_of_the_plugin_is_the_pods(
    kubelet: Kubelet, fail: str, answers: list[dict[str, Any]] | None, words: str
) -> None:
    plugin = await kubelet.plugin("a", preferred=[])
    plugin.fail, plugin.answers = {fail}, answers
    with pytest.raises(Refusal) as caught:
        await kubelet.admit("uid")
    assert words in caught.value.message
    assert kubelet.manager.grants("uid") == ()
    plugin.fail, plugin.answers = set(), None
    assert await kubelet.admit("next") == ("a",)


# --- plugins come and go --------------------------------------------------------------------------------------------------


async def test_row_1_a_plugin_that_goes_leaves_capacity_for_the_grace(kubelet: Kubelet) -> None:
    plugin = await kubelet.plugin("a", "b")
    assert await kubelet.admit("holder") == ("a",)
    await plugin.stop()
    await kubelet.heard(lambda: kubelet.counts() == (2, 0))
    with pytest.raises(Refusal, match="no healthy devices present"):
        await kubelet.admit("late")
    holder = kubelet.pod("holder")
    (grant,) = await kubelet.manager.prepare(holder, holder.spec.containers[0])  # a restart of the container goes on
    assert grant.devices == ("a",)
    kubelet.now += 299
    assert kubelet.counts() == (2, 0)
    kubelet.now += 1
    assert kubelet.counts() == (0, 0)
    with pytest.raises(Refusal, match=f"endpoint not found in cache for a registered resource: {GPU}"):
        await kubelet.manager.prepare(holder, holder.spec.containers[0])


async def test_row_3_a_plugin_back_within_the_grace_changes_nothing(kubelet: Kubelet) -> None:
    plugin = await kubelet.plugin("a", "b")
    await kubelet.admit("holder", 2)
    await plugin.stop()
    await kubelet.heard(lambda: kubelet.counts() == (2, 0))
    await kubelet.plugin("a", "b", socket="again.sock")
    await kubelet.heard(lambda: kubelet.counts() == (2, 2))
    assert await kubelet.admit("holder", 2) == ("a", "b")


async def test_row_14_either_of_two_instances_may_go(kubelet: Kubelet) -> None:
    old = await kubelet.plugin("a", "b", socket="old.sock")
    new = await kubelet.plugin("a", "b", socket="new.sock")
    assert await kubelet.admit("one") == ("a",)
    assert new.calls == [("allocate", ["a"])]
    await new.stop()
    await kubelet.heard(lambda: len(kubelet.manager.ledger.instances(GPU)) == 1)
    assert kubelet.counts() == (2, 2)
    assert await kubelet.admit("two") == ("b",)
    assert old.calls == [("allocate", ["b"])]
    await old.stop()
    await kubelet.heard(lambda: kubelet.counts() == (2, 0))


async def test_pre_start_is_called_before_each_start_and_its_failure_is_told(kubelet: Kubelet) -> None:
    plugin = await kubelet.plugin("a", pre_start=True)
    await kubelet.admit("uid")
    pod = kubelet.pod("uid")
    await kubelet.manager.prepare(pod, pod.spec.containers[0])
    plugin.fail.add("PreStartContainer")
    with pytest.raises(Refusal, match="PreStartContainer rpc failed with err: rpc error: code = Unknown"):
        await kubelet.manager.prepare(pod, pod.spec.containers[0])
    assert plugin.calls.count(("pre_start", ["a"])) == 2
    await plugin.stop()
    await kubelet.heard(lambda: kubelet.counts() == (1, 0))
    with pytest.raises(Refusal, match=r"endpoint stock\.sock has been stopped"):
        await kubelet.manager.prepare(pod, pod.spec.containers[0])


async def test_row_30_health_reaches_the_holder(kubelet: Kubelet) -> None:
    plugin = await kubelet.plugin("a", "b")
    await kubelet.admit("uid")
    plugin.say([("a", "Unhealthy"), ("b", "Healthy")])
    await kubelet.heard(lambda: kubelet.told == [frozenset({"uid"})])
    assert [h.healthy for h in kubelet.manager.health("uid", "main")] == [False]
    assert kubelet.counts() == (2, 1)


async def test_row_6_a_restart_of_the_kubelet_keeps_running_pods_on_their_devices(kubelet: Kubelet) -> None:
    await kubelet.plugin("a", "b", "c")
    held = await kubelet.admit("uid", 2)
    pod = kubelet.pod("uid", 2)
    await kubelet.down()
    pods, kubelet.pods = kubelet.pods, None  # the node does not know its pods yet
    await kubelet.up()
    assert kubelet.counts() == (0, 0)
    await kubelet.manager.admit(pod, running={"main"})
    assert tuple(d for g in kubelet.manager.grants("uid") for d in g.devices) == held
    with pytest.raises(Refusal, match="no healthy devices present"):  # a reboot instead: its containers are gone
        await kubelet.manager.admit(pod)
    kubelet.pods = pods
    await kubelet.plugin("a", "b", "c", socket="again.sock")
    await kubelet.heard(lambda: kubelet.counts() == (3, 3))
    await kubelet.manager.admit(pod)
    assert await kubelet.admit("next") == ("c",)


async def test_a_damaged_checkpoint_is_an_empty_one(kubelet: Kubelet) -> None:
    await kubelet.plugin("a")
    await kubelet.admit("uid")
    await kubelet.down()
    (kubelet.plugins / "kubelet_internal_checkpoint").write_bytes(b"not json")
    await kubelet.up()
    assert kubelet.manager.grants("uid") == ()
    assert kubelet.manager.ledger.counts().capacity == {}


async def test_a_checkpoint_that_cannot_be_written_fails_the_pod(
    kubelet: Kubelet, monkeypatch: pytest.MonkeyPatch
) -> None:
    await kubelet.plugin("a")

    def full(self: CheckpointFile, memory: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(CheckpointFile, "write", full)
    with pytest.raises(Refusal, match="failed to write checkpoint file"):
        await kubelet.admit("uid")


# --- podresources ---------------------------------------------------------------------------------------------------------


async def ask(kubelet: Kubelet, method: str, request: str, response: str, **fields: Any) -> Any:
    v1 = MESSAGES["v1"]
    place = kubelet.root / "pod-resources" / "kubelet.sock"
    async with grpc.aio.insecure_channel(f"unix:{place}") as channel:
        call = channel.unary_unary(f"/v1.PodResourcesLister/{method}")
        return v1[response].FromString(await call(v1[request](**fields).SerializeToString(), timeout=PATIENCE_S))


async def test_podresources_say_who_has_what(kubelet: Kubelet) -> None:
    plugin = await kubelet.plugin("a", "b", "c")
    await kubelet.admit("uid", 2)
    listed = await ask(kubelet, "List", "ListPodResourcesRequest", "ListPodResourcesResponse")
    (pod,) = listed.pod_resources
    (container,) = pod.containers
    assert (pod.namespace, pod.name, container.name) == ("default", "pod-uid", "main")
    assert [(d.resource_name, list(d.device_ids)) for d in container.devices] == [(GPU, ["a"]), (GPU, ["b"])]
    assert await kubelet.manager.list() == (ContainerDevices("default", "pod-uid", "main", GPU, ("a", "b")),)
    plugin.say([("a", "Unhealthy"), ("b", "Healthy"), ("c", "Healthy")])
    await kubelet.heard(lambda: kubelet.counts() == (3, 2))
    free = await ask(kubelet, "GetAllocatableResources", "AllocatableResourcesRequest", "AllocatableResourcesResponse")
    assert [(d.resource_name, list(d.device_ids)) for d in free.devices] == [(GPU, ["b"]), (GPU, ["c"])]
    one = await ask(
        kubelet,
        "Get",
        "GetPodResourcesRequest",
        "GetPodResourcesResponse",
        pod_name="pod-uid",
        pod_namespace="default",
    )
    assert one.pod_resources.name == "pod-uid"
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await ask(kubelet, "Get", "GetPodResourcesRequest", "GetPodResourcesResponse", pod_name="x", pod_namespace="y")
    assert "pod x in namespace y not found" in refused(caught.value)


async def test_a_look_at_podresources_frees_the_devices_of_ended_pods(kubelet: Kubelet) -> None:
    await kubelet.plugin("a")
    await kubelet.admit("uid")
    kubelet.pods = []
    assert kubelet.manager.ledger.holders(GPU) == {"a": ("uid",)}
    listed = await ask(kubelet, "List", "ListPodResourcesRequest", "ListPodResourcesResponse")
    assert not listed.pod_resources
    assert kubelet.manager.ledger.holders(GPU) == {}


async def test_podresources_list_pods_without_devices_and_sidecars_but_no_other_init_containers(
    kubelet: Kubelet,
) -> None:
    await kubelet.plugin("a", "b")
    inits = [
        {"name": "init", "resources": {"limits": {GPU: 1}}},
        {"name": "side", "resources": {"limits": {GPU: 1}}, "restartPolicy": "Always"},
    ]
    pod = a_pod("with", uid="with", inits=inits)
    kubelet.pods = [pod, a_pod("bare", uid="bare")]
    await kubelet.manager.admit(pod)
    listed = await ask(kubelet, "List", "ListPodResourcesRequest", "ListPodResourcesResponse")
    found = {
        p.name: {c.name: [list(d.device_ids) for d in c.devices] for c in p.containers} for p in listed.pod_resources
    }
    assert found == {"with": {"side": [["a"]], "main": []}, "bare": {"main": []}}


async def test_podresources_say_where_devices_sit(kubelet: Kubelet) -> None:
    plugin = await kubelet.plugin("a")
    near = [{"ID": "a", "health": "Healthy", "topology": {"nodes": [{"ID": 0}, {"ID": 1}]}}]
    plugin.send(message("ListAndWatchResponse", devices=near))
    await kubelet.heard(lambda: kubelet.manager.ledger.healthy()[GPU][0].numa == (0, 1))
    await kubelet.admit("uid")
    listed = await ask(kubelet, "List", "ListPodResourcesRequest", "ListPodResourcesResponse")
    devices = listed.pod_resources[0].containers[0].devices
    assert [(list(d.device_ids), [n.ID for n in d.topology.nodes]) for d in devices] == [(["a"], [0]), (["a"], [1])]


async def test_podresources_are_limited(kubelet: Kubelet) -> None:
    for _ in range(BURST):
        await ask(kubelet, "List", "ListPodResourcesRequest", "ListPodResourcesResponse")
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await ask(kubelet, "List", "ListPodResourcesRequest", "ListPodResourcesResponse")
    assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    kubelet.now += 0.05
    await ask(kubelet, "List", "ListPodResourcesRequest", "ListPodResourcesResponse")


def test_the_bucket_fills_with_time() -> None:
    bucket = PodResourcesTokenBucket(100.0, 10, 0.0)
    assert [bucket.take(0.0) for _ in range(11)] == [True] * 10 + [False]
    assert [bucket.take(0.02) for _ in range(3)] == [True, True, False]
    assert sum(bucket.take(60.0) for _ in range(100)) == 10


# --- long paths -----------------------------------------------------------------------------------------------------------


async def test_a_deep_state_directory_is_no_obstacle(tmp_path: Path) -> None:
    kubelet = Kubelet(tmp_path / ("d" * 100) / ("e" * 100))
    await kubelet.up()
    try:
        assert len(str(kubelet.plugins / "kubelet.sock")) > MAX_PATH
        await kubelet.plugin("a")
        assert await kubelet.admit("uid") == ("a",)
    finally:
        await kubelet.close()
