"""PCI devices from a tree of files shaped like /sys."""

from __future__ import annotations

import shutil
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from remuda.agent.hardware.counters import CounterLimits
from remuda.agent.hardware.sysfs import SysfsBackend, SysfsConfig, nearest_nics
from remuda.api.errors import Refusal
from tests.unit.agent.hardware.rig import Clock, Ears


class Tree:
    """Devices live at their place below a root port; bus/pci/devices has links to them, as the kernel makes it."""

    def __init__(self, root: Path) -> None:
        self.root = root
        (root / "bus/pci/devices").mkdir(parents=True)

    def port(self, path: str, **files: str) -> Path:
        place = self.root / "devices" / path
        place.mkdir(parents=True, exist_ok=True)
        for name, text in files.items():
            (place / name).write_text(f"{text}\n", encoding="ascii")
        return place

    def device(self, path: str, *, driver: str = "nvidia", **files: str) -> Path:
        place = self.port(path, **files)
        (self.root / "bus/pci/devices" / place.name).symlink_to(place)
        (place / "config").write_bytes(bytes.fromhex("de103023") + bytes(60))
        if driver:
            (self.root / "bus/pci/drivers" / driver).mkdir(parents=True, exist_ok=True)
            (place / "driver").symlink_to(self.root / "bus/pci/drivers" / driver)
        return place

    def gpu(self, path: str, vendor: str = "0x10de", **files: str) -> Path:
        facts = {
            "vendor": vendor,
            "device": "0x2330",
            "class": "0x030200",
            "numa_node": "1",
            "current_link_width": "16",
            "max_link_width": "16",
            "current_link_speed": "32.0 GT/s PCIe",
            "max_link_speed": "32.0 GT/s PCIe",
        }
        return self.device(path, **{**facts, **files})


@pytest.fixture
def tree(tmp_path: Path) -> Tree:
    return Tree(tmp_path / "sys")


@pytest.fixture
async def backend(tree: Tree, tmp_path: Path, clock: Clock) -> AsyncIterator[SysfsBackend]:
    config = SysfsConfig(
        "node-01", ids=tmp_path / "ids.json", poll_s=3600, limits=CounterLimits(hold_s=0), boot="b", expected=2
    )
    made = SysfsBackend(config, clock, tree.root)
    yield made
    await made.close()


async def test_accelerators_by_vendor_and_class(tree: Tree, backend: SysfsBackend) -> None:
    tree.gpu("pci0000:00/0000:00:01.0/0000:1b:00.0")
    tree.gpu(
        "pci0000:80/0000:80:01.0/0000:c1:00.0",
        vendor="0x1002",
        device="0x74a1",
        **{"class": "0x120000", "unique_id": "abc123", "mem_info_vram_total": "205822885888"},
    )
    tree.gpu("pci0000:00/0000:00:02.0/0000:03:00.0", vendor="0x1a03")  # the board's own display
    tree.gpu("pci0000:00/0000:00:03.0/0000:04:00.0", **{"class": "0x068000"})  # an NVSwitch
    await backend.open()
    rows = backend.inventory()
    assert [(r.id, r.pci, r.resource) for r in rows] == [
        ("gpu-0", "0000:1b:00.0", "nvidia.com/gpu"),
        ("gpu-1", "0000:c1:00.0", "amd.com/gpu"),
    ]
    assert (rows[0].type, rows[0].numa, rows[0].uuid) == ("10de-2330", 1, "")
    assert (rows[1].type, rows[1].memory_bytes, rows[1].uuid) == ("1002-74a1", 205822885888, "GPU-abc123")
    assert backend.present() == {"gpu-0", "gpu-1"}


async def test_rows_4_and_13_what_is_not_there_is_named(tree: Tree, backend: SysfsBackend) -> None:
    place = tree.gpu("pci0000:00/0000:00:01.0/0000:1b:00.0")
    await backend.open()
    ears = Ears(backend)
    assert ears.codes == [("", "devices-missing")]
    assert "1 of 2" in ears.message("", "devices-missing")
    (tree.root / "bus/pci/devices/0000:1b:00.0").unlink()
    shutil.rmtree(place)
    await backend.look()
    assert ("gpu-0", "device-missing") in ears.codes
    assert "PCI 0000:1b:00.0" in ears.message("", "devices-missing")
    assert [r.id for r in backend.inventory()] == ["gpu-0"]
    assert not backend.present()
    assert not (await backend.probe("gpu-0")).passed


