"""Which pod holds which devices of this node.

A *grant* is devices handed out together: to one container, for one resource. The device plugin's Allocate names no pod, so a
grant begins as nobody's and is attached to its pod later. The table is the node's last line: whatever the scheduler or the
kubelet believed, a device of an attached grant is given to another pod only after the first pod's processes are confirmed gone
(`free`). A grant that is nobody's blocks nothing: the kubelet asks twice for one pod (an init container's devices are its app
containers' too), and a pod it rejected after Allocate is never heard of again.

The table lives in memory; `grant_records` outlive the agent. A grant's directory (`allocation_dirs`) is named after the device
set. It is wiped for a new owner (a dead pod's progress must not look like the new one's) and kept for the same one: its launcher
is alive in there and waits for the socket to come back.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence

import msgspec

from remuda.agent.inventory import REPLICA, inventory_device_of_plugin_id
from remuda.api.devices import ObservedDevice
from remuda.api.errors import Refusal

MAX_NAME = 100  # of a directory; longer device sets are named by digest


class Grant(msgspec.Struct, frozen=True, omit_defaults=True):
    """Content of a record. `chosen`: what the scheduler had asked for, when it was something else."""

    devices: tuple[str, ...]  # as the plugin names them: replicas have ids of their own
    uid: str = ""  # of the pod; empty until it is known
    pod: str = ""  # namespace/name
    resource: str = ""
    container: str = ""
    chosen: tuple[str, ...] = ()
    at: float = 0.0

    @property
    def name(self) -> str:
        """Of the directory."""
        if not self.devices:
            return f"pod-{self.uid}"  # nothing else tells two device-less pods apart
        name = "_".join(self.devices)
        return name if len(name) <= MAX_NAME else hashlib.sha256(name.encode()).hexdigest()

    @property
    def rows(self) -> tuple[str, ...]:
        """The devices themselves, each once."""
        return tuple(dict.fromkeys(map(inventory_device_of_plugin_id, self.devices)))


class AllocationTable:
    def __init__(self, node: str) -> None:
        self._node = node
        self._grants: dict[str, Grant] = {}  # by name

    @property
    def grants(self) -> Mapping[str, Grant]:
        return self._grants

    def of(self, uid: str) -> list[Grant]:
        return [grant for grant in self._grants.values() if grant.uid == uid]

    def holders(self) -> dict[str, str]:
        """Device or replica -> uid of the pod that holds it."""
        return {device: grant.uid for grant in self._grants.values() if grant.uid for device in grant.devices}

    def on(self, rows: Iterable[str]) -> list[Grant]:
        """Grants that have something of these devices."""
        wanted = set(rows)
        return [grant for grant in self._grants.values() if not wanted.isdisjoint(grant.rows)]

    def check(self, new: Grant, rows: Mapping[str, ObservedDevice]) -> None:
        """Refusal UnknownDevice or DeviceHeld, or nothing."""
        for device in new.rows:
            if device not in rows:
                known = ", ".join(rows) or "none"
                raise Refusal("UnknownDevice", f"Node {self._node} has no device `{device}`.", f"Its devices: {known}.")
        for other in self.on(new.rows) if new.devices else ():
            if other.uid and other.uid != new.uid:
                shared = next(
                    (d for d in new.devices if any(_allocated_devices_overlap(d, o) for o in other.devices)), None
                )
                if shared is not None:
                    raise Refusal(
                        "DeviceHeld",
                        f"{shared} of {self._node} is held by {other.pod}.",
                        "Choose another device, or wait until that pod's processes are gone.",
                    )

    def enter(self, new: Grant) -> None:
        self._grants[new.name] = new

    def drop(self, name: str) -> Grant | None:
        return self._grants.pop(name, None)

    def free(self, uid: str) -> list[Grant]:
        """Forget the pod; its devices are free."""
        mine = self.of(uid)
        for grant in mine:
            del self._grants[grant.name]
        return mine


def _allocated_devices_overlap(a: str, b: str) -> bool:
    """One device, and not two different shares of it."""
    if a == b:
        return True
    return inventory_device_of_plugin_id(a) == inventory_device_of_plugin_id(b) and not (REPLICA in a and REPLICA in b)


def granted_device_env(
    node: str, directory: str, devices: Sequence[ObservedDevice], *, by_uuid: bool = False
) -> dict[str, str]:
    """What the container must be given. An empty CUDA_VISIBLE_DEVICES hides every device from a pod that holds none.

    `by_uuid`: the hardware is real. A container runtime shows the container these devices only and numbers them anew, so
    nothing but the UUID means the same inside. A slice has no number and goes by its UUID everywhere.
    """
    cuda = [d.uuid if d.uuid and (by_uuid or d.parent) else str(d.index) for d in devices]
    env = {
        "REMUDA_NODE": node,
        "REMUDA_VISIBLE_DEVICES": ",".join(d.id for d in devices),
        "CUDA_VISIBLE_DEVICES": ",".join(cuda),
    }
    if directory:
        env["REMUDA_ALLOC_DIR"] = directory
    return env


def granted_pod_env(grant: Grant) -> dict[str, str]:
    """What the container must know of its pod."""
    return {"REMUDA_POD_NAME": grant.pod.partition("/")[2], "REMUDA_POD_UID": grant.uid}
