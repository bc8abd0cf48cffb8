"""Cutting devices into slices: the layout wanted for each device, brought about while the device is idle and never otherwise.

A layout is a bag of profiles per device ("gpu-0 is two 3g.40gb"); where each goes is the backend's business, as the geometry
allows. A device that somebody holds, whole or in part, is refused as DeviceInUse, and tried again when something is released.
While it is being cut nobody is given anything of it. Afterwards the rows are others: new ids, new UUIDs, another resource, and
the plugins' lists and counts follow from the rows.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Mapping, Sequence

import structlog

from remuda.agent.allocation.device_choice import devices_in_order
from remuda.agent.allocation.device_grants import AllocationGrants
from remuda.agent.hardware.backend_port import DeviceBackend
from remuda.agent.inventory import Inventory
from remuda.api.devices import DeviceState
from remuda.api.errors import Refusal
from remuda.core.devices.fault_codes import DeviceRemedy, FaultClass

log = structlog.get_logger(__name__)

ALL = "all"
Layouts = Mapping[str, tuple[str, ...]]  # device id, or "all" -> profiles; none = whole


def parse_mig_slicing(texts: Sequence[str]) -> dict[str, tuple[str, ...]]:
    """`gpu-0=3g.40gb,3g.40gb`, `all=1g.10gb*7`, `gpu-1=` (whole). Refusal InvalidMigLayout for anything else."""
    found: dict[str, tuple[str, ...]] = {}
    for text in texts:
        device, equals, rest = text.partition("=")
        profiles: list[str] = []
        for word in filter(None, (part.strip() for part in rest.split(","))):
            profile, star, times = word.partition("*")
            if star and not (times.isdecimal() and 1 <= int(times) <= 16):
                raise _invalid_mig_layout(text)
            profiles += [profile] * (int(times) if star else 1)
        if not equals or not device.strip() or not all(profiles):
            raise _invalid_mig_layout(text)
        if device.strip() in found:
            raise Refusal(
                "InvalidMigLayout",
                f"`{device.strip()}` is given two layouts.",
                "Write all its profiles in one, for example gpu-0=3g.40gb,2g.20gb.",
            )
        found[device.strip()] = tuple(profiles)
    return found


def _invalid_mig_layout(text: str) -> Refusal:
    return Refusal(
        "InvalidMigLayout",
        f"`{text}` is not a MIG layout.",
        "Write DEVICE=PROFILE[*N],..., for example gpu-0=3g.40gb*2 or all=1g.10gb*7.",
    )


class MigSlicer:
    def __init__(
        self, backend: DeviceBackend, inventory: Inventory, grants: AllocationGrants, layouts: Layouts
    ) -> None:
        self.pending: dict[str, Refusal] = {}  # devices that are not yet as they should be, and why
        self._backend = backend
        self._inventory = inventory
        self._grants = grants
        self._layouts = layouts
        self._one_at_a_time = asyncio.Lock()

    @property
    def is_settled(self) -> bool:
        return all(self._is_cut(device, profiles) for device, profiles in self._wanted().items())

    def _is_cut(self, device: str, profiles: Sequence[str]) -> bool:
        return Counter(row.profile for row in self._inventory.slices(device)) == Counter(profiles)

    async def settle(self) -> None:
        """Bring every device to its layout that can be; the others are in `pending`."""
        for device, profiles in self._wanted().items():
            try:
                await self.cut(device, profiles)
            except Refusal as refusal:
                if self.pending.get(device) != refusal:
                    log.warning("slicing.pending", device=device, reason=refusal.reason, message=refusal.message)
                self.pending[device] = refusal
            else:
                self.pending.pop(device, None)

    async def cut(self, device: str, profiles: Sequence[str]) -> None:
        """Refusal DeviceInUse while anything of the device is held, or what the backend refuses."""
        async with self._one_at_a_time:
            if self._is_cut(device, profiles):
                return
            slices = self._inventory.slices(device)
            for grant in self._grants.table.on([device, *(row.id for row in slices)]):
                raise Refusal(
                    "DeviceInUse",
                    f"{device} cannot be sliced again: {', '.join(grant.devices)} is held by {grant.pod or 'a starting pod'}.",
                    "Wait until that pod is gone, or drain the node.",
                    "device",
                )
            self._inventory.withhold("BeingSliced", {device: _mig_slicing_fault(device)})
            try:
                await self._backend.apply_slices(device, profiles)
            finally:
                self._inventory.renew(self._backend.inventory())
                self._inventory.withhold("BeingSliced", {})
            log.info("slicing.cut", device=device, profiles=list(profiles))

    def _wanted(self) -> dict[str, tuple[str, ...]]:
        whole = devices_in_order(row.id for row in self._inventory.rows.values() if not row.parent)
        common = self._layouts.get(ALL)
        wanted = {device: self._layouts.get(device, common) for device in (*whole, *self._layouts) if device != ALL}
        return {device: profiles for device, profiles in wanted.items() if profiles is not None}


def _mig_slicing_fault(device: str) -> FaultClass:
    words = f"{device} is being cut into slices."
    return FaultClass("being-sliced", "info", DeviceState.UNKNOWN, DeviceRemedy.NONE, "BeingSliced", words)
