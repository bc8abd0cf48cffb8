"""The manifests of deploy/ on a real kube-apiserver: it takes them, and what they allow is enough for what the code does.

Manager and agent run here with the tokens of their service accounts under RBAC, place a gang, and get over a broken device.
There is no kubelet: what pods do is not looked at. Nothing may be refused, except an agent that writes about another node.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
import yaml

from remuda.api.devices import NodeDevices
from remuda.api.kubernetes.core_v1 import Pod
from remuda.api.names import ANNOTATION_DEVICES
from remuda.api.training import TrainingJob
from remuda.kube.client.http_cluster import HttpCluster
from remuda.kube.client.http_errors import Forbidden
from remuda.kube.client.kubeconfig import load_kubeconfig
from remuda.kube.runtime.leader import LeaderTerm
from remuda.kube.runtime.leader_lease import LeaseTiming
from remuda.runtime.link_endpoint import LINK, LinkConfig
from remuda.runtime.manager_process import ManagerConfig, run_manager
from remuda.runtime.node_agent import AgentProcessConfig, node_agent
from tests.builders.waiting import PATIENCE_S, until
from tests.kube.control_plane import ROOT, ControlPlane
from tests.kube.planes import own_plane

DEPLOY = ROOT / "deploy"
SPACE, HERE, THERE = "remuda-system", "node-a", "node-b"


class Watched(HttpCluster):
    """Remembers what it was not allowed to do."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.forbidden: list[str] = []

    async def _call(self, *args: Any, **options: Any) -> bytes:
        try:
            return await super()._call(*args, **options)
        except Forbidden as error:
            self.forbidden.append(str(error))
            raise


class Quiet:
    def waiting(self) -> None: ...

    def leading(self, term: LeaderTerm) -> None: ...


@pytest.fixture(scope="module")
def plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    with own_plane(tmp_path_factory.mktemp("deploy")) as plane:
        plane.kubectl("apply", "-f", str(DEPLOY / "crds"))
        plane.kubectl("wait", "--for=condition=Established", "crd", "--all", "--timeout=20s")
        for name in ("manager.yaml", "agent.yaml"):
            plane.kubectl("apply", "--validate=strict", "-f", str(DEPLOY / name))
        plane.request("POST", "/api/v1/namespaces/default/serviceaccounts", {"metadata": {"name": "default"}})
        for node in (HERE, THERE):
            plane.request("POST", "/api/v1/nodes", {"metadata": {"name": node}})
        yield plane


def token_of(plane: ControlPlane, account: str, pod: dict[str, Any] | None = None, audience: str = "") -> str:
    spec: dict[str, Any] = {"audiences": [audience]} if audience else {}
    if pod is not None:
        spec["boundObjectRef"] = {"kind": "Pod", "apiVersion": "v1", "name": pod["name"], "uid": pod["uid"]}
    path = f"/api/v1/namespaces/{SPACE}/serviceaccounts/{account}/token"
    answer = plane.request("POST", path, {"spec": spec})
    assert answer.status == 201, answer
    return str(answer.body["status"]["token"])


def agents_pod(plane: ControlPlane) -> dict[str, Any]:
    """The pod the DaemonSet would make on a node, from its own template."""
    documents = yaml.safe_load_all((DEPLOY / "agent.yaml").read_text())
    template = next(d["spec"]["template"] for d in documents if d["kind"] == "DaemonSet")
    spec = {**template["spec"], "nodeName": HERE}
    del spec["priorityClassName"]  # made by a controller that does not run here
    made = plane.request("POST", f"/api/v1/namespaces/{SPACE}/pods", {"metadata": {"name": "agent"}, "spec": spec})
    if made.status == 409:
        made = plane.request("GET", f"/api/v1/namespaces/{SPACE}/pods/agent")
    assert made.status in (200, 201), made
    return dict(made.body["metadata"])


def as_user(plane: ControlPlane, token: str, place: Path) -> Watched:
    body = json.loads(plane.kubeconfig.read_text())
    body["users"][0]["user"] = {"token": token}
    place.write_text(json.dumps(body))
    return Watched(access=load_kubeconfig(place))


class Cast:
    def __init__(self, admin: HttpCluster, manager: Watched, agent: Watched, link_token: Path) -> None:
        self.admin, self.manager, self.agent, self.link_token = admin, manager, agent, link_token