async def test_link_width_and_aer(tree: Tree, backend: SysfsBackend) -> None:
    place = tree.gpu("pci0000:00/0000:00:01.0/0000:1b:00.0", aer_dev_fatal="Undefined 0\nDLP 0\nTOTAL_ERR_FATAL 0")
    tree.gpu("pci0000:00/0000:00:02.0/0000:2b:00.0")
    tree.port("pci0000:00/0000:00:02.0", max_link_width="8", max_link_speed="16.0 GT/s PCIe")
    (tree.root / "devices/pci0000:00/0000:00:02.0/0000:2b:00.0/current_link_width").write_text("8\n", encoding="ascii")
    await backend.open()
    ears = Ears(backend)
    assert ears.codes == [], "eight lanes are all the slot has"
    (place / "current_link_width").write_text("4\n", encoding="ascii")
    (place / "aer_dev_fatal").write_text("Undefined 0\nDLP 2\nTOTAL_ERR_FATAL 2\n", encoding="ascii")
    await backend.look()
    assert sorted(ears.codes) == [("gpu-0", "pcie-degraded"), ("gpu-0", "pcie-errors")]
    counters = backend.counters("gpu-1")
    assert counters is not None
    assert (counters.pcie_width_max, counters.pcie_speed_max) == (8, 16.0)


async def test_amdgpu_ras_counters(tree: Tree, backend: SysfsBackend) -> None:
    place = tree.gpu("pci0000:00/0000:00:01.0/0000:1b:00.0", vendor="0x1002")
    (place / "ras").mkdir()
    (place / "ras/umc_err_count").write_text("ue: 0\nce: 4\n", encoding="ascii")
    (place / "ras/gfx_err_count").write_text("ue: 0\nce: 1\n", encoding="ascii")
    await backend.open()
    ears = Ears(backend)
    (place / "ras/umc_err_count").write_text("ue: 1\nce: 4\n", encoding="ascii")
    await backend.look()
    assert ("gpu-0", "ecc-dbe") in ears.codes
    counters = backend.counters("gpu-0")
    assert counters is not None
    assert counters.ecc_corrected == 5


async def test_a_device_without_a_driver_is_unknown(tree: Tree, backend: SysfsBackend) -> None:
    tree.gpu("pci0000:00/0000:00:01.0/0000:1b:00.0", driver="")
    await backend.open()
    assert ("gpu-0", "no-report") in Ears(backend).codes


async def test_a_probe_sees_whether_the_bus_answers(tree: Tree, backend: SysfsBackend) -> None:
    place = tree.gpu("pci0000:00/0000:00:01.0/0000:1b:00.0")
    await backend.open()
    assert (await backend.probe("gpu-0")).passed
    (place / "config").write_bytes(b"\xff" * 64)
    assert not (await backend.probe("gpu-0")).passed
    with pytest.raises(Refusal, match="MigNotSupported"):
        await backend.apply_slices("gpu-0", ["1g.10gb"])
    with pytest.raises(Refusal, match="UnknownDevice"):
        await backend.probe("gpu-1")


def test_the_nearest_nic_shares_most_of_the_path(tree: Tree) -> None:
    tree.gpu("pci0000:00/0000:00:01.0/0000:10:00.0/0000:11:00.0")
    tree.gpu("pci0000:80/0000:80:01.0/0000:90:00.0")
    tree.gpu("pci0000:c0/0000:c0:01.0/0000:d0:00.0")
    near = tree.device("pci0000:00/0000:00:01.0/0000:10:00.0/0000:12:00.0", **{"class": "0x020700"})
    (near / "infiniband/mlx5_0").mkdir(parents=True)
    (near / "net/ib0").mkdir(parents=True)
    other = tree.device("pci0000:80/0000:80:02.0/0000:91:00.0", **{"class": "0x020000"})
    (other / "net/eth0").mkdir(parents=True)
    found = nearest_nics(tree.root, ["0000:11:00.0", "0000:90:00.0", "0000:d0:00.0"])
    assert found == {"0000:11:00.0": "mlx5_0", "0000:90:00.0": "eth0"}
