"""A real control plane for as long as a test, a module or a session lasts; or the refusal to go without one.

Without the binaries of `make kube` tests skip, and the run's summary says so in capitals; with REMUDA_REQUIRE_KUBE=1 (CI) they
fail instead, so they can never be missed silently.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.kube.control_plane import ControlPlane, binaries_dir

MISSING = "the real control plane is not built; run `make kube` (Go >= 1.26) and try again"
MERGE_PATCH = "application/merge-patch+json"


def skip_or_fail(why: str) -> None:
    if os.environ.get("REMUDA_REQUIRE_KUBE", "") not in ("", "0"):
        pytest.fail(why, pytrace=False)
    pytest.skip(why)


def require_binaries() -> Path:
    """Where they are."""
    if not binaries_dir().is_dir():
        skip_or_fail(MISSING)
    return binaries_dir()


@contextmanager
def own_plane(directory: Path) -> Iterator[ControlPlane]:
    """For whoever would disturb the others: restarts the server, or uses names as it likes."""
    require_binaries()
    plane = ControlPlane.start(directory)
    try:
        yield plane
    finally:
        plane.stop()


@contextmanager
def running_controllers(plane: ControlPlane, controllers: str, directory: Path, *flags: str) -> Iterator[None]:
    """A kube-controller-manager beside it that runs these of its controllers."""
    own = (
        f"--kubeconfig={plane.kubeconfig}",
        "--bind-address=127.0.0.1",
        "--secure-port=0",
        "--leader-elect=false",
        f"--controllers={controllers}",
    )
    with running_program(plane, "kube-controller-manager", directory, *own, *flags):
        yield


@contextmanager
def running_program(plane: ControlPlane, name: str, directory: Path, *flags: str) -> Iterator[None]:
    """One of the binaries, with its log in the directory. It dies with this process even when that is killed."""
    setpriv = shutil.which("setpriv")
    prefix = [setpriv, "--pdeathsig", "KILL"] if setpriv else []
    with (directory / f"{name}.log").open("wb") as out:
        command = [*prefix, str(plane.binaries / name), *flags]
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=out, stderr=out)
    try:
        yield
    finally:
        process.terminate()
        process.wait(timeout=10)


def make_node_ready(plane: ControlPlane, node: str, **devices: str) -> None:
    """What a kubelet would say of the node, and what the controller does that lifts the taint of a new one."""
    amounts = {**devices, "cpu": "64", "memory": "256Gi", "pods": "110"}
    ready = [{"type": "Ready", "status": "True", "reason": "KubeletReady"}]
    status = {"status": {"capacity": amounts, "allocatable": amounts, "conditions": ready}}
    assert plane.request("PATCH", f"/api/v1/nodes/{node}/status", status, MERGE_PATCH).status == 200
    assert plane.request("PATCH", f"/api/v1/nodes/{node}", {"spec": {"taints": None}}, MERGE_PATCH).status == 200
