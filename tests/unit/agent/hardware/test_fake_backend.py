"""The fake backend: a machine model that breaks on command, and says it as real hardware would."""

from __future__ import annotations

from collections import Counter

import pytest

from remuda.agent.hardware.fake_backend import FakeBackend
from remuda.api.errors import Refusal
from remuda.core.devices.machine_models import load_built_in_machine_model
from tests.unit.agent.hardware.rig import Clock, Ears


@pytest.fixture
def backend(clock: Clock) -> FakeBackend:
    return FakeBackend(load_built_in_machine_model("dgx-h100"), "node-01", clock)


async def test_uuids_and_addresses_follow_from_node_and_index(backend: FakeBackend, clock: Clock) -> None:
    again = FakeBackend(load_built_in_machine_model("dgx-h100"), "node-01", clock)
    other = FakeBackend(load_built_in_machine_model("dgx-h100"), "node-02", clock)
    assert [(d.uuid, d.pci) for d in backend.inventory()] == [(d.uuid, d.pci) for d in again.inventory()]
    assert not {d.uuid for d in backend.inventory()} & {d.uuid for d in other.inventory()}
    assert len({d.pci for d in backend.inventory()}) == 8
    assert backend.boot == again.boot != other.boot
    assert [len(link.among) for link in backend.links()] == [8]


async def test_row_13_it_can_boot_with_seven_of_eight(clock: Clock) -> None:
    backend = FakeBackend(load_built_in_machine_model("dgx-h100"), "node-01", clock, missing=[5])
    ears = Ears(backend)
    assert sorted(ears.codes) == [("", "devices-missing"), ("gpu-5", "device-missing")]
    assert "gpu-5" in ears.message("", "devices-missing")
    assert len(backend.inventory()) == 8
    assert backend.present() == {f"gpu-{n}" for n in range(8) if n != 5}


async def test_row_4_a_device_drops_off_the_list_and_comes_back(backend: FakeBackend) -> None:
    await backend.open()
    ears = Ears(backend)
    backend.drop("gpu-3")
    assert ears.codes == [("gpu-3", "device-missing"), ("", "devices-missing")]
    assert "gpu-3" not in backend.present()
    assert ears.inventories == 1
    ears.forget()
    backend.restore("gpu-3")
    assert ears.all_codes == [("gpu-3", "device-back"), ("", "devices-complete")]
    assert "gpu-3" in backend.present()


async def test_a_code_that_says_how_things_are_makes_them_so(backend: FakeBackend) -> None:
    ears = Ears(backend)
    backend.inject("gpu-3", "device-missing")
    assert "gpu-3" not in backend.present()
    assert "drill" in ears.message("gpu-3", "device-missing")
    backend.inject("gpu-3", "device-back")
    assert "gpu-3" in backend.present()
    backend.inject("gpu-3", "leftover-processes")
    assert not await backend.check_clean("gpu-3")
    backend.inject("gpu-3", "device-clean")
    assert await backend.check_clean("gpu-3")


async def test_conditions_are_told_to_late_listeners_and_events_are_not(backend: FakeBackend) -> None:
    backend.inject("gpu-0", "xid-79")
    backend.throttle("gpu-1", "hw-thermal")
    backend.throttle("gpu-2", "hw-thermal")
    backend.throttle("gpu-2")
    backend.hang()
    backend.hang(False)
    assert Ears(backend).codes == [("gpu-1", "thermal")]


async def test_flapping_is_told_each_time(backend: FakeBackend) -> None:
    ears = Ears(backend)
    backend.flap("gpu-2", times=3)
    assert ears.all_codes == [("gpu-2", "health-lost"), ("gpu-2", "health-back")] * 3


async def test_counters_cross_the_same_thresholds_as_real_ones(backend: FakeBackend, clock: Clock) -> None:
    ears = Ears(backend)
    backend.count_ecc("gpu-0")
    clock.now += 60
    backend.count_ecc("gpu-0", corrected=900)
    assert ears.codes == []
    clock.now += 60
    backend.count_ecc("gpu-0", corrected=200)
    assert ears.codes == [("gpu-0", "ecc-sbe-rate")]
    backend.count_ecc("gpu-0", uncorrected=1)
    assert ears.codes[-1] == ("gpu-0", "ecc-dbe")
    counters = backend.counters("gpu-0")
    assert counters is not None
    assert (counters.ecc_corrected, counters.ecc_uncorrected) == (1100, 1)


async def test_a_power_cap_is_everybodys(backend: FakeBackend) -> None:
    ears = Ears(backend)
    backend.cap_power(0.6)
    assert Counter(code for _, code in ears.codes) == {"power-cap": 8}
    backend.cap_power(1.0)
    assert Counter(code for _, code in ears.all_codes)["power-cap-over"] == 8


async def test_links_and_speed(backend: FakeBackend) -> None:
    ears = Ears(backend)
    backend.set_links("gpu-4", down=[3])
    assert ears.codes == [("gpu-4", "nvlink-down")]
    backend.set_speed("gpu-4", 0.5)
    assert (backend.speed("gpu-4"), backend.speed("gpu-5")) == (0.5, 1.0)


