"""The agent's account of its node: who holds what, and each part of `NodeDevices.observed` as it is now.

It keeps nothing. Whenever a part is asked for, whoever knows it is asked, so what is reported is always the newest.
"""

from __future__ import annotations

from typing import Any

from remuda.agent.allocation.device_grants import Grants
from remuda.agent.hardware.backend_port import DeviceBackend
from remuda.agent.hardware.signal_intake import Hearing
from remuda.agent.inventory import Inventory
from remuda.agent.launchers.launcher_registry import Desk
from remuda.agent.plugin.kubelet_holdings import Holdings
from remuda.agent.plugin.plugin_set import PluginShelf
from remuda.api.codec import to_wire
from remuda.api.devices import Holding


class Account:
    """`shelf`: None when others hand devices out. `found`: what the kubelet says of holders; None when the node says so."""

    def __init__(
        self,
        backend: DeviceBackend,
        inventory: Inventory,
        desk: Desk,
        grants: Grants,
        shelf: PluginShelf | None,
        found: Holdings | None,
        hearing: Hearing,
    ) -> None:
        self._backend = backend
        self._inventory = inventory
        self._desk = desk
        self._grants = grants
        self._shelf = shelf
        self._found = found
        self._hearing = hearing

    def render(self, part: str) -> Any:
        """JSON-ready, for `Reporter`."""
        match part:
            case "launchers":
                return [to_wire(report) for report in self._desk.reports()]
            case "devices":
                return [to_wire(device) for device in self._inventory.rows.values()]
            case "links":
                return [to_wire(link) for link in self._backend.links()]
            case "plugins":
                return [to_wire(report) for report in (self._shelf.reports() if self._shelf else ())]
            case "holdings":
                return [to_wire(holding) for holding in self.holdings()]
            case "signals":
                return [to_wire(signal) for signal in self._hearing.signals]
            case "boot":
                return self._backend.boot
        return self._backend.model

    def holdings(self) -> list[Holding]:
        return [*self._grants.holdings(), *(self._found.foreign() if self._found else ())]

    def held(self) -> list[Holding]:
        """The same, and what was handed out to a pod that has not said its name yet."""
        nobodys = [g for g in self._grants.table.grants.values() if g.devices and not g.uid]
        return [*self.holdings(), *(Holding("", "", g.resource, list(g.rows)) for g in nobodys)]
