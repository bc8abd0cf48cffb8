"""The kubelet's device-plugin contract as plain values and one port, apart from any transport.

A *plugin* serves the devices of one resource; a *device manager* (the kubelet's, or the embedded node's) is its client. The
agent implements `PluginPort` once. On a real node it is served over gRPC by `agent`, a process node dials that same socket,
and a simulated node calls the port directly; the words and their meaning are the same in all three.

What the contract does not carry is as important: no call names a pod. A plugin learns whose devices it handed out from the
podresources service afterwards, or guesses from the pods bound to its node.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import Protocol

import msgspec

VERSION = "v1beta1"
KUBELET_SOCKET = "kubelet.sock"  # of the registry, in the device-plugin directory
HEALTHY, UNHEALTHY = "Healthy", "Unhealthy"  # any other word counts as unhealthy


class PluginOptions(msgspec.Struct, frozen=True):
    pre_start_required: bool = False
    preferred_allocation_available: bool = False


class RegisterRequest(msgspec.Struct, frozen=True):
    """`endpoint` is the file name of the plugin's socket in the registry's own directory."""

    endpoint: str
    resource_name: str
    version: str = VERSION
    options: PluginOptions = PluginOptions()


class PluginDevice(msgspec.Struct, frozen=True):
    id: str
    health: str = HEALTHY
    numa: tuple[int, ...] = ()


class PreferredRequest(msgspec.Struct, frozen=True):
    """Which `size` of `available` would be best, those of `must_include` among them? The answer is advice."""

    available: tuple[str, ...]
    must_include: tuple[str, ...]
    size: int


class PluginInfo(msgspec.Struct, frozen=True):
    """What a plugin answers on its socket below `plugins_registry`: the second way of getting known to a kubelet."""

    type: str  # DevicePlugin | DRAPlugin | CSIPlugin
    name: str
    endpoint: str
    supported_versions: tuple[str, ...]


class RegistrationStatus(msgspec.Struct, frozen=True):
    registered: bool
    error: str = ""


class Mount(msgspec.Struct, frozen=True):
    container_path: str
    host_path: str
    read_only: bool = False


class DeviceNode(msgspec.Struct, frozen=True):
    container_path: str
    host_path: str
    permissions: str = "rw"


class ContainerAllocation(msgspec.Struct, frozen=True):
    """What one container is given for the devices of one resource."""

    envs: dict[str, str] = {}
    mounts: tuple[Mount, ...] = ()
    devices: tuple[DeviceNode, ...] = ()
    annotations: dict[str, str] = {}
    cdi_devices: tuple[str, ...] = ()


class PluginPort(Protocol):
    """One plugin as its device manager sees it. A call that fails raises; a caller sets its own deadlines."""

    async def options(self) -> PluginOptions: ...

    def list_and_watch(self) -> AsyncIterator[tuple[PluginDevice, ...]]:
        """The whole list now and again after each change; ends when the plugin stops."""
        ...

    async def preferred(self, available: Sequence[str], must_include: Sequence[str], size: int) -> tuple[str, ...]: ...

    async def allocate(self, devices: Sequence[str]) -> ContainerAllocation: ...

    async def pre_start(self, devices: Sequence[str]) -> None: ...


class ContainerDevices(msgspec.Struct, frozen=True):
    """podresources: what one container of one pod has of one resource."""

    namespace: str
    pod: str
    container: str
    resource_name: str
    device_ids: tuple[str, ...]


class PodResourcesPort(Protocol):
    async def list(self) -> tuple[ContainerDevices, ...]:
        """Every allocation of every active pod. No uid and no health: the service has neither."""
        ...
