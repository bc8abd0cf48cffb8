"""A whole real cluster of one node, for following the documentation: etcd, kube-apiserver, kube-controller-manager with all its
controllers, kube-scheduler, containerd and a kubelet. Nothing of Remuda is installed; deploy/ is applied to it as anywhere.

    python -m tests.kube.whole_cluster      (or tools/real-cluster) stays until Ctrl-C, then takes everything away

There is no kube-proxy: the API server listens on the address of its own service, which this machine has for as long, so pods
reach it as on any cluster. No registry either: the images that deploy/ and examples/ name are made here and imported under their
names. Kubelet and containerd write below one directory; the paths that deploy/agent.yaml mounts lead there.
"""

from __future__ import annotations

import contextlib
import fcntl
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.kube.client_certificate import make_client_certificate
from tests.kube.control_plane import ROOT, ControlPlane, binaries_dir
from tests.kube.planes import running_controllers, running_program
from tests.kube.real_node import DEVICE_PLUGINS, Reach, RealNode, RealNodeError, missing, running_node
from tests.kube.real_node_config import API_ADDRESS, SERVICES
from tests.kube.real_node_images import BOX, PYTHON
from tests.kube.remuda_image import BIG_MODEL, REMUDA, write_remuda_image

RACK = "topology.remuda.dev/rack"
# What examples/ name, and what is run under that name here. Where there is no GPU a container that wants one finds a shell.
EXAMPLE_IMAGES = {
    "docker.io/library/python:3.12-slim": PYTHON,
    "docker.io/pytorch/pytorch:2.5.1-cuda12.4-cudnn9-runtime": PYTHON,
    "nvcr.io/nvidia/k8s/cuda-sample:vectoradd-cuda12.5.0": BOX,
    "nvcr.io/nvidia/cuda:12.5.0-base-ubuntu22.04": BOX,
}
# Its devices are made up. There is one node, so a directory on its disk is one of all nodes.
AGENT_FLAGS = ("--backend=fake", f"--model={BIG_MODEL}", "--shared-checkpoints")
AGENT_ROOT, OWN_MARK = Path("/var/lib/remuda"), Path("/var/lib/.remuda-real-cluster")  # the mark: the directory is ours
POD_RESOURCES, POD_LOGS = Path("/var/lib/kubelet/pod-resources"), Path("/var/log/pods")


@dataclass(frozen=True)
class WholeCluster:
    plane: ControlPlane
    node: RealNode

    @property
    def kubeconfig(self) -> Path:
        return self.plane.kubeconfig


def deploy_manifests(place: Path, *agent_flags: str) -> Path:
    """A copy of deploy/ with the image's name set, as deploy/README.md says, and agents whose devices are made up."""
    made = place / "deploy"
    shutil.copytree(ROOT / "deploy", made)
    for name in ("manager.yaml", "agent.yaml", "clean.yaml"):
        text = (made / name).read_text().replace("image: remuda:latest", f"image: {REMUDA}")
        (made / name).write_text(text.replace("--backend=auto", "\n            - ".join([*AGENT_FLAGS, *agent_flags])))
    return made


@contextlib.contextmanager
def whole_cluster(directory: Path) -> Iterator[WholeCluster]:
    directory.mkdir(parents=True, exist_ok=True)
    shown = make_client_certificate(directory, "kube-apiserver")
    flags = (
        f"--service-cluster-ip-range={SERVICES}",
        f"--kubelet-client-certificate={shown.certificate}",
        f"--kubelet-client-key={shown.key}",
        "--kubelet-preferred-address-types=InternalIP",
    )
    with contextlib.ExitStack() as stack:
        stack.enter_context(_only_one())
        stack.enter_context(_own_address())
        stack.enter_context(_own_agent_root())
        plane = ControlPlane.start(directory, address=API_ADDRESS, port=443, flags=flags)
        stack.callback(plane.stop)
        keys = (f"--service-account-private-key-file={plane.signing_key}", f"--root-ca-file={plane.ca_file}")
        stack.enter_context(running_controllers(plane, "*", directory, *keys))
        scheduler = (f"--kubeconfig={plane.kubeconfig}", "--leader-elect=false", "--secure-port=0")
        stack.enter_context(running_program(plane, "kube-scheduler", directory, *scheduler))
        node = stack.enter_context(running_node(plane, Reach(API_ADDRESS, shown.ca)))
        stack.enter_context(_usual_paths(node))
        archive = directory / "remuda.tar"
        write_remuda_image(archive)
        node.ctr("images", "import", str(archive))
        archive.unlink()
        for name, is_really in EXAMPLE_IMAGES.items():
            node.ctr("images", "tag", is_really, name)
        plane.kubectl("label", "node", node.name, f"{RACK}=rack-1")
        yield WholeCluster(plane, node)


@contextlib.contextmanager
def _only_one() -> Iterator[None]:
    """Of these on a machine; the others wait."""
    with (binaries_dir().parent / "whole-cluster.lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


@contextlib.contextmanager
def _own_address() -> Iterator[None]:
    """The service's address, on the loopback interface. One that a killed cluster left is taken over."""
    where = (f"{API_ADDRESS}/32", "dev", "lo")
    subprocess.run(["ip", "address", "replace", *where], check=True, capture_output=True)
    try:
        yield
    finally:
        subprocess.run(["ip", "address", "delete", *where], check=False, capture_output=True)


@contextlib.contextmanager
def _own_agent_root() -> Iterator[None]:
    """What agents write here goes with the cluster. One that was there before is refused."""
    if AGENT_ROOT.exists() and not OWN_MARK.exists():
        raise RealNodeError(f"{AGENT_ROOT} belongs to an agent of this machine; run this elsewhere")
    shutil.rmtree(AGENT_ROOT, ignore_errors=True)
    OWN_MARK.touch()
    try:
        yield
    finally:
        shutil.rmtree(AGENT_ROOT, ignore_errors=True)
        OWN_MARK.unlink()


@contextlib.contextmanager
def _usual_paths(node: RealNode) -> Iterator[None]:
    """What is mounted into agents is where it is on any node."""
    links = {POD_RESOURCES: node.places.pod_resources.parent, POD_LOGS: node.places.pod_logs}
    assert POD_RESOURCES.parent == DEVICE_PLUGINS.parent
    for path, target in links.items():
        if path.is_symlink():  # of one that was killed
            path.unlink()
        path.symlink_to(target)
    try:
        yield
    finally:
        for path in links:
            path.unlink(missing_ok=True)


def main() -> int:
    if why := missing() or ("" if binaries_dir().is_dir() else "run `make kube` first"):
        print(f"real-cluster: {why}", file=sys.stderr)
        return 1
    # A signal during the start must still take down what has been started.
    ended = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: ended.set())
    place = Path(tempfile.mkdtemp(prefix="real-cluster-"))
    print("real-cluster: starting; one at a time on a machine, so it may wait for another", flush=True)
    try:
        with whole_cluster(place) as cluster:
            manifests = deploy_manifests(place)
            print(
                f"real-cluster: Kubernetes is up. In another shell:\n\n"
                f"  export KUBECONFIG={cluster.kubeconfig} PATH={cluster.plane.binaries}:$PATH\n\n"
                f"The node is {cluster.node.name}; the image with Remuda is {REMUDA}.\n"
                f"{manifests} is deploy/ with that name and with made-up devices. Ctrl-C takes everything away.",
                flush=True,
            )
            ended.wait()
    finally:
        shutil.rmtree(place, ignore_errors=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
