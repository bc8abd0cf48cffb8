"""The picture a placement is decided on: what is free, who tolerates what, and the what-ifs."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from remuda.api.codec import from_wire
from remuda.api.devices import DeviceState, NodeDevices
from remuda.api.kubernetes.core_v1 import Pod, Taint, Toleration
from remuda.api.meta import ObjectMeta
from remuda.core.scheduling.placement_request import placement_ask_of_pod
from remuda.core.state.snapshot import build_snapshot, snapshot_devices_of_pod, tolerates_taints
from tests.builders.gangs import RACK, NodeBuilder, a_held_pod, a_node, a_snapshot, racks

TAINT = Taint("gpu", "NoSchedule", "h100")


@pytest.mark.parametrize(
    ("toleration", "is_enough"),
    [
        (Toleration("gpu", "Equal", "h100", "NoSchedule"), True),
        (Toleration("gpu", "", "h100", "NoSchedule"), True),  # Equal is the default
        (Toleration("gpu", "Equal", "h100"), True),  # no effect = every effect
        (Toleration("gpu", "Exists"), True),
        (Toleration("", "Exists"), True),  # tolerates everything
        (Toleration("gpu", "Equal", "a100"), False),
        (Toleration("tpu", "Exists"), False),
        (Toleration("gpu", "Exists", effect="NoExecute"), False),
        (Toleration("", "", "h100"), False),
    ],
)
def test_toleration(toleration: Toleration, is_enough: bool) -> None:
    assert tolerates_taints([toleration], [TAINT]) is is_enough


def test_every_taint_needs_a_toleration() -> None:
    one, both = [Toleration("gpu", "Exists")], [Toleration("gpu", "Exists"), Toleration("spot", "Exists")]
    taints = [TAINT, Taint("spot", "NoExecute")]
    assert not tolerates_taints(one, taints)
    assert tolerates_taints(both, taints)
    assert tolerates_taints([], [])


@pytest.mark.parametrize(
    ("node", "why"),
    [
        (a_node(), ""),
        (a_node().cordoned(), "cordoned"),
        (a_node().not_ready(), "not ready"),
        (a_node().not_ready("Unknown"), "not ready"),
        (a_node().cordoned().not_ready(), "not ready"),
    ],
)
def test_why_a_node_is_closed(node: NodeBuilder, why: str) -> None:
    assert a_snapshot([node]).nodes[0].closed == why


def test_devices_that_an_agent_has_yet_to_name_are_not_offered() -> None:
    """Its kubelet counts them already. A pod that were placed by the number would have devices that nobody knows."""
    offer = {"nvidia.com/gpu": "8", "cpu": "4"}
    node = replace(a_node().node(), status=replace(a_node().node().status, allocatable=offer, capacity=offer))
    made = [NodeDevices(metadata=ObjectMeta(name=node.name))]
    for ledgers in ([], made):
        found = build_snapshot([node], ledgers, [], unreported=frozenset({node.name})).nodes[0]
        assert (found.offered["nvidia.com/gpu"], found.offered["cpu"]) == (0, 4000)
    counted = build_snapshot([node], [], []).nodes[0]
    assert counted.offered["nvidia.com/gpu"] == 8, "without an agent the node's own word is all there is"


def test_a_pod_whose_devices_nobody_has_named_may_have_any_of_them() -> None:
    """It was bound by the number, before the agent had named the devices; which it has, its node says later."""
    asks = {"resources": {"limits": {"nvidia.com/gpu": "2"}}}
    wire = {
        "metadata": {"name": "early", "uid": "uid-early"},
        "spec": {"nodeName": "node-01", "containers": [{"name": "main", **asks}]},
        "status": {"phase": "Running"},
    }
    pod = from_wire(Pod, wire)
    assert a_snapshot([a_node()], [pod]).free == (0,)
    assert a_snapshot([a_node()], [a_held_pod("idle", "node-01")]).free != (0,), "one that asks for none has none"


def test_a_dead_node_is_dead_whatever_it_says() -> None:
    assert a_snapshot([a_node()], dead=frozenset({"node-01"})).nodes[0].closed == "dead"


def test_a_taint_that_only_asks_keeps_nobody_away() -> None:
    assert a_snapshot([a_node().tainted("x", effect="PreferNoSchedule")]).nodes[0].taints == ()


def test_what_a_gang_could_have_if_it_let_go() -> None:
    node = a_node().device("gpu-1", DeviceState.UNHEALTHY)
    pod = a_held_pod("p", "node-01", ["gpu-0", "gpu-1"])
    snapshot = a_snapshot([node], [pod])
    after = snapshot.releasing([("node-01", snapshot_devices_of_pod(pod), {}), ("node-99", ("gpu-0",), {})])
    assert snapshot.free == (0b11111100,)
    assert after.free == (0b11111101,), "a broken device does not become free by being given back"


def test_the_picture_without_a_domain() -> None:
    snapshot = a_snapshot([*racks(2, 1), a_node("unlabelled")])
    assert [n.name for n in snapshot.outside(RACK, "rack-1").nodes] == ["node-03", "unlabelled"]
    assert snapshot.outside("", "").nodes == ()


def test_domains() -> None:
    snapshot = a_snapshot([*racks(1, 2), a_node("unlabelled")])
    assert snapshot.domains(RACK) == {"rack-1": [0], "rack-2": [1, 2]}
    assert snapshot.domains("") == {"": [0, 1, 2, 3]}
    assert snapshot.domain_of("node-02", RACK) == "rack-2"
    assert (snapshot.domain_of("unlabelled", RACK), snapshot.domain_of("nowhere", RACK)) == ("", "")
    assert snapshot.domain_of("node-02", "") == ""


def test_which_devices_may_be_used() -> None:
    snapshot = a_snapshot([a_node().quarantined("gpu-2")])
    assert snapshot.is_usable("node-01", "gpu-1")
    assert not snapshot.is_usable("node-01", "gpu-2")
    assert not snapshot.is_usable("node-01", "gpu-9")
    assert not snapshot.is_usable("node-99", "gpu-1")


def test_nodes_are_in_name_order() -> None:
    assert [n.name for n in a_snapshot([a_node("b"), a_node("a")]).nodes] == ["a", "b"]


def test_what_a_pod_asks_for() -> None:
    limits = {"resources": {"limits": {"nvidia.com/gpu": "2"}, "requests": {"nvidia.com/gpu": 2}}}
    spec = {
        "containers": [{"name": "a", **limits}, {"name": "b", "resources": {"requests": {"nvidia.com/gpu": 1}}}],
        "nodeSelector": {"z": "1", "a": "2"},
        "tolerations": [{"key": "gpu", "operator": "Exists"}],
    }
    ask = placement_ask_of_pod(from_wire(Pod, {"metadata": {"name": "p", "namespace": "n", "uid": "u"}, "spec": spec}))
    assert (ask.namespace, ask.name, ask.uid, ask.gpus) == ("n", "p", "u", 3)
    assert ask.node_selector == (("a", "2"), ("z", "1"))
    assert ask.tolerations == (Toleration("gpu", "Exists"),)
