"""News from the stream until the API has it."""

import random

import pytest

from remuda.api.devices import NodeDevices, Observed, ObservedDevice, Signal
from remuda.api.meta import ObjectMeta, to_time
from remuda.api.remedies import Offender
from remuda.core.devices.fault_codes import fault_table
from remuda.core.health.findings import find_findings
from remuda.core.health.ledger import judge_devices
from remuda.core.health.signal_fusion import classify_device_signals
from remuda.core.health.signals import classify_signal, with_signal
from remuda.core.health.streamed_signals import (
    FORGET_S,
    MAX_DEVICES,
    MAX_PER_DEVICE,
    StreamedSignals,
    can_change_verdict,
)


def a_node(*devices: ObservedDevice) -> NodeDevices:
    found = list(devices) or [ObservedDevice("gpu-0", "H100"), ObservedDevice("gpu-1", "H100")]
    return NodeDevices(metadata=ObjectMeta(name="n1"), observed=Observed(devices=found))


def xid(code: str = "xid-79", at: float = 10.0) -> Signal:
    return Signal("kmsg", code, time=to_time(at))


def codes(node: NodeDevices) -> list[list[str]]:
    return [[s.code for s in d.signals] for d in node.observed.devices]


def test_nothing_heard_changes_nothing() -> None:
    node = a_node()
    assert StreamedSignals().merged(node, 10.0) is node


def test_heard_is_as_good_as_written() -> None:
    overlay = StreamedSignals()
    overlay.hear("n1", "gpu-1", xid(), 10.0)
    overlay.hear("n2", "gpu-0", xid(), 10.0)
    overlay.hear("n1", "gpu-99", xid(), 10.0)  # a device nobody has reported is nobody's
    assert codes(overlay.merged(a_node(), 10.1)) == [[], ["xid-79"]]


def test_it_leaves_once_the_record_has_it() -> None:
    overlay = StreamedSignals()
    overlay.hear("n1", "gpu-0", xid(), 10.0)
    written = a_node(with_signal(ObservedDevice("gpu-0", "H100"), xid()))
    assert overlay.merged(written, 10.2) is written
    cleared = a_node(with_signal(written.observed.devices[0], Signal("probe", "probe-passed", time=to_time(11))))
    assert overlay.merged(cleared, 11.0) is cleared  # what was known once does not come back


def test_it_leaves_with_age() -> None:
    overlay = StreamedSignals()
    overlay.hear("n1", "gpu-0", xid(), 10.0)
    assert codes(overlay.merged(a_node(), 10.0 + FORGET_S - 1))[0] == ["xid-79"]
    assert codes(overlay.merged(a_node(), 10.0 + FORGET_S))[0] == []


def test_what_takes_back_follows_what_it_takes_back() -> None:
    overlay = StreamedSignals()
    overlay.hear("n1", "gpu-0", xid("health-lost", 10), 10.0)
    overlay.hear("n1", "gpu-0", xid("health-back", 11), 11.0)
    assert codes(overlay.merged(a_node(), 11.0))[0] == []


def test_a_flood_is_bounded() -> None:
    overlay = StreamedSignals()
    for number in range(10 * MAX_PER_DEVICE):
        overlay.hear("n1", "gpu-0", xid(f"xid-{number}", number), float(number))
    held = overlay._heard["n1"]["gpu-0"]
    assert len(held) == MAX_PER_DEVICE
    assert held[-1][1].signal.code == f"xid-{10 * MAX_PER_DEVICE - 1}"


def test_noise_does_not_push_out_a_fault() -> None:
    overlay = StreamedSignals()
    overlay.hear("n1", "gpu-0", xid("xid-79", 10), 10.0)
    for number in range(20 * MAX_PER_DEVICE):
        at = 10 + number / 40
        overlay.hear("n1", "gpu-0", xid(("xid-13", "xid-31")[number % 2], at), at)
    assert sorted(codes(overlay.merged(a_node(), 26.0))[0]) == ["xid-79"]
    assert len(overlay._heard["n1"]["gpu-0"]) == 1


@pytest.mark.parametrize(
    ("code", "asks"),
    [
        ("xid-79", True),  # out of use
        ("xid-63", True),  # remembered for a trend
        ("health-lost", True),
        ("health-back", True),  # takes back
        ("probe-passed", True),  # evidence of health
        ("never-heard-of", True),
        ("xid-13", False),  # of an application
        ("xid-31", False),
    ],
)
def test_only_what_may_change_a_verdict_asks_for_a_look(code: str, asks: bool) -> None:
    assert StreamedSignals().hear("n1", "gpu-0", xid(code, 10), 10.0) is asks


