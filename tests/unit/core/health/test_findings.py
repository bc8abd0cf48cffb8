"""What is remembered of devices, and what follows from it: trends, repeat offenders, neighbours of a failed switch."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from remuda.api.devices import DeviceState, NodeDevices, Observed, ObservedDevice, QuarantineOrder, Signal, Verdict
from remuda.api.meta import ObjectMeta, to_time
from remuda.api.remedies import Offender
from remuda.core.health.device_history import (
    MAX_MINOR,
    device_history_with_minor_faults,
    find_fault_trends,
    is_minor_device_history_fault,
)
from remuda.core.health.findings import NodeFindings, find_findings
from remuda.core.health.ledger import judge_devices, judge_node
from remuda.core.health.signal_fusion import classify_device_signals
from remuda.core.health.signals import classify_signal, with_signal

T = 1_000_000.0
OFFENDER = Offender(incidents=2, window_seconds=1000.0)


class Device:
    """One device and its manager: hears signals, looks, remembers."""

    def __init__(self, uuid: str = "u1") -> None:
        self.record = NodeDevices(
            metadata=ObjectMeta(name="n1"), observed=Observed(devices=[ObservedDevice("gpu-0", "H100", uuid=uuid)])
        )

    def hear(self, at: float, code: str, source: str = "kmsg") -> Device:
        [row] = self.record.observed.devices
        return self.shows(with_signal(row, Signal(source, code, time=to_time(at)))).look(at + 0.5)

    def shows(self, row: ObservedDevice) -> Device:
        self.record = msgspec.structs.replace(self.record, observed=Observed(devices=[row]))
        return self

    def look(self, now: float) -> Device:
        record = self.finds(now).on(self.record)
        self.record = msgspec.structs.replace(record, verdicts=judge_node(record, [], now))
        return self

    def finds(self, now: float, suspected: Mapping[str, Signal] | None = None) -> NodeFindings:
        known = classify_device_signals(self.record)
        judged = judge_devices(self.record, now, classified=known)
        return find_findings(self.record, known, judged, now, OFFENDER, suspected)

    @property
    def verdict(self) -> Verdict:
        return self.record.verdicts[0]

    @property
    def failures(self) -> int:
        history = self.record.history.get("gpu-0")
        return len(history.failures) if history else 0


def failed_and_cured(times: int, device: Device | None = None) -> Device:
    device = device or Device()
    for number in range(times):
        device.hear(T + 100 * number, "xid-48").hear(T + 100 * number + 50, "probe-passed", "agent")
    return device


# --- repeat offender ----------------------------------------------------------------------------------------------------


def test_the_failure_that_is_too_many_makes_a_repeat_offender() -> None:
    device = failed_and_cured(2)
    assert device.verdict.state is DeviceState.HEALTHY
    device.hear(T + 300, "xid-48")
    assert (device.verdict.state, device.verdict.reason) == (DeviceState.UNHEALTHY, "RepeatOffender")
    assert "3 times" in device.verdict.message
    assert "(limit 2)" in device.verdict.message
    assert device.verdict.since == to_time(T + 300)


def test_failures_outside_the_window_are_forgiven() -> None:
    device = failed_and_cured(2).hear(T + 1200, "xid-48")
    assert device.verdict.reason == "Xid48"


def test_the_offence_outlasts_its_signals_the_window_and_new_agents() -> None:
    device = failed_and_cured(2).hear(T + 300, "xid-48")
    device.shows(ObservedDevice("gpu-0", "H100", uuid="u1")).look(T + 5000)
    assert (device.verdict.state, device.verdict.reason) == (DeviceState.UNHEALTHY, "RepeatOffender")


def test_evidence_of_health_ends_the_offence_and_the_next_failure_brings_it_back() -> None:
    device = failed_and_cured(3)
    assert device.verdict.state is DeviceState.HEALTHY
    assert device.record.findings["gpu-0"] == []
    device.hear(T + 320, "xid-48")
    assert device.verdict.reason == "RepeatOffender"


def test_another_device_in_its_place_has_no_history() -> None:
    device = failed_and_cured(2).hear(T + 300, "xid-48")
    device.shows(ObservedDevice("gpu-0", "H100", uuid="u2")).look(T + 400)
    assert device.verdict.state is DeviceState.HEALTHY
    assert device.failures == 0


def test_one_failure_is_counted_once_whatever_is_written_in_between() -> None:
    device = Device().hear(T, "xid-48").look(T + 1).look(T + 2)
    assert device.failures == 1
    order = {"gpu-0": QuarantineOrder("Suspect", since=to_time(T + 3))}
    device.record = msgspec.structs.replace(device.record, quarantine=order)
    device.look(T + 4)
    assert device.verdict.reason == "Suspect"
    device.record = msgspec.structs.replace(device.record, quarantine={})
    device.look(T + 5)
    assert device.verdict.state is DeviceState.UNHEALTHY
    assert device.failures == 1


def test_a_manager_that_lost_the_verdicts_counts_no_failure_twice() -> None:
    device = Device().hear(T, "xid-48")
    device.record = msgspec.structs.replace(device.record, verdicts=[])
    assert device.look(T + 60).failures == 1


# --- trends -------------------------------------------------------------------------------------------------------------


def test_a_threshold_crossed_again_and_again_is_a_trend_although_it_went_each_time() -> None:
    device = Device()
    for number in range(4):
        device.hear(T + 1000 * number, "ecc-sbe-rate", "nvml").hear(T + 1000 * number + 500, "ecc-quiet", "nvml")
        expected = DeviceState.DEGRADED if number == 3 else DeviceState.HEALTHY
        assert device.verdict.state is expected, number
    assert device.verdict.reason == "EccTrend"
    assert device.verdict.message == ("Within 24 h memory errors crossed their limit 4 times (limit 3; ecc-sbe-rate).")
    assert device.look(T + 86_400 + 1).verdict.state is DeviceState.HEALTHY  # the first is out of the window


def test_many_different_minor_faults_are_a_trend() -> None:
    codes = ["thermal", "xid-63", "pcie-degraded", "xid-92"]
    back = {"thermal": "thermal-over", "pcie-degraded": "pcie-restored"}
    device = Device()
    for number, code in enumerate(codes):
        device.hear(T + 100 * number, code, "nvml")
        if code in back:
            device.hear(T + 100 * number + 50, back[code], "nvml")
    assert {f.code for f in device.record.findings["gpu-0"]} == {"minor-faults"}
    assert device.verdict.state is DeviceState.DEGRADED


def test_a_repaired_device_starts_its_trend_anew() -> None:
    device = Device()
    for number in range(4):
        device.hear(T + 1000 * number, "ecc-sbe-rate", "nvml").hear(T + 1000 * number + 500, "ecc-quiet", "nvml")
    device.hear(T + 5000, "probe-passed", "agent")
    assert device.verdict.state is DeviceState.HEALTHY
    device.hear(T + 6000, "ecc-sbe-rate", "nvml").hear(T + 6500, "ecc-quiet", "nvml")
    assert device.verdict.state is DeviceState.HEALTHY


def test_what_applications_cause_is_not_remembered() -> None:
    assert not is_minor_device_history_fault(classify_signal(Signal("kmsg", "xid-13")))
    assert Device().hear(T, "xid-13").record.history == {}


def test_what_is_remembered_is_bounded_and_without_words() -> None:
    minor: list[Signal] = []
    for number in range(100):
        minor = device_history_with_minor_faults(
            minor, [classify_signal(Signal("nvml", "thermal", "At 90 degrees.", to_time(T + 100 * number)))]
        )
    assert len(minor) == MAX_MINOR
    assert not any(m.message for m in minor)


def test_a_repeat_of_the_same_crossing_is_the_same_crossing() -> None:
    once = device_history_with_minor_faults([], [classify_signal(Signal("nvml", "thermal", time=to_time(T)))])
    assert (
        device_history_with_minor_faults(once, [classify_signal(Signal("nvml", "thermal", time=to_time(T + 59)))])
        is once
    )
    assert device_history_with_minor_faults(once, [classify_signal(Signal("nvml", "thermal", time=to_time(T)))]) is once


def test_crossings_out_of_order_or_from_the_future_make_no_trend() -> None:
    minor = [Signal("nvml", "ecc-sbe-rate", time=to_time(T + 10_000 * n)) for n in range(5)]
    assert find_fault_trends(minor, T + 1) == ([], None)
    device = Device()
    for number in range(6):
        device.hear(T, "thermal", "nvml").shows(
            ObservedDevice(
                "gpu-0",
                "H100",
                signals=[Signal("nvml", "thermal", time=to_time(T + 1e6 * (number + 1)))],
            )
        ).look(T + 1)
    assert len(device.record.history["gpu-0"].minor) == 1


# --- others -------------------------------------------------------------------------------------------------------------


def test_findings_of_others_are_left_alone() -> None:
    slow = Signal("straggler", "straggler", "Rank 1 is slow.", to_time(T))
    device = Device()
    device.record = msgspec.structs.replace(device.record, findings={"gpu-0": [slow]})
    for number in range(4):
        device.hear(T + 1000 * number, "ecc-sbe-rate", "nvml").hear(T + 1000 * number + 500, "ecc-quiet", "nvml")
    assert [f.code for f in device.record.findings["gpu-0"]] == ["straggler", "ecc-trend"]


def test_a_neighbour_on_a_failed_switch_is_degraded_as_long_as_the_switch_is_suspect() -> None:
    device = Device().look(T)
    suspected = {"gpu-0": Signal("correlation", "switch-suspect", "6 of 8 devices.", to_time(T))}
    device.record = device.finds(T + 1, suspected).on(device.record)
    assert judge_node(device.record, [], T + 1)[0].reason == "SwitchSuspect"
    assert device.finds(T + 2, {}).findings == {"gpu-0": []}
