"""Gang placement: all or nothing, one rack, exact devices, and a refusal that says what would help."""

from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from remuda.api.devices import DeviceState
from remuda.api.errors import Refusal
from remuda.api.kubernetes.core_v1 import Pod, Toleration
from remuda.api.selectors import Requirement
from remuda.core.scheduling.gang_placement import PlacementPlan, plan_placement
from remuda.core.scheduling.node_affinity import NodeTerm
from remuda.core.scheduling.placement_request import GangAsk
from remuda.core.state.snapshot import SUSPECT
from tests.builders.gangs import NodeBuilder, a_gang_ask, a_held_pod, a_node, a_snapshot, racks

ALL = tuple(f"gpu-{i}" for i in range(8))


def placed(nodes: list[NodeBuilder], *asks: GangAsk, **options: Any) -> dict[str, tuple[str, tuple[str, ...]]]:
    plan = plan_placement(a_snapshot(nodes, **options), asks)
    assert_no_device_twice(plan)
    return {a.pod.name: (a.node, a.devices) for a in plan.assignments}


def refusal(nodes: list[NodeBuilder], ask: GangAsk, **options: Any) -> Refusal:
    plan = plan_placement(a_snapshot(nodes, **options), [ask])
    assert not plan.assignments
    return plan.refused[0][1]


def assert_no_device_twice(plan: PlacementPlan) -> None:
    taken = [(a.node, d) for a in plan.assignments for d in a.devices]
    assert len(taken) == len(set(taken))


def test_members_get_exact_devices_in_one_rack() -> None:
    assert placed(racks(2, 2), a_gang_ask(4, gpus=4)) == {
        "job-0": ("node-01", ALL[:4]),
        "job-1": ("node-01", ALL[4:]),
        "job-2": ("node-02", ALL[:4]),
        "job-3": ("node-02", ALL[4:]),
    }


def test_the_tightest_rack_that_fits_is_taken() -> None:
    assert {node for node, _ in placed(racks(4, 2), a_gang_ask(2)).values()} == {"node-05", "node-06"}


def test_a_rack_with_room_for_the_spares_beats_a_tighter_one() -> None:
    nodes = placed(racks(4, 2), a_gang_ask(2, spares=1))
    assert {node for node, _ in nodes.values()} == {"node-01", "node-02", "node-03"}


def test_nobody_is_placed_when_one_does_not_fit() -> None:
    found = refusal(racks(2, 2), a_gang_ask(3))
    assert found.reason == "InsufficientDevices"
    assert "room for 2" in found.message
    assert found.fix


def test_without_a_topology_the_cluster_is_one_domain() -> None:
    assert len(placed(racks(2, 2), a_gang_ask(3, topology=""))) == 3


def test_a_pinned_gang_stays_in_its_domain() -> None:
    nodes = racks(2, 2)
    assert placed(nodes, a_gang_ask(1, pinned="rack-2"))["job-0"][0] == "node-03"
    full = [a_held_pod("other", "node-03", ALL), a_held_pod("more", "node-04", ALL)]
    assert refusal(nodes, a_gang_ask(1, pinned="rack-2"), pods=full).reason == "DomainFull"


def test_a_spare_never_takes_the_place_of_a_member_of_another_gang() -> None:
    first, second = a_gang_ask(1, key="default/a", spares=1), a_gang_ask(1, key="default/b")
    nodes = placed(racks(2), first, second)
    assert set(nodes) == {"a-0", "b-0"}


def test_a_spare_without_room_says_so() -> None:
    plan = plan_placement(a_snapshot(racks(1)), [a_gang_ask(1, spares=1)])
    assert [r.reason for _, r in plan.refused] == ["NoRoomForSpare"]


def test_freed_room_goes_first_to_the_gang_that_lost_it() -> None:
    newcomer, recovering = a_gang_ask(1, key="default/a"), a_gang_ask(1, key="default/b", pinned="rack-1")
    assert set(placed(racks(1), newcomer, recovering)) == {"b-0"}


def test_a_gang_waits_until_all_its_pods_exist() -> None:
    assert refusal(racks(4), a_gang_ask(2, waiting_for=1)).reason == "GangIncomplete"


def test_more_than_any_node_has() -> None:
    found = refusal(racks(2), a_gang_ask(1, gpus=9))
    assert found.reason == "NoNodeHasThatManyGpus"
    assert "at most 8" in found.fix


