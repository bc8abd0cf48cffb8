"""Silence of a device, held against its limit."""

import pytest

from remuda.agent.hardware.signal_intake import SilenceWatch
from remuda.api.devices import ObservedDevice, Signal
from remuda.api.meta import to_time

SILENT = Signal("agent", "no-report", "", to_time(130))


def codes(watch: SilenceWatch, row: ObservedDevice, heard: float | None, now: float) -> list[str]:
    return [signal.code for _, signal in watch.look([row], lambda device: heard, now)]


@pytest.mark.parametrize(
    ("signals", "heard", "now", "said"),
    [
        pytest.param([], 100.0, 130.0, [], id="heard of in time"),
        pytest.param([], 100.0, 131.0, ["no-report"], id="too long ago"),
        pytest.param([SILENT], 100.0, 200.0, [], id="said already"),
        pytest.param([SILENT], 199.0, 200.0, ["report-resumed"], id="again"),
        pytest.param([], None, 1e9, [], id="nobody keeps track"),
        pytest.param([Signal("sysfs", "no-report", "")], 199.0, 200.0, [], id="what another source said is its own"),
    ],
)
def test_look(signals: list[Signal], heard: float | None, now: float, said: list[str]) -> None:
    row = ObservedDevice("gpu-0", "H100", signals=signals)
    assert codes(SilenceWatch(30.0, {}), row, heard, now) == said


def test_limits_of_single_devices_and_their_slices() -> None:
    watch = SilenceWatch(30.0, {"gpu-1": 5.0, "gpu-2": 0.0})
    rows = [ObservedDevice(f"gpu-{n}", "H100") for n in range(3)]
    rows += [ObservedDevice("gpu-1-1g.10gb-0", "H100", parent="gpu-1")]
    assert [device for device, _ in watch.look(rows, lambda d: 100.0, 110.0)] == ["gpu-1", "gpu-1-1g.10gb-0"]
    assert [device for device, _ in watch.look(rows, lambda d: 100.0, 1e6)] == ["gpu-0", "gpu-1", "gpu-1-1g.10gb-0"]
    assert watch.look_s == 5.0 / 3


def test_no_limit_at_all_never_looks() -> None:
    assert SilenceWatch(0.0, {}).look_s is None