@pytest_asyncio.fixture
async def cast(plane: ControlPlane, tmp_path: Path) -> AsyncIterator[Cast]:
    pod = agents_pod(plane)
    link = tmp_path / "link-token"
    link.write_text(token_of(plane, "remuda-agent", pod, LINK))
    manager = as_user(plane, token_of(plane, "remuda-manager"), tmp_path / "manager")
    agent = as_user(plane, token_of(plane, "remuda-agent", pod), tmp_path / "agent")
    own = HttpCluster(access=load_kubeconfig(plane.kubeconfig))
    async with asyncio.timeout(PATIENCE_S), own as admin, manager, agent:
        yield Cast(admin, manager, agent, link)


def make_ready(plane: ControlPlane) -> None:
    """What a kubelet would say of the node, and the controller that lifts the taint of a new one."""
    amounts = {"nvidia.com/gpu": "8", "cpu": "64", "memory": "256Gi", "pods": "110"}
    ready = [{"type": "Ready", "status": "True", "reason": "KubeletReady"}]
    status = {"status": {"capacity": amounts, "allocatable": amounts, "conditions": ready}}
    merge = "application/merge-patch+json"
    assert plane.request("PATCH", f"/api/v1/nodes/{HERE}/status", status, merge).status == 200
    assert plane.request("PATCH", f"/api/v1/nodes/{HERE}", {"spec": {"taints": None}}, merge).status == 200


async def test_what_the_manifests_allow_is_enough(plane: ControlPlane, cast: Cast, tmp_path: Path) -> None:
    make_ready(plane)
    link = LinkConfig("127.0.0.1", 0, "127.0.0.1", SPACE, account=f"system:serviceaccount:{SPACE}:remuda-agent")
    config = ManagerConfig(lease_namespace=SPACE, timing=LeaseTiming(4, 2.5, 0.2), link=link)
    work = asyncio.create_task(run_manager(config, cast.manager, cast.manager, identity="m", said=Quiet()))
    (tmp_path / "kubelet" / "device-plugins").mkdir(parents=True)
    place = AgentProcessConfig(
        HERE,
        str(tmp_path / "state"),
        str(tmp_path / "kubelet"),
        backend="fake",
        model="dgx-h100",
        link_token=str(cast.link_token),
        link_namespace=SPACE,
    )
    try:
        async with node_agent(place, cast.agent) as agent:
            await cast.admin.create(TrainingJob, a_job())
            first = await bound(cast.admin)
            device = first.annotations[ANNOTATION_DEVICES].split(",")[0]
            agent.inject_fault(device, "xid-79")

            async def replaced() -> bool:
                pods = (await cast.admin.list(Pod, "default")).items
                return any(p.uid != first.uid and p.spec.node_name for p in pods)

            await until("the pod on the broken device to be replaced", replaced)
            await agent.flush()
            labels = (await cast.admin.get(NodeDevices, HERE)).observed.model
            assert labels == "dgx-h100"
    finally:
        work.cancel()
        await asyncio.gather(work, return_exceptions=True)
    assert (cast.manager.forbidden, cast.agent.forbidden) == ([], [])


def a_job() -> dict[str, Any]:
    template = {"spec": {"containers": [{"name": "main", "image": "none", "command": ["train"]}]}}
    role = {"replicas": 1, "gpus": 2, "template": template}
    return {"metadata": {"name": "job", "namespace": "default"}, "spec": {"roles": [role]}}


async def bound(api: HttpCluster) -> Pod:
    found: list[Pod] = []

    async def there() -> bool:
        found[:] = [p for p in (await api.list(Pod, "default")).items if p.spec.node_name]
        return bool(found)

    await until("a pod of the job to be bound", there)
    return found[0]


async def test_an_agent_writes_about_its_own_node_only(cast: Cast) -> None:
    words = f"WrongNode: the agent on node '{HERE}' may not write {THERE}"

    async def refused() -> bool:
        """A policy takes a moment to be in force."""
        try:
            await cast.agent.create(NodeDevices, {"metadata": {"name": THERE}})
        except Forbidden as error:
            return words in str(error)
        await cast.admin.delete(NodeDevices, THERE)
        return False

    await until("the policy to be in force", refused)
