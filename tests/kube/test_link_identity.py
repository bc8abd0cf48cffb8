"""The agents' stream on a real kube-apiserver: TLS, tokens bound to pods on nodes, and everybody else refused by name."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from remuda.api.devices import Signal
from remuda.api.kubernetes.core_v1 import ConfigMap
from remuda.api.meta import to_time
from remuda.kube.client.http_cluster import HttpCluster
from remuda.kube.client.kubeconfig import load_kubeconfig
from remuda.link.progress_board import Heartbeat, ProgressBoard
from remuda.link.stream_messages import (
    Downward,
    LinkHello,
    LinkRefused,
    LinkWelcome,
    link_message_line,
    read_downward_link_message,
)
from remuda.link.stream_server import LinkServer
from remuda.runtime.link_endpoint import LINK, LinkConfig, ManagerDialler, RelayBoard, link_dialled, link_served
from tests.builders.waiting import PATIENCE_S
from tests.kube.control_plane import ControlPlane

SPACE, ACCOUNT, HERE, THERE = "link-identity", "remuda-agent", "link-node-1", "link-node-2"
BEAT = Heartbeat("default", "gang", "w-0", "uid-0", attempt=1, step=7, time=1.0)


class Tokens:
    """What a kubelet would project into pods, asked for directly."""

    def __init__(self, plane: ControlPlane) -> None:
        self._plane = plane
        self._post("/api/v1/namespaces", {"metadata": {"name": SPACE}})
        for account in (ACCOUNT, "stranger"):
            self._post(f"/api/v1/namespaces/{SPACE}/serviceaccounts", {"metadata": {"name": account}})
        for node in (HERE, THERE):
            self._post("/api/v1/nodes", {"metadata": {"name": node}})
        self.agent = self._pod("agent", ACCOUNT)
        self.stranger = self._pod("stranger", "stranger")

    def _post(self, path: str, body: dict[str, Any]) -> Any:
        answer = self._plane.request("POST", path, body)
        if answer.status == 409:
            return self._plane.request("GET", f"{path}/{body['metadata']['name']}").body
        assert answer.status == 201, answer
        return answer.body

    def _pod(self, name: str, account: str) -> dict[str, str]:
        spec = {"serviceAccountName": account, "nodeName": HERE, "containers": [{"name": "main", "image": "none"}]}
        pod = self._post(f"/api/v1/namespaces/{SPACE}/pods", {"metadata": {"name": name}, "spec": spec})
        return {"kind": "Pod", "apiVersion": "v1", "name": name, "uid": pod["metadata"]["uid"]}

    def of(self, account: str, bound_to: dict[str, str] | None, audience: str = LINK) -> str:
        spec: dict[str, Any] = {"expirationSeconds": 600, **({"audiences": [audience]} if audience else {})}
        if bound_to is not None:
            spec["boundObjectRef"] = bound_to
        body = {"metadata": {"name": account}, "spec": spec}
        path = f"/api/v1/namespaces/{SPACE}/serviceaccounts/{account}/token"
        answer = self._plane.request("POST", path, body)
        assert answer.status == 201, answer
        return str(answer.body["status"]["token"])


class Manager:
    def __init__(self, api: HttpCluster) -> None:
        self.api = api
        self.board = ProgressBoard()
        self.heard: list[tuple[str, str, str]] = []
        self.server: LinkServer | None = None

    def hear(self, node: str, device: str, signal: Signal) -> None:
        self.heard.append((node, device, signal.code))


@pytest.fixture(scope="module")
def tokens(control_plane: ControlPlane) -> Tokens:
    return Tokens(control_plane)


@pytest_asyncio.fixture
async def manager(control_plane: ControlPlane, tokens: Tokens) -> AsyncIterator[Manager]:
    async with asyncio.timeout(PATIENCE_S), HttpCluster(access=load_kubeconfig(control_plane.kubeconfig)) as api:
        made = Manager(api)
        account = f"system:serviceaccount:{SPACE}:{ACCOUNT}"
        config = LinkConfig("127.0.0.1", 0, "127.0.0.1", SPACE, account=account)
        async with link_served(
            config, api, made.board, hear=made.hear, is_on=lambda node, uid: node == HERE, clock=time.time
        ) as made.server:
            await until(lambda: _published(api))
            yield made
        await api.delete(ConfigMap, LINK, SPACE)


async def _published(api: HttpCluster) -> bool:
    return any(found.name == LINK for found in (await api.list(ConfigMap, SPACE)).items)


async def until(holds: Callable[[], Any]) -> None:
    """Within the fixture's deadline."""
    while True:
        found = holds()
        if await found if asyncio.iscoroutine(found) else found:
            return
        await asyncio.sleep(0.02)


