"""The ledger: what signals add up to, who holds what, and that nothing is counted."""

import msgspec
import pytest

from remuda.api.devices import DeviceState
from remuda.api.meta import to_time
from remuda.core.health.device_holders import device_holders_on
from remuda.core.health.ledger import health_verdicts_with_holders, judge_node, verdicts_summary
from tests.builders.gangs import NodeBuilder, a_held_pod, a_node

NOW = 1000.0


def state_of(node: NodeBuilder, device: str = "gpu-0") -> tuple[DeviceState, str]:
    verdict = next(v for v in judge_node(node.devices(), [], NOW) if v.device == device)
    return verdict.state, verdict.reason


@pytest.mark.parametrize(
    ("node", "expected"),
    [
        (a_node(), (DeviceState.HEALTHY, "")),
        (a_node().signal("gpu-0", "xid-79"), (DeviceState.UNHEALTHY, "Xid79")),
        (a_node().signal("gpu-0", "xid-13"), (DeviceState.HEALTHY, "")),
        (a_node().signal("gpu-0", "xid-79").signal("gpu-0", "xid-13"), (DeviceState.UNHEALTHY, "Xid79")),
        (a_node().signal("gpu-0", "xid-92"), (DeviceState.DEGRADED, "Xid92")),
        (a_node().signal("gpu-0", "xid-79").signal("gpu-0", "xid-92"), (DeviceState.UNHEALTHY, "Xid79")),
        (a_node().signal("gpu-0", "xid-48").signal("gpu-0", "xid-79"), (DeviceState.UNHEALTHY, "Xid79")),
        (a_node().signal("gpu-0", "xid-79").signal("gpu-0", "probe-passed"), (DeviceState.HEALTHY, "")),
        (a_node().signal("gpu-0", "probe-passed").signal("gpu-0", "xid-79"), (DeviceState.UNHEALTHY, "Xid79")),
        (a_node().signal("gpu-0", "xid-79").quarantined("gpu-0"), (DeviceState.QUARANTINED, "Suspect")),
        (a_node().signal("gpu-0", "xid-99999"), (DeviceState.UNHEALTHY, "UnknownFaultCode")),
        (a_node().quarantined("gpu-0", "MemberNotStopped"), (DeviceState.QUARANTINED, "MemberNotStopped")),
        (a_node().signal("gpu-1", "xid-79"), (DeviceState.HEALTHY, "")),
    ],
)
def test_verdict(node: NodeBuilder, expected: tuple[DeviceState, str]) -> None:
    assert state_of(node) == expected


def test_the_verdict_counts_from_the_signal() -> None:
    node = a_node().signal("gpu-0", "xid-79", at=900.0)
    assert judge_node(node.devices(), [], NOW)[0].since == to_time(900.0)


def test_a_signal_from_the_future_counts_from_now() -> None:
    node = a_node().signal("gpu-0", "xid-79", at=NOW + 500)
    assert judge_node(node.devices(), [], NOW)[0].since == to_time(NOW)


def test_a_worse_verdict_counts_from_its_own_signal() -> None:
    node = a_node().signal("gpu-0", "xid-92", at=100.0)
    first = judge_node(node.devices(), [], 200.0)
    worse = msgspec.structs.replace(node.signal("gpu-0", "xid-79", at=300.0).devices(), verdicts=first)
    verdict = judge_node(worse, [], 400.0)[0]
    assert (verdict.reason, verdict.since, verdict.source) == ("Xid79", to_time(300.0), "kmsg/xid-79")


def test_a_device_that_was_never_judged_is_unknown_to_people() -> None:
    assert {r.state for r in health_verdicts_with_holders([a_node().never_judged().devices()], [])} == {
        DeviceState.UNKNOWN
    }


def test_judging_again_changes_nothing() -> None:
    node = a_node().signal("gpu-0", "xid-79").devices()
    once = judge_node(node, [], NOW)
    again = judge_node(msgspec.structs.replace(node, verdicts=once), [], NOW + 50)
    assert again == once


def test_a_pod_holds_until_it_is_gone() -> None:
    running = a_held_pod("a", "node-01", ["gpu-0"])
    ending = a_held_pod("b", "node-01", ["gpu-1"], deleting_at=NOW)
    done = a_held_pod("c", "node-01", ["gpu-2"], phase="Failed")
    table = {r.device: r for r in health_verdicts_with_holders([a_node().devices()], [running, ending, done])}
    assert [table[f"gpu-{i}"].holder for i in range(3)] == ["default/a", "default/b", ""]
    assert [table[f"gpu-{i}"].draining for i in range(3)] == [False, True, False]


def test_two_holders_are_both_seen() -> None:
    pods = [a_held_pod("a", "node-01", ["gpu-0"]), a_held_pod("b", "node-01", ["gpu-0"])]
    assert len(device_holders_on(a_node().devices(), pods)["gpu-0"]) == 2


@pytest.mark.parametrize(
    ("node", "words"),
    [
        (a_node(), "8 of 8 healthy"),
        (a_node().signal("gpu-3", "xid-79"), "7 of 8 healthy; gpu-3 Unhealthy (Xid79)"),
        (
            a_node().signal("gpu-0", "xid-92").signal("gpu-3", "xid-79").quarantined("gpu-5"),
            "5 of 8 healthy; gpu-5 Quarantined (Suspect) and 2 more",
        ),
    ],
)
def test_a_node_in_a_few_words(node: NodeBuilder, words: str) -> None:
    assert verdicts_summary(judge_node(node.devices(), [], NOW)) == words
