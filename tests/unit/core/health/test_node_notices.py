"""A lost plugin is told apart from failed devices, and held down before anything is made of it."""

import msgspec
import pytest

from remuda.api.devices import NodeDevices, Notice, PluginReport, Signal
from remuda.api.kubernetes.core_v1 import Node, Pod
from remuda.api.meta import to_time
from remuda.core.health.ledger import judge_node
from remuda.core.health.node_notices import is_node_notice_held_down, judge_node_notices, notice_hold_ends_at
from remuda.core.health.timers import HealthTimers
from tests.builders.gangs import NodeBuilder, a_held_pod, a_node

TIMERS = HealthTimers(hold_down_s=60.0)
NOW = 1000.0


def offering(node: NodeBuilder, allocatable: int | None) -> Node:
    status = {} if allocatable is None else {"nvidia.com/gpu": str(allocatable)}
    found = node.node()
    return msgspec.structs.replace(found, status=msgspec.structs.replace(found.status, allocatable=status))


def judged(node: NodeBuilder, allocatable: int | None, *pods: Pod, now: float = NOW) -> list[Notice]:
    return judge_node_notices(node.devices(), offering(node, allocatable), pods, now, TIMERS)


def test_a_node_that_offers_its_devices_has_no_notice() -> None:
    assert judged(a_node(), 8) == []


def test_nothing_offered_while_devices_are_healthy_is_the_plugin() -> None:
    node = a_node()
    pods = [a_held_pod("a", node.name, ["gpu-0"]), a_held_pod("b", node.name, ["gpu-1"])]
    [notice] = judged(node, 0, *pods)
    assert (notice.reason, notice.resource) == ("PluginLost", "nvidia.com/gpu")
    assert "None of its 8 devices failed; 2 held by default/a, default/b" in notice.message


@pytest.mark.parametrize("allocatable", [None, 7])
def test_never_published_or_partly_offered_is_not(allocatable: int | None) -> None:
    assert judged(a_node(), allocatable) == []


def test_all_devices_failed_is_not() -> None:
    node = a_node()
    for number in range(8):
        node = node.signal(f"gpu-{number}", "xid-79")
    devices = node.devices()
    failed = msgspec.structs.replace(devices, verdicts=judge_node(devices, [], NOW))
    assert judge_node_notices(failed, offering(node, 0), [], NOW, TIMERS) == []


def test_the_agent_may_say_it_first() -> None:
    devices = a_node().devices()
    report = PluginReport("nvidia.com/gpu", "Lost", since=to_time(900), message="The kubelet closed the stream.")
    lost = msgspec.structs.replace(devices, observed=msgspec.structs.replace(devices.observed, plugins=[report]))
    [notice] = judge_node_notices(lost, offering(a_node(), 8), [], NOW, TIMERS)
    assert notice.since == to_time(900)
    assert notice.message.endswith("The kubelet closed the stream.")


def test_it_is_held_down_from_when_it_was_first_seen() -> None:
    [first] = judged(a_node(), 0)
    assert is_node_notice_held_down(first, NOW + 59)
    assert not is_node_notice_held_down(first, NOW + 60)
    carried: NodeDevices = msgspec.structs.replace(a_node().devices(), notices=[first])
    assert notice_hold_ends_at(carried, NOW) == NOW + 60
    assert judge_node_notices(carried, offering(a_node(), 0), [], NOW + 30, TIMERS) == [first]  # no write
    assert judge_node_notices(carried, offering(a_node(), 8), [], NOW + 30, TIMERS) == []


def test_signals_of_the_node_are_notices() -> None:
    devices = a_node().devices()
    signal = Signal("presence", "devices-missing", "7 of 8 devices: gpu-3 is missing.", to_time(5))
    short = msgspec.structs.replace(devices, observed=msgspec.structs.replace(devices.observed, signals=[signal]))
    [notice] = judge_node_notices(short, offering(a_node(), 7), [], NOW, TIMERS)
    assert (notice.reason, notice.since, notice.holding_until) == ("DevicesMissing", to_time(5), None)


# --- devices a plugin does not list ---------------------------------------------------------------------------------------


def listing(node: NodeBuilder, **capacity: int) -> Node:
    amounts = {name.replace("_", "/").replace("DOT", "."): str(count) for name, count in capacity.items()}
    found = node.node()
    return msgspec.structs.replace(
        found, status=msgspec.structs.replace(found.status, capacity=amounts, allocatable=amounts)
    )


@pytest.mark.parametrize(("capacity", "reasons"), [(8, []), (7, ["DevicesNotListed"]), (24, [])])
def test_fewer_listed_than_there_are(capacity: int, reasons: list[str]) -> None:
    """More are shares of the same devices."""
    node = a_node()
    pods = [a_held_pod("a", node.name, ["gpu-0"])]
    found = judge_node_notices(node.devices(), listing(node, nvidiaDOTcom_gpu=capacity), pods, NOW, TIMERS)
    assert [n.reason for n in found] == reasons
    assert all("held by default/a" in n.message and is_node_notice_held_down(n, NOW) for n in found)


def test_what_is_known_to_be_broken_is_not_missed_twice() -> None:
    node = a_node().signal("gpu-0", "xid-79")
    devices = node.devices()
    devices = msgspec.structs.replace(devices, verdicts=judge_node(devices, [], NOW))
    assert judge_node_notices(devices, listing(node, nvidiaDOTcom_gpu=7), [], NOW, TIMERS) == []


def test_a_silent_agent_is_told_at_once() -> None:
    [notice] = judge_node_notices(a_node().devices(), offering(a_node(), 8), [], NOW, TIMERS, silent_since=900.0)
    assert (notice.reason, notice.since, notice.holding_until) == ("AgentSilent", to_time(900.0), None)
