"""What a node asks of the agent on it beside the device-plugin contract, and the channel of simulated launchers.

The node owns pods and processes; the agent owns devices, their signals, and the launchers' side of the barrier. They meet in
two ports only, so that on a real cluster the kubelet takes the node's place and nothing in the agent changes:

1. `PluginPort` (`link.device_plugin_port`), one per resource, from `plugins()`. Its Allocate names no pod. It makes the
allocation:
   directory, socket, environment.
2. `NodeAgentLink`, here. `attach` says whose that allocation is; on a real node the launcher's hello and podresources say it.

The life of a container's devices on an embedded node:

    plugins()[resource].allocate(ids)               for each container and resource, before anything runs
    attach(pod, container, resource, ids)           right after; again for every pod still there after a restart
    container_exited / fence / unfence              as it goes
    release(uid)                                    everything of the pod is gone: every allocation of it is free

A pod without devices has nothing to allocate: `allocate(pod, [])` gives it its directory.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

import msgspec

from remuda.api.kubernetes.core_v1 import Pod
from remuda.link.device_plugin_port import PluginPort

Message = Mapping[str, Any]
Deliver = Callable[[Message], None]

KILL, HANG, FAIL, MEND = "kill", "hang", "fail", "mend"  # what `inject_plugin_fault` can do


class Allocation(msgspec.Struct, frozen=True):
    """The devices a container gets and what must be in its environment. `directory` holds the launcher's socket."""

    devices: tuple[str, ...]
    directory: str
    env: dict[str, str]


@runtime_checkable
class HardwareFaultLink(Protocol):
    """What drills may do to a node's devices. Real hardware has none of it."""

    def drop(self, device: str) -> None: ...

    def restore(self, device: str) -> None: ...

    def flap(self, device: str, times: int = 1) -> None: ...

    def count_ecc(self, device: str, *, corrected: int = 0, uncorrected: int = 0) -> None: ...

    def cap_power(self, fraction: float) -> None: ...

    def set_speed(self, device: str, speed: float) -> None: ...

    def throttle(self, device: str, *reasons: str) -> None:
        """Its clocks are held down for these reasons (hw-thermal, power-brake); none lets go."""
        ...

    def mend(self, device: str) -> None:
        """Whatever it was, it is over: the next probe passes and says so."""
        ...

    def replace(self, device: str) -> None:
        """Another device in its place."""
        ...

    def set_utilisation(self, device: str, share: float) -> None:
        """How busy its holder keeps it from now on."""
        ...

    def reboot(self) -> None: ...


class NodeAgentLink(Protocol):
    def plugins(self) -> Mapping[str, PluginPort]:
        """The agent's plugins by resource name, for a node in the same process. The same plugins are served over gRPC where
        the agent has a device-plugin directory. The set changes when a device is sliced anew: ask again after a restart."""
        ...

    async def attach(
        self, pod: Pod, container: str, resource: str, devices: Sequence[str], *, simulated: bool = False
    ) -> Allocation:
        """The allocation of exactly `devices` (plugin ids, replicas included) is this pod's.

        Idempotent; needs no Allocate before it, so a node that finds a pod's devices in its checkpoint attaches them to an
        agent that has just started. Health is not looked at: the pod has the devices already. `simulated`: its launcher will
        `connect`, so there is no directory.

        Raises Refusal UnknownDevice, or DeviceHeld (naming the holder) when another pod's processes may still use one.
        """
        ...

    async def allocate(self, pod: Pod, devices: Sequence[str], *, simulated: bool = False) -> Allocation:
        """Hand `devices`, usually none, to `pod` without a plugin's Allocate. Idempotent per pod uid.

        Raises Refusal UnknownDevice, DeviceHeld (naming the holder) or DeviceNotHealthy: the node rejects the pod.
        """
        ...

    def connect(self, uid: str, deliver: Deliver) -> Deliver:
        """The in-process stand-in of the socket for a simulated pod: give messages *to* the agent by calling the result."""
        ...

    def container_exited(self, uid: str, code: int) -> None:
        """The container of the pod ended, launcher and all."""
        ...

    async def release(self, uid: str) -> None:
        """The pod's processes are confirmed gone: its devices are free and its directories are removed."""
        ...

    def inject_fault(self, device: str, code: str, heals: str = "") -> None:
        """Drill device-fail: make the fake backend report `code` (say "xid-79") for the device. `heals`: reset, reboot,
        replace or never; "" = what the fault table says cures it."""
        ...

    def hardware(self) -> HardwareFaultLink:
        """For drills that need more than a fault code. Refusal RealHardware where devices are real."""
        ...

    def isolate(self, is_cut_off: bool) -> None:
        """The node cannot reach the API (or can again): what jobs say meanwhile is not heard."""
        ...

    def inject_plugin_fault(self, resource: str, fault: str) -> None:
        """Drills plugin-kill, plugin-hang, allocate-fail: KILL ends the plugin's streams and socket, HANG makes Allocate and
        GetPreferredAllocation never return, FAIL makes Allocate fail, MEND takes either back."""
        ...

    def fence(self) -> None:
        """The API has been out of reach for too long: stop every launcher's child before the manager hands on its rank, and
        start none until `unfence`."""
        ...

    def unfence(self) -> None:
        """The node's lease is good again."""
        ...

    def vouch(self, seconds: float) -> None:
        """Its ranks stay this node's own for so long from now (inf = without limit): launchers stop by themselves when that is
        over without another word, even if everything of Remuda on the node stands still."""
        ...
