"""A device plugin in the same process, for simulated nodes: says what it is told to say, and can be killed and mended."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence

from remuda.api.errors import Refusal
from remuda.link.device_plugin_port import ContainerAllocation, Mount, PluginDevice, PluginOptions


class PlainPlugin:
    def __init__(self, *devices: str, prefers: Sequence[str] = (), pre_start: bool = False) -> None:
        self.devices = dict.fromkeys(devices, "Healthy")
        self.prefers = list(prefers)
        self.is_up = True
        self.is_hung = False
        self.refusal: Refusal | None = None
        self.calls: list[tuple[str, tuple[str, ...]]] = []
        self.mounts: tuple[Mount, ...] = ()
        self.envs: dict[str, str] = {}
        self._options = PluginOptions(pre_start, preferred_allocation_available=bool(prefers))
        self._changed: list[asyncio.Event] = []

    def say(self, device: str, health: str | None) -> None:
        """None: the device leaves the list."""
        if health is None:
            del self.devices[device]
        else:
            self.devices[device] = health
        self._wake()

    def kill(self) -> None:
        self.is_up = False
        self._wake()

    def mend(self) -> None:
        self.is_up = True

    async def options(self) -> PluginOptions:
        return self._options

    async def list_and_watch(self) -> AsyncIterator[tuple[PluginDevice, ...]]:
        changed = asyncio.Event()
        self._changed.append(changed)
        try:
            while self.is_up:
                changed.clear()
                yield tuple(PluginDevice(d, health) for d, health in self.devices.items())
                await changed.wait()
        finally:
            self._changed.remove(changed)

    async def preferred(self, available: Sequence[str], must_include: Sequence[str], size: int) -> tuple[str, ...]:
        return tuple(self.prefers)

    async def allocate(self, devices: Sequence[str]) -> ContainerAllocation:
        self.calls.append(("allocate", tuple(devices)))
        if self.is_hung:
            await asyncio.Event().wait()
        if self.refusal is not None:
            raise self.refusal
        return ContainerAllocation({"VISIBLE": ",".join(devices), **self.envs}, self.mounts)

    async def pre_start(self, devices: Sequence[str]) -> None:
        self.calls.append(("pre_start", tuple(devices)))

    def _wake(self) -> None:
        for event in self._changed:
            event.set()
