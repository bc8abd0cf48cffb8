"""Counters before and after, and what they say."""

from __future__ import annotations

from typing import Any

import pytest

from remuda.agent.hardware.counters import (
    TAKEN_BACK_BY,
    CounterLimits,
    Counters,
    KnownCounters,
    LinkReading,
    throttle_words,
    update_hardware_counters,
)
from remuda.core.devices.fault_codes import fault_table

NOW = 1_700_000_000.0
LIMITS = CounterLimits(hold_s=30.0, window_s=3600.0, ecc_corrected=100, link_errors=10, pcie_replays=50)


class Device:
    """Readings one after the other; remembers what was known."""

    def __init__(self) -> None:
        self.known = KnownCounters()
        self.now = NOW

    def reads(self, after_s: float = 5.0, **fields: Any) -> list[str]:
        self.now += after_s
        self.known, findings = update_hardware_counters(self.known, self.now, Counters(**fields), LIMITS)
        return [f.code for f in findings]

    def settled(self, **fields: Any) -> Device:
        self.reads(**fields)
        return self


def test_every_code_is_in_the_fault_table_and_taken_back_by_its_partner() -> None:
    table = fault_table().by_code
    assert {"ecc-dbe", "row-remap-failed", "pcie-errors"} <= table.keys()
    for code, back in TAKEN_BACK_BY.items():
        assert code in table[back].retracts


def test_a_healthy_device_says_so_once_and_then_nothing() -> None:
    device = Device()
    fields: dict[str, Any] = {
        "ecc_uncorrected": 0,
        "throttle": [],
        "remap_pending": False,
        "pcie_width": 16,
        "pcie_width_max": 16,
    }
    first = device.reads(**fields)
    assert sorted(first) == ["pcie-restored", "power-brake-over", "row-remap-done", "thermal-over"]
    assert device.reads(**fields) == []


def test_an_uncorrectable_error_is_told_each_time_it_is_counted() -> None:
    device = Device()
    assert device.reads(ecc_uncorrected=0) == []
    assert device.reads(ecc_uncorrected=1) == ["ecc-dbe"]
    assert device.reads(ecc_uncorrected=1) == []
    assert device.reads(ecc_uncorrected=3) == ["ecc-dbe"]


def test_errors_of_this_driver_load_are_told_at_the_first_look() -> None:
    assert Device().reads(ecc_uncorrected=2) == ["ecc-dbe"]
    assert Device().reads(ecc_uncorrected_total=2) == []  # of the device's life: nobody knows when


def test_a_count_that_falls_is_a_reload_not_an_event() -> None:
    device = Device().settled(ecc_uncorrected=5, pcie_errors=7)
    assert device.reads(ecc_uncorrected=0, pcie_errors=0) == []
    assert device.reads(ecc_uncorrected=1, pcie_errors=1) == ["ecc-dbe", "pcie-errors"]


def test_a_blip_of_heat_says_nothing_and_lasting_heat_says_it_once() -> None:
    device = Device().settled(throttle=[])
    assert device.reads(throttle=["hw-thermal"]) == []
    assert device.reads(throttle=[]) == []
    assert device.reads(throttle=["hw-thermal"]) == []
    assert device.reads(29.0, throttle=["sw-thermal"]) == []
    assert device.reads(1.0, throttle=["hw-thermal"]) == ["thermal"]
    assert device.reads(100.0, throttle=["hw-thermal"]) == []
    assert device.reads(throttle=[]) == []
    assert device.reads(30.0, throttle=[]) == ["thermal-over"]


def test_what_cannot_be_read_changes_nothing() -> None:
    device = Device().settled(remap_pending=True)
    assert device.reads() == []
    assert device.reads(remap_pending=False) == ["row-remap-done"]


def test_spare_rows_that_ran_out_are_told_once_and_never_taken_back() -> None:
    device = Device()
    assert device.reads(remap_failed=True) == ["row-remap-failed"]
    assert device.reads(remap_failed=True) == []
    assert device.reads(remap_failed=False) == []


