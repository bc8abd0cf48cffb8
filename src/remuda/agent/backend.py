"""Where devices and their signals come from: one `DeviceBackend` per make of hardware, and the fake one.

A backend says what is in the node once and reports signals as they come, raw: what a code means is decided elsewhere
(`core.devices.faults`). The fake backend has the devices of a machine model and reports what it is told to, under the source
a real node would name, so that nothing above can tell a drill from the real thing except by the words of the message.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from remuda.api.devices import ObservedDevice, Signal
from remuda.api.errors import Refusal
from remuda.api.meta import to_time
from remuda.core.devices.faults import classify
from remuda.core.devices.machine import MachineModel

Hear = Callable[[str, Signal], None]  # device id, signal


class DeviceBackend(Protocol):
    @property
    def model(self) -> str:
        """Name of the machine model."""
        ...

    def inventory(self) -> Sequence[ObservedDevice]:
        """The node's devices, without signals."""
        ...

    def subscribe(self, hear: Hear) -> None:
        """Call `hear` for every signal from now on, in the event loop's thread."""
        ...

    def inject(self, device: str, code: str) -> None:
        """Make `device` report `code`; Refusal where the hardware is real and cannot be told to."""
        ...


class FakeBackend:
    def __init__(self, model: MachineModel, node: str, clock: Callable[[], float]) -> None:
        self._model = model
        self._node = node
        self._clock = clock
        self._listeners: list[Hear] = []
        self._devices = tuple(
            ObservedDevice(id=d.id, type=d.type, index=d.index, memory_bytes=d.memory_bytes, numa=d.numa)
            for d in model.devices
        )

    @property
    def model(self) -> str:
        return self._model.name

    def inventory(self) -> Sequence[ObservedDevice]:
        return self._devices

    def subscribe(self, hear: Hear) -> None:
        self._listeners.append(hear)

    def inject(self, device: str, code: str) -> None:
        if device not in {d.id for d in self._devices}:
            raise unknown_device(device, self._node, [d.id for d in self._devices])
        if not code:
            raise Refusal(
                "MissingFaultCode", f"No fault code was given for {device}.", 'Name one, say "xid-79".', "code"
            )
        source = "kmsg" if code.startswith("xid-") else "nvml"
        words = f"{classify(source, code).message} (injected by a drill)"
        signal = Signal(source=source, code=code, message=words, time=to_time(self._clock()))
        for hear in self._listeners:
            hear(device, signal)


def unknown_device(device: str, node: str, known: Sequence[str]) -> Refusal:
    return Refusal(
        "UnknownDevice",
        f"Node {node} has no device `{device}`.",
        f"Its devices: {', '.join(known) or 'none'}.",
        "device",
    )
