"""Why not, in words: what was asked, where most of it would fit, what keeps nodes away, and the smallest change."""

from __future__ import annotations

import pytest

from remuda.api.errors import Refusal
from remuda.core.scheduling.gang_placement import place_gang_members, plan_placement
from remuda.core.scheduling.placement_request import GangAsk
from tests.builders.gangs import NodeBuilder, a_gang_ask, a_held_pod, a_node, a_pod_ask, a_snapshot, racks

ALL = [f"gpu-{i}" for i in range(8)]


def why_not(nodes: list[NodeBuilder], ask: GangAsk, held: tuple[str, ...] = ()) -> Refusal:
    pods = [a_held_pod(f"held-{node}", node, ALL) for node in held]
    found = place_gang_members(a_snapshot(nodes, pods), ask)
    assert isinstance(found, Refusal)
    return found


@pytest.mark.parametrize(
    ("nodes", "ask", "held", "reason", "message", "fix"),
    [
        (
            racks(2, 3),
            a_gang_ask(5),
            (),
            "InsufficientDevices",
            "Needs 5 pods of 8 GPUs in one rack; rack rack-2 has room for 3.",
            "No rack could hold more than 3, were it empty: ask for 2 fewer replicas, or leave out topology.required.",
        ),
        (
            racks(2, 5),
            a_gang_ask(5),
            ("node-06", "node-07"),
            "InsufficientDevices",
            "Needs 5 pods of 8 GPUs in one rack; rack rack-2 has room for 3.",
            "Free room for 2 more in rack rack-2, or ask for 2 fewer replicas.",
        ),
        (
            racks(5, 3),
            a_gang_ask(5),
            ("node-01", "node-02", "node-03"),
            "InsufficientDevices",
            "Needs 5 pods of 8 GPUs in one rack; rack rack-1 has room for 2.",
            "Free room for 3 more in rack rack-1, or ask for 3 fewer replicas.",
        ),
        (
            racks(2, 2),
            a_gang_ask(5, topology=""),
            ("node-01",),
            "InsufficientDevices",
            "Needs 5 pods of 8 GPUs; the cluster has room for 3.",
            "The cluster could hold 4 at most, were it empty: ask for 1 fewer replicas, or add nodes.",
        ),
        (
            [a_node("a").rack("r").cordoned(), a_node("b").rack("r")],
            a_gang_ask(2),
            (),
            "InsufficientDevices",
            "Needs 2 pods of 8 GPUs in one rack; rack r has room for 1 (1 node cordoned).",
            "Free room for 1 more in rack r, or ask for 1 fewer replicas.",
        ),
        (
            racks(2, 2),
            a_gang_ask(1, pinned="rack-1"),
            ("node-01", "node-02"),
            "DomainFull",
            "Needs 1 pod of 8 GPUs in one rack; rack rack-1 has room for 0.",
            "Free 8 GPUs on one node of rack rack-1.",
        ),
        (
            racks(1),
            a_gang_ask(2, gpus=1, topology="", pinned=""),
            ("node-01",),
            "DomainFull",
            "Needs 2 pods of 1 GPU; the cluster has room for 0.",
            "Free 1 GPU on one node of the cluster.",
        ),
        (
            [a_node("a").rack("r").cordoned(), a_node("b").rack("r").cordoned(), a_node("c").rack("r").not_ready()],
            a_gang_ask(1),
            (),
            "InsufficientDevices",
            "Needs 1 pod of 8 GPUs in one rack; rack r has room for 0 (2 nodes cordoned, 1 node not ready).",
            "Bring nodes of rack r back, or change the pods' node selector and tolerations.",
        ),
        (
            [a_node("a").rack("r"), a_node("b").rack("r").tainted("x"), a_node("c").rack("r").label("kind", "old")],
            a_gang_ask(3, selector={"kind": "new"}),
            (),
            "InsufficientDevices",
            "Needs 3 pods of 8 GPUs in one rack; rack r has room for 0 (2 nodes not selected, 1 node tainted).",
            "Bring nodes of rack r back, or change the pods' node selector and tolerations.",
        ),
        (
            [a_node("a"), a_node("b")],
            a_gang_ask(1),
            (),
            "InsufficientDevices",
            "No node has the label topology.remuda.dev/rack.",
            "Label the nodes or drop topology.required.",
        ),
        ([], a_gang_ask(1, topology=""), (), "InsufficientDevices", "The cluster has no nodes.", "Add a node."),
        (
            racks(2, gpus=0),
            a_gang_ask(1),
            (),
            "NoDevices",
            "No node has reported a device.",
            "Wait for the nodes, or see `remuda devices`.",
        ),
        (
            racks(2, gpus=4),
            a_gang_ask(1, gpus=8),
            (),
            "NoNodeHasThatManyGpus",
            "A pod asks for 8 GPUs; the largest node has 4.",
            "Ask for at most 4 per pod and use more replicas.",
        ),
        (
            racks(2),
            a_gang_ask(1, pinned="rack-9"),
            (),
            "DomainFull",
            "Needs 1 pod of 8 GPUs in one rack; rack rack-9 has room for 0.",
            "Bring nodes of rack rack-9 back, or change the pods' node selector and tolerations.",
        ),
    ],
)
def test_refusal(
    nodes: list[NodeBuilder], ask: GangAsk, held: tuple[str, ...], reason: str, message: str, fix: str
) -> None:
    found = why_not(nodes, ask, held)
    assert (found.reason, found.message, found.fix) == (reason, message, fix)


def test_pods_of_several_sizes() -> None:
    ask = GangAsk("default/j", (a_pod_ask("a", 4), a_pod_ask("b", 8), a_pod_ask("c", 8)))
    assert why_not(racks(2), ask).message == "Needs 3 pods of 4 to 8 GPUs; the cluster has room for 2."


def test_large_pods_are_placed_before_small_ones_take_the_whole_nodes() -> None:
    ask = GangAsk("default/j", (a_pod_ask("a", 4), a_pod_ask("b", 4), a_pod_ask("c", 8)))
    snapshot = a_snapshot([a_node("node-01"), a_node("node-02")], [a_held_pod("h", "node-02", ALL[:0])])
    placed = place_gang_members(snapshot, ask)
    assert not isinstance(placed, Refusal)
    assert {a.pod.name: a.node for a in placed} == {"c": "node-01", "a": "node-02", "b": "node-02"}


def test_pods_without_devices_need_only_a_node() -> None:
    ask = GangAsk("default/j", tuple(a_pod_ask(f"p{i}", 0) for i in range(20)))
    placed = place_gang_members(a_snapshot(racks(1), [a_held_pod("h", "node-01", ALL)]), ask)
    assert not isinstance(placed, Refusal)
    assert {a.devices for a in placed} == {()}


def test_a_spare_of_a_gang_that_has_no_place_waits() -> None:
    plan = plan_placement(a_snapshot(racks(1)), [a_gang_ask(2, spares=1)])
    assert [r.reason for _, r in plan.refused] == ["InsufficientDevices", "InsufficientDevices", "GangNotPlaced"]
    assert all(r.fix for _, r in plan.refused)
