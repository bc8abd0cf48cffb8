"""The fake backend: the devices of a machine model, which break when they are told to.

It reports under the source a real node would name, through the same counters and thresholds, so that nothing above can tell a
drill from the real thing except by the words of the message. UUIDs and PCI addresses follow from the node's name and the index,
so they are the same after a restart. What a machine forgets at a reboot (slices, leftovers, volatile counts) it forgets at
`reboot`; what it does not (a device that was never there, a replaced one) it keeps.

A fault is cured by what the fault table says cures it (`heals` says otherwise): reset, reboot, replacement. Until then a probe
fails; afterwards it passes, and only that takes the signals back, as on real hardware.

`speed` is how fast work on a device goes: the fake slows nothing by itself, the node that runs the holder does.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Callable, Iterable, Sequence

import msgspec

from remuda.agent.hardware.backend_port import NodeFacts, Probe, unknown_hardware_device
from remuda.agent.hardware.counters import CounterLimits, Counters, KnownCounters, LinkReading, update_hardware_counters
from remuda.agent.hardware.device_ids import SeenDevice
from remuda.agent.hardware.missing_devices import report_missing_devices
from remuda.agent.hardware.signal_listeners import NODE, HardwareSignalListeners, SignallingBackend
from remuda.agent.hardware.slice_rows import (
    hardware_device_busy,
    mig_slice_row,
    plan_hardware_mig_slices,
    whole_device_row,
)
from remuda.api.devices import DeviceState, ObservedDevice, ObservedLink
from remuda.api.errors import Refusal
from remuda.core.devices.fault_codes import DeviceRemedy, classify_device_fault_code
from remuda.core.devices.machine_models import MachineModel
from remuda.core.devices.observed_model import links_of_model

POWER_MW = 700_000
NVLINKS = 18
_SPACE = uuid.UUID("6f9e1a52-0c5c-4d0e-9f6b-5d7d1d0c8a11")
_AT_ONCE = CounterLimits(hold_s=0.0)  # a drill says what is so; there is no blip to wait out
_DRILL = "(injected by a drill)"
RESET, REBOOT, REPLACE, NEVER = HEALS = ("reset", "reboot", "replace", "never")  # the mildest that cures a fault
_BY_REMEDY = {DeviceRemedy.RESET_DEVICE: RESET, DeviceRemedy.REBOOT_NODE: REBOOT, DeviceRemedy.REPLACE: REPLACE}


class FakeBackend(SignallingBackend):
    """`missing`: indexes of devices that are not there at boot."""

    source = "nvml"

    def __init__(
        self, model: MachineModel, node: str, clock: Callable[[], float], *, missing: Iterable[int] = ()
    ) -> None:
        self._model = model
        self._node = node
        self._clock = clock
        self._listeners = HardwareSignalListeners(clock)
        self._boots = 0
        self._cuts = 0
        self._exchanged: dict[int, int] = {}  # index -> how often the device was replaced
        self._gone = {f"gpu-{index}" for index in missing}
        self._slices: dict[str, list[ObservedDevice]] = {}
        self._leftovers: dict[str, str] = {}
        self._speed: dict[str, float] = {}
        self._broken: dict[str, dict[str, str]] = {}  # device -> code -> what cures it
        self._use: dict[str, float] = {}
        self._driver = ""
        self._known: dict[str, KnownCounters] = {}
        self._muted: dict[str, float] = {}  # since when nothing is heard
        self._is_hanging = False
        self._rows: dict[str, ObservedDevice] = {}
        self._look()
        if self._gone:
            self._tell_presence()

    # --- what is there ----------------------------------------------------------------------------------------------------

    @property
    def model(self) -> str:
        return self._model.name

    @property
    def boot(self) -> str:
        return str(uuid.uuid5(_SPACE, f"{self._node}/boot/{self._boots}"))

    async def open(self) -> None:
        self._tell_presence()

    async def close(self) -> None: ...

    def inventory(self) -> Sequence[ObservedDevice]:
        return tuple(self._rows.values())

    def _look(self) -> None:
        """The rows, anew: made once per change, because a drill in a large cluster asks often."""
        self._rows = {}
        for device in self._wholes():
            mine = self._slices.get(device.id, [])
            for row in (whole_device_row(device, is_cut=bool(mine)), *mine):
                self._rows[row.id] = row

    def _changed(self) -> None:
        self._look()
        self._tell_presence()
        self._listeners.changed()

    def present(self) -> frozenset[str]:
        return frozenset(d.id for d in self.inventory() if d.id not in self._gone and d.parent not in self._gone)

    def links(self) -> Sequence[ObservedLink]:
        return tuple(links_of_model(self._model))

    def facts(self) -> NodeFacts:
        first = self._model.devices[0] if self._model.devices else None
        family, compute = _FAMILIES.get(first.arch if first else "", ("", ""))
        can_cut = any(self._model.geometry(d.index) is not None for d in self._model.devices)
        return NodeFacts(
            driver=self._driver, family=family, compute=compute, mig_capable=can_cut, machine=self._model.name
        )

    def set_driver(self, version: str) -> None:
        """Another driver is loaded."""
        self._driver = version
        self._listeners.changed()

    def device_files(self, device: str) -> Sequence[str]:
        return ()

    def _wholes(self) -> list[ObservedDevice]:
        return [
            ObservedDevice(
                id=d.id,
                type=d.type,
                index=d.index,
                memory_bytes=d.memory_bytes,
                numa=d.numa,
                nic=d.nic,
                uuid=f"GPU-{uuid.uuid5(_SPACE, f'{self._node}/{d.index}/{self._exchanged.get(d.index, 0)}')}",
                pci=f"{d.index // 8:04x}:{0x1B + 0x12 * (d.index % 8):02x}:00.0",
                resource=self._model.resource,
            )
            for d in self._model.devices
        ]

    def _find(self, device: str) -> ObservedDevice:
        found = self._rows.get(device)
        if found is None:
            raise unknown_hardware_device(device, self._node, list(self._rows))
        return found

    # --- what it can be told ----------------------------------------------------------------------------------------------

    def inject(self, device: str, code: str, heals: str = "") -> None:
        """Report `code`, from where a real one would come. What says how things are (gone, back, not clean) makes them so.
        `heals`: what cures it (HEALS); "" = what the fault table says."""
        found = self._find(device)
        if heals and heals not in HEALS:
            raise Refusal("InvalidHeals", f"`{heals}` cures nothing.", f"Use one of {', '.join(HEALS)}.", "heals")
        if not code:
            raise Refusal(
                "MissingFaultCode", f"No fault code was given for {device}.", 'Name one, for example "xid-79".', "code"
            )
        make_so = {
            "device-missing": self.drop,
            "device-back": self.restore,
            "leftover-processes": self.leave_behind,
            "device-clean": self.clean,
        }.get(code)
        if make_so is not None and not found.parent:
            make_so(device)
            if heals and code == "device-missing":
                self._broken.setdefault(device, {})[code] = heals
            return
        source = "kmsg" if code.startswith(("xid-", "sxid-")) else self.source
        self._break(device, source, code, heals)
        self._listeners.tell(device, source, code, f"{classify_device_fault_code(source, code).message} {_DRILL}")

    def _break(self, device: str, source: str, code: str, heals: str) -> None:
        fault = classify_device_fault_code(source, code)
        is_grave = fault.effect in (DeviceState.UNHEALTHY, DeviceState.UNKNOWN)
        cure = heals or _BY_REMEDY.get(fault.remedy, RESET if is_grave and fault.remedy is DeviceRemedy.NONE else "")
        codes = self._broken.setdefault(device, {})
        for over in fault.retracts:
            codes.pop(over, None)
        if cure and not fault.retracts:
            codes[code] = cure

    def _cure(self, device: str, up_to: str) -> None:
        """What this or something milder cures is over, of the device and its slices."""
        cured = HEALS[: HEALS.index(up_to) + 1]
        for name in (device, *(row.id for row in self._slices.get(device, []))):
            codes = self._broken.get(name, {})
            self._broken[name] = {code: cure for code, cure in codes.items() if cure not in cured}
        self._known.pop(device, None)

    def drop(self, device: str) -> None:
        """The driver shows the device no longer."""
        gone = self._find(device).parent or device
        self._gone.add(gone)
        self._broken.setdefault(gone, {})["device-missing"] = REBOOT
        self._changed()

    def restore(self, device: str) -> None:
        """It is there again."""
        back = self._find(device).parent or device
        self._gone.discard(back)
        self._broken.get(back, {}).pop("device-missing", None)
        self._changed()

    def replace(self, device: str) -> None:
        """Another device in its place: the same id and slot, another UUID."""
        found = self._find(device)
        self._exchanged[found.index] = self._exchanged.get(found.index, 0) + 1
        self._cure(device, REPLACE)
        if "device-missing" not in self._broken[device]:
            self._gone.discard(device)
        self._leftovers.pop(device, None)
        for row in self._slices.pop(device, []):
            self._listeners.forget(row.id)
        self._listeners.forget(device)
        self._changed()

    def mend(self, device: str) -> None:
        """Whatever it was, it is over: counters start anew, and a probe passes."""
        self._find(device)
        self._known.pop(device, None)
        self._broken.pop(device, None)
        self._listeners.tell(device, "probe", "probe-passed", f"The device answered. {_DRILL}")

    def flap(self, device: str, times: int = 1) -> None:
        """The driver calls the device bad and good again, so many times."""
        self._find(device)
        for _ in range(times):
            self.inject(device, "health-lost")
            self.inject(device, "health-back")

    def count_ecc(self, device: str, *, corrected: int = 0, uncorrected: int = 0) -> None:
        """Add to the memory error counters."""
        was = self._reading(device)
        before = was.ecc_corrected or 0, was.ecc_uncorrected or 0
        self._read(
            device, ecc_corrected=before[0], ecc_uncorrected=before[1]
        )  # the first reading is what others rise from
        self._read(device, ecc_corrected=before[0] + corrected, ecc_uncorrected=before[1] + uncorrected)

    def cap_power(self, fraction: float) -> None:
        """Limit the power of all devices to a fraction of what they are made for; 1.0 lifts it."""
        for device in self._model.devices:
            self._read(device.id, power_limit_mw=round(POWER_MW * fraction), power_default_mw=POWER_MW)

    def throttle(self, device: str, *reasons: str) -> None:
        """Hold the clocks down for these reasons (sw-thermal, hw-thermal, power-brake); none lets go."""
        self._read(device, throttle=list(reasons))

    def set_links(self, device: str, down: Iterable[int] = ()) -> None:
        self._read(device, links={n: LinkReading() for n in range(NVLINKS)})
        broken = set(down)
        self._read(device, links={n: LinkReading(n not in broken) for n in range(NVLINKS)})

    def set_speed(self, device: str, speed: float) -> None:
        """How fast work on the device goes from now on, 1.0 = as it should."""
        self._find(device)
        self._speed[device] = speed
        self._listeners.changed()

    def speed(self, device: str) -> float:
        return self._speed.get(device, 1.0)

    def set_utilisation(self, device: str, share: float) -> None:
        """How busy the device is while somebody holds it; 1.0 unless it is said."""
        self._find(device)
        self._use[device] = share

    def utilisation(self, device: str) -> float | None:
        return None if self._is_hanging else self._use.get(device, 1.0)

    def leave_behind(self, device: str) -> None:
        """An unclean exit: something of the last holder stays on the device."""
        self._find(device)
        what = self._leftovers[device] = "pid 4242 with 61440 MiB"
        self._listeners.tell(device, self.source, "leftover-processes", f"Left on the device: {what}. {_DRILL}")

    def clean(self, device: str) -> None:
        self._find(device)
        self._leftovers.pop(device, None)
        self._listeners.tell(device, self.source, "device-clean")

    def hang(self, is_hanging: bool = True) -> None:
        """The driver does not return from calls any more, or does again."""
        self._is_hanging = is_hanging
        code = "driver-hang" if is_hanging else "driver-back"
        self._listeners.tell(
            NODE, self.source, code, f"{classify_device_fault_code(self.source, code).message} {_DRILL}"
        )
        for device in self._model.devices:
            self._listeners.tell(device.id, self.source, code)

    def mute(self, device: str, is_mute: bool = True) -> None:
        """The driver answers, and never says anything of this device any more, or does again."""
        self._find(device)
        if is_mute:
            self._muted.setdefault(device, self._clock())
        else:
            self._muted.pop(device, None)

    def last_heard(self, device: str) -> float | None:
        return self._muted.get(device, self._clock())

    def reboot(self) -> None:
        """A new boot: what only lives in the driver is gone."""
        self._boots += 1
        for whole in self._model.devices:
            was_dropped = "device-missing" in self._broken.get(whole.id, {})
            self._cure(whole.id, REBOOT)
            if was_dropped and "device-missing" not in self._broken[whole.id]:
                self._gone.discard(whole.id)
        for rows in self._slices.values():
            for row in rows:
                self._listeners.forget(row.id)
        self._slices.clear()
        self._known.clear()
        for device in list(self._leftovers):
            self.clean(device)
        if self._is_hanging:
            self.hang(False)
        self._changed()

    # --- asked of the devices ---------------------------------------------------------------------------------------------

    def counters(self, device: str) -> Counters | None:
        self._find(device)
        return self._known[device].last if device in self._known else None

    async def probe(self, device: str) -> Probe:
        """Passes when the device is there, free of leftovers, and nothing it counts is bad."""
        found = self._find(device)
        result = Probe(device, True, "The device answered.")
        held = self._known.get(device, KnownCounters()).raised
        if self._is_hanging:
            result = Probe(device, False, "The driver does not answer.")
        elif {device, found.parent} & self._gone:
            result = Probe(device, False, "The driver does not show the device.")
        elif device in self._leftovers:
            result = Probe(device, False, f"Left on the device: {self._leftovers[device]}.")
        elif broken := sorted({*self._broken.get(device, {}), *self._broken.get(found.parent, {})}):
            result = Probe(device, False, f"The device does not work: {', '.join(broken)}.")
        elif bad := sorted(
            c for c in held if classify_device_fault_code(self.source, c).effect is DeviceState.UNHEALTHY
        ):
            result = Probe(device, False, f"Its counters still say {', '.join(bad)}.")
        code = "probe-passed" if result.passed else "probe-failed"
        self._listeners.tell(device, "probe", code, result.message)
        return result

    async def reset(self, devices: Sequence[str]) -> None:
        """Cures what a reset cures. While the driver hangs it does not return."""
        for device in devices:
            if self._find(device).parent or device in self._gone:
                raise Refusal("DeviceNotShown", f"The driver does not show {device}.", "Reboot the node.", "device")
        if self._is_hanging:
            await asyncio.get_running_loop().create_future()
        for device in devices:
            self._cure(device, RESET)
            for row in self._slices.pop(device, []):
                self._listeners.forget(row.id)
            if device in self._leftovers:
                self.clean(device)
        self._changed()

    async def check_clean(self, device: str) -> bool:
        self._find(device)
        return device not in self._leftovers

    async def apply_slices(self, device: str, profiles: Sequence[str]) -> Sequence[ObservedDevice]:
        found = self._find(device)
        if found.parent or device in self._gone:
            raise unknown_hardware_device(
                device, self._node, [d.id for d in self._model.devices if d.id not in self._gone]
            )
        if device in self._leftovers:
            raise hardware_device_busy(device, self._leftovers[device])
        geometry = self._model.geometry(found.index)
        layout = plan_hardware_mig_slices(device, geometry, profiles) if profiles else ()
        self._cuts += 1
        rows: list[ObservedDevice] = []
        for piece in layout:
            assert geometry is not None
            memory = geometry.profile(piece.profile).memory_bytes(geometry, found.memory_bytes)
            name = f"{found.uuid}/{self._boots}/{self._cuts}/{piece.start}/{piece.profile}"
            rows.append(mig_slice_row(found, piece.profile, piece.start, f"MIG-{uuid.uuid5(_SPACE, name)}", memory))
        for old in self._slices.pop(device, []):
            self._listeners.forget(old.id)
        if rows:
            self._slices[device] = rows
        self._changed()
        return tuple(rows)

    # --- parts ------------------------------------------------------------------------------------------------------------

    def _reading(self, device: str) -> Counters:
        self._find(device)
        return self._known.get(device, KnownCounters()).last

    def _read(self, device: str, **fields: object) -> None:
        """The counters change, and are looked at as a real backend looks at them."""
        reading = msgspec.structs.replace(self._reading(device), **fields)
        known, findings = update_hardware_counters(
            self._known.get(device, KnownCounters()), self._clock(), reading, _AT_ONCE
        )
        self._known[device] = known
        for finding in findings:
            self._listeners.tell(device, self.source, finding.code, f"{finding.message} {_DRILL}")

    def _tell_presence(self) -> None:
        known = {d.index: SeenDevice(d.uuid, d.pci) for d in self._rows.values() if not d.parent}
        missing = [d.index for d in self._model.devices if d.id in self._gone]
        why = dict.fromkeys(missing, "the driver does not show it (a drill)")
        report_missing_devices(self._listeners, self.source, known, missing, len(self._model.devices), why)


# Letters as the fault table spells generations.
_FAMILIES = {"A": ("ampere", "8.0"), "H": ("hopper", "9.0"), "B": ("blackwell", "10.0"), "G": ("blackwell", "10.0")}
