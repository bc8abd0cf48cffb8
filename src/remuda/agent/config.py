"""How one agent is set up: a value, made by whoever starts it."""

from __future__ import annotations

import msgspec

from remuda.agent.orders.order_runner import OrderRules
from remuda.core.devices.idle_detection import IdleRule
from remuda.core.health.agent_liveness import REPORT_TIMEOUT_S

DP, HEALTH_ONLY = "dp", "health-only"
REJOIN_S = 5.0


class AgentConfig(msgspec.Struct, frozen=True):
    """`alloc_root` holds the allocations' directories, `checkpoint_root` those of jobs that name no path of their own.
    `rejoin_s`: how long a launcher may be out of touch before it is reported gone.

    `mode`: `dp` hands devices out, `health-only` leaves that to a vendor's plugin. `plugin_dir`: where a kubelet's registry
    is; "" = only a node in this process asks. `sockets`, `launcher_dir`: see `GrantPlace`. `replicas` by resource, `mig`
    by device (`mig_slicing`). `report_timeout_s`: how long nothing may be heard of a device before it is Unknown, and
    `report_timeouts` of single devices; 0 = for ever. `cdi_dir`: where CDI specs of the devices are kept; "" = none are.
    `pod_logs`: where the kubelet's runtime keeps the logs of containers; "" = launchers read their own.
    `rules`: what the node lets the manager order. `idle`: when a held device is called idle.
    `confirm_count`: after a boot nothing is handed out until the node has shown all its devices once.
    `makes_object`: whether the agent makes its NodeDevices; beside a kubelet the manager does. `manager_socket`: where a manager
    on this machine listens; launchers whose agent is silent look whether one does (`launch.protocol.Vouch`)."""

    node: str
    alloc_root: str
    checkpoint_root: str
    rejoin_s: float = REJOIN_S
    mode: str = DP
    plugin_dir: str = ""
    sockets: bool = True
    launcher_dir: str = ""
    replicas: dict[str, int] = {}
    mig: dict[str, tuple[str, ...]] = {}
    report_timeout_s: float = REPORT_TIMEOUT_S
    report_timeouts: dict[str, float] = {}
    cdi_dir: str = ""
    pod_logs: str = ""
    rules: OrderRules = OrderRules()
    idle: IdleRule = IdleRule()
    confirm_count: bool = False
    makes_object: bool = True
    manager_socket: str = ""
