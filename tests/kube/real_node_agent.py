"""Our agent on the real node, and a manager beside it: what a cluster that uses Remuda runs, on the machine of the tests.

The commands run in processes of their own. Where a test breaks a device, the agent runs in the test's process instead, made by
the same function and over the same directories.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import yaml

from remuda.agent.agent import Agent
from remuda.kube.client.http_cluster import HttpCluster
from remuda.kube.client.kubeconfig import load_kubeconfig
from remuda.kube.cluster import Cluster
from remuda.runtime.node_agent import AgentProcessConfig, node_agent
from tests.builders.waiting import until
from tests.kube.control_plane import ROOT, ControlPlane
from tests.kube.real_node import DEVICE_PLUGINS, RealNode

MODEL = "dgx-h100"
CRDS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"


def agent_root(node: RealNode) -> Path:
    return node.places.base / "agent"


def kubelet_view(node: RealNode) -> Path:
    """One directory with the sockets of this kubelet, whose root is ours while its plugins' directory is the usual one."""
    view = node.places.base / "view"
    view.mkdir(exist_ok=True)
    for name, target in (("device-plugins", DEVICE_PLUGINS), ("pod-resources", node.places.pod_resources.parent)):
        if not (view / name).is_symlink():
            (view / name).symlink_to(target)
    return view


def make_ledger(node: RealNode) -> None:
    """The manager's part, for tests that run none: an agent writes the status of its node's NodeDevices and nothing else."""
    body = {"apiVersion": "remuda.dev/v1alpha1", "kind": "NodeDevices", "metadata": {"name": node.name}}
    answer = node.plane.request("POST", "/apis/remuda.dev/v1alpha1/nodedevices", body)
    assert answer.status in (201, 409), answer


def running_agent(node: RealNode, api: Cluster, *, mode: str = "dp") -> contextlib.AbstractAsyncContextManager[Agent]:
    """One life of the agent, in this process. Another one over the same directory takes over what it left."""
    make_ledger(node)
    config = AgentProcessConfig(
        node.name,
        str(agent_root(node)),
        str(kubelet_view(node)),
        backend="fake",
        model=MODEL,
        mode=mode,
        fence_s=0,
        pod_logs=str(node.places.pod_logs),
    )
    return node_agent(config, api)


class Command:
    """`remuda ...` in a process of its own, with what it wrote."""

    def __init__(self, log: Path, *arguments: str) -> None:
        self._log = log
        self._was_killed = False
        with log.open("wb") as file:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "remuda.cli", *arguments],
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
                env={**os.environ, "PYTHONUNBUFFERED": "1", "NO_PROXY": "*"},
            )

    def log(self) -> str:
        return self._log.read_text()

    async def has_said(self, words: str) -> None:
        async def there() -> bool:
            self.check()
            return words in self.log()

        await until(f"`{words}`", there)

    def check(self) -> None:
        assert self._was_killed or self._process.poll() is None, self.log()

    async def stop(self) -> None:
        """By SIGTERM, with code 0. Does nothing when it was killed, or the second time."""
        if self._process.poll() is None:
            self._process.terminate()
        code = await asyncio.to_thread(self._process.wait, 20)
        assert self._was_killed or code == 0, self.log()

    async def kill(self) -> None:
        self._was_killed = True
        self._process.kill()
        await asyncio.to_thread(self._process.wait, 20)


@contextlib.asynccontextmanager
async def agent_command(node: RealNode, log: Path, *options: str) -> AsyncIterator[Command]:
    """`remuda agent`, up when this is entered. Ended by SIGTERM, unless the test killed it."""
    make_ledger(node)
    command = Command(
        log,
        "agent",
        f"--node={node.name}",
        f"--kubeconfig={node.plane.kubeconfig}",
        "--backend=fake",
        f"--model={MODEL}",
        f"--kubelet-dir={kubelet_view(node)}",
        f"--root={agent_root(node)}",
        f"--pod-logs={node.places.pod_logs}",
        *options,
    )
    try:
        await command.has_said("is up:")
        yield command
    finally:
        await command.stop()


@contextlib.asynccontextmanager
async def manager_of(node: RealNode, log: Path, *options: str) -> AsyncIterator[Command]:
    """`remuda manager`, leading when this is entered."""
    kubeconfig = f"--kubeconfig={node.plane.kubeconfig}"
    command = Command(log, "manager", kubeconfig, f"--agent-root={agent_root(node)}", *options)
    try:
        await command.has_said("Leading, term")
        yield command
        command.check()
    finally:
        await command.stop()


@contextlib.asynccontextmanager
async def api_of(plane: ControlPlane) -> AsyncIterator[HttpCluster]:
    async with HttpCluster(access=load_kubeconfig(plane.kubeconfig)) as cluster:
        yield cluster


async def install_kinds(plane: ControlPlane) -> None:
    for path in sorted((ROOT / "deploy" / "crds").glob("*.yaml")):
        body = yaml.safe_load(path.read_text(encoding="utf-8"))
        answer = await asyncio.to_thread(plane.request, "POST", CRDS, body)
        assert answer.status in (201, 409), answer
        address = f"{CRDS}/{body['metadata']['name']}"

        async def served(address: str = address) -> bool:
            found = await asyncio.to_thread(plane.request, "GET", address)
            conditions: list[dict[str, Any]] = found.body.get("status", {}).get("conditions") or []
            return any(c["type"] == "Established" and c["status"] == "True" for c in conditions)

        await until(f"{address} to be served", served)
