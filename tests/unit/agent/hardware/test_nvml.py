"""The NVML path end to end: driver process, a libnvidia-ml.so.1 compiled here, eight devices that break on command."""

from __future__ import annotations

import os
import signal
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest

from remuda.agent.hardware.counters import CounterLimits
from remuda.agent.hardware.hardware_backend import HardwareConfig
from remuda.agent.hardware.vendor_backends import NvmlBackend
from remuda.api.errors import Refusal
from remuda.core.devices.machine_models import load_built_in_machine_model
from tests.unit.agent.hardware.rig import Clock, Ears, Library

Make = Callable[..., Awaitable[NvmlBackend]]


@pytest.fixture
async def make(tmp_path: Path, library: Library, clock: Clock, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Make]:
    library.cut_hangs_short(monkeypatch)
    opened: list[NvmlBackend] = []

    async def make(*, model: str = "dgx-h100", poll_s: float = 3600.0) -> NvmlBackend:
        config = HardwareConfig(
            "node-01",
            load_built_in_machine_model(model) if model else None,
            tmp_path / "ids.json",
            poll_s=poll_s,
            limits=CounterLimits(hold_s=0.0),
            boot="boot-1",
        )
        backend = NvmlBackend(config, clock, environment=library.environment, root=tmp_path)
        opened.append(backend)
        await backend.open()
        return backend

    yield make
    for backend in opened:
        await backend.close()


async def test_inventory(make: Make) -> None:
    backend = await make()
    rows = backend.inventory()
    assert [r.id for r in rows] == [f"gpu-{n}" for n in range(8)]
    third = rows[3]
    assert (third.type, third.memory_bytes, third.numa) == ("NVIDIA-H100-80GB-HBM3", 85520809984, 0)
    assert (third.uuid, third.pci) == ("GPU-00000000-0000-0000-0000-000000000003", "0000:51:00.0")
    assert {r.resource for r in rows} == {"nvidia.com/gpu"}
    assert backend.present() == {r.id for r in rows}
    nvlink = next(link for link in backend.links() if link.kind == "nv18")
    assert nvlink.among == [r.id for r in rows]
    assert ["gpu-0", "gpu-1"] in [link.among for link in backend.links() if link.kind == "PIX"]
    facts = backend.facts()
    assert (facts.driver, facts.cuda, facts.compute, facts.family) == ("570.124.06", "12.8", "9.0", "hopper")
    assert facts.mig_capable
    assert backend.device_files("gpu-3")[0] == "/dev/nvidia3"
    counters = backend.counters("gpu-3")
    assert counters is not None
    assert (counters.temperature, counters.pcie_width, len(counters.links or {})) == (41, 16, 18)


async def test_row_51_one_lost_device_leaves_seven(make: Make, library: Library) -> None:
    backend = await make()
    ears = Ears(backend)
    library.says("lost 3")
    await backend.look()
    assert ("gpu-3", "nvml-lost") in ears.codes
    assert {device for device, _ in ears.codes} == {"gpu-3"}
    assert backend.present() == {f"gpu-{n}" for n in range(8) if n != 3}
    await backend.look()
    assert ("", "devices-missing") in ears.codes
    assert "7 of 8" in ears.message("", "devices-missing")
    assert "GPU-00000000-0000-0000-0000-000000000003" in ears.message("", "devices-missing")
    for n in (0, 7):
        assert backend.counters(f"gpu-{n}") is not None
    assert [r.id for r in backend.inventory()] == [f"gpu-{n}" for n in range(8)]
    assert backend.child.starts == 1


async def test_a_hanging_call_is_a_signal_and_the_others_are_served(make: Make, library: Library, clock: Clock) -> None:
    backend = await make()
    ears = Ears(backend)
    library.says("hang 5 nvmlDeviceGetTemperature", "ecc 6 0 1")
    await backend.look()
    assert ("gpu-5", "driver-hang") in ears.codes
    assert ("", "driver-hang") in ears.codes
    assert "gpu-5" in ears.message("", "driver-hang")
    assert ("gpu-6", "ecc-dbe") in ears.codes, "the device after the hanging one was asked"
    assert {device for device, _ in ears.codes} == {"", "gpu-5", "gpu-6"}
    assert backend.child.starts == 2
    # While it is put aside nobody waits for it.
    await backend.look()
    assert backend.child.starts == 2
    # It is asked again later, and answers.
    library.says()
    clock.now += 3600
    ears.forget()
    await backend.look()
    assert ("gpu-5", "driver-back") in ears.all_codes
    assert ("", "driver-back") in ears.all_codes