def test_every_code_that_asks_for_no_look_changes_no_verdict() -> None:
    harmless = [code for code in fault_table().by_code if not can_change_verdict(classify_signal(xid(code)))]
    assert len(harmless) > 5
    for code in harmless:
        for known in ([], [xid("xid-79", 5)], [xid("health-lost", 9)]):
            before = a_node(ObservedDevice("gpu-0", "H100", signals=known))
            after = a_node(with_signal(before.observed.devices[0], xid(code, 10)))
            assert judge_devices(after, 11.0) == judge_devices(before, 11.0), code
            histories = [
                find_findings(n, classify_device_signals(n), {}, 11.0, Offender()).history for n in (before, after)
            ]
            assert histories[0] == histories[1], code


def test_what_is_said_on_and_on_does_not_leave_with_age() -> None:
    overlay = StreamedSignals()
    for at in range(10, 10 + 3 * int(FORGET_S), 2):
        overlay.hear("n1", "gpu-0", xid("health-lost", at), float(at))
    (held,) = overlay.merged(a_node(), 10 + 3 * FORGET_S).observed.devices[0].signals
    assert held == xid("health-lost", 10)  # a later time would start its debounce anew


@pytest.mark.parametrize("seed", range(20))
def test_what_is_held_says_the_same_as_all_that_was_heard(seed: int) -> None:
    print(f"seed {seed}")
    chance = random.Random(seed)
    overlay, told = StreamedSignals(), ObservedDevice("gpu-0", "H100")
    at = 10.0
    for _ in range(MAX_PER_DEVICE):
        at += chance.choice((0.1, 0.9, 1.5))
        signal = xid(chance.choice(("xid-79", "xid-13", "health-lost", "health-back", "probe-passed")), at)
        overlay.hear("n1", "gpu-0", signal, at)
        if can_change_verdict(classify_signal(signal)):
            told = with_signal(told, signal)
        held = overlay.merged(a_node(), at).observed.devices[0]
        assert (held.signals, held.flaps) == (told.signals, told.flaps)


def test_a_stream_out_of_order_says_the_same() -> None:
    overlay = StreamedSignals()
    for at, code in ((12.0, "health-back"), (10.0, "health-lost"), (10.0, "health-lost")):
        overlay.hear("n1", "gpu-0", xid(code, at), 13.0)
    assert codes(overlay.merged(a_node(), 13.0))[0] == []


def test_an_old_cure_takes_back_no_newer_fault_of_the_record() -> None:
    overlay = StreamedSignals()
    written = a_node(ObservedDevice("gpu-0", "H100", signals=[xid("xid-79", 20)]))
    overlay.hear("n1", "gpu-0", xid("probe-passed", 15), 21.0)
    assert "xid-79" in codes(overlay.merged(written, 21.0))[0]
    overlay.hear("n1", "gpu-0", xid("probe-passed", 22), 23.0)
    assert codes(overlay.merged(written, 23.0))[0] == ["probe-passed"]


def test_what_is_old_when_it_is_heard_is_left_to_the_record() -> None:
    overlay = StreamedSignals()
    overlay.hear("n1", "gpu-0", xid("health-lost", 10), 10 + FORGET_S + 1)
    assert codes(overlay.merged(a_node(), 10 + FORGET_S + 1))[0] == []


def test_a_time_ahead_of_the_managers_clock_is_now() -> None:
    overlay = StreamedSignals()
    overlay.hear("n1", "gpu-0", xid("xid-79", 10_000), 20.0)
    [signal] = overlay.merged(a_node(), 20.0).observed.devices[0].signals
    assert signal.time == to_time(20)


def test_names_that_no_device_has_do_not_pile_up() -> None:
    overlay = StreamedSignals()
    for number in range(20 * MAX_DEVICES):
        overlay.hear("n1", f"made-up-{number}", xid(at=10.0), 10.0)
    assert len(overlay._heard["n1"]) == MAX_DEVICES
    overlay.hear("n1", "gpu-0", xid(at=11.0), 11.0)
    assert codes(overlay.merged(a_node(), 11.0)) == [["xid-79"], []]


def test_a_hundred_thousand_signals_of_one_device_are_one_fact() -> None:
    """Duplicated, out of order and replayed: bounded, and the verdict is the same."""
    overlay, chance = StreamedSignals(), random.Random(7)
    for _ in range(100_000):
        overlay.hear(
            "n1", "gpu-0", xid(chance.choice(["xid-79", "xid-48", "no-such-code"]), chance.uniform(5, 10)), 10.0
        )
    assert len(overlay._heard["n1"]["gpu-0"]) <= MAX_PER_DEVICE
    assert set(codes(overlay.merged(a_node(), 10.0))[0]) >= {"xid-79", "xid-48"}