def test_a_link_that_was_never_up_is_not_down() -> None:
    device = Device()
    up, dead = LinkReading(True), LinkReading(False)
    assert device.reads(links={0: up, 1: up, 2: dead}) == ["nvlink-up"]
    assert device.reads(links={0: up, 1: dead, 2: dead}) == ["nvlink-down"]
    assert device.reads(links={0: up, 2: dead}) == []  # gone from the list is still down
    assert device.reads(links={0: up, 1: up, 2: dead}) == ["nvlink-up"]


def test_an_idle_link_may_be_slow_but_not_narrow() -> None:
    full: dict[str, Any] = {"pcie_width": 16, "pcie_width_max": 16, "pcie_speed": 5.0, "pcie_speed_max": 5.0}
    device = Device().settled(**full)
    slow = {**full, "pcie_speed": 1.0}
    assert device.reads(60.0, **slow, utilisation=0) == []
    assert device.reads(60.0, **slow, utilisation=0) == []
    assert device.reads(60.0, **slow, utilisation=90) == []
    assert device.reads(30.0, **slow, utilisation=90) == ["pcie-degraded"]
    assert device.reads(90.0, **slow, utilisation=0) == []  # an idle look proves nothing
    assert device.reads(90.0, **full, utilisation=90) == []
    assert device.reads(30.0, **full, utilisation=90) == ["pcie-restored"]
    narrow = {**full, "pcie_width": 8}
    device.reads(**narrow)
    assert device.reads(30.0, **narrow) == ["pcie-degraded"]


def test_a_power_limit_below_the_default_is_a_cap() -> None:
    device = Device().settled(power_limit_mw=700_000, power_default_mw=700_000)
    assert device.reads(power_limit_mw=500_000, power_default_mw=700_000) == ["power-cap"]
    assert device.reads(power_limit_mw=700_000, power_default_mw=700_000) == ["power-cap-over"]


def test_the_drivers_own_advice_replaces_its_last_one() -> None:
    device = Device().settled(recovery="none")
    assert device.reads(recovery="drain") == ["recovery-drain"]
    # The old one is taken back before the new one is raised: one code takes back all three.
    assert device.reads(recovery="reset") == ["recovery-none", "recovery-reset"]
    assert device.reads(recovery="none") == ["recovery-none"]


def test_correctable_errors_count_by_their_rate() -> None:
    device = Device()
    count = 1_000_000  # of years before us
    device.reads(ecc_corrected=count)
    for _ in range(12):
        count += 8
        assert device.reads(300.0, ecc_corrected=count) == []  # 96 an hour
    count += 50
    assert device.reads(10.0, ecc_corrected=count) == ["ecc-sbe-rate"]
    for _ in range(12):
        count += 6  # 72 an hour: below the limit, above half of it
        assert device.reads(300.0, ecc_corrected=count) == []
    codes = [code for _ in range(13) for code in device.reads(300.0, ecc_corrected=count)]
    assert codes == ["ecc-quiet"]


def test_a_reload_begins_a_window_anew() -> None:
    device = Device().settled(ecc_corrected=500)
    assert device.reads(ecc_corrected=0) == []
    assert device.reads(ecc_corrected=101) == ["ecc-sbe-rate"]


def test_a_window_stays_small_however_often_it_is_fed() -> None:
    device = Device()
    for n in range(5000):
        device.reads(1.0, pcie_replays=n // 100)
    assert len(device.known.windows["pcie-replays"]) <= 14


def test_a_rate_somebody_else_raised_ends_after_a_quiet_window() -> None:
    device = Device()
    codes = [code for _ in range(14) for code in device.reads(300.0, link_errors=5)]
    assert codes == ["nvlink-quiet"]


@pytest.mark.parametrize(
    ("bits", "words"),
    [(0x1, []), (0x4, []), (0x60, ["sw-thermal", "hw-thermal"]), (0x88, ["power-brake"])],
)
def test_throttle_bits(bits: int, words: list[str]) -> None:
    assert throttle_words(bits) == words
