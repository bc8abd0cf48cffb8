"""What a node says of the machine it is on: the `nodeInfo` of its Node object, and its addresses.

All nodes of an embedded cluster are one machine, so they say the same; what is not known stays empty. The kubelet's version is
ours with `+remuda` behind it: nobody should take an embedded node for a kubelet of that release.
"""

from __future__ import annotations

import platform
from pathlib import Path

from remuda import __version__
from remuda.api.kubernetes.core_v1 import NodeAddress, NodeSystemInfo

KUBELET_VERSION = f"v{__version__}+remuda"

# As Go, and therefore every Kubernetes client, calls them.
_ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64", "armv7l": "arm", "i686": "386"}
_LOOPBACK = "127.0.0.1"


def machine_info(runtime: str) -> NodeSystemInfo:
    """`runtime_port`: process or simulated."""
    machine = platform.machine()
    return NodeSystemInfo(
        machine_id=_node_file_first_line(Path("/etc/machine-id")),
        boot_id=_node_file_first_line(Path("/proc/sys/kernel/random/boot_id")),
        kernel_version=platform.release(),
        os_image=_node_os_image(),
        container_runtime_version=f"remuda-{runtime}://{__version__}",
        kubelet_version=KUBELET_VERSION,
        operating_system=platform.system().lower(),
        architecture=_ARCHITECTURES.get(machine, machine),
    )


def node_addresses(name: str) -> list[NodeAddress]:
    """Pods of embedded nodes listen on this machine's loopback network."""
    return [NodeAddress("InternalIP", _LOOPBACK), NodeAddress("Hostname", name)]


def _node_os_image() -> str:
    try:
        return platform.freedesktop_os_release()["PRETTY_NAME"]
    except (OSError, KeyError):
        return platform.system()


def _node_file_first_line(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8").partition("\n")[0]
    except OSError:
        return ""
