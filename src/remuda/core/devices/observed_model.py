"""The machine model of a node that reports itself: the one it names when this build knows it, else one made of what it shows.

A node of an unknown make still says NUMA nodes, nearest NICs and links, which is enough to choose devices well; PCIe roots and
switches are known as far as it says them (groups PIX, PXB and PHB among its links). A model that is named but does not have the
devices the node shows is not believed.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from remuda.api.devices import Observed, ObservedDevice, ObservedLink
from remuda.core.devices.machine_models import (
    DEVICE_PREFIX,
    MAX_DEVICES,
    DeviceModel,
    LinkModel,
    MachineModel,
    NicModel,
    known_machine_models,
    load_built_in_machine_model,
)

_HOST_PATHS = ("PIX", "PXB", "PHB")  # no direct links: how devices meet over the host
_BONDED = re.compile(r"nv(\d+)", re.IGNORECASE)


def machine_model_of(observed: Observed, own: Iterable[MachineModel] = ()) -> MachineModel | None:
    """`own`: models of the user's, which go before those of this build. None when the node shows no devices we can number."""
    whole = [d for d in observed.devices if not d.parent]
    named = next((m for m in own if m.name == observed.model), None)
    if named is None and observed.model in known_machine_models():
        named = load_built_in_machine_model(observed.model)
    if named is not None and {d.id for d in whole} <= {d.id for d in named.devices}:
        return named
    return _machine_model_of_devices(whole, observed)


def links_of_model(model: MachineModel) -> list[ObservedLink]:
    """The links a node of that model would show: all that `machine_model_of` needs to make it up again, NIC positions apart."""
    ids = [d.id for d in model.devices]
    shown = [
        ObservedLink(f"nv{link.count}" if link.kind == "nvlink" else link.kind, [ids[ix] for ix in link.among])
        for link in model.links
    ]
    groups: dict[tuple[str, str], list[str]] = {}
    for device in model.devices:
        for kind, name in zip(_HOST_PATHS, (device.switch, device.switch.split("/")[0], device.root), strict=True):
            if name:
                groups.setdefault((kind, name), []).append(device.id)
    return shown + [ObservedLink(kind, among) for (kind, _), among in groups.items() if len(among) > 1]


def _machine_model_of_devices(whole: list[ObservedDevice], observed: Observed) -> MachineModel | None:
    rows = {_device_index(d.id): d for d in whole}
    if not rows or not all(0 <= ix < MAX_DEVICES for ix in rows):
        return None
    places = _device_switch_paths(observed)
    devices = [_device_model(ix, rows.get(ix), places.get(ix, ("", ""))) for ix in range(max(rows) + 1)]
    numa_of_nic: dict[str, int] = {}
    for device in devices:
        if device.nic:
            numa_of_nic.setdefault(device.nic, device.numa)
    links = []
    for link in observed.links:
        if link.kind in _HOST_PATHS:
            continue
        among = [ix for ix in map(_device_index, link.among) if ix in rows]
        if len(set(among)) > 1:
            bonded = _BONDED.fullmatch(link.kind)
            links.append(LinkModel("nvlink", among, int(bonded[1])) if bonded else LinkModel(link.kind, among))
    return MachineModel(
        name=observed.model or "unknown",
        description="as the node shows itself",
        devices=devices,
        resource=next((d.resource for d in whole if d.resource), ""),
        numa_nodes=max(d.numa for d in devices) + 1,
        nics=[NicModel(name, numa=numa) for name, numa in numa_of_nic.items()],
        links=links,
    )


def _device_switch_paths(observed: Observed) -> dict[int, tuple[str, str]]:
    """Index -> (root, path of switches), as far as the groups that meet over the host tell."""
    groups: dict[str, dict[int, str]] = {kind: {} for kind in _HOST_PATHS}
    for position, link in enumerate(observed.links):
        if link.kind in groups:
            groups[link.kind] |= {_device_index(device): f"{link.kind.lower()}-{position}" for device in link.among}
    found: dict[int, tuple[str, str]] = {}
    for index in {ix for group in groups.values() for ix in group}:
        outer, inner = groups["PXB"].get(index), groups["PIX"].get(index)
        own = inner or (f"alone-{index}" if outer else "")
        found[index] = groups["PHB"].get(index, ""), f"{outer}/{own}" if outer else own
    return found


def _device_model(index: int, seen: ObservedDevice | None, place: tuple[str, str]) -> DeviceModel:
    if seen is None:  # a hole in the numbers: a device that is gone. It is never free, so its place does not matter.
        return DeviceModel(index, "unknown", 1)
    root, switch = place
    memory = max(1, seen.memory_bytes)
    return DeviceModel(index, seen.type, memory, numa=max(0, seen.numa), nic=seen.nic, root=root, switch=switch)


def _device_index(device: str) -> int:
    number = device.removeprefix(DEVICE_PREFIX)
    return int(number) if number.isdecimal() and device.startswith(DEVICE_PREFIX) else -1
