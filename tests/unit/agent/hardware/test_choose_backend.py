"""Which backend serves a node."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from remuda.agent.hardware.choose_backend import NodeHardwareConfig, open_hardware_sources
from remuda.agent.hardware.fake_backend import FakeBackend
from remuda.agent.hardware.sysfs import SysfsBackend
from remuda.agent.hardware.vendor_backends import NvmlBackend
from remuda.api.errors import Refusal
from remuda.core.devices.kernel_log import KernelLogCursor
from remuda.core.devices.machine_models import load_built_in_machine_model
from tests.unit.agent.hardware.rig import Clock, Ears, Library
from tests.unit.agent.hardware.test_dcgm import Exporter, a_sample, served_exporter  # noqa: F401
from tests.unit.agent.hardware.test_kernel_log_reader import an_xid


def a_root(tmp_path: Path) -> Path:
    root = tmp_path / "root"
    (root / "dev").mkdir(parents=True)
    (root / "sys/bus/pci/devices").mkdir(parents=True)
    return root


def without_library(tmp_path: Path) -> dict[str, str]:
    (tmp_path / "amdsmi.py").write_text("raise ImportError('no ROCm')", encoding="ascii")
    return {**os.environ, "LD_LIBRARY_PATH": str(tmp_path), "PYTHONPATH": str(tmp_path)}


async def test_a_driver_that_is_there_serves_and_the_log_is_read_beside_it(
    tmp_path: Path, library: Library, clock: Clock
) -> None:
    root = a_root(tmp_path)
    (root / "dev/kmsg").write_text(an_xid(4, "0000:3f:00.0", 79), encoding="ascii")
    config = NodeHardwareConfig("node-01", tmp_path / "state", root=root)
    sources = await open_hardware_sources(config, clock, library.environment)
    try:
        assert isinstance(sources.backend, NvmlBackend)
        assert len(sources.backend.inventory()) == 8
        ears = Ears(sources.backend)
        await sources.listen()
        assert len(ears.codes) == 1, "what was said before anybody listened is told to who listens first"
        [kmsg] = sources.beside
        assert kmsg.cursor == KernelLogCursor("", 4)  # type: ignore[union-attr]
    finally:
        await sources.close()
    assert {p.name for p in (tmp_path / "state").iterdir()} == {"devices.json", "kmsg.json"}


async def test_the_kernels_log_is_read_beside_fake_devices_too(tmp_path: Path, clock: Clock) -> None:
    root = a_root(tmp_path)
    (tmp_path / "state").mkdir()
    os.mkfifo(root / "dev/kmsg")
    model = load_built_in_machine_model("dgx-h100")
    config = NodeHardwareConfig("node-01", tmp_path / "state", "fake", model, root=root)
    sources = await open_hardware_sources(config, clock)
    try:
        assert isinstance(sources.backend, FakeBackend)
        ears = Ears(sources.backend)
        writer = os.open(root / "dev/kmsg", os.O_RDWR)  # a pipe without a writer is at its end
        await sources.listen()
        os.write(writer, an_xid(4, sources.backend.inventory()[3].pci, 79).encode())
        await ears.until(lambda: ("gpu-3", "xid-79") in ears.codes)
        os.close(writer)
    finally:
        await sources.close()


async def test_an_exporter_is_read_beside_fake_devices_too(tmp_path: Path, clock: Clock, exporter: Exporter) -> None:
    (tmp_path / "state").mkdir()
    model = load_built_in_machine_model("dgx-h100")
    config = NodeHardwareConfig("node-01", tmp_path / "state", "fake", model, kmsg=False, dcgm_port=exporter.port)
    sources = await open_hardware_sources(config, clock)
    try:
        ears = Ears(sources.backend)
        exporter.page = a_sample("DCGM_FI_DEV_XID_ERRORS", sources.backend.inventory()[5].uuid, 48)
        await sources.listen()
        assert ears.codes == [("gpu-5", "xid-48")]
    finally:
        await sources.close()


async def test_without_any_library_the_bus_is_read(tmp_path: Path, clock: Clock) -> None:
    config = NodeHardwareConfig("node-01", tmp_path / "state", root=a_root(tmp_path))
    sources = await open_hardware_sources(config, clock, without_library(tmp_path))
    try:
        assert isinstance(sources.backend, SysfsBackend)
        await sources.listen()
        assert ("", "kmsg-lost") in Ears(sources.backend).codes, "there is no kernel log to read"
    finally:
        await sources.close()


async def test_what_was_asked_for_and_is_not_there_is_refused(tmp_path: Path, clock: Clock) -> None:
    config = NodeHardwareConfig("node-01", tmp_path / "state", backend="nvml", root=a_root(tmp_path))
    with pytest.raises(Refusal, match="NoSuchHardware"):
        await open_hardware_sources(config, clock, without_library(tmp_path))
    with pytest.raises(Refusal, match="UnknownBackend"):
        await open_hardware_sources(NodeHardwareConfig("node-01", tmp_path, backend="tpu"), clock)


async def test_a_library_that_is_not_installed_is_absent_not_broken(tmp_path: Path, clock: Clock) -> None:
    (tmp_path / "pynvml.py").write_text("raise ImportError('no pynvml')", encoding="ascii")
    config = NodeHardwareConfig("node-01", tmp_path / "state", backend="nvml", root=a_root(tmp_path))
    with pytest.raises(Refusal, match="NoSuchHardware: node-01 has no nvml driver: no pynvml"):
        await open_hardware_sources(config, clock, without_library(tmp_path))


async def test_a_driver_that_hangs_is_not_absent(tmp_path: Path, library: Library, clock: Clock) -> None:
    """Serving such a node from the bus alone would hide what matters most."""
    library.says("hang -1 nvmlInitWithFlags")
    config = NodeHardwareConfig("node-01", tmp_path / "state", root=a_root(tmp_path), kmsg=False, call_s=0.5)
    sources = await open_hardware_sources(config, clock, library.environment)
    try:
        assert isinstance(sources.backend, NvmlBackend)
        assert Ears(sources.backend).codes == [("", "driver-hang")]
    finally:
        await sources.close()