async def test_a_driver_that_hangs_for_the_node_makes_every_device_unknown(make: Make, library: Library) -> None:
    backend = await make()
    ears = Ears(backend)
    library.says("hang -1 nvmlDeviceGetCount_v2")
    await backend.look()
    assert {d for d, code in ears.codes if code == "driver-hang"} == {"", *(f"gpu-{n}" for n in range(8))}
    library.says()
    ears.forget()
    await backend.look()
    assert ("", "driver-back") in ears.all_codes
    assert {d for d, code in ears.all_codes if code == "driver-back" and d} == {f"gpu-{n}" for n in range(8)}


async def test_a_killed_driver_process_is_started_again(make: Make, library: Library) -> None:
    backend = await make()
    ears = Ears(backend)
    first = backend.child.pid
    assert first is not None
    os.kill(first, signal.SIGKILL)
    await backend.look()  # may hit the dying process
    await backend.look()
    assert backend.child.pid not in (None, first)
    assert backend.present() == {f"gpu-{n}" for n in range(8)}
    # Events are listened to again.
    library.says("xid 1 2 79")
    await ears.until(lambda: ("gpu-2", "xid-79") in ears.codes)


async def test_a_call_that_ends_the_process_is_not_waited_for(make: Make, library: Library) -> None:
    backend = await make()
    ears = Ears(backend)
    library.says("crash 4 nvmlDeviceGetTemperature")
    await backend.look()
    assert ("gpu-4", "driver-hang") in ears.codes
    assert "ended the process" in ears.message("gpu-4", "driver-hang")
    assert backend.counters("gpu-7") is not None


async def test_an_xid_event_comes_unasked(make: Make, library: Library) -> None:
    library.says("xid 1 6 48")  # before anybody listened
    backend = await make()
    ears = Ears(backend)
    library.says("xid 1 6 48", "xid 2 2 79", "xid 3 0 13")
    await ears.until(lambda: len(ears.codes) == 2)
    assert ears.codes == [("gpu-2", "xid-79"), ("gpu-0", "xid-13")]
    assert {s.source for _, s in ears.heard} == {"nvml"}


@pytest.mark.parametrize(
    ("line", "code"),
    [
        ("ecc 1 0 1", "ecc-dbe"),
        ("ecc 1 5000 0", "ecc-sbe-rate"),
        ("remap 1 1 0", "row-remap-pending"),
        ("remap 1 0 1", "row-remap-failed"),
        ("throttle 1 0x40", "thermal"),
        ("throttle 1 0x80", "power-brake"),
        ("pcie 1 8 5", "pcie-degraded"),
        ("power 1 400000", "power-cap"),
        ("recovery 1 1", "recovery-reset"),
        ("linkdown 1 4", "nvlink-down"),
        ("linkerrors 1 900", "nvlink-errors"),
    ],
)
async def test_counters_become_signals_of_their_device_only(make: Make, library: Library, line: str, code: str) -> None:
    backend = await make()
    ears = Ears(backend)
    await backend.look()
    assert ears.codes == []
    library.says(line)
    await backend.look()
    await backend.look()
    assert ears.codes == [("gpu-1", code)]


