"""PCI devices as the kernel lists them under /sys: what can be known of a node without a maker's library.

`SysfsBackend` serves a node whose driver library is absent: display and accelerator devices of the known makers, by vendor and
class; NUMA node, link width and speed, AER error counters, and amdgpu's RAS counters where that driver exports them. There is
no UUID for most, so the id map goes by place. Slices and probes need a driver; the probe here only asks the configuration space
whether the device is still on the bus (all ones = it is not).

`nearest_nics` also serves the other backends: the NIC whose path through the PCI tree has most in common with the device's.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TypeVar

import msgspec
import structlog

from remuda.agent.hardware.backend_port import NodeFacts, Probe, hardware_reset_not_supported, unknown_hardware_device
from remuda.agent.hardware.counters import USUAL, CounterLimits, Counters, KnownCounters, update_hardware_counters
from remuda.agent.hardware.device_ids import (
    DeviceIdMap,
    SeenDevice,
    assign_device_ids,
    device_id,
    kernel_boot_id,
    load_device_ids,
    save_device_ids,
    seen_hardware_device_row,
)
from remuda.agent.hardware.missing_devices import report_missing_devices
from remuda.agent.hardware.signal_listeners import HardwareSignalListeners, SignallingBackend, real_hardware_refusal
from remuda.agent.hardware.slice_rows import mig_not_supported
from remuda.api.devices import ObservedDevice, ObservedLink
from remuda.api.names import RESOURCE_GPU
from remuda.core.devices.machine_models import MachineModel

N = TypeVar("N", int, float)

log = structlog.get_logger(__name__)

NVIDIA, AMD = "0x10de", "0x1002"
RESOURCES = {NVIDIA: RESOURCE_GPU, AMD: "amd.com/gpu"}
CLASSES = ("0x0300", "0x0302", "0x0380", "0x1200")  # VGA, 3D controller, display, processing accelerator
NIC_CLASSES = ("0x0200", "0x0207")  # Ethernet, InfiniBand
POLL_S = 15.0

_TOTAL = re.compile(r"^TOTAL_ERR_\w+\s+(\d+)", re.MULTILINE)
_RAS = re.compile(r"^(ue|ce):\s*(\d+)", re.MULTILINE)
_SPEED = re.compile(r"([\d.]+)\s*GT/s")


class SysfsConfig(msgspec.Struct, frozen=True):
    node: str
    model: MachineModel | None = None
    ids: Path | None = None
    expected: int = 0
    poll_s: float = POLL_S
    limits: CounterLimits = USUAL
    boot: str = ""


def find_sysfs_devices(sys: Path) -> list[tuple[str, SeenDevice]]:
    """(vendor, device) of every accelerator on the bus, by PCI address."""
    found: list[tuple[str, SeenDevice]] = []
    for path in sorted((sys / "bus/pci/devices").glob("*")):
        vendor, kind = _sysfs_word(path / "vendor"), _sysfs_word(path / "class")
        if vendor not in RESOURCES or kind[:6] not in CLASSES:
            continue
        unique = _sysfs_word(path / "unique_id")  # amdgpu
        found.append(
            (
                vendor,
                SeenDevice(
                    uuid=f"GPU-{unique}" if unique else "",
                    pci=path.name,
                    type=f"{vendor.removeprefix('0x')}-{_sysfs_word(path / 'device').removeprefix('0x')}",
                    memory_bytes=_sysfs_number(path / "mem_info_vram_total") or 0,
                    numa=max(_sysfs_number(path / "numa_node") or 0, 0),
                ),
            )
        )
    nics = nearest_nics(sys, [seen.pci for _, seen in found])
    return [(vendor, msgspec.structs.replace(seen, nic=nics.get(seen.pci, ""))) for vendor, seen in found]


def read_sysfs_counters(sys: Path, pci: str) -> Counters:
    """What the kernel counts of one device. A PCIe link can do no more than its worse end, so the port above counts too."""
    path = sys / "bus/pci/devices" / pci
    port = path.resolve().parent
    bad = [n for name in ("aer_dev_fatal", "aer_dev_nonfatal") if (n := _sysfs_aer_total(path / name)) is not None]
    ras = [m for file in sorted((path / "ras").glob("*_err_count")) for m in _RAS.findall(_sysfs_text(file))]
    return Counters(
        pcie_width=_sysfs_number(path / "current_link_width"),
        pcie_width_max=_sysfs_least_known(
            _sysfs_number(path / "max_link_width"), _sysfs_number(port / "max_link_width")
        ),
        pcie_speed=_sysfs_link_speed(path / "current_link_speed"),
        pcie_speed_max=_sysfs_least_known(
            _sysfs_link_speed(path / "max_link_speed"), _sysfs_link_speed(port / "max_link_speed")
        ),
        pcie_replays=_sysfs_aer_total(path / "aer_dev_correctable"),
        pcie_errors=sum(bad) if bad else None,
        ecc_uncorrected=sum(int(n) for kind, n in ras if kind == "ue") if ras else None,
        ecc_corrected=sum(int(n) for kind, n in ras if kind == "ce") if ras else None,
        utilisation=_sysfs_number(path / "gpu_busy_percent"),
    )


def nearest_nics(sys: Path, pcis: Sequence[str]) -> dict[str, str]:
    """Device address -> network interface (or RDMA device) with which it shares most of its path from the root."""
    devices = sys / "bus/pci/devices"
    nics: list[tuple[tuple[str, ...], str]] = []
    for path in sorted(devices.glob("*")):
        if _sysfs_word(path / "class")[:6] in NIC_CLASSES:
            names = [p.name for kind in ("infiniband", "net") for p in sorted((path / kind).glob("*"))]
            nics.append((path.resolve().parent.parts, names[0] if names else path.name))
    nearest: dict[str, str] = {}
    base = len(sys.resolve().parts) + 1  # sys/devices: what all paths share says nothing
    for pci in pcis:
        mine = (devices / pci).resolve().parent.parts
        shared = [(_shared_sysfs_path_length(mine, theirs), name) for theirs, name in nics]
        best = max((n for n, _ in shared), default=0)
        if best > base:
            nearest[pci] = next(name for n, name in shared if n == best)
    return nearest


class SysfsBackend(SignallingBackend):
    source = "sysfs"

    def __init__(self, config: SysfsConfig, clock: Callable[[], float], root: Path = Path("/sys")) -> None:
        self._config = config
        self._clock = clock
        self._root = root
        self._listeners = HardwareSignalListeners(clock)
        self._ids = DeviceIdMap()
        self._vendors: dict[str, str] = {}
        self._present: frozenset[int] = frozenset()
        self._known: dict[int, KnownCounters] = {}
        self._task: asyncio.Task[None] | None = None

    @property
    def model(self) -> str:
        return self._config.model.name if self._config.model is not None else ""

    @property
    def boot(self) -> str:
        return self._config.boot or kernel_boot_id()

    async def open(self) -> None:
        if self._task is None:
            self._ids = load_device_ids(self._config.ids)
            await self.look()
            self._task = asyncio.get_running_loop().create_task(self._poll(), name=f"sysfs {self._config.node}")

    async def close(self) -> None:
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.wait([task])

    async def _poll(self) -> None:
        while True:
            await asyncio.sleep(self._config.poll_s)
            try:
                await self.look()
            except Exception as error:  # a file that vanished between two reads; the next look may do better
                log.error("sysfs.look", node=self._config.node, error=repr(error))

    async def look(self) -> None:
        """Reads of /sys can wait for a device that wakes up, so they happen in a thread."""
        found, readings = await asyncio.to_thread(self._read_all)
        result = assign_device_ids(self._ids, [seen for _, seen in found])
        changed = result.ids != self._ids or result.present != self._present
        if result.ids != self._ids:
            save_device_ids(self._config.ids, result.ids)
        self._ids, self._present = result.ids, result.present
        self._vendors |= {seen.pci: vendor for vendor, seen in found}
        for number in result.replaced:
            self._known.pop(number, None)
            self._listeners.forget(device_id(number))
        expected = len(self._config.model.devices) if self._config.model is not None else self._config.expected
        report_missing_devices(self._listeners, self.source, result.ids.devices, result.missing, expected, {})
        if changed:
            self._listeners.changed()
        for number in sorted(result.present):
            self._tell_driver(number)
            reading = readings[result.ids.devices[number].pci]
            known, findings = update_hardware_counters(
                self._known.get(number, KnownCounters()), self._clock(), reading, self._config.limits
            )
            self._known[number] = known
            for finding in findings:
                self._listeners.tell(device_id(number), self.source, finding.code, finding.message)

    def _tell_driver(self, number: int) -> None:
        """A device that no driver serves is on the bus, and nobody knows whether it works."""
        is_served = (self._root / "bus/pci/devices" / self._ids.devices[number].pci / "driver").exists()
        code, said = ("report-resumed", "") if is_served else ("no-report", "No kernel driver serves the device.")
        self._listeners.tell(device_id(number), self.source, code, said)

    def _read_all(self) -> tuple[list[tuple[str, SeenDevice]], Mapping[str, Counters]]:
        found = find_sysfs_devices(self._root)
        return found, {seen.pci: read_sysfs_counters(self._root, seen.pci) for _, seen in found}

    def inventory(self) -> Sequence[ObservedDevice]:
        return tuple(
            seen_hardware_device_row(number, seen, RESOURCES.get(self._vendors.get(seen.pci, ""), RESOURCE_GPU))
            for number, seen in self._ids.devices.items()
        )

    def present(self) -> frozenset[str]:
        return frozenset(device_id(n) for n in self._present)

    def links(self) -> Sequence[ObservedLink]:
        return ()

    def facts(self) -> NodeFacts:
        product = _sysfs_text(self._root / "class/dmi/id/product_name").strip()
        return NodeFacts(machine=product)

    def device_files(self, device: str) -> Sequence[str]:
        return ()

    def inject(self, device: str, code: str, heals: str = "") -> None:
        raise real_hardware_refusal(self._config.node)

    def counters(self, device: str) -> Counters | None:
        known = self._known.get(self._number(device))
        return known.last if known is not None else None

    async def probe(self, device: str) -> Probe:
        seen = self._ids.devices[self._number(device)]
        config = self._root / "bus/pci/devices" / seen.pci / "config"
        try:
            head = (await asyncio.to_thread(config.read_bytes))[:4]
            is_there = len(head) == 4 and head != b"\xff\xff\xff\xff"
            message = "The device is on the bus." if is_there else "The device does not answer on the bus."
        except OSError as error:
            is_there, message = False, f"The bus does not have the device: {error.strerror}."
        self._listeners.tell(device, "probe", "probe-passed" if is_there else "probe-failed", message)
        return Probe(device, is_there, message)

    async def reset(self, devices: Sequence[str]) -> None:
        raise hardware_reset_not_supported(self._config.node)

    def utilisation(self, device: str) -> float | None:
        return None

    async def check_clean(self, device: str) -> bool:
        self._number(device)
        return True  # nobody here can tell

    async def apply_slices(self, device: str, profiles: Sequence[str]) -> Sequence[ObservedDevice]:
        self._number(device)
        raise mig_not_supported(device)

    def _number(self, device: str) -> int:
        for number in self._ids.devices:
            if device_id(number) == device:
                return number
        raise unknown_hardware_device(device, self._config.node, [device_id(n) for n in self._ids.devices])


def _shared_sysfs_path_length(a: Sequence[str], b: Sequence[str]) -> int:
    return next((n for n, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))


def _sysfs_text(path: Path) -> str:
    try:
        return path.read_text(encoding="ascii", errors="replace")
    except OSError:
        return ""


def _sysfs_word(path: Path) -> str:
    return _sysfs_text(path).strip()


def _sysfs_number(path: Path) -> int | None:
    try:
        return int(_sysfs_word(path), 0)
    except ValueError:
        return None


def _sysfs_link_speed(path: Path) -> float | None:
    found = _SPEED.search(_sysfs_text(path))
    return float(found[1]) if found else None


def _sysfs_aer_total(path: Path) -> int | None:
    found = _TOTAL.search(_sysfs_text(path))
    return int(found[1]) if found else None


def _sysfs_least_known(a: N | None, b: N | None) -> N | None:
    known = [n for n in (a, b) if n is not None and n > 0]
    return min(known, default=None)
