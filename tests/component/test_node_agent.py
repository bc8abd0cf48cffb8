"""`remuda agent` whole, beside a kubelet that is played: from registration to a rank at the barrier, and through an upgrade."""

from __future__ import annotations

import asyncio
import itertools
import os
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
import pytest_asyncio

from remuda.agent.agent_fence import AgentFence
from remuda.agent.agent_lease import AgentLease
from remuda.api.devices import NodeDevices
from remuda.api.errors import ApiError, NotFound, Refusal
from remuda.api.kubernetes.core_v1 import NODE_LEASE_NAMESPACE, Lease, Namespace, Node, Pod
from remuda.api.names import RESOURCE_GPU
from remuda.embedded.apiserver.local_cluster import LocalCluster
from remuda.embedded.apiserver.store import MemoryJournal, ObjectStore
from remuda.kube.runtime.informer import Informer
from remuda.launch.protocol import Hello, encode_launch_message
from remuda.link.allocation_port import NodeAgentLink
from remuda.link.device_plugin_port import ContainerDevices
from remuda.runtime.node_agent import (
    AgentProcessConfig,
    check_kinds_installed,
    check_node_agent_process_config,
    node_agent,
    parse_node_agent_replicas,
)
from remuda.runtime.node_name_check import LOOK_S, WAIT_S, check_own_node_name_exists
from remuda.runtime.peer_endpoint import PeerConfig
from remuda.sim.virtual_time_loop import run_virtual
from tests.builders.nodes import Outage
from tests.builders.waiting import PATIENCE_S
from tests.unit.agent.plugin.kubelet import Kubelet, PodResources, a_kubelet
from tests.unit.agent.scene import short_directory

NODE = "worker-1"
GPUS = [f"gpu-{i}" for i in range(8)]


class Site:
    def __init__(self, base: Path, kubelet: Kubelet, resources: PodResources) -> None:
        uids = itertools.count(1)
        self.cluster = LocalCluster(ObjectStore(MemoryJournal()), clock=time.time, new_uid=lambda: f"uid-{next(uids)}")
        self.kubelet = kubelet
        self.resources = resources
        self.config = AgentProcessConfig(
            NODE, str(base / "state"), str(base / "kubelet"), backend="fake", model="dgx-h100", fence_s=0
        )
        self.devices = Informer(self.cluster, NodeDevices)
        self._readers: dict[asyncio.StreamWriter, asyncio.StreamReader] = {}
        self._changed = asyncio.Event()
        self.devices.subscribe(lambda old, new: self._changed.set())

    @property
    def alloc(self) -> Path:
        return Path(self.config.state) / "alloc"

    def ledger(self) -> NodeDevices:
        return self.devices.get(NODE) or NodeDevices(metadata={})  # type: ignore[arg-type]

    async def until(self, condition: Callable[[NodeDevices], Any], what: str) -> None:
        try:
            async with asyncio.timeout(PATIENCE_S):
                while self.devices.get(NODE) is None or not condition(self.ledger()):
                    self._changed.clear()
                    await self._changed.wait()
        except TimeoutError:
            pytest.fail(f"waited in vain for {what}: {self.devices.get(NODE)}")

    async def registered(self, resource: str = RESOURCE_GPU) -> None:
        await self.until(
            lambda nd: any((p.resource, p.state) == (resource, "Registered") for p in nd.observed.plugins),
            f"the plugin of {resource}",
        )

    async def bind(self, name: str, devices: str, resource: str = RESOURCE_GPU) -> Pod:
        number = devices.count(",") + 1
        return await self.cluster.create(
            Pod,
            {
                "metadata": {
                    "name": name,
                    "namespace": "default",
                    "annotations": {"remuda.dev/devices": devices},
                    "labels": {"remuda.dev/gang": "job"},
                },
                "spec": {
                    "nodeName": NODE,
                    "containers": [{"name": "main", "resources": {"limits": {resource: number}}}],
                },
            },
        )

    async def start(self, pod: Pod, *devices: str, resource: str = RESOURCE_GPU) -> None:
        """The kubelet's part: Allocate, and its own record of it."""
        await self.kubelet.allocate(*devices)
        self.resources.rows.append(ContainerDevices(pod.namespace, pod.name, "main", resource, devices))

    async def launch(self, pod: Pod, directory: str) -> asyncio.StreamWriter:
        fd = os.open(self.alloc / directory, os.O_RDONLY | os.O_DIRECTORY)
        try:
            reader, writer = await asyncio.open_unix_connection(f"/proc/self/fd/{fd}/agent.sock")
        finally:
            os.close(fd)
        writer.write(encode_launch_message(Hello(pod.name, pod.uid, 7, "parked", 0)))
        self._readers[writer] = reader
        return writer

    async def said_to(self, launcher: asyncio.StreamWriter) -> bytes:
        """Everything, until the agent hangs up."""
        return await self._readers[launcher].read()


