"""How fast a node's devices work, and a process held back to match: the drills device-slow and power-cap.

The fake devices compute nothing, so slowness is given to the one who would feel it: the process that holds the device is stopped
and continued in turns (`DutyCycle`), as if it waited for its kernels. The program does not help and cannot tell.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable

PERIOD_S = 0.05  # short against a training step, long against what a signal costs


class DeviceSpeeds:
    """1.0 = as made. A pod is as slow as the slowest of its devices, on a node that may be capped as a whole."""

    def __init__(self) -> None:
        self._devices: dict[str, float] = {}
        self._node = 1.0

    def set_device(self, device: str, speed: float) -> None:
        if speed >= 1.0:
            self._devices.pop(device, None)
        else:
            self._devices[device] = speed

    def set_node(self, speed: float) -> None:
        self._node = speed

    def of(self, devices: Iterable[str]) -> float:
        """Of a pod that holds these; one without devices is not held back."""
        held = [self._devices.get(device, 1.0) for device in devices]
        return min(held) * self._node if held else 1.0


class DutyCycle:
    """Stops and continues something in turns until it is closed. `pause` and `resume` may find nothing there: that is all
    right, since processes come and go meanwhile."""

    def __init__(self, speed: float, pause: Callable[[], None], resume: Callable[[], None]) -> None:
        self._speed = speed
        self._pause = pause
        self._resume = resume
        self._task = asyncio.get_running_loop().create_task(self._run())

    async def _run(self) -> None:
        try:
            while True:
                self._pause()
                await asyncio.sleep(PERIOD_S * (1.0 - self._speed))
                self._resume()
                await asyncio.sleep(PERIOD_S * self._speed)
        finally:
            self._resume()

    def close(self) -> None:
        self._task.cancel()
