"""AMD devices through a module that has amdsmi's names: the real one comes with ROCm and needs its hardware."""

from __future__ import annotations

import json
import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from remuda.agent.hardware.counters import CounterLimits
from remuda.agent.hardware.hardware_backend import HardwareConfig
from remuda.agent.hardware.vendor_backends import AmdBackend
from remuda.api.errors import Refusal
from tests.unit.agent.hardware.rig import Clock, Ears

MODULE = """
import enum, json, os

class AmdSmiMemoryType(enum.IntEnum): VRAM = 0
class AmdSmiTemperatureType(enum.IntEnum): HOTSPOT = 1
class AmdSmiTemperatureMetric(enum.IntEnum): CURRENT = 0
class AmdSmiLinkType(enum.IntEnum):
    AMDSMI_LINK_TYPE_PCIE = 1
    AMDSMI_LINK_TYPE_XGMI = 2
class AmdSmiLibraryException(Exception): ...

def _said(): return json.load(open(os.environ["FAKE_AMDSMI"]))
def _check(n):
    if n in _said().get("lost", []): raise AmdSmiLibraryException("AMDSMI_STATUS_NO_DEVICE")
    return n
def amdsmi_init(): ...
def amdsmi_get_processor_handles(): return list(range(4))
def amdsmi_get_gpu_device_bdf(n): return "0000:%02X:00.0" % (0x10 + n)
def amdsmi_get_gpu_device_uuid(n): return "amd-%d" % _check(n)
def amdsmi_get_gpu_asic_info(n): return {"market_name": "AMD Instinct MI300X", "target_graphics_version": "gfx942"}
def amdsmi_get_gpu_memory_total(n, kind): return 205822885888
def amdsmi_topo_get_numa_node_number(n): return n // 2
def amdsmi_topo_get_link_type(a, b): return {"hops": 1, "type": 2 if a // 2 == b // 2 else 1}
def amdsmi_get_gpu_driver_info(n): return {"driver_version": "6.10.5"}
def amdsmi_get_gpu_total_ecc_count(n):
    bad = _said().get("ecc", {}).get(str(_check(n)), 0)
    return {"correctable_count": 0, "uncorrectable_count": bad}
def amdsmi_get_pcie_info(n):
    metric = {"pcie_width": 16, "pcie_speed": 32000, "pcie_replay_count": "N/A"}
    return {"pcie_static": {"max_pcie_width": 16, "max_pcie_speed": 32000}, "pcie_metric": metric}
def amdsmi_get_temp_metric(n, kind, metric): return 51
"""


class Control:
    def __init__(self, path: Path) -> None:
        self.path = path
        self.says()

    def says(self, **state: object) -> None:
        self.path.write_text(json.dumps(state), encoding="ascii")


@pytest.fixture
def control(tmp_path: Path) -> Control:
    (tmp_path / "amdsmi.py").write_text(MODULE, encoding="ascii")
    return Control(tmp_path / "state.json")


@pytest.fixture
async def backend(tmp_path: Path, control: Control, clock: Clock) -> AsyncIterator[AmdBackend]:
    config = HardwareConfig("node-01", poll_s=3600, call_s=20, limits=CounterLimits(hold_s=0), boot="b", expected=4)
    environment = {**os.environ, "PYTHONPATH": str(tmp_path), "FAKE_AMDSMI": str(control.path)}
    made = AmdBackend(config, clock, environment=environment, root=tmp_path)
    await made.open()
    yield made
    await made.close()


async def test_inventory(backend: AmdBackend) -> None:
    rows = backend.inventory()
    assert [(r.id, r.uuid, r.pci, r.numa) for r in rows][2] == ("gpu-2", "amd-2", "0000:12:00.0", 1)
    assert {(r.type, r.resource) for r in rows} == {("AMD-Instinct-MI300X", "amd.com/gpu")}
    assert [(link.kind, link.among) for link in backend.links()] == [
        ("xgmi", ["gpu-0", "gpu-1"]),
        ("xgmi", ["gpu-2", "gpu-3"]),
    ]
    counters = backend.counters("gpu-0")
    assert counters is not None
    assert (counters.temperature, counters.pcie_width, counters.pcie_replays) == (51, 16, None)
    assert backend.device_files("gpu-0") == ("/dev/kfd",)
    assert (await backend.probe("gpu-0")).passed


async def test_counters_and_a_lost_device(backend: AmdBackend, control: Control) -> None:
    ears = Ears(backend)
    control.says(ecc={"1": 1}, lost=[3])
    await backend.look()
    assert ("gpu-1", "ecc-dbe") in ears.codes
    assert "gpu-3" not in backend.present()
    assert {d for d, _ in ears.codes} == {"gpu-1", "gpu-3"}


async def test_it_is_not_cut(backend: AmdBackend) -> None:
    with pytest.raises(Refusal, match="MigNotSupported"):
        await backend.apply_slices("gpu-0", ["1g.10gb"])
