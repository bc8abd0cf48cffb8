"""The parts of a split cluster, each a process of its own: the API server, the manager, and groups of nodes with their agents.

They are the same code as in one process; what differs is the transport. Manager and nodes reach the API over its unix socket, the
agents' stream goes over another one. No part shares memory with another, so a part may be killed at any moment: what it knew is
in the API, in the state directory, or worth nothing.

    server     store, API, garbage collection, built-in controllers
    manager    scheduler and controllers, and the receiving end of the streams
    nodes-K    every n-th node: agent, device manager and pods; containers outlive the process and are found again

An agent proves its node by a token that only who can read the state directory can make.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import hmac
import random
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import msgspec

from remuda.api.errors import Refusal
from remuda.core.remedies.hook_kinds import parse_hook_kinds
from remuda.embedded.apiserver.security.tokens import load_security_token
from remuda.kube.client.http_cluster import HttpCluster
from remuda.kube.client.transport import TransportOptions
from remuda.link.peer_registry import PeerRegistry
from remuda.link.progress_board import ProgressBoard
from remuda.link.stream_client import LinkClient, dial_link_unix
from remuda.link.stream_server import LinkServer
from remuda.runtime.api_endpoint import LOOPBACK, ApiEndpoint
from remuda.runtime.background_tasks import run_beside, run_until_told, wait_first_end
from remuda.runtime.cluster_parts import ClusterParts
from remuda.runtime.control_plane import ControlPlane
from remuda.runtime.copies_endpoint import CopyConfig, NodeCopies
from remuda.runtime.copy_peers import copy_peers_served
from remuda.runtime.embedded_server import EmbeddedClusterServer
from remuda.runtime.link_endpoint import RelayBoard
from remuda.runtime.machines import ClusterMachines
from remuda.runtime.state_dir import StateDir
from remuda.runtime.up_config import ClusterConfig

SERVER, MANAGER, NODES = "server", "manager", "nodes"

# The server may be killed and started again: watches are taken up where they were.
PATIENT = TransportOptions(reconnect_s=30.0)

Ready = Callable[[], None]


def split_part_node_token(secret: str, node: str) -> str:
    return hmac.new(secret.encode(), f"agent/{node}".encode(), "sha256").hexdigest()


class NodeTokens:
    """Authenticates agents: a token speaks for the one node it was made for."""

    def __init__(self, secret: str) -> None:
        self._secret = secret

    async def __call__(self, token: str, node: str) -> None:
        if not hmac.compare_digest(token.encode(), split_part_node_token(self._secret, node).encode()):
            raise Refusal(
                "NotThisNode", f"The token does not speak for {node}.", "Start agents with `remuda up --split`."
            )


async def serve_split_api(
    config: ClusterConfig, state: StateDir, endpoint: ApiEndpoint, ready: Ready, recover_to: int | None = None
) -> None:
    local = EmbeddedClusterServer(config, state, recover_to, is_api_only=True)
    async with local.cluster, local.serving(endpoint) as face:
        ready()
        await wait_first_end([face, asyncio.create_task(local.cluster.wait_failed())])


async def manage_split(config: ClusterConfig, state: StateDir, ready: Ready) -> None:
    """The supervisor starts one at a time and the next only when the last is gone, so no lease is needed."""
    board, clock = ProgressBoard(), time.time
    async with HttpCluster(uds=state.socket, options=PATIENT) as api:
        kinds = parse_hook_kinds(config.allow_hook_kinds)
        rule = config.mass_silence_rule
        plane = ControlPlane(api, board, clock, chance=random.Random(), hook_kinds=kinds, mass_silence=rule)
        peers = PeerRegistry(
            lambda: {node.name: node.labels for node in plane.view.nodes.items()},
            lambda node: 0.0,
            clock,
            is_address=lambda host: True,  # nodes of one machine meet on loopback
        )
        server = LinkServer(
            NodeTokens(load_security_token(state.link_secret)),
            board,
            lambda node, device, signal: plane.verdicts.hear(node, device, signal, clock()),
            plane.view.has_beat,
            lambda node: plane.view.promise(node, clock()),
            peers if config.checkpoints_per_node else None,
        )
        _remove_part_socket(state.link_socket)
        await server.start_unix(str(state.link_socket))
        state.link_socket.chmod(0o600)
        try:
            ready()
            await plane.run()
        finally:
            await server.stop()


class NodeGroup(ClusterParts):
    """Every `count`-th node of the cluster, from `index` on."""

    def __init__(self, config: ClusterConfig, state: StateDir, api: HttpCluster, index: int, count: int) -> None:
        self.boards: dict[str, RelayBoard] = {}
        self.streams: dict[str, LinkClient] = {}
        machines = ClusterMachines(
            config,
            api,
            ProgressBoard(),
            root=state.path,
            clock=time.time,
            chance=random.Random(),
            share=(index, count),
            board_of=self._board_of,
            vouch=self._ask_manager,
            manager_socket=str(state.link_socket),
        )
        super().__init__(machines)
        self.copies: dict[str, NodeCopies] = {}
        if config.checkpoints_per_node:
            for name, agent in machines.agents.items():
                copies = NodeCopies(agent, machines.jobs, api, CopyConfig(), state.path / "nodes" / name / "copies")
                copies.prepare()
                self.copies[name] = copies

    async def _ask_manager(self, node: str) -> float:
        return await self.streams[node].ask_promise() if node in self.streams else 0.0

    def _board_of(self, node: str) -> RelayBoard:
        return self.boards.setdefault(node, RelayBoard())

    async def start(self) -> None:
        await self.start_machines()


async def run_node_group(config: ClusterConfig, state: StateDir, index: int, count: int, ready: Ready) -> None:
    secret = load_security_token(state.link_secret)
    async with HttpCluster(uds=state.socket, options=PATIENT) as api:
        group = NodeGroup(config, state, api, index, count)
        async with contextlib.AsyncExitStack() as stack:
            for node, board in group.boards.items():
                stream = _node_stream(node, board, group.machines, state, secret)
                client = group.streams[node] = await stack.enter_async_context(stream)
                if node in group.copies:
                    await stack.enter_async_context(copy_peers_served(group.copies[node], client))
            async with group:
                ready()
                await group.wait_failed()


@contextlib.asynccontextmanager
async def _node_stream(
    node: str, board: RelayBoard, machines: ClusterMachines, state: StateDir, secret: str
) -> AsyncIterator[LinkClient]:
    token = functools.partial(split_part_node_token, secret, node)
    client = LinkClient(node, dial_link_unix(str(state.link_socket)), token, past=board.past, jitter=random.random)
    board.tell = client.beat
    machines.backends[node].subscribe(client.signal)
    async with run_beside(client.run(), f"link-{node}"):
        yield client


class PartConfig(msgspec.Struct, frozen=True):
    """Which part of how many a process is. `port`, `bind`, `recover_to`: the server's, as `remuda up` was asked."""

    name: str
    groups: int
    port: int | None = None
    bind: str = LOOPBACK
    recover_to: int | None = None


def run_part(part: PartConfig, config: ClusterConfig, state: StateDir, ready: Ready) -> int:
    """Until SIGTERM (ended in order) or SIGKILL."""
    with state.part_locked(part.name):
        return asyncio.run(_run_part_until_told(part, config, state, ready))


async def _run_part_until_told(part: PartConfig, config: ClusterConfig, state: StateDir, ready: Ready) -> int:
    match part.name.rpartition("-")[0] or part.name:
        case "server":
            endpoint = ApiEndpoint(state, part.port, part.bind, time.time())
            work = serve_split_api(config, state, endpoint, ready, part.recover_to)
        case "manager":
            work = manage_split(config, state, ready)
        case _:
            work = run_node_group(config, state, int(part.name.rpartition("-")[2]) - 1, part.groups, ready)
    await run_until_told(work, part.name)
    return 0


def _remove_part_socket(path: Path) -> None:
    with contextlib.suppress(FileNotFoundError):
        path.unlink()
