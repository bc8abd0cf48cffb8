"""Names and modes of everything on a node where an agent, its pods and a kubelet might leave something, to be compared.

What is left out is what kubelet, containerd and the network's plugins write by themselves, each with its reason.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path

from tests.kube.real_node import RealNode

# Wholly, with all that is below.
WHOLE = ("/var/lib/remuda", "/var/lib/kubelet", "/etc/cdi", "/opt", "/run")  # /var/run is /run
# Only what is in them, not below.
TOPS = ("/", "/etc", "/var", "/var/lib", "/var/log")


def left_out(node: RealNode) -> dict[str, str]:
    """Path -> why."""
    base = node.places.base
    return {
        "/var/lib/kubelet/device-plugins/kubelet_internal_checkpoint": "the kubelet's own record of what it handed out",
        "/run/containerd": "sockets of containerd's shims",
        "/run/lock": "of the machine, nobody's on a node",
        "/run/user": "of people who log in",
        str(node.places.kubelet_root / "cpu_manager_state"): "the kubelet's own record",
        str(node.places.kubelet_root / "memory_manager_state"): "the kubelet's own record",
        str(node.places.kubelet_root / "allocated_pods_state"): "the kubelet's own record",
        str(node.places.kubelet_root / "actuated_pods_state"): "the kubelet's own record",
        str(base / "c-root"): "containerd's layers and its database",
        str(base / "c-state"): "containerd's, of containers that run",
        str(base / "cni-data"): "addresses that the network has handed out",
    }


def node_tree(node: RealNode) -> dict[str, str]:
    """Path -> kind and mode, and where a link leads."""
    out = left_out(node)
    found = {path: _kind(path) for top in TOPS for path in _in(top) if path not in out}
    for top in (*WHOLE, str(node.places.kubelet_root), str(node.places.pod_logs)):
        if os.path.lexists(top):
            found.update((path, _kind(path)) for path in _below(top, out))
    return found


def _in(top: str) -> list[str]:
    try:
        return [os.path.join(top, name) for name in os.listdir(top)]
    except FileNotFoundError:  # gone while we looked
        return []


def _below(top: str, out: dict[str, str]) -> Iterator[str]:
    if top in out:
        return
    yield top
    if Path(top).is_dir() and not Path(top).is_symlink():
        for path in _in(top):
            yield from _below(path, out)


def _kind(path: str) -> str:
    try:
        found = os.lstat(path)
    except FileNotFoundError:  # gone while we looked
        return "gone"
    leads = f" -> {os.readlink(path)}" if stat.S_ISLNK(found.st_mode) else ""
    return f"{stat.filemode(found.st_mode)} {found.st_uid}:{found.st_gid}{leads}"
