"""`remuda agent` as a process of its own, as root, beside a kubelet and an API that are played here; and containers of another
user, who reach their allocation through the mounts that the device plugin named, read-only where it said so.

Without root nothing of this can be shown: the tests skip, and with REMUDA_REQUIRE_KUBE=1 (CI) they fail instead.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import resource
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path

import grpc
import pytest
import yaml

from remuda.api.devices import NodeDevices
from remuda.api.kubernetes.core_v1 import Namespace, Node, Pod
from remuda.api.names import RESOURCE_GPU
from remuda.embedded.apiserver.app import ApiServerApp
from remuda.embedded.apiserver.asgi_server import listen_asgi_tcp, serve_asgi_socket
from remuda.embedded.apiserver.local_cluster import LocalCluster
from remuda.embedded.apiserver.store import MemoryJournal, ObjectStore
from remuda.launch.protocol import Hello, encode_launch_message
from remuda.link.device_plugin_port import ContainerAllocation, ContainerDevices, Mount
from tests.builders.waiting import PATIENCE_S, until
from tests.unit.agent.plugin.kubelet import Kubelet, PodResources, a_kubelet

NODE = "worker-1"
NOBODY = 65534
MEMORY_BYTES = 1 << 30  # the agent's: it needs a tenth of it
ALLOC = "/run/remuda/alloc"


def need_root() -> None:
    if os.geteuid() == 0:
        return
    if os.environ.get("REMUDA_REQUIRE_KUBE", "") not in ("", "0"):
        pytest.fail("these tests need root, and REMUDA_REQUIRE_KUBE is set")
    pytest.skip("NEEDS ROOT: an agent that is root and a container that is not")


class AgentProcess:
    def __init__(self, arguments: list[str], log: Path) -> None:
        self._log = log
        with log.open("ab") as file:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "remuda.cli", "agent", *arguments],
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
                env={**os.environ, "PYTHONUNBUFFERED": "1", "NO_PROXY": "*"},
            )
        resource.prlimit(self._process.pid, resource.RLIMIT_DATA, (MEMORY_BYTES, MEMORY_BYTES))

    async def is_up(self) -> None:
        async def said() -> bool:
            assert self._process.poll() is None, self.log()
            return "is up:" in self.log()

        await until("the agent", said)

    def log(self) -> str:
        return self._log.read_text()

    def peak_bytes(self) -> int:
        status = Path(f"/proc/{self._process.pid}/status").read_text()
        return next(int(line.split()[1]) * 1024 for line in status.splitlines() if line.startswith("VmHWM"))

    async def stop(self) -> int:
        """By SIGTERM; an agent that hangs is killed, and that shows in the code."""
        self._process.terminate()
        try:
            return await asyncio.to_thread(self._process.wait, 30)
        except subprocess.TimeoutExpired:
            self._process.kill()
            return await asyncio.to_thread(self._process.wait)


class RealSite:
    """A node's directories, its kubelet and its API. `agent()` is the process."""

    def __init__(self, base: Path, kubelet: Kubelet, resources: PodResources, cluster: LocalCluster, url: str) -> None:
        self.base = base
        self.kubelet = kubelet
        self.resources = resources
        self.cluster = cluster
        self._url = url
        self._numbers = itertools.count()

    @property
    def state(self) -> Path:
        return self.base / "state"

    @contextlib.asynccontextmanager
    async def agent(self) -> AsyncIterator[AgentProcess]:
        kubeconfig = self.base / "kubeconfig"
        context = {"name": "c", "context": {"cluster": "c", "user": "u"}}
        config = {
            "clusters": [{"name": "c", "cluster": {"server": self._url}}],
            "users": [{"name": "u", "user": {"token": "t"}}],
            "contexts": [context],
            "current-context": "c",
        }
        kubeconfig.write_text(yaml.safe_dump(config))
        arguments = [
            f"--node={NODE}",
            f"--kubeconfig={kubeconfig}",
            "--backend=fake",
            "--model=dgx-h100",
            f"--kubelet-dir={self.base / 'kubelet'}",
            f"--root={self.state}",
            f"--pod-logs={self.base / 'pod-logs'}",
        ]
        seen = len(self.kubelet.registered)
        process = AgentProcess(arguments, self.base / f"agent-{next(self._numbers)}.log")
        try:
            await process.is_up()
            await self.kubelet.until(
                lambda: len(self.kubelet.registered) > seen and self.kubelet.list_of(), "the plugin's list"
            )
            yield process
        finally:
            assert await process.stop() == 0, process.log()

    async def bind(self, name: str, *devices: str) -> Pod:
        limits = {RESOURCE_GPU: len(devices)}
        body = {
            "metadata": {
                "name": name,
                "namespace": "default",
                "annotations": {"remuda.dev/devices": ",".join(devices)},
                "labels": {"remuda.dev/gang": "job"},
            },
            "spec": {"nodeName": NODE, "containers": [{"name": "main", "resources": {"limits": limits}}]},
        }
        return await self.cluster.create(Pod, body)

    def listed(self, pod: Pod, *devices: str) -> None:
        """From here on the kubelet says that they are the pod's."""
        self.resources.rows.append(ContainerDevices(pod.namespace, pod.name, "main", RESOURCE_GPU, devices))

    async def launch(self, pod: Pod, directory: Path) -> asyncio.StreamWriter:
        """The pod's launcher at its door."""

        async def dial() -> asyncio.StreamWriter | None:
            fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
            try:
                _, writer = await asyncio.open_unix_connection(f"/proc/self/fd/{fd}/agent.sock")
            except OSError:
                return None
            finally:
                os.close(fd)
            return writer

        writer = await until("the door", dial)
        assert writer is not None
        writer.write(encode_launch_message(Hello(pod.name, pod.uid, 7, "parked", 0)))
        return writer

    async def can_be_had(self, *devices: str) -> bool:
        """Whether Allocate hands them out: nobody holds them any more."""
        try:
            await self.kubelet.allocate(*devices)
        except grpc.aio.AioRpcError as error:
            if "DeviceHeld" not in (error.details() or ""):
                raise
            return False
        return True

    async def heard_of(self, pod: Pod) -> None:
        """The agent reports the pod's launcher and devices."""

        async def is_reported() -> bool:
            try:
                found = (await self.cluster.get(NodeDevices, NODE)).observed
            except Exception:
                return False
            held = any(h.uid == pod.uid for h in found.holdings)
            return held and any(r.uid == pod.uid and r.state == "parked" for r in found.launchers)

        await until(f"the report about {pod.name}", is_reported)


