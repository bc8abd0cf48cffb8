"""What the hardware says, and whether it still says anything: from the backend to the inventory.

Signals of devices go to their rows; signals of the node itself are kept here, for as long as the node has not booted again. A
device that is not heard of any more is said to be silent (`silence_watch`). With `is_count_confirmed`, a node that boots short of
devices gets no device workload before it is whole; one that falls short later keeps the rest.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from remuda.agent.hardware.backend_port import DeviceBackend
from remuda.agent.hardware.silence_watch import ReportWatch
from remuda.agent.inventory import Inventory
from remuda.api.devices import Observed, Signal
from remuda.api.meta import to_time
from remuda.core.devices.fault_codes import classify
from remuda.core.devices.signals import add_signal


class Hearing:
    """`inherit` what an earlier agent heard, `listen`, then `begin`. `spoke`: the node's own signals changed; `counted`: the
    hardware was looked at anew."""

    def __init__(
        self,
        backend: DeviceBackend,
        inventory: Inventory,
        *,
        watch: ReportWatch,
        is_count_confirmed: bool,
        clock: Callable[[], float],
        spoke: Callable[[], None],
        counted: Callable[[], None],
    ) -> None:
        self.signals: list[Signal] = []  # of the node itself
        self.watch = watch
        self._backend = backend
        self._inventory = inventory
        self._is_count_confirmed = is_count_confirmed
        self._clock = clock
        self._spoke = spoke
        self._counted = counted
        self._boot: str | None = None  # the last that was looked at; None before the beginning

    def inherit(self, observed: Observed) -> None:
        self._inventory.load(observed.devices)
        self.signals = list(observed.signals) if observed.boot == self._backend.boot else []

    def listen(self) -> None:
        self._backend.subscribe(self._inventory.hear)
        self._backend.subscribe_node(self._hear)
        self._backend.subscribe_inventory(self._look_again)

    def begin(self, last_boot: str) -> None:
        """`last_boot`: the one that an earlier agent reported, or ""."""
        self._boot = last_boot
        self._confirm_count()

    async def watch_silence(self) -> None:
        look_s = self.watch.look_s
        while look_s is not None:
            await asyncio.sleep(look_s)
            rows = list(self._inventory.rows.values())
            for device, signal in self.watch.look(rows, self._backend.last_heard, self._clock()):
                self._inventory.hear(device, signal)

    def _hear(self, signal: Signal) -> None:
        self.signals = add_signal(self.signals, signal)
        self._confirm_count()
        self._spoke()

    def _look_again(self) -> None:
        self._inventory.renew(self._backend.inventory())
        self._confirm_count()
        self._counted()

    def _confirm_count(self) -> None:
        if not self._is_count_confirmed or self._boot is None:
            return
        whole = {row.id for row in self._inventory.rows.values() if not row.parent}
        is_short = bool(whole - self._backend.present()) or any(s.code == "devices-missing" for s in self.signals)
        is_new_boot, self._boot = self._boot != self._backend.boot, self._backend.boot
        code = "count-unconfirmed" if is_short and is_new_boot else "" if is_short else "count-confirmed"
        for device in list(self._inventory.rows) if code else ():
            signal = Signal("agent", code, classify("agent", code).message, to_time(self._clock()))
            self._inventory.hear(device, signal)