async def test_row_52_leftovers_withhold_a_device_until_clean(backend: FakeBackend) -> None:
    ears = Ears(backend)
    backend.leave_behind("gpu-1")
    assert ears.codes == [("gpu-1", "leftover-processes")]
    assert not await backend.check_clean("gpu-1")
    assert not (await backend.probe("gpu-1")).passed
    with pytest.raises(Refusal, match="DeviceBusy"):
        await backend.apply_slices("gpu-1", ["1g.10gb"])
    backend.clean("gpu-1")
    assert await backend.check_clean("gpu-1")
    assert ears.all_codes[-1] == ("gpu-1", "device-clean")


async def test_slices(backend: FakeBackend) -> None:
    ears = Ears(backend)
    made = await backend.apply_slices("gpu-6", ["3g.40gb", "3g.40gb"])
    assert [(s.start, s.resource, s.parent, s.numa) for s in made] == [
        (0, "nvidia.com/mig-3g.40gb", "gpu-6", 1),
        (4, "nvidia.com/mig-3g.40gb", "gpu-6", 1),
    ]
    rows = {r.id: r for r in backend.inventory()}
    assert (rows["gpu-6"].resource, rows["gpu-5"].resource) == ("", "nvidia.com/gpu")
    assert sum(s.memory_bytes for s in made) <= rows["gpu-6"].memory_bytes
    again = await backend.apply_slices("gpu-6", ["3g.40gb", "3g.40gb"])
    assert [s.id for s in again] == [s.id for s in made]
    assert not {s.uuid for s in again} & {s.uuid for s in made}
    backend.inject(made[0].id, "xid-94")
    assert ears.codes == [(made[0].id, "xid-94")]
    backend.drop("gpu-6")
    assert not {s.id for s in made} & backend.present(), "a device takes its slices with it"
    with pytest.raises(Refusal, match="UnknownMigProfile") as caught:
        await backend.apply_slices("gpu-5", ["3g.30gb"])
    assert "3g.40gb" in caught.value.fix
    with pytest.raises(Refusal, match="UnknownDevice"):
        await backend.apply_slices("gpu-6", [])  # it is not there
    with pytest.raises(Refusal, match="MigNotSupported"):
        await FakeBackend(load_built_in_machine_model("l40s-4x-pcie"), "n", Clock()).apply_slices("gpu-0", ["1g.10gb"])


async def test_a_reboot_forgets_what_a_machine_forgets(backend: FakeBackend) -> None:
    ears = Ears(backend)
    before = backend.boot
    await backend.apply_slices("gpu-0", ["7g.80gb"])
    backend.leave_behind("gpu-1")
    backend.count_ecc("gpu-2", uncorrected=1)
    backend.hang()
    backend.drop("gpu-6")
    backend.inject("gpu-7", "device-missing", "replace")
    backend.replace("gpu-3")
    replaced = next(d.uuid for d in backend.inventory() if d.id == "gpu-3")
    ears.forget()
    backend.reboot()
    assert backend.boot != before
    assert not [d for d in backend.inventory() if d.parent]
    assert backend.counters("gpu-2") is None
    assert await backend.check_clean("gpu-1")
    assert ("", "driver-back") in ears.all_codes
    assert "gpu-6" in backend.present()
    assert "gpu-7" not in backend.present()
    assert next(d.uuid for d in backend.inventory() if d.id == "gpu-3") == replaced


async def test_a_replacement_is_another_device_in_the_same_place(backend: FakeBackend) -> None:
    backend.throttle("gpu-3", "hw-thermal")
    old = next(d for d in backend.inventory() if d.id == "gpu-3")
    others = [d for d in backend.inventory() if d.id != "gpu-3"]
    backend.drop("gpu-3")
    backend.replace("gpu-3")
    new = next(d for d in backend.inventory() if d.id == "gpu-3")
    assert (new.pci, new.uuid == old.uuid) == (old.pci, False)
    assert [d for d in backend.inventory() if d.id != "gpu-3"] == others
    assert Ears(backend).codes == [], "nothing of the old one holds"


async def test_probes(backend: FakeBackend) -> None:
    ears = Ears(backend)
    assert (await backend.probe("gpu-0")).passed
    backend.drop("gpu-0")
    assert not (await backend.probe("gpu-0")).passed
    backend.set_links("gpu-1", down=[0])
    assert "nvlink-down" in (await backend.probe("gpu-1")).message
    backend.hang()
    assert "driver" in (await backend.probe("gpu-2")).message
    probes = [s for _, s in ears.heard if s.source == "probe"]
    assert [s.code for s in probes] == ["probe-passed", *["probe-failed"] * 3]


async def test_other_sources_report_through_it(backend: FakeBackend) -> None:
    ears = Ears(backend)
    row = backend.inventory()[2]
    [piece] = await backend.apply_slices("gpu-4", ["1g.10gb"])
    assert (backend.device_at(row.uuid), backend.device_at(row.pci)) == ("gpu-2", "gpu-2")
    assert (backend.device_at(piece.uuid), backend.device_at(piece.pci)) == (piece.id, "gpu-4")
    assert backend.device_at("GPU-nobody") == backend.device_at("") == ""
    ears.forget()
    backend.report("gpu-2", "dcgm", "xid-79", "words", at=1_600_000_000.0)
    [(device, signal)] = ears.heard
    assert (device, signal.source, signal.message) == ("gpu-2", "dcgm", "words")
    assert signal.time is not None
    assert signal.time.year == 2020
