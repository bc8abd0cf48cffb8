"""What the hardware says, and whether it still says anything: from the backend to the inventory.

Signals of devices go to their rows; signals of the node itself are kept here, for as long as the node has not booted again. With
`is_count_confirmed`, a node that boots short of devices gets no device workload before it is whole; one that falls short later
keeps the rest.

Health is reported when it changes, so silence looks like health. Backends therefore keep when they last had an answer about each
device (`DeviceBackend.last_heard`); `SilenceWatch` holds that against the device's limit and says no-report, or report-resumed
once there is an answer again: a device whose driver says nothing for too long is neither well nor broken, it is Unknown. A slice
is heard of with its device. A backend that keeps no times (None) is taken at its word.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping

from remuda.agent.hardware.backend_port import DeviceBackend
from remuda.agent.inventory import Inventory
from remuda.api.devices import Observed, ObservedDevice, Signal
from remuda.api.meta import to_time
from remuda.core.devices.fault_codes import classify_device_fault_code
from remuda.core.health.own_stalls import NO_STALLS, OwnStalls, StallHistory
from remuda.core.health.signals import add_signal

SOURCE, SILENT, RESUMED = "agent", "no-report", "report-resumed"


class SilenceWatch:
    """`timeout_s` for every device that `overrides` does not name; 0 = it may be silent for ever."""

    def __init__(self, timeout_s: float, overrides: Mapping[str, float]) -> None:
        self._timeout_s = timeout_s
        self._overrides = overrides

    @property
    def look_s(self) -> float | None:
        """How often to look; None: never."""
        limits = [limit for limit in (self._timeout_s, *self._overrides.values()) if limit > 0]
        return min(limits) / 3 if limits else None

    def limit(self, device: ObservedDevice) -> float:
        return self._overrides.get(device.id, self._overrides.get(device.parent, self._timeout_s))

    def look(
        self,
        rows: Iterable[ObservedDevice],
        last_heard: Callable[[str], float | None],
        now: float,
        stalls: StallHistory = NO_STALLS,
    ) -> list[tuple[str, Signal]]:
        """What there is to say of which device. `stalls`: the agent's own, in which it heard of none."""
        news: list[tuple[str, Signal]] = []
        for row in rows:
            heard, limit = last_heard(row.parent or row.id), self.limit(row)
            was_silent = any((s.source, s.code) == (SOURCE, SILENT) for s in row.signals)
            is_silent = heard is not None and limit > 0 and now > stalls.countdown_ends_at(heard, limit)
            if is_silent and not was_silent and heard is not None:
                words = f"No report about {row.id} for more than {limit:g} s."
                news.append((row.id, Signal(SOURCE, SILENT, words, to_time(heard + limit))))
            elif was_silent and not is_silent:
                news.append((row.id, Signal(SOURCE, RESUMED, f"{row.id} reports again.", to_time(now))))
        return news


class HardwareSignalIntake:
    """`inherit` what an earlier agent heard, `listen`, then `begin`. `spoke`: the node's own signals changed; `counted`: the
    hardware was looked at anew."""

    def __init__(
        self,
        backend: DeviceBackend,
        inventory: Inventory,
        *,
        watch: SilenceWatch,
        is_count_confirmed: bool,
        clock: Callable[[], float],
        spoke: Callable[[], None],
        counted: Callable[[], None],
        stalls: OwnStalls | None = None,
    ) -> None:
        self._stalls = stalls or OwnStalls()
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
            now = self._clock()
            for device, signal in self.watch.look(rows, self._backend.last_heard, now, self._stalls.known(now)):
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
            signal = Signal("agent", code, classify_device_fault_code("agent", code).message, to_time(self._clock()))
            self._inventory.hear(device, signal)
