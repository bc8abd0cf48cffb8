"""Slices of a device as rows of the inventory: how they are named, planned and counted.

A slice's id says its device, profile and place (gpu-0-3g.40gb-4): the same cut gives the same ids, while the UUIDs are new each
time. While a device is cut, its own row counts for no resource, so nobody is given the whole of it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import msgspec

from remuda.api.devices import ObservedDevice
from remuda.api.errors import Refusal
from remuda.core.devices.mig import Layout, MigGeometry, plan_mig_layout


def hardware_slice_id(parent: str, profile: str, start: int) -> str:
    return f"{parent}-{profile.replace('+', '.')}-{start}"


def hardware_slice_resource(profile: str) -> str:
    return f"nvidia.com/mig-{profile.replace('+', '.')}"


def plan_hardware_mig_slices(device: str, geometry: MigGeometry | None, profiles: Sequence[str]) -> Layout:
    """Where each of `profiles` goes on an empty device; a Refusal when they do not fit or the device cannot be cut."""
    if geometry is None:
        raise mig_not_supported(device)
    return plan_mig_layout(geometry, Counter(geometry.profile(name).name for name in profiles))


def mig_not_supported(device: str) -> Refusal:
    return Refusal(
        "MigNotSupported",
        f"{device} cannot be cut into slices, or its machine model does not say how.",
        "Choose a device whose machine model names a MIG geometry.",
        "device",
    )


def hardware_device_busy(device: str, who: str) -> Refusal:
    return Refusal(
        "DeviceBusy", f"{device} is in use by {who}.", "Stop what runs on it, then slice it again.", "device"
    )


def whole_device_row(device: ObservedDevice, *, is_cut: bool) -> ObservedDevice:
    return msgspec.structs.replace(device, resource="") if is_cut else device


def mig_slice_row(parent: ObservedDevice, profile: str, start: int, uuid: str, memory_bytes: int) -> ObservedDevice:
    return ObservedDevice(
        id=hardware_slice_id(parent.id, profile, start),
        type=parent.type,
        index=parent.index,
        memory_bytes=memory_bytes,
        numa=parent.numa,
        uuid=uuid,
        pci=parent.pci,
        nic=parent.nic,
        resource=hardware_slice_resource(profile),
        parent=parent.id,
        profile=profile,
        start=start,
    )