async def test_slices_are_made_and_unmade(make: Make, library: Library, tmp_path: Path) -> None:
    backend = await make()
    ears = Ears(backend)
    first = await backend.apply_slices("gpu-2", ["3g.40gb", "3g.40gb"])
    assert [(s.profile, s.start, s.resource) for s in first] == [
        ("3g.40gb", 0, "nvidia.com/mig-3g.40gb"),
        ("3g.40gb", 4, "nvidia.com/mig-3g.40gb"),
    ]
    assert len({s.uuid for s in first}) == 2
    rows = {r.id: r for r in backend.inventory()}
    assert rows["gpu-2"].resource == ""
    assert [r.parent for r in rows.values()].count("gpu-2") == 2
    assert ears.inventories == 1
    second = await backend.apply_slices("gpu-2", ["1g.10gb"] * 3 + ["4g.40gb"])
    assert [s.profile for s in second].count("1g.10gb") == 3
    assert not {s.uuid for s in first} & {s.uuid for s in second}, "a slice made anew is another one"
    # Another process finds them, as another driver process would.
    backend.child._fail()
    backend._seen_closer = None
    backend.hardware.raw, backend.hardware.cut = {}, {}
    await backend.look()
    assert [r.uuid for r in backend.inventory() if r.parent] == [s.uuid for s in second]
    assert list(await backend.apply_slices("gpu-2", [])) == []
    assert {r.resource for r in backend.inventory()} == {"nvidia.com/gpu"}


async def test_an_event_of_a_slice_is_the_slices(make: Make, library: Library) -> None:
    """Row 54: one partition's failure leaves its siblings alone."""
    backend = await make()
    slices = await backend.apply_slices("gpu-0", ["3g.40gb", "3g.40gb"])
    ears = Ears(backend)
    gi = backend.hardware.cut[0][1]["gi"]
    library.says(f"xid 1 0 94 {gi}")
    await ears.until(lambda: bool(ears.codes))
    assert ears.codes == [(slices[1].id, "xid-94")]


async def test_slices_that_cannot_be(make: Make, library: Library) -> None:
    backend = await make()
    kept = await backend.apply_slices("gpu-1", ["7g.80gb"])
    with pytest.raises(Refusal, match="UnknownMigProfile"):
        await backend.apply_slices("gpu-1", ["3g.30gb"])
    with pytest.raises(Refusal, match="IllegalMigLayout"):
        await backend.apply_slices("gpu-1", ["4g.40gb", "4g.40gb"])
    library.says("process 1 4242 1073741824")
    with pytest.raises(Refusal, match="DeviceBusy"):
        await backend.apply_slices("gpu-1", ["3g.40gb"])
    assert [r.uuid for r in backend.inventory() if r.parent] == [s.uuid for s in kept]
    with pytest.raises(Refusal, match="UnknownDevice"):
        await backend.apply_slices("gpu-9", [])


async def test_row_52_leftovers_are_reported_until_they_are_gone(make: Make, library: Library) -> None:
    backend = await make()
    ears = Ears(backend)
    library.says("process 3 4242 1073741824")
    assert not await backend.check_clean("gpu-3")
    assert ears.codes == [("gpu-3", "leftover-processes")]
    assert "pid 4242 with 1024 MiB" in ears.message("gpu-3", "leftover-processes")
    await backend.look()
    library.says()
    await backend.look()  # nobody has to ask again
    assert ears.all_codes[-1] == ("gpu-3", "device-clean") or ("gpu-3", "device-clean") in ears.all_codes
    assert await backend.check_clean("gpu-3")


async def test_row_52_a_slice_is_clean_while_its_sibling_works(make: Make, library: Library) -> None:
    backend = await make()
    first, second = await backend.apply_slices("gpu-3", ["3g.40gb", "3g.40gb"])
    gi = backend.hardware.cut[3][0]["gi"]
    ears = Ears(backend)
    library.says(f"process 3 4242 1048576 {gi}")
    assert await backend.check_clean(second.id)
    assert not await backend.check_clean(first.id)
    assert ears.codes == [(first.id, "leftover-processes")]


async def test_a_probe_asks_the_device(make: Make, library: Library) -> None:
    backend = await make()
    ears = Ears(backend)
    assert (await backend.probe("gpu-0")).passed
    library.says("recovery 0 1")
    assert "reset" in (await backend.probe("gpu-0")).message
    library.says("hang 0 nvmlDeviceGetTemperature")
    result = await backend.probe("gpu-0")
    assert not result.passed
    assert "did not return" in result.message
    assert [code for _, code in ears.codes] == ["probe-passed", "probe-failed", "probe-failed"]


