"""Who has a device: the node's own word first, then what the scheduler chose."""

import msgspec
import pytest

from remuda.api.devices import Holding, NodeDevices, QuarantineOrder
from remuda.api.kubernetes.core_v1 import Pod
from remuda.core.health.device_holders import DeviceCounts, DeviceHolder, device_health_counts, device_holders_on
from remuda.core.health.ledger import health_verdicts_with_holders, judge_node
from tests.builders.gangs import NodeBuilder, a_held_pod, a_node

GPU = "nvidia.com/gpu"


def reporting(*holdings: Holding, node: NodeBuilder | None = None) -> NodeDevices:
    devices = (node or a_node()).devices()
    return msgspec.structs.replace(devices, observed=msgspec.structs.replace(devices.observed, holdings=list(holdings)))


def a_holding(pod: str, *devices: str, container: str = "main", uid: str | None = None) -> Holding:
    return Holding(f"default/{pod}", container, GPU, list(devices), f"uid-{pod}" if uid is None else uid)


def test_the_node_is_believed_about_which_devices_and_which_container() -> None:
    node = reporting(a_holding("a", "gpu-5"), a_holding("a", "gpu-6", container="watcher"))
    pods = [a_held_pod("a", "node-01", ["gpu-0", "gpu-1"])]
    assert device_holders_on(node, pods) == {
        "gpu-5": [DeviceHolder("default/a", "uid-a", "main")],
        "gpu-6": [DeviceHolder("default/a", "uid-a", "watcher")],
    }


def test_until_it_has_told_the_annotation_counts() -> None:
    assert device_holders_on(a_node().devices(), [a_held_pod("a", "node-01", ["gpu-0"])]) == {
        "gpu-0": [DeviceHolder("default/a", "uid-a")]
    }


@pytest.mark.parametrize(
    ("pods", "draining"),
    [
        pytest.param([a_held_pod("a", "node-01")], False, id="running"),
        pytest.param([a_held_pod("a", "node-01", deleting_at=900.0)], True, id="deleted"),
        pytest.param([a_held_pod("a", "node-01", phase="Failed")], True, id="ended"),
        pytest.param([], True, id="gone from the API"),
        pytest.param([a_held_pod("a", "node-02")], True, id="another pod of that name elsewhere"),
    ],
)
def test_a_holder_on_its_way_out_drains(pods: list[Pod], draining: bool) -> None:
    node = reporting(a_holding("a", "gpu-0"))
    [row] = [r for r in health_verdicts_with_holders([node], pods) if r.device == "gpu-0"]
    assert (row.holder, row.container, row.draining) == ("default/a", "main", draining)


def test_a_holding_without_a_uid_is_its_pods_by_name() -> None:
    """podresources has no uids; somebody else's plugin handed it out."""
    node = reporting(a_holding("a", "gpu-0", uid=""))
    assert device_holders_on(node, [a_held_pod("a", "node-01", ["gpu-7"])]) == {
        "gpu-0": [DeviceHolder("default/a", "uid-a", "main")]
    }


def test_counts() -> None:
    node = a_node().signal("gpu-0", "xid-79").signal("gpu-1", "xid-79").devices()
    pods = [a_held_pod("a", "node-01", ["gpu-0", "gpu-2"])]
    node = msgspec.structs.replace(
        node, verdicts=judge_node(node, pods, 1000.0), quarantine={"gpu-3": QuarantineOrder("Operator")}
    )
    assert device_health_counts(node, pods) == {GPU: DeviceCounts(total=8, healthy=5, unfit=3, held=2, free=4)}


def test_everything_held_and_bad_leaves_nothing_and_not_less() -> None:
    builder = a_node()
    for number in range(8):
        builder = builder.signal(f"gpu-{number}", "xid-79")
    node, pods = builder.devices(), [a_held_pod("a", "node-01", [f"gpu-{n}" for n in range(8)])]
    node = msgspec.structs.replace(node, verdicts=judge_node(node, pods, 1000.0))
    assert device_health_counts(node, pods)[GPU] == DeviceCounts(total=8, healthy=0, unfit=8, held=8, free=0)
