"""Questions to the driver about one device, and what it means when there is no answer.

A device over which a call hangs reports driver-hang and is not asked for a while, longer each time, until one call returns:
asking it costs a deadline and a driver process, and the others wait meanwhile. It is still asked now and then: a device that was
reset answers again, and nobody else would notice. The node reports the hang too until every device answers again.

A device the library calls lost reports nvml-lost and is no longer present. When the driver does not answer for the node at all,
every device reports driver-hang: nothing is known of any.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import msgspec
import structlog

from remuda.agent.hardware.device_ids import device_id
from remuda.agent.hardware.driver_process import DriverChild, DriverDown, DriverError, DriverHang
from remuda.agent.hardware.hardware_inventory import HardwareInventory
from remuda.agent.hardware.signal_listeners import NODE, HardwareSignalListeners

log = structlog.get_logger(__name__)

LOST = "GpuIsLost"
FIRST_S, MOST_S = 10.0, 600.0


class _HungDevice(msgspec.Struct, frozen=True):
    times: int
    until: float


class DriverHangBackoff:
    """The devices that are not asked, and until when."""

    def __init__(self) -> None:
        self._hung: dict[str, _HungDevice] = {}

    def __bool__(self) -> bool:
        return bool(self._hung)

    def __iter__(self) -> Iterator[str]:
        return iter(self._hung)

    def may_ask(self, who: str, now: float) -> bool:
        hung = self._hung.get(who)
        return hung is None or now >= hung.until

    def add(self, who: str, now: float) -> None:
        times = self._hung[who].times + 1 if who in self._hung else 1
        self._hung[who] = _HungDevice(times, now + min(FIRST_S * 2.0 ** (times - 1), MOST_S))

    def answered(self, who: str) -> None:
        self._hung.pop(who, None)

    def keep(self, still: Callable[[str], bool]) -> None:
        """Forget all others: they are not there any more, so nobody waits for their answer."""
        self._hung = {who: hung for who, hung in self._hung.items() if still(who)}


class DriverQuestions:
    """`source`: what its signals are named after. `call_s`: the deadline."""

    def __init__(
        self,
        node: str,
        child: DriverChild,
        hardware: HardwareInventory,
        listeners: HardwareSignalListeners,
        *,
        source: str,
        call_s: float,
        clock: Callable[[], float],
    ) -> None:
        self.hung = DriverHangBackoff()
        self.lost: set[int] = set()
        self.is_blind = False
        self.answered_at: dict[int, float] = {}
        self.asks_since = clock()
        self._node = node
        self._child = child
        self._hardware = hardware
        self._listeners = listeners
        self._source = source
        self._call_s = call_s
        self._clock = clock

    async def ask(self, number: int, call: str, **params: Any) -> Any:
        """The driver's answer about one device, or None after telling what that means."""
        name = device_id(number)
        if not self.hung.may_ask(name, self._clock()):
            return None
        try:
            answer = await self._child.call(call, self._call_s, pci=self._hardware.pci(number), **params)
        except DriverHang as error:
            self.hung.add(name, self._clock())
            self._listeners.tell(name, self._source, "driver-hang", f"{error}.")
            self.tell_hang()
            return None
        except DriverDown:
            return None
        except DriverError as error:
            if error.code == LOST:
                self.lose(number)
            else:
                log.warning("devices.ask", node=self._node, device=name, call=call, error=str(error))
            return None
        self.answered(number)
        return answer

    def answered(self, number: int) -> None:
        self.answered_at[number] = self._clock()
        self.hung.answered(device_id(number))
        self._listeners.tell(device_id(number), self._source, "driver-back")

    def tell_hang(self) -> None:
        who = ", ".join(sorted(self.hung))
        self._listeners.tell(NODE, self._source, "driver-hang", f"Driver calls about {who} did not return.")

    def lose(self, number: int) -> None:
        if number not in self.lost:
            self.lost.add(number)
            self._hardware.drop(number)
            self._listeners.tell(device_id(number), self._source, "nvml-lost")
            self._listeners.changed()

    def blind(self, error: Exception) -> None:
        """The driver says nothing about the node, so nothing is known of any device."""
        if isinstance(error, DriverDown) and self.is_blind:
            return
        self.is_blind = True
        self._listeners.tell(NODE, self._source, "driver-hang", f"The driver does not answer: {error}.")
        for number in self._hardware.ids.devices:
            self._listeners.tell(
                device_id(number), self._source, "driver-hang", f"The driver does not answer: {error}."
            )