async def turns(condition: Callable[[], bool]) -> None:
    """Waits for what only shows in this process."""
    async with asyncio.timeout(PATIENCE_S):
        for pause in itertools.repeat(0.005):
            if condition():
                return
            await asyncio.sleep(pause)


@pytest_asyncio.fixture(name="site")
async def agent_site() -> AsyncIterator[Site]:
    with short_directory() as base:
        plugins = base / "kubelet" / "device-plugins"
        plugins.mkdir(parents=True)
        (base / "kubelet" / "pod-resources").mkdir()
        resources = PodResources(base / "kubelet" / "pod-resources" / "kubelet.sock")
        await resources.start()
        async with a_kubelet(plugins) as kubelet:
            made = Site(base, kubelet, resources)
            await made.cluster.create(Namespace, {"metadata": {"name": "default"}})
            await made.cluster.create(Node, {"metadata": {"name": NODE}})
            await made.cluster.create(NodeDevices, {"metadata": {"name": NODE}})  # the manager's part
            watching = asyncio.create_task(made.devices.run())
            await made.devices.synced()
            yield made
            watching.cancel()
            await asyncio.gather(watching, return_exceptions=True)
        await resources.stop()


async def test_an_agent_that_meets_no_peers_names_no_place_where_they_might_ask(site: Site) -> None:
    """Whoever counts the nodes that take copies goes by it. Without a fence no peers are met."""
    token = Path(site.config.state).with_name("token")
    token.write_text("of the manager's stream")
    peers = PeerConfig("10.0.0.1", 9444)
    config = msgspec.structs.replace(site.config, fence_s=0.0, peers=peers, link_token=str(token))
    async with node_agent(config, site.cluster) as agent:
        await agent.flush()
        await site.registered()
        assert site.ledger().observed.door == ""


async def test_from_registration_to_a_launcher_at_the_barrier_and_through_an_upgrade(site: Site) -> None:
    pod = await site.bind("a", "gpu-4,gpu-5")
    async with node_agent(site.config, site.cluster) as agent:
        port: NodeAgentLink = agent  # what an embedded node asks of it, it has
        assert RESOURCE_GPU in port.plugins()
        await site.registered()
        assert await site.kubelet.prefer(GPUS, 2) == ("gpu-4", "gpu-5")
        await site.start(pod, "gpu-5", "gpu-4")
        first = await site.launch(pod, "gpu-4_gpu-5")
        await site.until(lambda nd: [r.state for r in nd.observed.launchers] == ["parked"], "the launcher")
        await site.until(lambda nd: nd.observed.holdings, "the holding")
        (holding,) = site.ledger().observed.holdings
        assert (holding.pod, holding.uid, holding.devices, holding.chosen) == (
            "default/a",
            pod.uid,
            ["gpu-4", "gpu-5"],
            [],
        )
        assert agent.holders() == {"gpu-4": pod.uid, "gpu-5": pod.uid}
        assert (await site.cluster.get(Node, NODE)).labels["nvidia.com/gpu.count"] == "8"
    assert (site.alloc.parent / "grants" / "gpu-4_gpu-5.json").exists()  # left alone
    assert [h.uid for h in site.ledger().observed.holdings] == [pod.uid]
    async with node_agent(site.config, site.cluster) as agent:
        assert agent.holders() == {"gpu-4": pod.uid, "gpu-5": pod.uid}
        again = await site.launch(pod, "gpu-4_gpu-5")  # in the same place, with the same socket name
        await turns(lambda: agent.launchers.is_connected(pod.uid))  # nothing of it shows in the API
        for writer in (first, again):
            writer.close()


async def test_a_state_directory_that_everybody_can_write_is_refused(site: Site) -> None:
    state = site.alloc.parent
    state.mkdir()
    state.chmod(0o777)
    with pytest.raises(Refusal, match="DirectoryOpenToOthers"):
        async with node_agent(site.config, site.cluster):
            pass
    assert not site.alloc.exists()


