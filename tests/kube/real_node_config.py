"""Configuration of a private containerd and a kubelet, as values: what was found to work on any such machine.

Everything that can be private is: root, state, sockets, logs, network data. What cannot is the kubelet's device-plugin
directory, which the kubelet takes whatever its root directory is; `real_node` holds a lock for it.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

BRIDGE = "remuda-test0"
NETWORK = "remuda-test"
SUBNET = "10.251.7.0/24"
CNI_BIN = "/usr/lib/cni"  # Debian: containernetworking-plugins
SERVICES, API_ADDRESS = "10.251.8.0/24", "10.251.8.1"  # of a cluster whose pods reach the API by its service's address
CGROUP_ROOT = "/remuda-test"
STATUS_S = 1  # how often the kubelet looks at its node; ten times the default, so that tests need not wait


@dataclass(frozen=True)
class Places:
    """Where the parts of one node are; short, because sockets below it have 107 bytes at most."""

    base: Path

    @property
    def containerd_config(self) -> Path:
        return self.base / "containerd.toml"

    @property
    def containerd_socket(self) -> Path:
        return self.base / "c.sock"

    @property
    def containerd_root(self) -> Path:
        return self.base / "c-root"

    @property
    def containerd_state(self) -> Path:
        return self.base / "c-state"

    @property
    def cni_config(self) -> Path:
        return self.base / "cni"

    @property
    def kubelet_config(self) -> Path:
        return self.base / "kubelet.json"

    @property
    def kubelet_root(self) -> Path:
        return self.base / "k"

    @property
    def pod_logs(self) -> Path:
        return self.base / "pod-logs"

    @property
    def pod_resources(self) -> Path:
        return self.kubelet_root / "pod-resources" / "kubelet.sock"


def containerd_config(places: Places, sandbox_image: str) -> str:
    """oom_score_adj may not be lowered everywhere, hence restrict_oom_score_adj; network namespaces stay in our directory."""
    return f"""version = 2
root = "{places.containerd_root}"
state = "{places.containerd_state}"
oom_score = 0
disabled_plugins = ["io.containerd.snapshotter.v1.btrfs", "io.containerd.snapshotter.v1.zfs",
  "io.containerd.snapshotter.v1.aufs", "io.containerd.snapshotter.v1.devmapper", "io.containerd.tracing.processor.v1.otlp",
  "io.containerd.internal.v1.tracing"]

[grpc]
  address = "{places.containerd_socket}"

[ttrpc]
  address = "{places.containerd_socket}.ttrpc"

[plugins."io.containerd.internal.v1.opt"]
  path = "{places.base}/opt"

[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "{sandbox_image}"
  restrict_oom_score_adj = true
  netns_mounts_under_state_dir = true
  disable_apparmor = true
  enable_selinux = false
  stream_server_address = "127.0.0.1"
  stream_server_port = "0"
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "{CNI_BIN}"
    conf_dir = "{places.cni_config}"
  [plugins."io.containerd.grpc.v1.cri".containerd]
    default_runtime_name = "runc"
    [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
      runtime_type = "io.containerd.runc.v2"
      [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]
        SystemdCgroup = false
"""


def network_config(places: Places) -> str:
    """A bridge without masquerading: pods talk to each other and to this machine, and no firewall rule is touched."""
    return json.dumps(
        {
            "cniVersion": "0.4.0",
            "name": NETWORK,
            "plugins": [
                {
                    "type": "bridge",
                    "bridge": BRIDGE,
                    "isGateway": True,
                    "ipMasq": False,
                    "ipam": {
                        "type": "host-local",
                        "dataDir": str(places.base / "cni-data"),
                        "ranges": [[{"subnet": SUBNET}]],
                        "routes": [{"dst": SERVICES}],
                    },
                }
            ],
        }
    )


def kubelet_config(
    places: Places, *, port: int, health_port: int, address: str = "127.0.0.1", client_ca: str = ""
) -> dict[str, Any]:
    """Who has a certificate of `client_ca` may ask the kubelet for logs and shells, as an API server does; nobody without one."""
    return {
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "address": address,
        "port": port,
        "healthzPort": health_port,
        "readOnlyPort": 0,
        "authentication": {
            "anonymous": {"enabled": False},
            "webhook": {"enabled": False},
            "x509": {"clientCAFile": client_ca},
        },
        "authorization": {"mode": "AlwaysAllow"},
        "containerRuntimeEndpoint": f"unix://{places.containerd_socket}",
        "cgroupDriver": "cgroupfs",
        "cgroupRoot": CGROUP_ROOT,
        "failCgroupV1": False,
        "failSwapOn": False,
        "oomScoreAdj": 0,
        "podLogsDir": str(places.pod_logs),
        "volumePluginDir": str(places.base / "volume-plugins"),
        "resolvConf": "",
        "makeIPTablesUtilChains": False,
        "localStorageCapacityIsolation": False,
        # A full disk of the machine is not what these tests are about.
        "evictionHard": {"memory.available": "0%", "nodefs.available": "0%", "imagefs.available": "0%"},
        "imageGCHighThresholdPercent": 100,
        "imageGCLowThresholdPercent": 99,
        "nodeStatusUpdateFrequency": f"{STATUS_S}s",
        "nodeStatusReportFrequency": f"{STATUS_S}s",
        "syncFrequency": "2s",
        "crashLoopBackOff": {"maxContainerRestartPeriod": "1s"},
        "maxPods": 64,
    }