@pytest.mark.parametrize(
    "node",
    [
        a_node().rack("rack-1").cordoned(),
        a_node().rack("rack-1").not_ready(),
        a_node().rack("rack-1").tainted("gpu", "x"),
        a_node().rack("rack-1").device("gpu-3", DeviceState.UNHEALTHY),
        a_node().rack("rack-1").device("gpu-3", DeviceState.DEGRADED),
        a_node().rack("rack-1").device("gpu-3", DeviceState.QUARANTINED),
        a_node().rack("rack-1").quarantined("gpu-3"),
        a_node().rack("rack-1").never_judged(),
    ],
)
def test_a_node_that_cannot_take_eight(node: NodeBuilder) -> None:
    refusal([node], a_gang_ask(1))


def test_a_dead_node_is_avoided() -> None:
    assert placed(racks(2), a_gang_ask(1), dead=frozenset({"node-01"}))["job-0"][0] == "node-02"


def test_a_bad_device_leaves_the_other_seven() -> None:
    node = a_node().rack("rack-1").device("gpu-1", DeviceState.UNHEALTHY)
    assert placed([node], a_gang_ask(1, gpus=7))["job-0"][1] == ("gpu-0", *ALL[2:])


def test_tolerations_and_selectors() -> None:
    tainted = a_node().rack("rack-1").tainted("gpu", "x").label("kind", "big")
    toleration = Toleration(key="gpu", operator="Equal", value="x", effect="NoSchedule")
    assert placed([tainted], a_gang_ask(1, tolerations=[toleration], selector={"kind": "big"}))
    refusal([tainted], a_gang_ask(1, tolerations=[toleration], selector={"kind": "small"}))


def test_required_node_affinity_is_kept() -> None:
    here, there = a_node("n1").rack("r").label("kind", "big"), a_node("n2").rack("r").label("kind", "small")
    plain = a_gang_ask(1)

    def wanting(kind: str) -> GangAsk:
        terms = (NodeTerm(labels=(Requirement("kind", "in", (kind,)),)),)
        return msgspec.structs.replace(plain, members=(msgspec.structs.replace(plain.members[0], node_terms=terms),))

    assert placed([here, there], wanting("small"))["job-0"][0] == "n2"
    assert "2 nodes not selected" in refusal([here, there], wanting("huge")).message
    # A refusal is remembered by what was asked: who asks for less is not told the same.
    plan = plan_placement(a_snapshot([here]), [wanting("huge"), msgspec.structs.replace(plain, key="default/other")])
    assert [a.node for a in plan.assignments] == ["n1"]


@pytest.mark.parametrize(
    ("pod", "room"),
    [
        (a_held_pod("h", "node-01", ALL[:4]), 4),
        (a_held_pod("h", "node-01", ALL[:4], phase="Succeeded"), 8),
        (a_held_pod("h", "node-01", ALL[:4], deleting_at=1.0), 4),
        (a_held_pod("h", "", ALL[:4]), 8),
    ],
)
def test_who_holds_a_device(pod: Pod, room: int) -> None:
    assert a_snapshot(racks(1), [pod]).free[0].bit_count() == room


def test_an_assumed_binding_holds_its_devices_until_it_is_seen() -> None:
    waiting = a_held_pod("w")
    assumed = {waiting.uid: ("node-01", ALL[:6])}
    assert a_snapshot(racks(1), [waiting], assumed=assumed).free[0].bit_count() == 2


# --- what speaks against a place ----------------------------------------------------------------------------------------


def tolerant(ask: GangAsk) -> GangAsk:
    members = tuple(msgspec.structs.replace(m, tolerates_degraded=True) for m in ask.members)
    return msgspec.structs.replace(ask, members=members)


def test_a_degraded_device_is_avoided_and_given_to_those_who_tolerate_it() -> None:
    nodes = [a_node("node-01").device("gpu-1", DeviceState.DEGRADED)]
    ask = a_gang_ask(1, gpus=8, topology="")
    assert refusal(nodes, ask).reason == "InsufficientDevices"
    assert placed(nodes, tolerant(ask)) == {"job-0": ("node-01", ALL)}
    assert placed(nodes, a_gang_ask(1, gpus=7, topology=""))["job-0"] == (
        "node-01",
        tuple(d for d in ALL if d != "gpu-1"),
    )