async def test_row_14_a_newer_agent_takes_over_while_the_older_one_still_lists(site: Site) -> None:
    pod = await site.bind("a", "gpu-0")
    async with node_agent(site.config, site.cluster) as old:
        await site.registered()
        await site.start(pod, "gpu-0")
        first = await site.launch(pod, "gpu-0")
        await turns(lambda: old.launchers.is_connected(pod.uid))
        one = site.kubelet.newest
        async with node_agent(site.config, site.cluster) as new:
            await site.kubelet.until(
                lambda: site.kubelet.newest != one and site.kubelet.list_of(), "the new one's list"
            )
            await turns(lambda: not old.grants.is_open)
            async with asyncio.timeout(PATIENCE_S):
                assert await site.said_to(first) == b""  # hung up on, so that it dials again
            assert site.kubelet.ended == []  # both list
            second = await site.launch(pod, "gpu-0")
            await turns(lambda: new.launchers.is_connected(pod.uid))
            assert new.holders() == {"gpu-0": pod.uid}
            await site.kubelet.allocate("gpu-1")
            with pytest.raises(Refusal, match="Superseded"):
                await old.plugins()[RESOURCE_GPU].allocate(["gpu-2"])
            assert [r.state for r in site.ledger().observed.launchers] == ["parked"]
        for writer in (first, second):
            writer.close()


class Renewals:
    """An agent's own way to the API; counts what it writes to its lease."""

    def __init__(self, inner: LocalCluster) -> None:
        self._inner = inner
        self.count = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    async def patch(self, kind: Any, *args: Any, **options: Any) -> Any:
        self.count += kind is Lease
        return await self._inner.patch(kind, *args, **options)


async def test_an_agent_that_was_replaced_renews_the_lease_no_more(site: Site) -> None:
    """Its notes for the manager would stand in place of the newer one's."""
    await site.cluster.create(Namespace, {"metadata": {"name": NODE_LEASE_NAMESPACE}})
    older: Any = Renewals(site.cluster)
    newer: Any = Renewals(site.cluster)
    config = msgspec.structs.replace(site.config, report_timeouts={"": 0.6}, fence_s=25.0)
    async with node_agent(config, older) as old:
        await turns(lambda: older.count > 1)
        async with node_agent(config, newer):
            await turns(lambda: not old.grants.is_open)
            counts = older.count, newer.count
            await turns(lambda: newer.count > counts[1] + 5)
            assert older.count <= counts[0] + 1, "one may have been on its way"


async def test_row_39_a_quarantine_order_reaches_the_kubelet_and_outlives_the_agent(site: Site) -> None:
    for _ in range(2):
        async with node_agent(site.config, site.cluster):
            await site.registered()
            await site.cluster.patch(NodeDevices, NODE, {"quarantine": {"gpu-6": {"reason": "Flapping"}}})
            await site.kubelet.until(lambda: site.kubelet.list_of().get("gpu-6") == "Unhealthy", "gpu-6 out of use")
    async with node_agent(site.config, site.cluster):
        await site.cluster.patch(NodeDevices, NODE, {"quarantine": {"gpu-6": None}})
        await site.kubelet.until(lambda: site.kubelet.list_of().get("gpu-6") == "Healthy", "gpu-6 back in use")


async def test_a_pod_that_is_gone_frees_its_devices(site: Site) -> None:
    pod = await site.bind("a", "gpu-0")
    async with node_agent(site.config, site.cluster) as agent:
        await site.registered()
        await site.start(pod, "gpu-0")
        launcher = await site.launch(pod, "gpu-0")
        await site.until(lambda nd: nd.observed.holdings, "the holding")
        launcher.close()
        site.resources.rows.clear()
        await site.cluster.delete(Pod, "a", "default", grace_s=0)
        await site.until(lambda nd: not nd.observed.holdings, "the end of the holding")
        assert agent.holders() == {}
        assert os.listdir(site.alloc) == []


async def test_the_kubelet_that_chose_otherwise_is_recorded(site: Site) -> None:
    pod = await site.bind("a", "gpu-4")
    async with node_agent(site.config, site.cluster):
        await site.registered()
        await site.start(pod, "gpu-1")
        launcher = await site.launch(pod, "gpu-1")
        await site.until(lambda nd: nd.observed.holdings, "the holding")
        (holding,) = site.ledger().observed.holdings
        assert (holding.devices, holding.chosen) == (["gpu-1"], ["gpu-4"])
        launcher.close()


async def test_row_30_an_unhealthy_device_reaches_the_kubelet_and_the_ledger(site: Site) -> None:
    async with node_agent(site.config, site.cluster) as agent:
        await site.registered()
        agent.inject_fault("gpu-3", "xid-79")
        await site.kubelet.until(lambda: site.kubelet.list_of().get("gpu-3") == "Unhealthy", "gpu-3 Unhealthy")
        await site.until(lambda nd: nd.observed.devices[3].signals, "the signal")