async def test_a_hung_device_that_passes_its_probe_is_asked_again_at_once(make: Make, library: Library) -> None:
    backend = await make()
    ears = Ears(backend)
    library.says("hang 2 nvmlDeviceGetTemperature")
    await backend.look()
    library.says("ecc 2 0 1")
    assert (await backend.probe("gpu-2")).passed
    assert ("gpu-2", "driver-back") in ears.all_codes
    await backend.look()
    assert ("gpu-2", "ecc-dbe") in ears.codes


async def test_ids_stay_with_their_devices(make: Make, library: Library) -> None:
    """The driver's numbers shift when a device is gone; ids do not."""
    before = {r.id: r.uuid for r in (await make()).inventory()}
    library.says("gone 2")
    backend = await make()
    ears = Ears(backend)  # what holds is told again
    assert {r.id: r.uuid for r in backend.inventory()} == before
    assert backend.present() == before.keys() - {"gpu-2"}
    assert ("gpu-2", "device-missing") in ears.codes
    library.says("uuid 2 11111111-0000-0000-0000-000000000000")
    backend = await make()
    after = {r.id: r.uuid for r in backend.inventory()}
    assert after == {**before, "gpu-2": "GPU-11111111-0000-0000-0000-000000000000"}
    assert backend.present() == before.keys()


async def test_row_13_a_first_boot_with_seven_of_eight(make: Make, library: Library) -> None:
    library.says("gone 5")
    backend = await make()
    ears = Ears(backend)
    assert ears.codes == [("", "devices-missing")]
    assert "7 of 8 devices are there; missing: 1 never seen" in ears.message("", "devices-missing")


async def test_a_device_that_hangs_from_the_start_costs_only_itself(make: Make, library: Library) -> None:
    library.says("hang 5 nvmlDeviceGetUUID")
    backend = await make()
    ears = Ears(backend)
    assert len(backend.present()) == 7
    assert {code for device, code in ears.codes if not device} == {"driver-hang", "devices-missing"}


async def test_two_sick_devices_in_a_row_cost_only_themselves(make: Make, library: Library) -> None:
    library.says("hang 4 nvmlDeviceGetUUID", "hang 5 nvmlDeviceGetUUID")
    backend = await make()
    assert [r.pci for r in backend.inventory()] == [
        f"0000:{0x1B + 0x12 * n:02x}:00.0" for n in range(8) if n not in (4, 5)
    ]


async def test_row_54_a_lost_device_keeps_the_rows_of_its_slices(make: Make, library: Library) -> None:
    """Somebody holds them: they are as bad as their device, not gone."""
    backend = await make()
    slices = await backend.apply_slices("gpu-3", ["3g.40gb", "3g.40gb"])
    library.says("lost 3")
    await backend.look()
    await backend.look()
    rows = {row.id: row for row in backend.inventory()}
    assert rows["gpu-3"].resource == ""
    assert {s.id for s in slices} <= rows.keys()
    assert not {s.id for s in slices} & backend.present()
    library.says()
    await backend.look()
    assert {s.id for s in slices} <= backend.present()


async def test_wiring_that_cannot_be_asked_now_is_asked_later(make: Make, library: Library, clock: Clock) -> None:
    library.says("hang 1 nvmlDeviceGetTopologyCommonAncestor")
    backend = await make()
    assert [link.kind for link in backend.links()] == ["nv18"]
    assert len(backend.present()) == 8
    library.says()
    await backend.look()
    assert len(backend.links()) == 1, "not at once: a hang costs a deadline"
    clock.now += 3600
    await backend.look()
    assert "PIX" in [link.kind for link in backend.links()]


async def test_real_devices_cannot_be_told_to_fail(make: Make) -> None:
    with pytest.raises(Refusal, match="RealHardware"):
        (await make()).inject("gpu-0", "xid-79")


async def test_row_48_it_is_known_when_each_device_last_answered(make: Make, library: Library, clock: Clock) -> None:
    backend = await make()
    begun = clock.now
    assert {backend.last_heard(f"gpu-{n}") for n in range(8)} == {begun}
    library.says("lost 3")
    clock.now += 100.0
    await backend.look()
    assert backend.last_heard("gpu-3") == begun
    assert backend.last_heard("gpu-0") == begun + 100.0
    assert backend.last_heard("gpu-99") is None
