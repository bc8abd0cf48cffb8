"""Questions to the driver about one device, and what it means when there is no answer.

A device over which a call hangs reports driver-hang and is put aside for a while; the node reports it too until every device
answers again. A device the library calls lost reports nvml-lost and is no longer present. When the driver does not answer for the
node at all, every device reports driver-hang: nothing is known of any.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import structlog

from remuda.agent.hardware.device_ids import device_id
from remuda.agent.hardware.driver_process import DriverChild, DriverDown, DriverError, DriverHang
from remuda.agent.hardware.hang_backoff import Aside
from remuda.agent.hardware.hardware_inventory import Census
from remuda.agent.hardware.signal_listeners import NODE, Listeners

log = structlog.get_logger(__name__)

LOST = "GpuIsLost"


class Asker:
    """`source`: what its signals are named after. `call_s`: the deadline."""

    def __init__(
        self,
        node: str,
        child: DriverChild,
        census: Census,
        listeners: Listeners,
        *,
        source: str,
        call_s: float,
        clock: Callable[[], float],
    ) -> None:
        self.aside = Aside()
        self.lost: set[int] = set()
        self.is_blind = False
        self.answered_at: dict[int, float] = {}
        self.asks_since = clock()
        self._node = node
        self._child = child
        self._census = census
        self._listeners = listeners
        self._source = source
        self._call_s = call_s
        self._clock = clock

    async def ask(self, number: int, call: str, **params: Any) -> Any:
        """The driver's answer about one device, or None after telling what that means."""
        name = device_id(number)
        if not self.aside.may_ask(name, self._clock()):
            return None
        try:
            answer = await self._child.call(call, self._call_s, pci=self._census.pci(number), **params)
        except DriverHang as error:
            self.aside.hung(name, self._clock())
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
        self.aside.answered(device_id(number))
        self._listeners.tell(device_id(number), self._source, "driver-back")

    def tell_hang(self) -> None:
        who = ", ".join(sorted(self.aside))
        self._listeners.tell(NODE, self._source, "driver-hang", f"Calls to the driver did not return: about {who}.")

    def lose(self, number: int) -> None:
        if number not in self.lost:
            self.lost.add(number)
            self._census.drop(number)
            self._listeners.tell(device_id(number), self._source, "nvml-lost")
            self._listeners.changed()

    def blind(self, error: Exception) -> None:
        """The driver says nothing about the node, so nothing is known of any device."""
        if isinstance(error, DriverDown) and self.is_blind:
            return
        self.is_blind = True
        self._listeners.tell(NODE, self._source, "driver-hang", f"The driver does not answer: {error}.")
        for number in self._census.ids.devices:
            self._listeners.tell(
                device_id(number), self._source, "driver-hang", f"The driver does not answer: {error}."
            )
