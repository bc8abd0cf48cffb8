"""Debounce, flaps and what takes a signal back."""

import msgspec
import pytest

from remuda.api.devices import DeviceState, NodeDevices, Observed, ObservedDevice, QuarantineOrder, Signal
from remuda.api.meta import ObjectMeta, to_time
from remuda.core.health.ledger import judge_node
from remuda.core.health.signal_fusion import classify_device_signals, health_signal_debounce_ends_at
from remuda.core.health.signals import MAX_FLAPS, with_signal
from remuda.core.health.timers import HealthTimers, health_quarantine_for_flapping

TIMERS = HealthTimers(debounce_s=5.0, flap_window_s=100.0, flap_limit=2)
GPU = ObservedDevice(id="gpu-0", type="H100")


def heard(device: ObservedDevice, *story: tuple[float, str]) -> ObservedDevice:
    for at, code in story:
        device = with_signal(device, Signal("nvml", code, time=to_time(at)))
    return device


def node_of(*devices: ObservedDevice, **parts: object) -> NodeDevices:
    node = NodeDevices(metadata=ObjectMeta(name="n1"), observed=Observed(devices=list(devices)))
    return msgspec.structs.replace(node, **parts)


def verdict_of(device: ObservedDevice, now: float) -> tuple[DeviceState, str]:
    [verdict] = judge_node(node_of(device), [], now, TIMERS)
    return verdict.state, verdict.reason


@pytest.mark.parametrize(
    ("story", "now", "expected"),
    [
        ([(100, "health-lost")], 102, (DeviceState.UNKNOWN, "HealthLost")),  # nobody is evicted, nothing new is placed
        ([(100, "health-lost")], 105, (DeviceState.UNHEALTHY, "HealthLost")),
        ([(100, "health-lost"), (103, "health-back")], 104, (DeviceState.HEALTHY, "")),
        ([(100, "health-lost"), (104, "health-lost")], 105, (DeviceState.UNHEALTHY, "HealthLost")),  # it never went
        ([(100, "xid-79")], 100, (DeviceState.UNHEALTHY, "Xid79")),  # not a code that comes and goes
        ([(100, "xid-79"), (101, "health-back")], 102, (DeviceState.UNHEALTHY, "Xid79")),  # takes back its own only
        ([(100, "no-report")], 101, (DeviceState.UNKNOWN, "NoReport")),
        ([(100, "no-report"), (101, "report-resumed")], 102, (DeviceState.HEALTHY, "")),
        ([(100, "device-missing"), (130, "device-back")], 131, (DeviceState.HEALTHY, "")),
    ],
)
def test_debounce(story: list[tuple[float, str]], now: float, expected: tuple[DeviceState, str]) -> None:
    assert verdict_of(heard(GPU, *story), now) == expected


def test_a_look_is_due_when_the_debounce_ends() -> None:
    node = node_of(heard(GPU, (100, "health-lost")))
    assert health_signal_debounce_ends_at(node, classify_device_signals(node), 101, TIMERS) == pytest.approx(105)
    assert health_signal_debounce_ends_at(node, classify_device_signals(node), 105, TIMERS) is None


def test_flaps_are_counted_by_the_fault_that_went() -> None:
    device = heard(GPU, (1, "health-lost"), (2, "health-back"), (3, "health-back"), (4, "report-resumed"))
    assert device.flaps == [to_time(2)]
    assert heard(device, (5, "probe-passed")).flaps == []


def test_flaps_are_bounded() -> None:
    story = [(10.0 * n + (5 if code == "health-back" else 0), code) for n in range(40) for code in LOST_AND_BACK]
    assert len(heard(GPU, *story).flaps) == MAX_FLAPS


LOST_AND_BACK = ("health-lost", "health-back")


def test_too_many_flaps_within_the_window_are_an_order() -> None:
    flaps = [to_time(t) for t in (10, 20, 30)]
    device = msgspec.structs.replace(GPU, flaps=flaps)
    assert health_quarantine_for_flapping(node_of(device), 31, TIMERS)["gpu-0"].reason == "DeviceFlapping"
    assert health_quarantine_for_flapping(node_of(device), 111, TIMERS) == {}  # the first is out of the window
    ordered = node_of(device, quarantine={"gpu-0": QuarantineOrder("Suspect")})
    assert health_quarantine_for_flapping(ordered, 31, TIMERS) == {}


def test_a_slice_is_as_bad_as_its_device_and_not_the_other_way_round() -> None:
    parent = msgspec.structs.replace(GPU, resource="")
    slices = [ObservedDevice(id=f"gpu-0-mig-{n}", type="mig", parent="gpu-0") for n in range(2)]
    states = [v.state for v in judge_node(node_of(heard(parent, (1, "xid-79")), *slices), [], 2, TIMERS)]
    assert states == [DeviceState.UNHEALTHY] * 3
    states = [v.state for v in judge_node(node_of(parent, heard(slices[0], (1, "xid-79")), slices[1]), [], 2, TIMERS)]
    assert states == [DeviceState.HEALTHY, DeviceState.UNHEALTHY, DeviceState.HEALTHY]


def test_evidence_of_health_counts_again_after_another_fault_however_soon() -> None:
    device = heard(GPU, (1, "probe-passed"), (2, "xid-79"), (3, "probe-passed"))
    assert [s.code for s in device.signals] == ["probe-passed"]
    assert heard(device, (4, "probe-passed")) is device
