"""How much held devices are used: sampled, and reported as a transition (`ObservedDevice.idle_since`).

What an earlier agent called idle stays idle, since the same moment, until a sample says otherwise; low samples that did not make
it idle yet are begun anew. A device that its holder is still starting on is as idle as any: `after_s` is for that.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection

import structlog

from remuda.agent.inventory import Inventory
from remuda.api.meta import to_seconds, to_time
from remuda.core.devices.idle_detection import IdleRule, IdleTrack, with_usage_sample

log = structlog.get_logger(__name__)


class HardwareUsageWatch:
    """`held`: ids of the rows somebody holds. `utilisation`: of a whole device; what shares it or its slices are not told apart,
    so a slice is never called idle."""

    def __init__(
        self,
        inventory: Inventory,
        *,
        held: Callable[[], Collection[str]],
        utilisation: Callable[[str], float | None],
        clock: Callable[[], float],
        rule: IdleRule,
    ) -> None:
        self._inventory = inventory
        self._held = held
        self._utilisation = utilisation
        self._clock = clock
        self._rule = rule
        self._quiet: dict[str, IdleTrack] = {}

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            await asyncio.sleep(self._rule.sample_s)
            self.look()

    def look(self) -> None:
        held, now = self._held(), self._clock()
        idle = [row.id for row in self._inventory.rows.values() if row.idle_since is not None]
        for device in {*held, *idle, *self._quiet}:
            row = self._inventory.rows.get(device)
            if row is None or row.parent:
                self._quiet.pop(device, None)
                continue
            before = self._quiet.get(device)
            if before is None:
                before = IdleTrack(to_seconds(row.idle_since), True) if row.idle_since is not None else IdleTrack()
            is_held = device in held
            after = with_usage_sample(before, self._utilisation(device) if is_held else None, is_held, now, self._rule)
            self._quiet[device] = after
            if after == IdleTrack():
                del self._quiet[device]
            since = to_time(after.since) if after.is_idle and after.since is not None else None
            if (since is None) != (row.idle_since is None):
                log.info("device.idle" if since else "device.used", device=device)
                self._inventory.set_idle(device, since, after.utilisation)
