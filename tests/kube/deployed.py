"""The manifests of deploy/ on a real kube-apiserver, and whom they make: manager and agent, by their real tokens."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
import yaml

from remuda.kube.client.http_cluster import HttpCluster
from remuda.kube.client.http_errors import Forbidden
from remuda.kube.client.kubeconfig import load_kubeconfig
from remuda.runtime.link_endpoint import LINK
from remuda.runtime.node_agent import AgentProcessConfig
from tests.builders.waiting import PATIENCE_S
from tests.kube.control_plane import ROOT, ControlPlane, Response, send_request
from tests.kube.planes import MERGE_PATCH, own_plane

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


@pytest.fixture(scope="module", name="plane")
def deployed_plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    with own_plane(tmp_path_factory.mktemp("deploy")) as plane:
        plane.kubectl("apply", "-f", str(DEPLOY / "crds"))
        plane.kubectl("wait", "--for=condition=Established", "crd", "--all", "--timeout=20s")
        for name in ("roles.yaml", "manager.yaml", "agent.yaml"):
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


def fake_agent_config(place: Path, link_token: Path) -> AgentProcessConfig:
    """Of an agent with devices that are made up, beside a kubelet that is not there."""
    (place / "kubelet" / "device-plugins").mkdir(parents=True)
    return AgentProcessConfig(
        HERE,
        str(place / "state"),
        str(place / "kubelet"),
        backend="fake",
        model="dgx-h100",
        link_token=str(link_token),
        link_namespace=SPACE,
    )


class Cast:
    def __init__(self, admin: HttpCluster, manager: Watched, agent: Watched, link_token: Path) -> None:
        self.admin, self.manager, self.agent, self.link_token = admin, manager, agent, link_token


@pytest_asyncio.fixture(name="cast")
async def deployed_cast(plane: ControlPlane, tmp_path: Path) -> AsyncIterator[Cast]:
    pod = agents_pod(plane)
    link = tmp_path / "link-token"
    link.write_text(token_of(plane, "remuda-agent", pod, LINK))
    manager = as_user(plane, token_of(plane, "remuda-manager"), tmp_path / "manager")
    agent = as_user(plane, token_of(plane, "remuda-agent", pod), tmp_path / "agent")
    own = HttpCluster(access=load_kubeconfig(plane.kubeconfig))
    async with asyncio.timeout(PATIENCE_S), own as admin, manager, agent:
        yield Cast(admin, manager, agent, link)


@dataclass(frozen=True)
class Bearer:
    """Whoever shows this token to the API server."""

    url: str
    token: str
    ca_file: Path

    def request(self, method: str, path: str, body: object = None, content_type: str = "application/json") -> Response:
        return send_request(self, method, path, body, content_type)

    def patch(self, path: str, body: object) -> Response:
        return self.request("PATCH", path, body, MERGE_PATCH)


def bearer(plane: ControlPlane, token: str) -> Bearer:
    return Bearer(plane.url, token, plane.ca_file)
