"""`DeviceBackend`: where devices and their signals come from, one implementation per make of hardware (`agent.hardware`).

A backend says what is in the node and reports signals as they come, raw: what a code means is decided elsewhere
(`core.devices.fault_codes`). A condition that ends is reported by the code that takes it back (`driver-hang`, then
`driver-back`).

What every backend keeps:
- An id (gpu-3) belongs to a device, not to a place in a list: it stays over reboots, and a missing or replaced device never
  shifts another's. So `inventory` has a row for every device the node is known to have; `present` says which of them the
  driver shows now.
- A condition that holds (a device missing, a driver hanging) is told again to whoever subscribes later. An event is not:
  a restarted agent must not take an old event for a new one.
- Nothing here blocks the event loop. What asks the driver is awaited, and has a deadline.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

import msgspec

from remuda.agent.hardware.counters import Counters
from remuda.api.devices import ObservedDevice, ObservedLink, Signal
from remuda.api.errors import Refusal

Hear = Callable[[str, Signal], None]  # device id, signal
HearNode = Callable[[Signal], None]
Changed = Callable[[], None]


class NodeFacts(msgspec.Struct, frozen=True):
    """What a backend knows of the node's driver; empty where it does not."""

    driver: str = ""  # say 570.124.06
    cuda: str = ""  # newest the driver serves, say 12.8
    compute: str = ""  # capability, say 9.0
    family: str = ""  # hopper
    mig_capable: bool = False
    machine: str = ""  # the maker's name of the computer


class Probe(msgspec.Struct, frozen=True):
    """What an active probe found."""

    device: str
    passed: bool
    message: str


class DeviceBackend(Protocol):
    @property
    def model(self) -> str:
        """Name of the machine model."""
        ...

    @property
    def boot(self) -> str:
        """Id of the node's present boot."""
        ...

    async def open(self) -> None:
        """Look at the hardware and begin to listen. Before it, `inventory` may be empty. Twice is once."""
        ...

    async def close(self) -> None: ...

    def inventory(self) -> Sequence[ObservedDevice]:
        """The node's devices, each followed by its slices, without signals."""
        ...

    def present(self) -> frozenset[str]:
        """Ids of the devices and slices the driver shows now."""
        ...

    def links(self) -> Sequence[ObservedLink]: ...

    def facts(self) -> NodeFacts: ...

    def device_files(self, device: str) -> Sequence[str]:
        """Files under /dev that a container with this device or slice needs; none where there is no hardware."""
        ...

    def subscribe(self, hear: Hear) -> None:
        """Call `hear` for every signal of a device from now on, in the event loop's thread."""
        ...

    def subscribe_node(self, hear: HearNode) -> None:
        """The same for signals of the node as a whole."""
        ...

    def subscribe_inventory(self, changed: Changed) -> None:
        """Call `changed` when `inventory`, `present` or `links` say something new."""
        ...

    def report(self, device: str, source: str, code: str, message: str = "", at: float | None = None) -> None:
        """Tell the listeners what another source (the kernel's log, an exporter) says of `device`, or of the node ("")."""
        ...

    def device_at(self, key: str) -> str:
        """Id of the device or slice with this UUID or PCI address; "" when there is none."""
        ...

    def inject(self, device: str, code: str, heals: str = "") -> None:
        """Make `device` report `code`; Refusal where the hardware is real and cannot be told to. `heals`: what cures it."""
        ...

    def counters(self, device: str) -> Counters | None:
        """The newest reading; None where there is none yet."""
        ...

    def last_heard(self, device: str) -> float | None:
        """When there was last an answer about the whole device `device`; None where nobody keeps track."""
        ...

    async def probe(self, device: str) -> Probe:
        """Ask the device itself, now. The outcome is also reported as signal probe-passed or probe-failed."""
        ...

    async def reset(self, devices: Sequence[str]) -> None:
        """Reset these whole devices together. Nobody holds them. Refusal where it cannot be done (ResetNotSupported,
        ResetFailed, DeviceNotShown). What was known against them stays known until a probe passes."""
        ...

    def utilisation(self, device: str) -> float | None:
        """How busy the device was lately, 0.0 to 1.0; None where nobody says."""
        ...

    async def check_clean(self, device: str) -> bool:
        """The last holder is gone: is anything of it left on the device? While there is, the device reports
        leftover-processes, and device-clean once there is not."""
        ...

    async def apply_slices(self, device: str, profiles: Sequence[str]) -> Sequence[ObservedDevice]:
        """Cut an idle device into exactly these slices and return them, with their new UUIDs, in order of their place.

        What was there before is gone; no profiles at all makes the device whole again. Refusal (and nothing changed):
        UnknownDevice, UnknownMigProfile, IllegalMigLayout, DeviceBusy, MigNotSupported, DriverUnavailable."""
        ...


def unknown_hardware_device(device: str, node: str, known: Sequence[str]) -> Refusal:
    return Refusal(
        "UnknownDevice",
        f"Node {node} has no device `{device}`.",
        f"Its devices: {', '.join(known) or 'none'}.",
        "device",
    )


def hardware_reset_not_supported(node: str) -> Refusal:
    return Refusal(
        "ResetNotSupported",
        f"The agent of {node} has no way to reset a device.",
        "Give the rung a hook, or reboot the node.",
    )
