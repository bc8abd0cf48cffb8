"""Both ends of the stream as they are run: a manager that leads and an agent, over TLS, on a real kube-apiserver.

The agent's writes to the API are held back, so a verdict can only have come by the stream; let go, they arrive as well. Without a
token there is no stream, and the same verdict comes through the API.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from remuda.api.devices import DeviceState, NodeDevices
from remuda.kube.client.http_cluster import HttpCluster
from remuda.kube.client.kubeconfig import load_kubeconfig
from remuda.kube.runtime.leader import LeaderTerm
from remuda.kube.runtime.leader_lease import LeaseTiming
from remuda.runtime.link_endpoint import LINK, LinkConfig
from remuda.runtime.manager_process import ManagerConfig, run_manager
from remuda.runtime.node_agent import AgentProcessConfig, node_agent
from tests.builders.waiting import PATIENCE_S, until
from tests.kube.control_plane import ROOT, ControlPlane
from tests.kube.planes import own_plane

SPACE, ACCOUNT, NODE = "kube-system", "remuda-agent", "link-node"


class HeldBack(HttpCluster):
    """An API that is slow to take what the agent observed."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.may_write = asyncio.Event()
        self.may_write.set()

    async def patch(self, kind: Any, name: str, patch: Any, *where: Any, **options: Any) -> Any:
        if kind is NodeDevices:
            await self.may_write.wait()
        return await super().patch(kind, name, patch, *where, **options)


class Quiet:
    def waiting(self) -> None: ...

    def leading(self, term: LeaderTerm) -> None: ...


@pytest.fixture(scope="module")
def plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    """Of its own: it installs our kinds and registers a node."""
    with own_plane(tmp_path_factory.mktemp("link")) as plane:
        plane.kubectl("apply", "-f", str(ROOT / "deploy" / "crds"))
        plane.kubectl("wait", "--for=condition=Established", "crd", "--all", "--timeout=20s")
        for path, body in (
            (f"/api/v1/namespaces/{SPACE}/serviceaccounts", {"metadata": {"name": ACCOUNT}}),
            ("/api/v1/nodes", {"metadata": {"name": NODE}}),
        ):
            assert plane.request("POST", path, body).status == 201
        yield plane


@pytest.fixture
def token(plane: ControlPlane, tmp_path: Path) -> Path:
    """As a kubelet would project it into the agent's pod."""
    pods = f"/api/v1/namespaces/{SPACE}/pods"
    spec = {"serviceAccountName": ACCOUNT, "nodeName": NODE, "containers": [{"name": "main", "image": "none"}]}
    made = plane.request("POST", pods, {"metadata": {"generateName": "agent-"}, "spec": spec})
    assert made.status == 201, made
    meta = made.body["metadata"]
    bound = {"kind": "Pod", "apiVersion": "v1", "name": meta["name"], "uid": meta["uid"]}
    body = {"spec": {"audiences": [LINK], "boundObjectRef": bound}}
    answer = plane.request("POST", f"/api/v1/namespaces/{SPACE}/serviceaccounts/{ACCOUNT}/token", body)
    assert answer.status == 201, answer
    path = tmp_path / "token"
    path.write_text(answer.body["status"]["token"])
    return path


@pytest_asyncio.fixture
async def api(plane: ControlPlane) -> AsyncIterator[HeldBack]:
    """With a manager at work on it; the port is the agent's."""
    access = load_kubeconfig(plane.kubeconfig)
    agent = HeldBack(access=access)
    async with asyncio.timeout(PATIENCE_S), HttpCluster(access=access) as manager, agent:
        link = LinkConfig("127.0.0.1", 0, "127.0.0.1", SPACE, account=f"system:serviceaccount:{SPACE}:{ACCOUNT}")
        config = ManagerConfig(timing=LeaseTiming(4, 2.5, 0.2), link=link)
        work = asyncio.create_task(run_manager(config, manager, manager, identity="m", said=Quiet()))
        try:
            yield agent
        finally:
            work.cancel()
            await asyncio.gather(work, return_exceptions=True)


def config_of(tmp_path: Path, token: Path) -> AgentProcessConfig:
    kubelet = tmp_path / "kubelet"
    (kubelet / "device-plugins").mkdir(parents=True)
    return AgentProcessConfig(
        NODE, str(tmp_path / "agent"), str(kubelet), backend="fake", model="dgx-h100", fence_s=0, link_token=str(token)
    )


async def state_of(api: HttpCluster, device: str) -> tuple[DeviceState | None, list[str]]:
    """(verdict, codes the agent has written) of a device."""
    found = await api.get(NodeDevices, NODE)
    verdict = next((v.state for v in found.verdicts if v.device == device), None)
    row = next((d for d in found.observed.devices if d.id == device), None)
    return verdict, [s.code for s in row.signals] if row else []


async def expect(api: HttpCluster, device: str, state: DeviceState, codes: list[str]) -> None:
    async def so() -> bool:
        return await state_of(api, device) == (state, codes)

    await until(f"{device} to be {state} with {codes} written", so)


async def test_a_verdict_comes_by_the_stream_before_the_api_has_the_signal(
    api: HeldBack, token: Path, tmp_path: Path
) -> None:
    async with node_agent(config_of(tmp_path, token), api) as agent:
        await agent.flush()
        await expect(api, "gpu-3", DeviceState.HEALTHY, [])
        api.may_write.clear()
        agent.inject_fault("gpu-3", "xid-79")
        await expect(api, "gpu-3", DeviceState.UNHEALTHY, [])
        api.may_write.set()
        await expect(api, "gpu-3", DeviceState.UNHEALTHY, ["xid-79"])


async def test_without_a_stream_the_api_is_enough(api: HeldBack, tmp_path: Path) -> None:
    async with node_agent(config_of(tmp_path, tmp_path / "none"), api) as agent:
        await agent.flush()
        agent.inject_fault("gpu-5", "xid-79")
        await expect(api, "gpu-5", DeviceState.UNHEALTHY, ["xid-79"])
