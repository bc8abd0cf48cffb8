"""Who hears what a backend reports: signals of devices, signals of the node, changes of the inventory.

Conditions that hold are kept and told again to whoever subscribes later; the fault table knows them: they are the codes another
code takes back. Events are told once. A code that takes conditions back is also passed on when nothing of the kind holds, once to
each listener: an earlier agent may have reported the condition, and this is how it ends.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import cache

from remuda.agent.hardware.backend_port import Changed, Hear, HearNode
from remuda.api.devices import ObservedDevice, Signal
from remuda.api.errors import Refusal
from remuda.api.meta import to_time
from remuda.core.devices.fault_codes import classify_device_fault_code, fault_table

NODE = ""  # stands for the node where a device id is expected


class HardwareSignalListeners:
    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._devices: list[Hear] = []
        self._node: list[HearNode] = []
        self._inventory: list[Changed] = []
        self._standing: dict[tuple[str, str, str], Signal] = {}  # (device or NODE, source, code)
        self._well: dict[tuple[str, str], Signal] = {}  # (device or NODE, code): taken back, and not raised since

    def subscribe(self, hear: Hear) -> None:
        self._devices.append(hear)
        for device, signal in self._so_far():
            if device != NODE:
                hear(device, signal)

    def subscribe_node(self, hear: HearNode) -> None:
        self._node.append(hear)
        for device, signal in self._so_far():
            if device == NODE:
                hear(signal)

    def _so_far(self) -> list[tuple[str, Signal]]:
        """What ended before what holds: one code may take back several."""
        over = [(device, signal) for (device, _), signal in self._well.items()]
        return over + [(device, signal) for (device, _, _), signal in self._standing.items()]

    def subscribe_inventory(self, changed: Changed) -> None:
        self._inventory.append(changed)

    def tell(self, device: str, source: str, code: str, message: str = "", at: float | None = None) -> None:
        """Report `code` of `device` (or NODE), seen `at` or now. A condition that holds already is not told twice."""
        fault = classify_device_fault_code(source, code)
        signal = Signal(source, code, message or fault.message, to_time(self._clock() if at is None else at))
        key = (device, source, code)
        if code in _hardware_condition_codes():
            before = self._standing.get(key)
            self._standing[key] = signal
            if before is not None and before.message == signal.message:
                return
            self._well = {
                key: well
                for key, well in self._well.items()
                if key[0] != device or code not in classify_device_fault_code(source, key[1]).retracts
            }
        if fault.retracts:
            held = [k for k in self._standing if k[0] == device and k[2] in fault.retracts]
            if not held and (device, code) in self._well:
                return
            self._well[device, code] = signal
            for known in held:
                del self._standing[known]
        if device == NODE:
            for hear_node in list(self._node):
                hear_node(signal)
            return
        for hear in list(self._devices):
            hear(device, signal)

    def forget(self, device: str) -> None:
        """The device is another one now, or its slice is gone: what held of it no longer does."""
        for key in [k for k in self._standing if k[0] == device]:
            del self._standing[key]
        self._well = {key: well for key, well in self._well.items() if key[0] != device}

    def changed(self) -> None:
        for changed in list(self._inventory):
            changed()


class SignallingBackend:
    """What every backend has for its listeners."""

    _listeners: HardwareSignalListeners

    def inventory(self) -> Sequence[ObservedDevice]:
        raise NotImplementedError

    def subscribe(self, hear: Hear) -> None:
        self._listeners.subscribe(hear)

    def subscribe_node(self, hear: HearNode) -> None:
        self._listeners.subscribe_node(hear)

    def subscribe_inventory(self, changed: Changed) -> None:
        self._listeners.subscribe_inventory(changed)

    def report(self, device: str, source: str, code: str, message: str = "", at: float | None = None) -> None:
        self._listeners.tell(device, source, code, message, at)

    def device_at(self, key: str) -> str:
        return find_hardware_device_of_signal(self.inventory(), key)

    def last_heard(self, device: str) -> float | None:
        return None


def real_hardware_refusal(node: str) -> Refusal:
    return Refusal(
        "RealHardware",
        f"The devices of {node} are real and cannot be told to fail.",
        "Run device drills in `remuda up`, or on an agent with --backend fake.",
        "device",
    )


def find_hardware_device_of_signal(rows: Iterable[ObservedDevice], key: str) -> str:
    """Id of the row with this UUID or PCI address; a slice has its device's address, and the device comes first."""
    return next((row.id for row in rows if key and key in (row.uuid, row.pci)), "")


@cache
def _hardware_condition_codes() -> frozenset[str]:
    return frozenset(code for fault in fault_table().by_code.values() for code in fault.retracts)
