"""What a pod asks for, and what a node has left: devices per resource, counts, and what the node itself reports."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from remuda.api.codec import from_wire
from remuda.api.devices import Holding, NodeDevices, ObservedDevice, Verdict
from remuda.api.errors import Refusal
from remuda.api.kubernetes.core_v1 import Node, Pod
from remuda.core.scheduling.gang_placement import place_gang_members
from remuda.core.scheduling.placement_request import GangAsk, PodAsk, placement_ask_of_pod
from remuda.core.state.pod_requests import requests_of_pod
from remuda.core.state.snapshot import Snapshot, build_snapshot
from tests.builders.gangs import a_held_pod, a_node

MIG = "nvidia.com/mig-3g.40gb"
GPU = "nvidia.com/gpu"


def a_pod(limits: dict[str, Any], name: str = "p", node: str = "", **spec: Any) -> Pod:
    containers = [{"name": "main", "resources": {"limits": limits}}]
    body = {"containers": containers, "nodeName": node, **spec}
    return from_wire(Pod, {"metadata": {"name": name, "namespace": "default", "uid": f"uid-{name}"}, "spec": body})


def init(limits: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"name": "init", "resources": {"limits": limits}, **more}


@pytest.mark.parametrize(
    ("pod", "expected"),
    [
        (a_pod({GPU: 2, "cpu": "500m", "memory": "1Gi"}), {GPU: 2, "cpu": 500, "memory": 2**30}),
        (a_pod({GPU: 2}, initContainers=[init({GPU: 4})]), {GPU: 4}),  # it runs alone, before the others
        (a_pod({GPU: 2}, initContainers=[init({GPU: 1})]), {GPU: 2}),
        (a_pod({GPU: 2}, initContainers=[init({GPU: 1}, restartPolicy="Always")]), {GPU: 3}),  # a sidecar: beside them
        (a_pod({}), {}),
    ],
)
def test_requests(pod: Pod, expected: dict[str, int]) -> None:
    assert requests_of_pod(pod) == expected


def offering(allocatable: dict[str, Any]) -> Node:
    node = a_node().node()
    return msgspec.structs.replace(node, status=msgspec.structs.replace(node.status, allocatable=allocatable))


def sliced(*slices: str) -> NodeDevices:
    """gpu-0 is cut into slices; the other seven are whole."""
    found = a_node().devices()
    parent, *whole = found.observed.devices
    rows = [
        msgspec.structs.replace(parent, resource=""),
        *(ObservedDevice(s, "mig", resource=MIG, parent="gpu-0", profile="3g.40gb") for s in slices),
        *whole,
    ]
    verdicts = [Verdict(row.id) for row in rows]
    return msgspec.structs.replace(
        found, observed=msgspec.structs.replace(found.observed, devices=rows), verdicts=verdicts
    )


def placed(snapshot: Snapshot, pod: Pod) -> tuple[str, ...] | str:
    found = place_gang_members(snapshot, GangAsk("g", (placement_ask_of_pod(pod),)))
    return f"{found.reason}: {found.message}" if isinstance(found, Refusal) else found[0].devices


def test_slices_and_whole_devices_are_never_mixed_up() -> None:
    node = offering({GPU: 7, MIG: 2})
    snapshot = build_snapshot([node], [sliced("mig-a", "mig-b")], [])
    assert placed(snapshot, a_pod({MIG: 2})) == ("mig-a", "mig-b")
    assert placed(snapshot, a_pod({GPU: 7})) == tuple(f"gpu-{n}" for n in range(1, 8))
    assert "A pod asks for 8 GPUs; the largest node has 7." in placed(snapshot, a_pod({GPU: 8}))
    assert "Needs 1 pod of 3 nvidia.com/mig-3g.40gb; the cluster has room for 0." in placed(snapshot, a_pod({MIG: 3}))
    assert "Needs 1 pod of 1 GPU and 3 nvidia.com/mig" in placed(snapshot, a_pod({GPU: 1, MIG: 3}))
    assert placed(snapshot, a_pod({GPU: 1, MIG: 1})) == ("mig-a", "gpu-1")


def test_a_node_that_does_not_name_the_resource_is_never_chosen() -> None:
    snapshot = build_snapshot([offering({GPU: 8})], [a_node().devices()], [])
    assert placed(snapshot, a_pod({MIG: 1})) == "NoSuchResource: No node has nvidia.com/mig-3g.40gb."
    unnamed = build_snapshot([offering({})], [a_node().devices()], [])
    assert "without nvidia.com/gpu" in placed(unnamed, a_pod({GPU: 1}))


def test_a_device_shared_in_time_is_counted_and_not_chosen() -> None:
    node = offering({GPU: 16})
    shared = msgspec.structs.replace(node, status=msgspec.structs.replace(node.status, capacity={GPU: 16}))
    holders = [a_pod({GPU: 1}, name=f"h{n}", node="node-01") for n in range(15)]
    snapshot = build_snapshot([shared], [a_node().devices()], holders)
    assert placed(snapshot, a_pod({GPU: 1})) == ()  # there is room, and which share it is the plugin says
    assert "room for 0" in placed(snapshot, a_pod({GPU: 2}))
    # Half of them broken: still shared, and half as many.
    half = msgspec.structs.replace(shared, status=msgspec.structs.replace(shared.status, allocatable={GPU: 8}))
    assert placed(build_snapshot([half], [a_node().devices()], holders[:7]), a_pod({GPU: 1})) == ()
    assert "room for 0" in placed(build_snapshot([half], [a_node().devices()], holders[:8]), a_pod({GPU: 1}))


def test_a_lost_plugin_offers_nothing_however_healthy_its_devices() -> None:
    snapshot = build_snapshot([offering({GPU: 0})], [a_node().devices()], [])
    assert "room for 0 (1 node with a lost plugin for nvidia.com/gpu)." in placed(snapshot, a_pod({GPU: 1}))


def test_the_node_may_offer_less_than_the_ledger_has() -> None:
    holder = a_held_pod("h", "node-01", ["gpu-0"])
    snapshot = build_snapshot([offering({GPU: 3})], [a_node().devices()], [holder])
    assert "room for 0" in placed(snapshot, a_pod({GPU: 3}))
    assert placed(snapshot, a_pod({GPU: 2})) == ("gpu-1", "gpu-2")


@pytest.mark.parametrize(
    ("asks", "fits"),
    [({"cpu": "3"}, True), ({"cpu": "3500m"}, False), ({"memory": "9Gi"}, False), ({"rdma/hca": 1}, True)],
)
def test_what_no_row_stands_for_is_counted(asks: dict[str, Any], fits: bool) -> None:
    node = offering({GPU: 8, "cpu": "4", "memory": "8Gi", "pods": 2, "rdma/hca": 1})
    running = a_pod({"cpu": "1"}, "running", "node-01")
    snapshot = build_snapshot([node], [a_node().devices()], [running])
    assert isinstance(placed(snapshot, a_pod(asks)), tuple) is fits


def test_a_node_full_of_pods_takes_none() -> None:
    snapshot = build_snapshot([offering({GPU: 8, "pods": 1})], [a_node().devices()], [a_pod({}, "r", "node-01")])
    assert "room for 0" in placed(snapshot, a_pod({}))


def holding(node: NodeDevices, *holdings: Holding) -> NodeDevices:
    return msgspec.structs.replace(node, observed=msgspec.structs.replace(node.observed, holdings=list(holdings)))


def test_the_nodes_word_counts_over_the_schedulers() -> None:
    pod = a_held_pod("h", "node-01", ["gpu-0"])
    taken = Holding("default/h", "main", GPU, ["gpu-5"], uid=pod.uid, chosen=["gpu-0"])
    snapshot = build_snapshot([offering({GPU: 8})], [holding(a_node().devices(), taken)], [pod])
    assert snapshot.free == (0b11011111,)


def test_a_pod_removed_by_force_holds_its_devices_until_its_node_says_otherwise() -> None:
    taken = Holding("default/h", "main", GPU, ["gpu-5"], uid="uid-h")
    devices = holding(a_node().devices(), taken)
    assert build_snapshot([offering({GPU: 8})], [devices], []).free == (0b11011111,)


def test_letting_go_gives_back_counts_too() -> None:
    running = a_pod({"cpu": "3"}, "running", "node-01")
    snapshot = build_snapshot([offering({"cpu": "4", "pods": 1})], [a_node().devices()], [running])
    assert isinstance(placed(snapshot, a_pod({"cpu": "2"})), str)
    after = snapshot.releasing([("node-01", (), requests_of_pod(running))])
    assert placed(after, a_pod({"cpu": "4"})) == ()


def test_an_ask_says_everything_it_needs() -> None:
    ask = placement_ask_of_pod(a_pod({GPU: 2, MIG: 1, "cpu": 1}))
    assert ask == PodAsk("default", "p", "uid-p", 2, others=((("cpu", 1000)), (MIG, 1)))
    assert ask.requests == {GPU: 2, MIG: 1, "cpu": 1000}
