"""The signals of a device are kept without losing any that matters."""

from __future__ import annotations

from remuda.api.devices import DeviceState, Signal
from remuda.core.devices.fault_codes import FaultClass, classify_device_fault_code
from remuda.core.health.signals import MAX_SIGNALS, add_signal, standing_faults


def worst_of(signals: list[Signal]) -> FaultClass | None:
    bad = [fault for fault in standing_faults(signals) if fault.effect is DeviceState.UNHEALTHY]
    return bad[-1] if bad else None


def kept_of(*codes: str) -> list[Signal]:
    kept: list[Signal] = []
    for code in codes:
        kept = add_signal(kept, Signal("kmsg", code))
    return kept


def codes_of(kept: list[Signal]) -> list[str]:
    return [s.code for s in kept]


def test_newest_last_and_a_repeat_moves_to_the_end() -> None:
    assert codes_of(kept_of("xid-13", "xid-79", "xid-13")) == ["xid-79", "xid-13"]


def test_noise_never_pushes_out_the_fault() -> None:
    noise = [f"xid-{n}" for n in (*range(66, 73), *range(82, 87), *range(96, 106), *range(126, 136))]
    kept = kept_of("xid-79", "xid-63", *noise)
    assert len(kept) == MAX_SIGNALS
    assert codes_of(kept)[:2] == ["xid-79", "xid-63"]
    assert codes_of(kept)[-1] == noise[-1]
    assert worst_of(kept) == classify_device_fault_code("kmsg", "xid-79")


def test_a_passed_probe_wipes_the_slate() -> None:
    kept = kept_of("xid-79", "probe-passed")
    assert codes_of(kept) == ["probe-passed"]
    assert worst_of(kept) is None
    assert worst_of(kept_of("xid-79", "probe-passed", "xid-48")) == classify_device_fault_code("kmsg", "xid-48")


def test_only_unhealthy_takes_a_device_out() -> None:
    assert worst_of([]) is None
    assert worst_of(kept_of("xid-13", "xid-63", "xid-94")) is None
    assert worst_of(kept_of("xid-79", "xid-13")) == classify_device_fault_code("kmsg", "xid-79")