def alloc_mount(answer: ContainerAllocation) -> Mount:
    return next(mount for mount in answer.mounts if mount.container_path == ALLOC)


def in_container(mount: Mount, script: str, uid: int = NOBODY) -> subprocess.CompletedProcess[str]:
    """`script` (sh) in the mounted directory as another user: what a hostile container can do there. It goes on after errors."""
    mode = "ro" if mount.read_only else "rw"
    enter = (
        'mount --bind "$1" "$1" && mount -o remount,bind,$2 "$1" && cd "$1" && '
        'exec setpriv --reuid="$3" --regid="$3" --clear-groups sh -c "$4"'
    )
    command = ["unshare", "--mount", "--propagation=private", "sh", "-c", enter, "sh", mount.host_path, mode, str(uid)]
    return subprocess.run([*command, script], capture_output=True, text=True, timeout=PATIENCE_S, check=False)


@contextlib.asynccontextmanager
async def a_real_site(base: Path) -> AsyncIterator[RealSite]:
    need_root()
    plugins = base / "kubelet" / "device-plugins"
    plugins.mkdir(parents=True)
    (base / "kubelet" / "pod-resources").mkdir()
    (base / "pod-logs").mkdir()
    resources = PodResources(base / "kubelet" / "pod-resources" / "kubelet.sock")
    await resources.start()
    uids = itertools.count(1)
    cluster = LocalCluster(ObjectStore(MemoryJournal()), clock=time.time, new_uid=lambda: f"uid-{next(uids)}")
    await cluster.create(Namespace, {"metadata": {"name": "default"}})
    await cluster.create(Namespace, {"metadata": {"name": "kube-node-lease"}})
    await cluster.create(Node, {"metadata": {"name": NODE}})
    await cluster.create(NodeDevices, {"metadata": {"name": NODE}})  # the manager's part
    sock = listen_asgi_tcp("127.0.0.1", 0)
    ready = asyncio.Event()
    url = f"http://127.0.0.1:{sock.getsockname()[1]}"
    serving = asyncio.create_task(serve_asgi_socket(ApiServerApp(cluster, version="test"), sock, ready=ready))
    await ready.wait()
    try:
        async with a_kubelet(plugins) as kubelet:
            yield RealSite(base, kubelet, resources, cluster, url)
    finally:
        await resources.stop()
        serving.cancel()
        await asyncio.gather(serving, return_exceptions=True)