def test_who_tolerates_degraded_devices_gets_healthy_ones_first() -> None:
    nodes = [a_node("node-01").device("gpu-0", DeviceState.DEGRADED), a_node("node-02")]
    assert placed(nodes, tolerant(a_gang_ask(1, gpus=8, topology="")))["job-0"][0] == "node-02"
    assert "gpu-0" not in placed(nodes[:1], tolerant(a_gang_ask(1, gpus=2, topology="")))["job-0"][1]


def test_a_degraded_device_is_not_given_twice() -> None:
    nodes = [a_node("node-01").device("gpu-0", DeviceState.DEGRADED).gpus(1)]
    both = placed(
        nodes,
        tolerant(a_gang_ask(1, gpus=1, topology="", key="default/a")),
        tolerant(a_gang_ask(1, gpus=1, topology="", key="default/b")),
    )
    assert len(both) == 1
    holder = a_held_pod("other", "node-01", ["gpu-0"])
    assert placed(nodes, tolerant(a_gang_ask(1, gpus=1, topology="")), pods=[holder]) == {}


def test_a_quarantined_or_unhealthy_device_is_tolerated_by_nobody() -> None:
    nodes = [a_node("node-01").gpus(1).device("gpu-0", DeviceState.DEGRADED).quarantined("gpu-0")]
    assert placed(nodes, tolerant(a_gang_ask(1, gpus=1, topology=""))) == {}
    assert (
        placed([a_node().gpus(1).device("gpu-0", DeviceState.UNHEALTHY)], tolerant(a_gang_ask(1, gpus=1, topology="")))
        == {}
    )


def test_nodes_with_failures_behind_them_come_last() -> None:
    nodes = [a_node(f"node-0{n}") for n in (1, 2, 3)]
    ask = a_gang_ask(2, gpus=8, topology="")
    assert {n for n, _ in placed(nodes, ask).values()} == {"node-01", "node-02"}
    assert {n for n, _ in placed(nodes, ask, penalties={"node-01": 2, "node-02": 1}).values()} == {"node-02", "node-03"}
    assert len(placed(nodes, a_gang_ask(3, gpus=8, topology=""), penalties={"node-01": 2})) == 3


def test_a_suspect_rack_is_taken_when_no_other_will_do() -> None:
    nodes = racks(2, 4)
    suspect = {"node-01": SUSPECT, "node-02": SUSPECT}
    assert {n for n, _ in placed(nodes, a_gang_ask(2)).values()} == {"node-01", "node-02"}
    assert {n for n, _ in placed(nodes, a_gang_ask(2), penalties=suspect).values()} == {"node-03", "node-04"}
    full = [a_held_pod(f"h{n}", f"node-0{n}", ALL) for n in (3, 4, 5, 6)]
    assert {n for n, _ in placed(nodes, a_gang_ask(2), pods=full, penalties=suspect).values()} == {"node-01", "node-02"}


# --- nodes without an agent -------------------------------------------------------------------------------------------


def launched(members: int = 1) -> GangAsk:
    ask = a_gang_ask(members, topology="")
    return replace(ask, members=tuple(replace(pod, needs_agent=True) for pod in ask.members))


def test_a_pod_that_needs_its_node_s_agent_goes_only_where_one_lives() -> None:
    nodes = [a_node("node-01"), a_node("node-02")]
    plan = plan_placement(a_snapshot(nodes, agentless=frozenset({"node-01"})), [launched()])
    assert [a.node for a in plan.assignments] == ["node-02"]
    plain = plan_placement(a_snapshot(nodes, agentless=frozenset({"node-01"})), [a_gang_ask(1, topology="")])
    assert [a.node for a in plain.assignments] == ["node-01"], "nobody else is kept away"


def test_without_any_agent_the_reason_says_so() -> None:
    nodes = [a_node("node-01"), a_node("node-02")]
    plan = plan_placement(a_snapshot(nodes, agentless=frozenset({"node-01", "node-02"})), [launched()])
    ((_, refusal),) = plan.refused
    assert refusal.reason == "NoAgent"
    assert "node-01, node-02" in refusal.message
    assert "remuda.dev/agent=true" in refusal.fix


def test_too_few_agents_are_part_of_the_reason() -> None:
    nodes = [a_node("node-01"), a_node("node-02")]
    plan = plan_placement(a_snapshot(nodes, agentless=frozenset({"node-02"})), [launched(2)])
    assert {r.reason for _, r in plan.refused} == {"InsufficientDevices"}
    assert "1 node without a live agent" in plan.refused[0][1].message
