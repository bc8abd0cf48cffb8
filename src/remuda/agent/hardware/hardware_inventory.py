"""What the last look at the hardware found: which devices have which ids, which are there, and how they are cut. No I/O but the
id map's file.

`raw` is the driver's own description of each device that is there, by id number; `cut` its slices. A device that is not there
keeps its row, from what was known of it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from remuda.agent.hardware.backend_port import unknown_hardware_device
from remuda.agent.hardware.device_ids import (
    DeviceIdMap,
    IdAssignment,
    SeenDevice,
    assign_device_ids,
    device_id,
    load_device_ids,
    save_device_ids,
    seen_hardware_device_row,
)
from remuda.agent.hardware.slice_rows import mig_slice_row, whole_device_row
from remuda.api.devices import ObservedDevice

_UNKNOWN_TYPE = "unknown"


class HardwareInventory:
    """`resource`: what a whole device counts for. `file`: of the id map."""

    def __init__(self, node: str, resource: str, file: Path | None) -> None:
        self.ids = DeviceIdMap()
        self.present: frozenset[int] = frozenset()
        self.raw: dict[int, dict[str, Any]] = {}
        self.cut: dict[int, list[dict[str, Any]]] = {}
        self._node = node
        self._resource = resource
        self._file = file

    def load(self) -> None:
        self.ids = load_device_ids(self._file)

    def take(self, raw: Sequence[dict[str, Any]], nics: Mapping[str, str]) -> IdAssignment:
        """The driver described these devices. Ids are given, and remembered before anybody hears of them."""
        result = assign_device_ids(self.ids, [_seen_device(r, nics) for r in raw])
        if result.ids != self.ids:
            save_device_ids(self._file, result.ids)
        by_pci = {r["pci"]: r for r in raw}
        self.ids, self.present = result.ids, result.present
        self.raw = {n: by_pci[s.pci] for n, s in result.ids.devices.items() if n in result.present}
        self.cut = {n: pieces for n, pieces in self.cut.items() if n not in result.replaced}
        return result

    def set_cut(self, cut: Mapping[int, list[dict[str, Any]]]) -> None:
        """The slices of the devices that are there; those of one that is not stay as they were, somebody may hold them."""
        gone = {n: pieces for n, pieces in self.cut.items() if n not in self.present}
        self.cut = {n: pieces for n, pieces in {**gone, **cut}.items() if pieces}

    def drop(self, number: int) -> None:
        self.present -= {number}

    def pci(self, number: int) -> str:
        return self.ids.devices[number].pci

    def places(self) -> dict[str, str]:
        """PCI address -> id of the devices that are there."""
        return {self.pci(n): device_id(n) for n in sorted(self.present)}

    def rows(self) -> tuple[ObservedDevice, ...]:
        rows: list[ObservedDevice] = []
        for number in self.ids.devices:
            pieces = self.cut.get(number, [])
            is_cut = bool(pieces or self.raw.get(number, {}).get("mig"))
            rows.append(whole_device_row(self.whole(number), is_cut=is_cut))
            rows += [self.slice(number, piece) for piece in pieces]
        return tuple(rows)

    def present_ids(self) -> frozenset[str]:
        there = {device_id(n) for n in self.present}
        return frozenset(row.id for row in self.rows() if (row.parent or row.id) in there)

    def number(self, device: str) -> int:
        """Of the device, or of the one a slice is cut from."""
        rows = self.rows()
        row = next((row for row in rows if row.id == device), None)
        if row is None:
            raise unknown_hardware_device(device, self._node, [row.id for row in rows])
        return row.index

    def named(self, number: int, gi: int | None) -> str:
        """Id of the slice with this instance number, or of the whole device."""
        piece = next((p for p in self.cut.get(number, []) if p["gi"] == gi), None)
        return self.slice(number, piece).id if piece is not None else device_id(number)

    def whole(self, number: int) -> ObservedDevice:
        return seen_hardware_device_row(number, self.ids.devices[number], self._resource, _UNKNOWN_TYPE)

    def slice(self, number: int, piece: Mapping[str, Any]) -> ObservedDevice:
        return mig_slice_row(self.whole(number), piece["profile"], piece["start"], piece["uuid"], piece["memory"])


def _seen_device(raw: Mapping[str, Any], nics: Mapping[str, str]) -> SeenDevice:
    return SeenDevice(
        uuid=raw["uuid"],
        pci=raw["pci"],
        type=str(raw["name"]).replace(" ", "-") or _UNKNOWN_TYPE,
        memory_bytes=raw["memory"],
        numa=max(raw["numa"] or 0, 0),  # -1: the machine has one
        nic=nics.get(raw["pci"], ""),
        minor=raw["minor"],
    )
