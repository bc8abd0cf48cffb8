"""Which backend serves this node, and what listens beside it.

Tried in order: NVML, amdsmi, sysfs. A driver library that is absent or finds no driver is passed over. One that *hangs* is not:
that node has the hardware, and serving it as if it had none would hide exactly what matters. The kernel's log and a DCGM exporter
are read beside whichever backend serves, the fake one included, and report through it: by PCI address and by UUID.

They begin when somebody hears the backend (`HardwareSources.listen`). What they say is an event, told once: before that it would
be told to nobody, and be remembered as told.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import msgspec
import structlog

from remuda.agent.hardware.backend_port import DeviceBackend
from remuda.agent.hardware.dcgm import DcgmSource
from remuda.agent.hardware.device_ids import kernel_boot_id
from remuda.agent.hardware.driver_process import DriverError
from remuda.agent.hardware.fake_backend import FakeBackend
from remuda.agent.hardware.hardware_backend import HardwareBackend, HardwareConfig
from remuda.agent.hardware.kernel_log_reader import KmsgSource
from remuda.agent.hardware.sysfs import SysfsBackend, SysfsConfig
from remuda.agent.hardware.vendor_backends import AmdBackend, NvmlBackend
from remuda.api.errors import Refusal
from remuda.core.devices.machine_models import MachineModel

log = structlog.get_logger(__name__)

ABSENT = ("LibraryNotFound", "DriverNotLoaded", "FunctionNotFound", "LibRmVersionMismatch", "Unexpected")
NAMES = ("nvml", "amd", "sysfs")
FAKE = "fake"


class NodeHardwareConfig(msgspec.Struct, frozen=True):
    """`state`: the agent's directory. `root`: where /proc, /sys and /dev are. `dcgm_port` 0: no exporter is read."""

    node: str
    state: Path
    backend: str = "auto"
    model: MachineModel | None = None
    expected: int = 0
    root: Path = Path("/")
    kmsg: bool = True
    dcgm_port: int = 0
    call_s: float = 5.0  # deadline of a driver call


class HardwareSources(msgspec.Struct, frozen=True):
    """The backend, which is open, and what reports through it."""

    backend: DeviceBackend
    beside: tuple[KmsgSource | DcgmSource, ...] = ()

    async def listen(self) -> None:
        """Somebody hears the backend now."""
        for source in self.beside:
            try:
                await source.open()
            except OSError as error:
                self.backend.report("", "kmsg", "kmsg-lost", f"The kernel's log cannot be read: {error.strerror}.")

    async def close(self) -> None:
        for source in self.beside:
            await source.close()
        await self.backend.close()


async def open_hardware_sources(
    config: NodeHardwareConfig, clock: Callable[[], float], environment: Mapping[str, str] | None = None
) -> HardwareSources:
    """Open the backend that serves this node; `listen` opens what is beside it. Refusal UnknownBackend or NoSuchHardware."""
    backend = await _open_device_backend(config, clock, environment)
    boot = kernel_boot_id(config.root / "proc/sys/kernel/random/boot_id")
    beside: list[KmsgSource | DcgmSource] = []
    if config.kmsg:
        path, cursor = config.root / "dev/kmsg", config.state / "kmsg.json"
        beside.append(KmsgSource(backend, boot, path=path, cursor=cursor, clock=clock))
    if config.dcgm_port:
        seen = config.state / "dcgm.json"
        beside.append(DcgmSource(backend, boot, port=config.dcgm_port, seen=seen, clock=clock))
    return HardwareSources(backend, tuple(beside))


async def _open_device_backend(
    config: NodeHardwareConfig, clock: Callable[[], float], environment: Mapping[str, str] | None
) -> DeviceBackend:
    if config.backend == FAKE and config.model is not None:
        return FakeBackend(config.model, config.node, clock)
    if config.backend not in ("auto", *NAMES):
        raise Refusal(
            "UnknownBackend",
            f"`{config.backend}` is not a backend.",
            f"Known: auto, {', '.join(NAMES)}, and fake with --model.",
            "backend",
        )
    ids = config.state / "devices.json"
    hardware = HardwareConfig(config.node, config.model, ids, config.expected, call_s=config.call_s)
    for name, kind in (("nvml", NvmlBackend), ("amd", AmdBackend)):
        if config.backend not in ("auto", name):
            continue
        backend: HardwareBackend = kind(hardware, clock, environment=environment, root=config.root)
        absent = await _absent_driver_reason(backend)
        if not absent:
            await backend.open()
            return backend
        await backend.close()
        log.info("backend.absent", node=config.node, backend=name, why=absent)
        if config.backend == name:
            raise Refusal("NoSuchHardware", f"{config.node} has no {name} driver: {absent}.", "Choose backend auto.")
    bus = SysfsBackend(SysfsConfig(config.node, config.model, ids, config.expected), clock, config.root / "sys")
    await bus.open()
    return bus


async def _absent_driver_reason(backend: HardwareBackend) -> str:
    """Why the driver is not there, "" when it is: or when it hangs, which only a driver that is there can."""
    try:
        await backend.child.call("open", backend.config.call_s)
    except DriverError as error:
        return error.message if error.code in ABSENT else ""
    except Exception:
        return ""
    return ""
