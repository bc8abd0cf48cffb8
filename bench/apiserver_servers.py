"""The two servers that are compared: the embedded one and kube-apiserver with its etcd, each on loopback with TLS and a token.

Both serve the API alone (no controllers, no nodes), and both sync to disk before they answer: the etcd of the tests does not,
this one does. As a program, `python -m bench.apiserver_servers DIR` is the embedded server.
"""

from __future__ import annotations

import asyncio
import ctypes
import signal
import ssl
import subprocess
import sys
import time
import urllib.error
import urllib.request
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec

from remuda import __version__
from remuda.api.kubernetes.core_v1 import Namespace
from remuda.api.meta import ObjectMeta
from remuda.embedded.apiserver.admission import AdmissionChain
from remuda.embedded.apiserver.app import ApiServerApp
from remuda.embedded.apiserver.local_cluster import LocalCluster
from remuda.embedded.apiserver.store import ObjectStore, SqliteJournal
from remuda.link.certificates import LinkCertificates
from remuda.runtime.api_endpoint import LOOPBACK, ApiEndpoint
from remuda.runtime.state_dir import StateDir
from tests.kube.control_plane import ControlPlane

READY_DEADLINE_S = 60.0
_PR_SET_PDEATHSIG = 1


class Server(msgspec.Struct, frozen=True):
    """How a client reaches it, which processes it is, and how long it took until /readyz said yes."""

    name: str
    url: str
    ca: Path
    token: Path
    pids: tuple[int, ...]
    ready_s: float

    def memory_mb(self) -> float:
        """Resident, of all its processes; what they share with others counts in part."""
        return sum(_pss_kb(pid) for pid in self.pids) / 1024

    def cpu_s(self) -> float:
        return sum(_cpu_s(pid) for pid in self.pids)


def _pss_kb(pid: int) -> int:
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text(encoding="ascii").splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("Pss:"))


def _cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / 100


class DurablePlane(ControlPlane):
    def _spawn(self, name: str, *arguments: str) -> None:
        super()._spawn(name, *(each for each in arguments if each != "--unsafe-no-fsync"))


@contextmanager
def real_server(directory: Path) -> Iterator[Server]:
    begun = time.monotonic()
    plane = DurablePlane.start(directory)
    ready_s = time.monotonic() - begun
    try:
        token = directory / "token"
        token.touch(mode=0o600)
        token.write_text(plane.token, encoding="utf-8")
        pids = tuple(process.pid for process in plane.processes.values())
        yield Server("kube-apiserver", plane.url, plane.ca_file, token, pids, ready_s)
    finally:
        plane.stop()


@contextmanager
def embedded_server(directory: Path) -> Iterator[Server]:
    directory.mkdir(parents=True)
    state = StateDir(directory)
    begun = time.monotonic()
    with (directory / "server.log").open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "bench.apiserver_servers", str(directory)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=log,
        )
    try:
        assert process.stdout is not None
        url = process.stdout.readline().decode().strip()
        if not url:
            raise RuntimeError(f"the embedded server did not start:\n{(directory / 'server.log').read_text()}")
        ca = LinkCertificates(state.pki).ca
        _wait_ready(url, ca, state.token.read_text(encoding="utf-8").strip())
        yield Server("embedded", url, ca, state.token, (process.pid,), time.monotonic() - begun)
    finally:
        process.terminate()
        process.wait(timeout=30)
        assert process.stdout is not None
        process.stdout.close()


def _wait_ready(url: str, ca: Path, token: str) -> None:
    context = ssl.create_default_context(cafile=str(ca))
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}), urllib.request.HTTPSHandler(context=context))
    request = urllib.request.Request(url + "/readyz", headers={"Authorization": f"Bearer {token}"})
    deadline = time.monotonic() + READY_DEADLINE_S
    while True:
        try:
            with opener.open(request, timeout=5):
                return
        except OSError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.01)


async def _serve(directory: Path) -> None:
    state = StateDir(directory)
    store = ObjectStore(SqliteJournal(state.database))
    api = LocalCluster(store, clock=time.time, new_uid=lambda: str(uuid.uuid4()), admission=AdmissionChain)
    for name in ("default", "kube-system", "kube-node-lease"):
        await api.create(Namespace, Namespace(metadata=ObjectMeta(name=name)))
    endpoint, ready = ApiEndpoint(state, 0, LOOPBACK, time.time()), asyncio.Event()
    face = asyncio.create_task(endpoint.serve(ApiServerApp(api, version=__version__), ready))
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, face.cancel)
    await ready.wait()
    print(endpoint.url, flush=True)
    try:
        await face
    except asyncio.CancelledError:
        pass  # told to end
    finally:
        await store.close()


if __name__ == "__main__":
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)  # a killed benchmark leaves nothing behind
    asyncio.run(_serve(Path(sys.argv[1])))
