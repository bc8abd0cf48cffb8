"""One real node: containerd, runc, a CNI bridge and the kubelet, against the kube-apiserver of `control_plane`.

`RealNode.start(plane)` returns when the node is Ready and its not-ready taint is lifted; `stop()` ends what was started, by
pid, and leaves neither process, mount, network interface nor cgroup. A node that was killed before it could clean up is cleared
away by the next start: every name it uses is fixed, or below one directory whose path is written into the lock file.

Only one can be at a time on a machine, because the kubelet's device-plugin directory is fixed: a file lock makes the others
wait. A machine whose own kubelet runs is refused.

Only what the kubelet needs of a control plane is there: no kube-controller-manager, so the node's not-ready taint is lifted
here, a namespace needs a service account from the test, and pods must say automountServiceAccountToken: false.

REMUDA_KEEP_LOGS=DIR keeps the logs of kubelet and containerd there.
"""

from __future__ import annotations

import contextlib
import fcntl
import itertools
import json
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from tests.builders.waiting import PATIENCE_S
from tests.kube.control_plane import ControlPlane, binaries_dir, free_ports
from tests.kube.real_node_clean import CGROUPS, clear_away
from tests.kube.real_node_config import CGROUP_ROOT, CNI_BIN, Places, containerd_config, kubelet_config, network_config
from tests.kube.real_node_images import PAUSE, image_files

NAME = "real-node"
DEVICE_PLUGINS = Path("/var/lib/kubelet/device-plugins")
OURS = DEVICE_PLUGINS.parent / ".remuda-test"  # says that the directory is there because of us
STOP_S = 10.0
POLL_S = 0.05
NEEDED = {
    "containerd": "containerd",
    "ctr": "containerd",
    "runc": "runc",
    f"{CNI_BIN}/bridge": "containernetworking-plugins",
    "busybox": "busybox-static",
    "ip": "iproute2",
}


class RealNodeError(Exception):
    """The node did not start; the message carries the end of the log of the process at fault."""


def missing() -> str:
    """Why there can be no real node here, with the fix; "" when there can."""
    if os.geteuid() != 0:
        return "a kubelet needs root; run the tests as root"
    packages = sorted({package for program, package in NEEDED.items() if shutil.which(program) is None})
    if packages:
        return f"run `make kube` as root, or: apt-get install -y --no-install-recommends {' '.join(packages)}"
    return ""


@dataclass(frozen=True)
class Reach:
    """How the API server reaches the kubelet, for logs and shells: at this address, with a certificate of this CA."""

    address: str
    client_ca: Path