async def test_slices_are_cut_when_idle_and_served_as_their_own_resource(site: Site) -> None:
    config = msgspec.structs.replace(site.config, mig={"gpu-0": ("3g.40gb", "3g.40gb"), "gpu-1": ("1g.10gb",) * 7})
    async with node_agent(config, site.cluster) as agent:
        for resource in (RESOURCE_GPU, "nvidia.com/mig-3g.40gb", "nvidia.com/mig-1g.10gb"):
            await site.registered(resource)
        assert {p: len(port.devices()) for p, port in agent.plugin_set.plugins.items()} == {  # type: ignore[union-attr]
            RESOURCE_GPU: 6,
            "nvidia.com/mig-3g.40gb": 2,
            "nvidia.com/mig-1g.10gb": 7,
        }
    async with node_agent(config, site.cluster) as agent:
        assert agent.slicer.pending == {}


async def test_a_layout_waits_for_the_pod_that_holds_the_device(site: Site) -> None:
    pod = await site.bind("a", "gpu-0")
    async with node_agent(site.config, site.cluster):
        await site.registered()
        await site.start(pod, "gpu-0")
        launcher = await site.launch(pod, "gpu-0")
        await site.until(lambda nd: nd.observed.holdings, "the holding")
    config = msgspec.structs.replace(site.config, mig={"gpu-0": ("3g.40gb",)})
    async with node_agent(config, site.cluster) as agent:
        assert agent.slicer.pending["gpu-0"].reason == "DeviceInUse"
        launcher.close()
        site.resources.rows.clear()
        await site.cluster.delete(Pod, "a", "default", grace_s=0)
        await site.until(lambda nd: any(d.profile for d in nd.observed.devices), "the slice")
        await site.registered("nvidia.com/mig-3g.40gb")


async def test_shares(site: Site) -> None:
    config = msgspec.structs.replace(site.config, replicas={RESOURCE_GPU: 2})
    async with node_agent(config, site.cluster):
        await site.registered()
        await site.kubelet.until(lambda: len(site.kubelet.list_of()) == 16, "sixteen shares")


async def test_health_only_serves_nothing_and_still_says_who_has_what(site: Site) -> None:
    config = msgspec.structs.replace(site.config, mode="health-only")
    async with node_agent(config, site.cluster) as agent:
        assert agent.plugins() == {}
        uuid = agent.inventory.rows["gpu-2"].uuid
        site.resources.rows = [ContainerDevices("default", "v", "main", RESOURCE_GPU, (uuid,))]
        assert agent.holdings is not None
        agent.holdings.nudge()
        await site.until(lambda nd: [h.devices for h in nd.observed.holdings] == [["gpu-2"]], "the vendor's holding")
        agent.inject_fault("gpu-2", "xid-79")
        await site.until(lambda nd: nd.observed.devices[2].signals, "the signal")
    assert site.kubelet.registered == []


# --- options ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"mode": "dra"}, "UnknownMode"),
        ({"backend": "fake", "model": ""}, "MissingModel"),
        ({"mode": "health-only", "replicas": {RESOURCE_GPU: 2}}, "ContradictingOptions"),
        ({"mode": "health-only", "mig": {"all": ("1g.10gb",)}}, "ContradictingOptions"),
        ({"fence_s": 0.2}, "FenceTooShort"),
        ({"peers": PeerConfig("worker-1")}, "InvalidPeerHost"),
        ({"peers": PeerConfig("10.0.0.1:9444")}, "InvalidPeerHost"),
    ],
)
def test_what_cannot_work_is_refused_before_anything_is_touched(fields: dict[str, Any], reason: str) -> None:
    with pytest.raises(Refusal, match=reason):
        check_node_agent_process_config(msgspec.structs.replace(AgentProcessConfig("n"), **fields))


@pytest.mark.parametrize("text", ["gpu=2", "nvidia.com/gpu", "nvidia.com/gpu=two", "nvidia.com/gpu=-1"])
def test_replicas_must_be_readable(text: str) -> None:
    with pytest.raises(Refusal, match="InvalidReplicas"):
        parse_node_agent_replicas((text,))


class Bare:
    def __init__(self, error: Exception) -> None:
        self._error = error

    async def list(self, kind: type[object]) -> None:
        raise self._error

    async def get(self, kind: type[object], name: str) -> None:
        raise self._error


async def test_a_cluster_without_our_kinds_is_refused_and_one_that_does_not_answer_is_waited_for() -> None:
    bare: Any = Bare(NotFound("the server could not find the requested resource"))
    with pytest.raises(Refusal, match="KindNotInstalled"):
        await check_kinds_installed(bare)
    away: Any = Bare(OSError("connection refused"))
    await check_kinds_installed(away)


