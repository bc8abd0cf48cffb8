"""Which pod holds which devices of this node, and the directory each allocation has.

The table is the node's last line: whatever the scheduler believed, a device is handed to a second pod only after the first
pod's processes are confirmed gone (`free`). It lives in memory; after a restart of the agent the node asks again for every pod
it still runs, and the `allocation.json` in the directory proves that the pod had these devices before.

The directory is named after the device set, as a device plugin must do on a real cluster, where Allocate carries no pod. It
is wiped for a new owner (a dead pod's progress must not look like the new one's) and kept for the same one: its launcher is
alive in there and waits for the socket to come back.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

from remuda.api.devices import ObservedDevice
from remuda.api.errors import Refusal
from remuda.core.devices.faults import unhealthy

MARKER = "allocation.json"
MAX_NAME = 100  # of a directory; longer device sets are named by digest


class Owner(msgspec.Struct, frozen=True):
    """Content of the marker file."""

    uid: str
    pod: str  # namespace/name
    devices: list[str]


class AllocationTable:
    def __init__(self, node: str) -> None:
        self._node = node
        self._owners: dict[str, Owner] = {}
        self._holder: dict[str, str] = {}  # device -> uid

    def owner(self, uid: str) -> Owner | None:
        return self._owners.get(uid)

    def holders(self) -> dict[str, str]:
        """Device -> uid of the pod that holds it."""
        return dict(self._holder)

    def grant(self, owner: Owner, devices: Mapping[str, ObservedDevice], *, again: bool = False) -> None:
        """Enter `owner` or raise a Refusal and change nothing. `again`: it had these devices before this agent started,
        so a device that failed meanwhile is no reason to refuse; the manager decides what becomes of the pod."""
        for device in owner.devices:
            if device not in devices:
                known = ", ".join(devices) or "none"
                raise Refusal("UnknownDevice", f"Node {self._node} has no device `{device}`.", f"Its devices: {known}.")
            holder = self._holder.get(device)
            if holder is not None and holder != owner.uid:
                raise Refusal(
                    "DeviceHeld",
                    f"{device} of {self._node} is held by {self._owners[holder].pod}.",
                    "Choose another device, or wait until that pod's processes are gone.",
                )
        mine = self._owners.get(owner.uid)
        if mine is not None:
            if mine.devices != owner.devices:
                raise Refusal(
                    "DeviceHeld",
                    f"{owner.pod} already holds {', '.join(mine.devices) or 'no devices'} of {self._node}.",
                    "A pod keeps its devices for life; delete it to choose others.",
                )
            return
        for device in owner.devices:
            fault = None if again else unhealthy(devices[device].signals)
            if fault is not None:
                raise Refusal(
                    "DeviceNotHealthy",
                    f"{device} of {self._node} cannot be used ({fault.reason}). {fault.message}",
                    "Choose another device.",
                )
        self._owners[owner.uid] = owner
        for device in owner.devices:
            self._holder[device] = owner.uid

    def free(self, uid: str) -> Owner | None:
        """Forget the pod; its devices are free."""
        owner = self._owners.pop(uid, None)
        for device in owner.devices if owner else []:
            del self._holder[device]
        return owner


def directory_name(owner: Owner) -> str:
    if not owner.devices:
        return f"pod-{owner.uid}"  # nothing else tells two device-less pods apart
    name = "_".join(owner.devices)
    return name if len(name) <= MAX_NAME else hashlib.sha256(name.encode()).hexdigest()


def _owner_of(directory: Path) -> Owner | None:
    try:
        return msgspec.json.decode((directory / MARKER).read_bytes(), type=Owner)
    except (OSError, msgspec.DecodeError):
        return None


def is_owner(directory: Path, owner: Owner) -> bool:
    """Whether the directory was made for exactly this pod with these devices."""
    return _owner_of(directory) == owner


def has_owner(directory: Path, uid: str) -> bool:
    owner = _owner_of(directory)
    return owner is not None and owner.uid == uid


def make_directory(directory: Path, owner: Owner) -> None:
    """A fresh directory. The marker comes last: without it the next allocation starts over."""
    remove_directory(directory)
    directory.mkdir(mode=0o700, parents=True)
    temporary = directory / f"{MARKER}.new"
    temporary.write_bytes(msgspec.json.encode(owner))
    os.replace(temporary, directory / MARKER)


def remove_directory(directory: Path) -> None:
    with contextlib.suppress(FileNotFoundError):
        shutil.rmtree(directory)


def environment(node: str, owner: Owner, directory: str, devices: Sequence[ObservedDevice]) -> dict[str, str]:
    """What the container must be given. An empty CUDA_VISIBLE_DEVICES hides every device from a pod that holds none."""
    env = {
        "REMUDA_POD_NAME": owner.pod.partition("/")[2],
        "REMUDA_POD_UID": owner.uid,
        "REMUDA_NODE": node,
        "REMUDA_VISIBLE_DEVICES": ",".join(d.id for d in devices),
        "CUDA_VISIBLE_DEVICES": ",".join(str(d.index) for d in devices),
    }
    if directory:
        env["REMUDA_ALLOC_DIR"] = directory
    return env
