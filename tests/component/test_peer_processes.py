"""Three `remuda agent` processes with real launchers and ranks, real doors and certificates; the API and the manager's end of the
stream are here, each agent's way to them leads through a relay, and a cut stops everything on it (nothing is refused: it hangs).

Times are the product's own: a lease of 30 s, a fence after 20.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import re
import signal
import socket
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio
import yaml

from remuda.api.codec import to_wire
from remuda.api.devices import NodeDevices
from remuda.api.kubernetes.core_v1 import NODE_LEASE_NAMESPACE, ConfigMap, Lease, Namespace, Node, Pod
from remuda.api.meta import to_seconds
from remuda.api.names import RESOURCE_GPU
from remuda.api.training import Member, PodTemplate, Role, TrainingJob, TrainingJobSpec
from remuda.core.health.agent_liveness import REPORT_TIMEOUT_S, liveness_lease_name
from remuda.core.health.fence_bounds import fence_after_s
from remuda.core.health.peer_holds import PeerHolds
from remuda.core.health.peer_vouching import ANNOTATION_PEERS, read_vouching_peers
from remuda.embedded.apiserver.app import ApiServerApp
from remuda.embedded.apiserver.asgi_server import listen_asgi_tcp, serve_asgi_socket
from remuda.embedded.apiserver.local_cluster import LocalCluster
from remuda.embedded.apiserver.store import MemoryJournal, ObjectStore
from remuda.link.certificates import LinkCertificates
from remuda.link.device_plugin_port import ContainerDevices
from remuda.link.peer_registry import PeerRegistry
from remuda.link.progress_board import ProgressBoard
from remuda.link.stream_server import LinkServer
from remuda.runtime.link_endpoint import ADDRESS, CA, LINK, SERVER_NAME
from tests.builders.waiting import PATIENCE_S, until
from tests.component.agent_process import AgentProcess, alloc_mount
from tests.unit.agent.plugin.kubelet import PodResources, a_kubelet
from tests.unit.agent.scene import short_directory

NAMES = ("n0", "n1", "n2")
FENCE_S = fence_after_s(REPORT_TIMEOUT_S)
FENCED = "agent.fence "
VOUCHED = re.compile(r"peers\.asked .*seconds=[1-9]")


class Way:
    """A relay to a port of this machine."""

    def __init__(self, port: int) -> None:
        self._to = port
        self._open = asyncio.Event()
        self._open.set()
        self._pumps: set[asyncio.Task[None]] = set()

    async def start(self) -> int:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        return int(self._server.sockets[0].getsockname()[1])

    def cut(self) -> None:
        self._open.clear()

    async def mend(self) -> None:
        """What was under way is lost."""
        await self._end_pumps()
        self._open.set()

    async def stop(self) -> None:
        self._server.close()
        await self._end_pumps()

    async def _end_pumps(self) -> None:
        for pump in (pumps := list(self._pumps)):
            pump.cancel()
        await asyncio.gather(*pumps, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        relaying = asyncio.create_task(self._relay(reader, writer))
        self._pumps.add(relaying)
        await asyncio.wait({relaying})
        self._pumps.discard(relaying)
        writer.transport.abort()

    async def _relay(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await self._open.wait()
        with contextlib.suppress(OSError):
            back, there = await asyncio.open_connection("127.0.0.1", self._to)
            pumps = [asyncio.ensure_future(self._pump(*ends)) for ends in ((reader, there), (back, writer))]
            try:
                await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
            finally:
                there.transport.abort()
                for pump in pumps:
                    pump.cancel()
                await asyncio.gather(*pumps, return_exceptions=True)

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(1 << 16):
            await self._open.wait()
            writer.write(data)
            await writer.drain()


class Zone:
    """What the three have in common."""

    def __init__(self, base: Path) -> None:
        self.base = base
        uids = itertools.count(1)
        self.cluster = LocalCluster(ObjectStore(MemoryJournal()), clock=time.time, new_uid=lambda: f"uid-{next(uids)}")
        labels: dict[str, dict[str, str]] = {name: {} for name in NAMES}
        # All of them are on this machine.
        registry = PeerRegistry(lambda: labels, lambda node: 86_400.0, time.time, is_address=bool)
        self.manager = LinkServer(
            _anybody, ProgressBoard(), lambda *_: None, lambda *_: True, lambda node: FENCE_S, registry
        )
        self.holds = PeerHolds()
        self.agents: dict[str, AgentOf] = {}
        self._stack = contextlib.AsyncExitStack()

    async def start(self) -> None:
        for name in ("default", NODE_LEASE_NAMESPACE, *map(_own_space, NAMES)):
            await self.cluster.create(Namespace, {"metadata": {"name": name}})
        certificates = LinkCertificates(self.base / "link")
        link = await self.manager.start("127.0.0.1", 0, certificates.prepare([LINK], time.time()))
        self._stack.push_async_callback(self.manager.stop)
        sock, ready = listen_asgi_tcp("127.0.0.1", 0), asyncio.Event()
        api = sock.getsockname()[1]
        self._beside(serve_asgi_socket(ApiServerApp(self.cluster, version="test"), sock, ready=ready))
        await ready.wait()
        self._beside(self._see_leases())
        for name in NAMES:
            self.agents[name] = AgentOf(self, name, Way(api), Way(link))
            await self.agents[name].start(self._stack, certificates.ca.read_text())
        await self._start_ranks()

    def _beside(self, work: object) -> None:
        task = asyncio.ensure_future(work)  # type: ignore[call-overload]

        async def end() -> None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

        self._stack.push_async_callback(end)

    async def end(self) -> None:
        await self._stack.aclose()

    async def _start_ranks(self) -> None:
        role = Role(
            replicas=len(NAMES), template=PodTemplate(spec={"containers": [{"name": "main", "command": ["train"]}]})
        )
        body = {"metadata": {"name": "job", "namespace": "default"}, "spec": to_wire(TrainingJobSpec(roles=[role]))}
        await self.cluster.create(TrainingJob, body)
        for agent in self.agents.values():
            await agent.start_launcher(self._stack)
        await self._steer("Closed")
        await self._all_are("ready")
        await self._steer("Open")
        await self._all_are("running")
        for agent in self.agents.values():
            await until(f"the rank of {agent.name}", agent.has_rank)

    async def _steer(self, barrier: str) -> None:
        members = [Member(rank, "worker", f"r-{a.name}", a.uid) for rank, a in enumerate(self.agents.values())]
        status = {"attempt": 1, "barrier": barrier, "members": [to_wire(m) for m in members]}
        await self.cluster.patch(TrainingJob, "job", {"status": status}, "default", subresource="status")

    async def _all_are(self, state: str) -> None:
        for agent in self.agents.values():
            await until(f"{agent.name} to be {state}", lambda agent=agent: agent.is_reported(state))  # type: ignore[misc]

    async def _see_leases(self) -> None:
        """As a manager does."""
        while True:
            for lease in (await self.cluster.list(Lease, NODE_LEASE_NAMESPACE)).items:
                self.holds.see(lease, time.time())
            await asyncio.sleep(0.1)

    async def lease(self, name: str) -> Lease:
        return await self.cluster.get(Lease, liveness_lease_name(name), NODE_LEASE_NAMESPACE)

    async def all_have_peers(self) -> bool:
        """As the API has it."""
        lists = [
            read_vouching_peers((await self.lease(n)).metadata.annotations.get(ANNOTATION_PEERS, "")) for n in NAMES
        ]
        return all(len(peers.nodes) == len(NAMES) - 1 for peers in lists)

    async def all_renew_again(self) -> None:
        """After now. Whoever does has heard how the renewal before went."""
        now = {name: await self.renewed_at(name) for name in NAMES}

        async def have_renewed() -> bool:
            return all([await self.renewed_at(name) > then for name, then in now.items()])

        await until("all to renew", have_renewed)

    async def renewed_at(self, name: str) -> float:
        renewed = (await self.lease(name)).spec.renew_time
        return to_seconds(renewed) if renewed is not None else 0.0

    @property
    def running(self) -> list[str]:
        return [agent.name for agent in self.agents.values() if agent.runs]

    @property
    def fenced(self) -> list[str]:
        return [agent.name for agent in self.agents.values() if FENCED in agent.log]


class AgentOf:
    """One node: directories, kubelet, agent, and one rank."""

    def __init__(self, zone: Zone, name: str, api: Way, link: Way) -> None:
        self.name, self.uid = name, ""
        self._zone, self._ways = zone, (api, link)
        self._base = zone.base / name
        self._resources = PodResources(self._base / "kubelet" / "pod-resources" / "kubelet.sock")
        self._pid = self._base / "rank.pid"

    async def start(self, stack: contextlib.AsyncExitStack, ca: str) -> None:
        cluster, base = self._zone.cluster, self._base
        for place in ("kubelet/device-plugins", "kubelet/pod-resources", "pod-logs"):
            (base / place).mkdir(parents=True)
        await self._resources.start()
        stack.push_async_callback(self._resources.stop)
        self._kubelet = await stack.enter_async_context(a_kubelet(base / "kubelet" / "device-plugins"))
        ports = [await way.start() for way in self._ways]
        for way in self._ways:
            stack.push_async_callback(way.stop)
        await cluster.create(Node, {"metadata": {"name": self.name}})
        await cluster.create(NodeDevices, {"metadata": {"name": self.name}})
        space = _own_space(self.name)
        data = {ADDRESS: f"127.0.0.1:{ports[1]}", CA: ca, SERVER_NAME: LINK}
        await cluster.create(ConfigMap, {"metadata": {"name": LINK, "namespace": space}, "data": data})
        (base / "token").write_text("t")
        (base / "kubeconfig").write_text(_kubeconfig(f"http://127.0.0.1:{ports[0]}"))
        reserved = (
            socket.socket()
        )  # bound and deaf: nobody else gets the port meanwhile, and the agent can listen there
        stack.callback(reserved.close)
        reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        reserved.bind(("127.0.0.1", 0))
        self._agent = AgentProcess(
            [
                f"--node={self.name}",
                f"--kubeconfig={base / 'kubeconfig'}",
                "--backend=fake",
                "--model=dgx-h100",
                f"--kubelet-dir={base / 'kubelet'}",
                f"--root={base / 'state'}",
                f"--pod-logs={base / 'pod-logs'}",
                f"--link-token={base / 'token'}",
                f"--link-namespace={space}",
                "--peer-host=127.0.0.1",
                f"--peer-port={reserved.getsockname()[1]}",
            ],
            base / "agent.log",
        )
        stack.push_async_callback(self._agent.stop)
        await self._agent.is_up()
        await self._kubelet.until(lambda: self._kubelet.registered and self._kubelet.list_of(), "the plugin's list")

    async def start_launcher(self, stack: contextlib.AsyncExitStack) -> None:
        limits = {RESOURCE_GPU: 1}
        body = {
            "metadata": {
                "name": f"r-{self.name}",
                "namespace": "default",
                "annotations": {"remuda.dev/devices": "gpu-0"},
                "labels": {"remuda.dev/gang": "job"},
            },
            "spec": {"nodeName": self.name, "containers": [{"name": "main", "resources": {"limits": limits}}]},
        }
        pod = await self._zone.cluster.create(Pod, body)
        self.uid = pod.uid
        mount = alloc_mount(await self._kubelet.allocate("gpu-0"))
        self._resources.rows.append(ContainerDevices(pod.namespace, pod.name, "main", RESOURCE_GPU, ("gpu-0",)))
        own = {"REMUDA_ALLOC_DIR": mount.host_path, "REMUDA_POD_NAME": pod.name, "REMUDA_POD_UID": pod.uid}
        rank = f"echo $$ > {self._pid}.new; mv {self._pid}.new {self._pid}; exec sleep 100000"
        with (self._base / "launcher.log").open("wb") as log:
            launcher = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "remuda.launch", "--", "sh", "-c", rank),
                env={**os.environ, **own},
                stdout=log,
                stderr=log,
            )

        async def end() -> None:
            launcher.send_signal(signal.SIGTERM)
            await launcher.wait()

        stack.push_async_callback(end)

    def cut(self) -> float:
        for way in self._ways:
            way.cut()
        return time.monotonic()

    async def mend(self) -> None:
        for way in self._ways:
            await way.mend()

    @property
    def log(self) -> str:
        return self._agent.log()

    @property
    def times_vouched_for(self) -> int:
        return len(VOUCHED.findall(self.log))

    async def is_reported(self, state: str) -> bool:
        found = (await self._zone.cluster.get(NodeDevices, self.name)).observed.launchers
        return any((r.uid, r.state) == (self.uid, state) for r in found)

    async def has_rank(self) -> bool:
        return self.runs

    @property
    def runs(self) -> bool:
        return self._pid.exists() and Path(f"/proc/{self._pid.read_text().strip()}").exists()


async def _anybody(token: str, node: str) -> None: ...


def _own_space(name: str) -> str:
    """Each agent finds the manager by another address, so that each can be cut off alone."""
    return f"link-{name}"


def _kubeconfig(url: str) -> str:
    context = {"name": "c", "context": {"cluster": "c", "user": "u"}}
    clusters, users = [{"name": "c", "cluster": {"server": url}}], [{"name": "u", "user": {"token": "t"}}]
    return yaml.safe_dump({"clusters": clusters, "users": users, "contexts": [context], "current-context": "c"})


@pytest_asyncio.fixture
async def zone() -> AsyncIterator[Zone]:
    with short_directory() as base:
        made = Zone(base)
        try:
            async with asyncio.timeout(4 * PATIENCE_S):
                await made.start()
                yield made
        finally:
            await made.end()


@pytest.mark.slow
async def test_ranks_run_on_while_all_agents_are_cut_off_and_stop_where_one_is_alone(zone: Zone) -> None:
    await until("every agent to have its peers", zone.all_have_peers)
    await zone.all_renew_again()

    since = max([agent.cut() for agent in zone.agents.values()])
    late = since + 1.5 * FENCE_S
    counts = dict.fromkeys(NAMES, -1)  # of words that came when all would have stopped without them

    async def all_run_by_their_peers_word() -> bool:
        assert zone.fenced == [], [agent.log for agent in zone.agents.values()]
        if time.monotonic() < late:
            return False
        for name, agent in zone.agents.items():
            counts[name] = agent.times_vouched_for if counts[name] < 0 else counts[name]
        return all(agent.times_vouched_for > counts[name] for name, agent in zone.agents.items())

    await until("all to run by their peers' word", all_run_by_their_peers_word)
    assert zone.running == [*NAMES]
    assert zone.holds.look(time.time()) == {*NAMES}, "and the manager can tell that they may"

    for agent in zone.agents.values():
        await agent.mend()
    await zone.all_renew_again()
    assert (zone.running, zone.fenced) == ([*NAMES], [])

    zone.agents["n0"].cut()

    async def n0_is_handed_on() -> bool:
        is_over = time.time() > await zone.renewed_at("n0") + REPORT_TIMEOUT_S
        return is_over and zone.holds.look(time.time()) == frozenset()

    async def n0_has_stopped() -> bool:
        assert not (await n0_is_handed_on() and "n0" in zone.running)
        return "n0" not in zone.running

    await until("the one that is cut off alone to stop its rank", n0_has_stopped)
    await until("the manager to know that it has stopped", n0_is_handed_on)
    assert (zone.running, zone.fenced) == (["n1", "n2"], ["n0"])