async def say_hello(manager: Manager, node: str, token: str) -> Downward:
    reader, writer = await ManagerDialler(manager.api, SPACE)()
    try:
        writer.write(link_message_line(LinkHello(node, token)))
        return read_downward_link_message(await reader.readline())
    finally:
        writer.close()


async def test_an_agent_speaks_for_its_own_node(manager: Manager, tokens: Tokens, tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text(tokens.of(ACCOUNT, tokens.agent))
    board = RelayBoard()
    tell: list[Callable[[str, Signal], None]] = []
    async with link_dialled(
        HERE, manager.api, namespace=SPACE, token_file=str(token), board=board, subscribe=tell.append
    ) as client:
        board.report(BEAT)
        tell[0]("gpu-3", Signal("kmsg", "xid-79", time=to_time(1.0)))
        await until(lambda: manager.heard and manager.board.of_gang("default", "gang"))
        assert manager.board.of_gang("default", "gang")["uid-0"].last == BEAT
        assert board.of_gang("default", "gang")["uid-0"].last == BEAT  # the agent's own is kept as well
        assert manager.heard == [(HERE, "gpu-3", "xid-79")]
        assert manager.server is not None
        assert (client.is_connected, manager.server.nodes) == (True, [HERE])


@pytest.mark.parametrize(
    ("node", "account", "bound", "audience", "reason", "words"),
    [
        (THERE, ACCOUNT, True, LINK, "WrongNode", f"bound to node {HERE} and the agent says it is {THERE}"),
        (HERE, ACCOUNT, False, LINK, "WrongNode", "bound to no node"),
        (HERE, "stranger", True, LINK, "NotAnAgent", "stranger may not open a stream"),
        (HERE, ACCOUNT, True, "", "Unauthenticated", "does not know the token"),  # meant for the API, not for us
        (HERE, ACCOUNT, True, "somebody-else", "Unauthenticated", "does not know the token"),
    ],
)
async def test_everybody_else_is_refused(
    manager: Manager, tokens: Tokens, node: str, account: str, bound: bool, audience: str, reason: str, words: str
) -> None:
    pod = (tokens.agent if account == ACCOUNT else tokens.stranger) if bound else None
    answer = await say_hello(manager, node, tokens.of(account, pod, audience))
    assert isinstance(answer, LinkRefused)
    assert (answer.reason, words in answer.message, bool(answer.fix)) == (reason, True, True), answer
    assert isinstance(
        await say_hello(manager, HERE, tokens.of(ACCOUNT, tokens.agent)), LinkWelcome
    )  # the right one is not


@pytest.mark.parametrize("token", ["", "garbage", "a.b.c", "\u00e9" * 10_000])
async def test_garbage_is_no_token(manager: Manager, token: str) -> None:
    answer = await say_hello(manager, HERE, token)
    assert isinstance(answer, LinkRefused)
    assert answer.reason == "Unauthenticated"


async def test_another_ca_is_not_trusted(manager: Manager, tokens: Tokens, tmp_path: Path) -> None:
    """Who listens there must be the one that was published."""
    await manager.api.patch(ConfigMap, LINK, {"data": {"serverName": "somebody-else"}}, SPACE)
    with pytest.raises(OSError, match="somebody-else"):
        await ManagerDialler(manager.api, SPACE)()