class RealNode:
    def __init__(self, plane: ControlPlane, places: Places, lock: IO[str], reach: Reach | None = None) -> None:
        self.plane = plane
        self.reach = reach
        self.places = places
        self.name = NAME
        self._lock = lock
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self._ports = free_ports(2)
        self.seconds: dict[str, float] = {}  # how long each part of the start took
        self._namespaces = itertools.count(1)

    @classmethod
    def start(cls, plane: ControlPlane, reach: Reach | None = None) -> RealNode:
        if why := missing():
            raise RealNodeError(why)
        lock = _lock()
        try:
            _refuse_other_kubelet()
            node = cls(plane, Places(Path(tempfile.mkdtemp(prefix="rn-"))), lock, reach)
            lock.truncate(0)
            lock.seek(0)
            lock.write(str(node.places.base))
            lock.flush()
        except BaseException:
            lock.close()
            raise
        try:
            node._bring_up()
        except BaseException:
            node.stop()
            raise
        return node

    def _bring_up(self) -> None:
        self._timed("containerd", self.start_containerd)
        self._timed("images", self._import_images)
        self._timed("kubelet", self.start_kubelet)

    def _timed(self, what: str, act: Callable[[], None]) -> None:
        began = time.monotonic()
        act()
        self.seconds[what] = round(time.monotonic() - began, 2)

    # --- containerd ---------------------------------------------------------------------------------------------------

    def start_containerd(self) -> None:
        places = self.places
        places.cni_config.mkdir(exist_ok=True)
        (places.cni_config / "10-test.conflist").write_text(network_config(places))
        places.containerd_config.write_text(containerd_config(places, PAUSE))
        self._spawn("containerd", "containerd", "--config", str(places.containerd_config))
        self._wait("containerd", lambda: self.ctr("version", check=False).returncode == 0)

    def _import_images(self) -> None:
        for path in image_files(binaries_dir().parent).values():
            self.ctr("images", "import", str(path))

    def ctr(self, *arguments: str, check: bool = True) -> subprocess.CompletedProcess[str]:
        command = ["ctr", "--address", str(self.places.containerd_socket), "--namespace", "k8s.io", *arguments]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
        if check and done.returncode != 0:
            raise RealNodeError(f"{' '.join(arguments)}: {done.stderr}\n{self.log_tail('containerd')}")
        return done

    # --- kubelet ------------------------------------------------------------------------------------------------------

    def start_kubelet(self) -> None:
        """Also after `stop_kubelet`: containers have run on meanwhile."""
        self.wait_kubelet(self.spawn_kubelet())

    def spawn_kubelet(self) -> float:
        """For `wait_kubelet`. To be called by the main thread: a child dies with the *thread* that made it."""
        for hierarchy in _hierarchies():
            (hierarchy / CGROUP_ROOT.lstrip("/")).mkdir(exist_ok=True)
        DEVICE_PLUGINS.mkdir(parents=True, exist_ok=True)
        OURS.touch()
        self.places.pod_logs.mkdir(exist_ok=True)
        port, health_port = self._ports
        reach = self.reach
        ask = {"address": reach.address, "client_ca": str(reach.client_ca)} if reach else {}
        config = kubelet_config(self.places, port=port, health_port=health_port, **ask)
        self.places.kubelet_config.write_text(json.dumps(config))
        before = self.boot_time()
        self._spawn(
            "kubelet",
            str(self.plane.binaries / "kubelet"),
            f"--config={self.places.kubelet_config}",
            f"--kubeconfig={self.plane.kubeconfig}",
            f"--root-dir={self.places.kubelet_root}",
            f"--cert-dir={self.places.base / 'pki'}",
            f"--hostname-override={self.name}",
            *([f"--node-ip={reach.address}"] if reach else []),
            "--v=2",
        )
        return before

    def wait_kubelet(self, before: float) -> None:
        self._wait("kubelet", lambda: self._ready(before))

    def _ready(self, before: float) -> bool:
        node = self.node()
        conditions = {c["type"]: c for c in node.get("status", {}).get("conditions", [])}
        ready = conditions.get("Ready", {})
        if ready.get("status") != "True" or self.boot_time() <= before:
            return False
        if node["spec"].get("taints"):
            # As the node lifecycle controller would; the API server puts the taint on every new node.
            patch = {"spec": {"taints": None}}
            path = f"/api/v1/nodes/{self.name}"
            self.plane.request("PATCH", path, patch, content_type="application/merge-patch+json")
            return False
        return DEVICE_PLUGINS.joinpath("kubelet.sock").exists()

    def boot_time(self) -> float:
        """When this kubelet's registration socket was made; 0.0 when there is none."""
        try:
            return DEVICE_PLUGINS.joinpath("kubelet.sock").stat().st_ctime_ns / 1e9
        except OSError:
            return 0.0

    @property
    def is_kubelet_running(self) -> bool:
        return "kubelet" in self._processes and self._processes["kubelet"].poll() is None

    def stop_kubelet(self) -> None:
        self._end("kubelet")

    def fresh_namespace(self) -> str:
        """A name nobody had: tests share the node, never a namespace."""
        return f"real-{next(self._namespaces)}"

    def node(self) -> dict[str, Any]:
        answer = self.plane.request("GET", f"/api/v1/nodes/{self.name}")
        return answer.body if answer.status == 200 else {}

    # --- processes ----------------------------------------------------------------------------------------------------

    def _spawn(self, name: str, *command: str) -> None:
        setpriv = shutil.which("setpriv")
        prefix = [setpriv, "--pdeathsig", "KILL"] if setpriv else []
        with (self.places.base / f"{name}.log").open("ab") as log:
            self._processes[name] = subprocess.Popen(
                [*prefix, *command], stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=_environment()
            )

    def _wait(self, name: str, holds: Callable[[], bool]) -> None:
        process = self._processes[name]
        deadline = time.monotonic() + PATIENCE_S
        while not holds():
            if process.poll() is not None:
                raise RealNodeError(f"{name} ended with {process.returncode}:\n{self.log_tail(name)}")
            if time.monotonic() > deadline:
                raise RealNodeError(f"{name} was not ready within {PATIENCE_S:.0f} s:\n{self.log_tail(name)}")
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(timeout=POLL_S)

    def _end(self, name: str) -> None:
        process = self._processes.pop(name, None)
        if process is None:
            return
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(timeout=STOP_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

    def log_tail(self, name: str, lines: int = 30) -> str:
        path = self.places.base / f"{name}.log"
        text = path.read_text(encoding="utf-8", errors="replace") if path.exists() else ""
        return "\n".join(text.splitlines()[-lines:])

    def stop(self) -> None:
        """Nothing is left when this returns."""
        keep = os.environ.get("REMUDA_KEEP_LOGS")
        if keep:
            for name in ("kubelet", "containerd"):
                with contextlib.suppress(OSError):
                    shutil.copy(self.places.base / f"{name}.log", keep)
        try:
            self._end("kubelet")
            if "containerd" in self._processes:
                for container in self.ctr("containers", "list", "-q", check=False).stdout.split():
                    self.ctr("tasks", "delete", "--force", container, check=False)
            self._end("containerd")
            clear_away(self.places.base, OURS)
        finally:
            self._lock.close()


def _hierarchies() -> list[Path]:
    """The one of cgroup v2, or each of v1's."""
    if (CGROUPS / "cgroup.controllers").exists():
        return [CGROUPS]
    return [path for path in CGROUPS.iterdir() if (path / "cgroup.procs").exists() and not path.is_symlink()]


def _environment() -> dict[str, str]:
    """No proxy stands between the kubelet and loopback, and no service manager is told anything."""
    left_out = {"http_proxy", "https_proxy", "all_proxy", "notify_socket"}
    return {**{k: v for k, v in os.environ.items() if k.lower() not in left_out}, "NO_PROXY": "*"}


def _lock() -> IO[str]:
    """Held until it is closed, by us or by our end. Clears away what an earlier holder left."""
    path = binaries_dir().parent / "real-node.lock"
    path.touch()
    lock = path.open("r+", encoding="utf-8")
    fcntl.flock(lock, fcntl.LOCK_EX)
    left = lock.read().strip()
    if left and Path(left).exists():
        clear_away(Path(left), OURS)
    return lock


def _refuse_other_kubelet() -> None:
    if DEVICE_PLUGINS.exists() and not OURS.exists():
        raise RealNodeError(f"{DEVICE_PLUGINS} belongs to a kubelet of this machine; run the tests elsewhere")
    path = DEVICE_PLUGINS / "kubelet.sock"
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        try:
            probe.connect(str(path))
        except OSError:
            return
    raise RealNodeError(f"a kubelet runs on this machine ({path} answers); run the tests elsewhere")


@contextlib.contextmanager
def running_node(plane: ControlPlane, reach: Reach | None = None) -> Iterator[RealNode]:
    node = RealNode.start(plane, reach)
    try:
        yield node
    finally:
        node.stop()
