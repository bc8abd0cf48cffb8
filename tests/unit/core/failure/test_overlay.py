"""News from the stream until the API has it."""

import msgspec

from remuda.api.devices import NodeDevices, Observed, ObservedDevice, Signal
from remuda.api.meta import ObjectMeta, to_time
from remuda.core.failure.overlay import FORGET_S, MAX_PER_DEVICE, SignalOverlay
from remuda.core.failure.timers import with_signal


def a_node(*devices: ObservedDevice) -> NodeDevices:
    found = list(devices) or [ObservedDevice("gpu-0", "H100"), ObservedDevice("gpu-1", "H100")]
    return NodeDevices(metadata=ObjectMeta(name="n1"), observed=Observed(devices=found))


def xid(code: str = "xid-79", at: float = 10.0) -> Signal:
    return Signal("kmsg", code, time=to_time(at))


def codes(node: NodeDevices) -> list[list[str]]:
    return [[s.code for s in d.signals] for d in node.observed.devices]


def test_nothing_heard_changes_nothing() -> None:
    node = a_node()
    assert SignalOverlay().merged(node, 10.0) is node


def test_heard_is_as_good_as_written() -> None:
    overlay = SignalOverlay()
    overlay.hear("n1", "gpu-1", xid(), 10.0)
    overlay.hear("n2", "gpu-0", xid(), 10.0)
    overlay.hear("n1", "gpu-99", xid(), 10.0)  # a device nobody has reported is nobody's
    assert codes(overlay.merged(a_node(), 10.1)) == [[], ["xid-79"]]


def test_it_leaves_once_the_record_has_it() -> None:
    overlay = SignalOverlay()
    overlay.hear("n1", "gpu-0", xid(), 10.0)
    written = a_node(with_signal(ObservedDevice("gpu-0", "H100"), xid()))
    assert overlay.merged(written, 10.2) is written
    cleared = a_node(with_signal(written.observed.devices[0], Signal("probe", "probe-passed", time=to_time(11))))
    assert overlay.merged(cleared, 11.0) is cleared  # what was known once does not come back


def test_it_leaves_with_age() -> None:
    overlay = SignalOverlay()
    overlay.hear("n1", "gpu-0", xid(), 10.0)
    assert codes(overlay.merged(a_node(), 10.0 + FORGET_S - 1))[0] == ["xid-79"]
    assert codes(overlay.merged(a_node(), 10.0 + FORGET_S))[0] == []


def test_what_takes_back_follows_what_it_takes_back() -> None:
    overlay = SignalOverlay()
    overlay.hear("n1", "gpu-0", xid("health-lost", 10), 10.0)
    overlay.hear("n1", "gpu-0", xid("health-back", 11), 11.0)
    assert codes(overlay.merged(a_node(), 11.0))[0] == []


def test_a_flood_is_bounded() -> None:
    overlay = SignalOverlay()
    for number in range(10 * MAX_PER_DEVICE):
        overlay.hear("n1", "gpu-0", xid(f"xid-{number}", number), float(number))
    held = overlay._heard["n1"]["gpu-0"]
    assert len(held) == MAX_PER_DEVICE
    assert msgspec.structs.asdict(held[-1][1])["code"] == f"xid-{10 * MAX_PER_DEVICE - 1}"
