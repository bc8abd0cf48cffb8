"""The devices of this node and what is known against each: rows, signals, and which resource each row counts for.

Rows come from the backend, whole devices and slices in one flat list; signals are added as they come. A row survives a look at
the hardware as long as it is the same device: another UUID under the same id is a replacement and starts with a clean sheet,
except that a restart of the agent launders nothing (`load`).

A slice is as good as its device at best: a fault of the parent is a fault of all its slices, a fault of one slice is nobody
else's. A device that is cut into slices counts for no resource of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from datetime import datetime

import msgspec
import structlog

from remuda.api.devices import DeviceState, ObservedDevice, QuarantineOrder, Signal
from remuda.core.devices.fault_codes import DeviceRemedy, FaultClass
from remuda.core.health.signals import standing_faults, with_signal

log = structlog.get_logger(__name__)

REPLICA = "::"  # gpu-0::2 is the third share of gpu-0; the ledger's row is the device

_USABLE = (DeviceState.HEALTHY, DeviceState.DEGRADED)


def inventory_device_of_plugin_id(plugin_id: str) -> str:
    """The device behind an id that a plugin serves."""
    return plugin_id.partition(REPLICA)[0]


class Inventory:
    def __init__(self, node: str, devices: Iterable[ObservedDevice] = ()) -> None:
        self._node = node
        self._rows: dict[str, ObservedDevice] = {row.id: row for row in devices}
        self._withheld: dict[str, dict[str, FaultClass]] = {}  # why -> device -> in words
        self._subscribers: list[Callable[[], None]] = []

    @property
    def rows(self) -> Mapping[str, ObservedDevice]:
        return self._rows

    def subscribe(self, changed: Callable[[], None]) -> None:
        """Call `changed` after every change of a row or of the set of rows."""
        self._subscribers.append(changed)

    def announce(self) -> None:
        for changed in self._subscribers:
            changed()

    # --- changes --------------------------------------------------------------------------------------------------------

    def load(self, earlier: Iterable[ObservedDevice]) -> None:
        """What an earlier agent knew against the same devices still holds."""
        for old in earlier:
            new = self._rows.get(old.id)
            if new is not None and _is_same_device(old, new):
                self._rows[old.id] = _with_device_past(new, old)

    def renew(self, found: Iterable[ObservedDevice]) -> None:
        """The backend's list is another one now."""
        rows: dict[str, ObservedDevice] = {}
        for row in found:
            old = self._rows.get(row.id)
            if old is not None and _is_same_device(old, row):
                row = _with_device_past(row, old)
            rows[row.id] = row
        if rows != self._rows or list(rows) != list(self._rows):
            self._rows = rows
            self.announce()

    def hear(self, device: str, signal: Signal) -> None:
        row = self._rows.get(device)
        if row is None:
            return
        new = with_signal(row, signal)
        if new is not row:
            self._rows[device] = new
            log.info("signal", node=self._node, device=device, code=signal.code)
            self.announce()

    def set_idle(self, device: str, since: datetime | None, utilisation: float | None = None) -> None:
        """Held and hardly used since then; None: used, or nobody's."""
        share = utilisation if since is not None else None
        self._rows[device] = msgspec.structs.replace(self._rows[device], idle_since=since, idle_utilisation=share)
        self.announce()

    def withhold(self, why: str, devices: Mapping[str, FaultClass]) -> None:
        """For this reason exactly these devices are not handed out, whatever their health."""
        if dict(devices) != self._withheld.get(why, {}):
            self._withheld[why] = dict(devices)
            self.announce()

    def quarantine(self, orders: Mapping[str, QuarantineOrder]) -> None:
        """Exactly these devices are kept out of use by order."""
        self.withhold("Quarantined", {device: _quarantine_fault(order) for device, order in orders.items()})

    # --- questions ------------------------------------------------------------------------------------------------------

    def resources(self) -> tuple[str, ...]:
        """In order of the rows that count for them."""
        return tuple(dict.fromkeys(row.resource for row in self._rows.values() if row.resource))

    def of(self, resource: str) -> list[ObservedDevice]:
        return [row for row in self._rows.values() if row.resource == resource]

    def resource_of(self, device: str) -> str:
        row = self._rows.get(device)
        return row.resource if row is not None else ""

    def slices(self, device: str) -> list[ObservedDevice]:
        return [row for row in self._rows.values() if row.parent == device]

    def fault(self, device: str) -> FaultClass | None:
        """Why the device must not be handed out, if there is a reason; its parent's are among them."""
        row = self._rows[device]
        parent = self._rows.get(row.parent) if row.parent else None
        found = _worst_device_fault(row.signals) or (
            _worst_device_fault(parent.signals) if parent is not None else None
        )
        held = (reasons.get(name) for reasons in self._withheld.values() for name in (device, row.parent))
        return found or next(filter(None, held), None)


def _quarantine_fault(order: QuarantineOrder) -> FaultClass:
    words = order.message or f"Quarantined for {order.reason}."
    return FaultClass("quarantined", "health", DeviceState.QUARANTINED, DeviceRemedy.NONE, "Quarantined", words)


def _worst_device_fault(signals: Iterable[Signal]) -> FaultClass | None:
    """The newest fault that makes a device unfit or unknown."""
    return next((fault for fault in reversed(standing_faults(signals)) if fault.effect not in _USABLE), None)


def _with_device_past(row: ObservedDevice, old: ObservedDevice) -> ObservedDevice:
    """What was known of the same device before."""
    return msgspec.structs.replace(
        row,
        signals=old.signals,
        flaps=old.flaps,
        idle_since=old.idle_since,
        idle_utilisation=old.idle_utilisation,
    )


def _is_same_device(old: ObservedDevice, new: ObservedDevice) -> bool:
    return old.type == new.type and (not old.uuid or not new.uuid or old.uuid == new.uuid)
