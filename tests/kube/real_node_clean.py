"""Taking away what a real node leaves on a machine, whether it was stopped or killed. Idempotent; ends processes by pid only.

What is ours is known by one directory: its path is in the command line of every shim that serves our containerd, in every
mount below it, and in the network's data. Bridge, cgroup and device-plugin directory have fixed names.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

from tests.kube.real_node_config import BRIDGE, CGROUP_ROOT, NETWORK

PATIENCE_S = 10.0
CGROUPS = Path("/sys/fs/cgroup")


def clear_away(base: Path, mark: Path) -> None:
    """`mark`: the file beside the device-plugin directory that says it is ours."""
    _end_processes(base)
    _end_containers()
    _unmount(base)
    subprocess.run(["ip", "link", "delete", BRIDGE], capture_output=True, check=False)
    _remove_cgroups()
    _forget_kubelet(mark)
    for path in Path("/var/lib/cni").glob(f"*/{NETWORK}-*"):  # the network library's own cache
        path.unlink(missing_ok=True)
    shutil.rmtree(base, ignore_errors=True)


def _end_processes(base: Path) -> None:
    """kubelet, containerd and its shims: whoever has our directory in its command line."""
    mark = f"{base}/".encode()
    for pid in _pids():
        if mark in _read(f"/proc/{pid}/cmdline") and _name(pid) in ("kubelet", "containerd", "containerd-shim"):
            _kill(pid)


def _end_containers() -> None:
    """Processes that a killed shim has left in our cgroup."""
    deadline = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline:
        left = {int(pid) for path in _cgroup_directories() for pid in _read(str(path / "cgroup.procs")).split()}
        if not left:
            return
        for pid in left:
            _kill(pid)
        time.sleep(0.02)


def _unmount(base: Path) -> None:
    for _ in range(3):  # a mount may hide another of the same place
        lines = Path("/proc/self/mountinfo").read_text().splitlines()
        points = [line.split()[4] for line in lines]
        ours = sorted((p for p in points if p.startswith(f"{base}/")), key=len, reverse=True)
        if not ours:
            return
        for point in ours:
            subprocess.run(["umount", "--lazy", point], capture_output=True, check=False)


def _remove_cgroups() -> None:
    deadline = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline:
        for path in sorted(_cgroup_directories(), key=lambda p: len(p.parts), reverse=True):
            with contextlib.suppress(OSError):  # busy for a moment after its last process
                path.rmdir()
        if not any(True for _ in _cgroup_directories()):
            return
        time.sleep(0.02)


def _cgroup_directories() -> Iterator[Path]:
    name = CGROUP_ROOT.lstrip("/")
    roots = [CGROUPS / name, *CGROUPS.glob(f"*/{name}")]
    for root in roots:
        if root.is_dir():
            for directory, _, _ in os.walk(root):
                yield Path(directory)


def _forget_kubelet(mark: Path) -> None:
    """A machine without a kubelet has no such directory; on one that has a kubelet it was not we who made it."""
    if mark.exists():
        shutil.rmtree(mark.parent / "device-plugins", ignore_errors=True)
        (mark.parent / "pod-resources").unlink(missing_ok=True)  # a link of `whole_cluster`
        mark.unlink()
        with contextlib.suppress(OSError):
            mark.parent.rmdir()


def _pids() -> Iterator[int]:
    return (int(entry) for entry in os.listdir("/proc") if entry.isdecimal())


def _name(pid: int) -> str:
    return _read(f"/proc/{pid}/comm").decode(errors="replace").strip()


def _read(path: str) -> bytes:
    try:
        return Path(path).read_bytes()
    except OSError:
        return b""


def _kill(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)