# --- its node -----------------------------------------------------------------------------------------------------------


def an_api() -> LocalCluster:
    uids = itertools.count(1)
    return LocalCluster(ObjectStore(MemoryJournal()), clock=time.time, new_uid=lambda: f"uid-{next(uids)}")


@pytest.mark.parametrize(
    ("nodes", "fix"),
    [
        (["worker-1", "worker-2"], "Did you mean --node worker-1?"),
        ([f"{n}" for n in range(10)], "Give --node one of 0, 1, 2, 3, 4, 5, 6, 7 and 2 more."),
        ([], "kubectl get nodes"),
    ],
)
def test_an_agent_of_no_node_waits_and_is_refused(nodes: list[str], fix: str) -> None:
    async def story() -> None:
        api = an_api()
        for name in nodes:
            await api.create(Node, {"metadata": {"name": name}})
        began = asyncio.get_running_loop().time()
        with pytest.raises(Refusal, match="NodeNotFound: The cluster has no node `workr-1`") as caught:
            await check_own_node_name_exists(api, "workr-1")
        assert fix in caught.value.fix
        assert asyncio.get_running_loop().time() - began == pytest.approx(WAIT_S)

    run_virtual(story())


def test_an_agent_that_comes_before_its_node_goes_on_when_it_is_there() -> None:
    async def story() -> None:
        api = an_api()
        waiting = asyncio.ensure_future(check_own_node_name_exists(api, NODE))
        await asyncio.sleep(WAIT_S / 2)
        assert not waiting.done()
        await api.create(Node, {"metadata": {"name": NODE}})
        await asyncio.wait_for(waiting, 2 * LOOK_S)

    run_virtual(story())


async def test_an_api_that_does_not_show_nodes_is_no_reason_to_end() -> None:
    shut: Any = Bare(ApiError("nodes is forbidden", code=403))
    await check_own_node_name_exists(shut, NODE)


# --- the fence ----------------------------------------------------------------------------------------------------------


class Fences:
    def __init__(self) -> None:
        self.calls: list[str] = []
        self.config = AgentProcessConfig(NODE)
        self.changed = asyncio.Event()

    def fence(self) -> None:
        self.calls.append("fence")
        self.changed.set()

    def unfence(self) -> None:
        self.calls.append("unfence")
        self.changed.set()


async def test_without_the_api_for_too_long_the_ranks_are_stopped_until_it_is_back(site: Site) -> None:
    agent: Any = Fences()
    away = Outage(site.cluster)
    away.is_down = True
    fence = AgentFence(agent.fence, agent.unfence, 1.0, time.monotonic)
    lease = AgentLease(away, NODE, time.time, lease_s=1.5, elapsed=time.monotonic, renewed=fence.renewed)
    watch = asyncio.gather(fence.run(), lease.run())
    async with asyncio.timeout(PATIENCE_S):
        await agent.changed.wait()
        assert agent.calls == ["fence"]
        agent.changed.clear()
        away.is_down = False
        await agent.changed.wait()
    assert agent.calls == ["fence", "unfence"]
    watch.cancel()
    await asyncio.gather(watch, return_exceptions=True)


class CountedCalls:
    """A cluster that remembers what it was asked, watches aside."""

    def __init__(self, inner: LocalCluster) -> None:
        self._inner = inner
        self.calls: list[str] = []

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._inner, name)
        if name not in ("get", "list", "patch", "create", "delete"):
            return found

        async def call(kind: Any, *args: Any, **options: Any) -> Any:
            self.calls.append(f"{name} {kind.__name__}")
            return await found(kind, *args, **options)

        return call


async def test_an_agent_with_nothing_to_do_renews_its_lease_and_asks_nothing(site: Site) -> None:
    pod, counted = await site.bind("a", "gpu-0"), CountedCalls(site.cluster)
    async with node_agent(site.config, counted) as agent:
        await site.registered()
        await site.start(pod, "gpu-0")
        launcher = await site.launch(pod, "gpu-0")
        await site.until(lambda nd: nd.observed.holdings, "the holding")
        patch = {
            "status": {"capacity": {RESOURCE_GPU: "8"}}
        }  # the kubelet's next status: nobody has to ask for it again
        await site.cluster.patch(Node, NODE, patch, subresource="status")
        await site.until(lambda nd: all(p.published_at for p in nd.observed.plugins), "the resource to be published")
        await agent.flush()
        before = len(counted.calls)
        assert agent.holdings is not None
        for _ in range(20):
            await agent.holdings.look()
        assert [call for call in counted.calls[before:] if call != "patch Lease"] == []
        launcher.close()
