"""Which id belongs to which device, over reboots: the map gpu-<n> -> the maker's UUID, in a file of the agent's state.

A driver numbers what it sees; with one device gone, every later number shifts, and with it every verdict, quarantine order and
binding that names an id. So ids are given once and remembered. The rules, in order:
1. A device seen before keeps its id, wherever it sits now.
2. A new device in the place (PCI address) of one that is missing has replaced it and takes its id.
3. When as many are new as are missing, they are replacements in moved places: the ids of the missing, in PCI order.
4. Any other new device takes the lowest number no device ever had.
So a missing or replaced device never shifts the others. A source that knows no UUID (sysfs without a driver) goes by place, and
what was known of the device there is kept: a driver that comes and goes replaces nothing.

`index` of a row is the id's number (the position in the machine model), never the driver's.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import msgspec
import structlog

from remuda.api.devices import ObservedDevice
from remuda.core.devices.machine_models import DEVICE_PREFIX

log = structlog.get_logger(__name__)


class SeenDevice(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """A device as a driver shows it, or showed it last."""

    uuid: str
    pci: str
    type: str = ""
    memory_bytes: int = 0
    numa: int = 0
    nic: str = ""
    minor: int = -1  # of its file under /dev


def seen_hardware_device_row(number: int, seen: SeenDevice, resource: str, type: str = "") -> ObservedDevice:
    """The whole device under its number. `type`: what it is called when the driver does not say."""
    return ObservedDevice(
        id=device_id(number),
        type=seen.type or type,
        index=number,
        memory_bytes=seen.memory_bytes,
        numa=seen.numa,
        uuid=seen.uuid,
        pci=seen.pci,
        nic=seen.nic,
        resource=resource,
    )


class DeviceIdMap(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """`devices`: id number -> the device that has it."""

    devices: dict[int, SeenDevice] = {}

    def number(self, key: str) -> int | None:
        """The number of the device with this UUID or PCI address."""
        return next((n for n, seen in self.devices.items() if key in (seen.uuid, seen.pci)), None)


class IdAssignment(msgspec.Struct, frozen=True):
    ids: DeviceIdMap
    present: frozenset[int]
    replaced: frozenset[int] = frozenset()  # numbers that belong to another device than before

    @property
    def missing(self) -> tuple[int, ...]:
        return tuple(n for n in sorted(self.ids.devices) if n not in self.present)


def device_id(number: int) -> str:
    return f"{DEVICE_PREFIX}{number}"


def assign_device_ids(known: DeviceIdMap, found: Sequence[SeenDevice]) -> IdAssignment:
    """The map after a look at the node that found these devices."""
    by_uuid = {seen.uuid: n for n, seen in known.devices.items() if seen.uuid}
    by_place = {seen.pci: n for n, seen in known.devices.items()}
    devices = dict(known.devices)
    present: set[int] = set()
    new: list[SeenDevice] = []
    for seen in sorted(found, key=lambda s: s.pci):
        number = by_uuid.get(seen.uuid)
        there = by_place.get(seen.pci)
        if number is None and there is not None and not (seen.uuid and known.devices[there].uuid):
            number = there
        if number is None:
            new.append(seen)
        else:
            old = known.devices[number]
            devices[number] = seen if seen.uuid or not old.uuid else old
            present.add(number)
    missing = [n for n in sorted(known.devices) if n not in present]
    replaced: set[int] = set()
    for seen in list(new):
        place = next((n for n in missing if known.devices[n].pci == seen.pci), None)
        if place is not None:
            new.remove(seen)
            missing.remove(place)
            devices[place] = seen
            replaced.add(place)
    if len(new) == len(missing):
        for number, seen in zip(sorted(missing, key=lambda n: known.devices[n].pci), new, strict=True):
            devices[number] = seen
            replaced.add(number)
    else:
        for seen in new:
            number = next(n for n in range(len(devices) + 1) if n not in devices)
            devices[number] = seen
            present.add(number)
    ordered = {n: devices[n] for n in sorted(devices)}
    return IdAssignment(DeviceIdMap(ordered), frozenset(present | replaced), frozenset(replaced))


def load_device_ids(path: Path | None) -> DeviceIdMap:
    """The remembered map; empty when there is none. One that cannot be read is put aside, not overwritten."""
    if path is None:
        return DeviceIdMap()
    try:
        return msgspec.json.decode(path.read_bytes(), type=DeviceIdMap)
    except FileNotFoundError:
        return DeviceIdMap()
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        aside = path.with_suffix(".unreadable")
        path.replace(aside)
        log.warning("identity.unreadable", path=str(path), aside=str(aside), error=str(error))
        return DeviceIdMap()


def save_device_ids(path: Path | None, ids: DeviceIdMap) -> None:
    """Durable and whole or not at all: half a map would shift ids."""
    if path is not None:
        write_whole_hardware_file(path, msgspec.json.encode(ids))


def write_whole_hardware_file(path: Path, data: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    fresh = path.with_name(f".{path.name}.new")
    with open(fresh, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    fresh.replace(path)


def kernel_boot_id(path: Path = Path("/proc/sys/kernel/random/boot_id")) -> str:
    """The kernel's id of this boot; empty where there is none to read."""
    try:
        return path.read_text(encoding="ascii").strip()
    except OSError:
        return ""
