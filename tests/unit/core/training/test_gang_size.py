"""Gangs that the cluster could not hold, and what is made of those it could hold in part."""

from __future__ import annotations

import msgspec
import pytest

from remuda.api.codec import to_wire
from remuda.api.conditions import is_condition_true
from remuda.api.devices import DeviceState
from remuda.api.names import RESOURCE_GPU
from remuda.core.state.cluster_capacity import (
    ClusterCapacity,
    NodeMake,
    ledger_keeps_cluster_capacity,
    node_amounts,
    node_keeps_cluster_capacity,
    sum_capacity,
)
from remuda.core.training.gang_size import training_gang_size_refusal
from remuda.core.training.planning_context import GANG_TOO_LARGE, PODS_A_LOOK
from tests.builders.gang_model import GangModel, a_gang
from tests.builders.gangs import JobBuilder, a_job, a_node, racks

NODE = {RESOURCE_GPU: 8, "cpu": 64_000, "pods": 110}
TWO_NODES = ClusterCapacity((NodeMake(2, NODE),))


# --- what the cluster has ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("requests", "room"),
    [
        ({RESOURCE_GPU: 1}, 16),
        ({RESOURCE_GPU: 3}, 4),
        ({RESOURCE_GPU: 9}, 0),
        ({}, 220),
        ({"cpu": 32_000}, 4),
        ({"memory": 10**15}, 220),  # no node says how much it has
        ({"example.com/fpga": 1}, 0),
    ],
)
def test_how_many_pods_an_empty_cluster_would_hold(requests: dict[str, int], room: int) -> None:
    assert TWO_NODES.room_for(requests) == room


def test_a_node_has_the_most_that_anybody_says_of_it() -> None:
    node = a_node().gpus(8).cordoned().device("gpu-3", DeviceState.UNHEALTHY)
    shown = node.node()
    status = msgspec.structs.replace(shown.status, capacity={RESOURCE_GPU: "4"}, allocatable={RESOURCE_GPU: "0"})
    poor = msgspec.structs.replace(shown, status=status)
    assert dict(node_amounts(poor, node.devices()))[RESOURCE_GPU] == 8, "cordoned and failed ones may come back"
    assert dict(node_amounts(poor, None)) == {RESOURCE_GPU: 4}
    capacity = sum_capacity(node_amounts(n.node(), n.devices()) for n in racks(3, 2))
    assert (capacity.nodes, capacity.gpus, len(capacity.makes)) == (5, 40, 1)


def test_only_what_a_node_has_makes_it_another_size() -> None:
    node, cordoned = a_node().gpus(8), a_node().gpus(8).cordoned()
    assert node_keeps_cluster_capacity(node.node(), cordoned.node())
    assert not node_keeps_cluster_capacity(None, node.node())
    assert ledger_keeps_cluster_capacity(node.devices(), node.quarantined("gpu-1").devices())
    assert not ledger_keeps_cluster_capacity(node.devices(), a_node().gpus(4).devices())
    assert ledger_keeps_cluster_capacity(None, None)


# --- the verdict ------------------------------------------------------------------------------------------------------


def verdict(job: JobBuilder, capacity: ClusterCapacity, **rooms: int) -> str:
    roles = job.build().spec.roles
    said = training_gang_size_refusal(roles, {r.name: rooms.get(r.name, 0) for r in roles}, capacity)
    return "" if said is None else f"{said.reason}: {said.message} {said.fix}"


def test_it_says_what_is_there_and_the_smallest_change_that_fits() -> None:
    assert verdict(a_job().replicas(3).gpus(8), TWO_NODES, worker=2) == (
        "GangTooLarge: Role worker needs 3 pods of 8 GPUs; the cluster (16 GPUs on 2 nodes) has room for 2, were it empty. "
        "Ask for at most 2 replicas, or add nodes for 1 more."
    )
    assert not verdict(a_job().replicas(2).gpus(8), TWO_NODES, worker=2)


def test_the_fewest_it_goes_on_with_count() -> None:
    assert not verdict(a_job().replicas(100).gpus(8).least(2), TWO_NODES, worker=2)
    assert "at most 2 minReplicas" in verdict(a_job().replicas(100).gpus(8).least(3), TWO_NODES, worker=2)


def test_roles_that_fit_each_alone_may_not_fit_together() -> None:
    job = a_job().replicas(2).gpus(8).role("eval", replicas=1, gpus=8)
    said = verdict(job, TWO_NODES, worker=2, eval=2)
    assert "The roles need 24 GPUs in all; the cluster (16 GPUs on 2 nodes) has 16." in said
    assert "Ask for 8 fewer" in said


def test_where_no_node_takes_one_the_scheduler_says_why_as_long_as_pods_are_few() -> None:
    assert not verdict(a_job().replicas(4).gpus(16), TWO_NODES, worker=0)
    assert "Add nodes that can take such pods" in verdict(a_job().replicas(100_000).gpus(16), TWO_NODES, worker=0)
    assert not verdict(a_job().replicas(4).gpus(1), ClusterCapacity(), worker=0)


# --- in the plan ------------------------------------------------------------------------------------------------------


def measured(job: JobBuilder, nodes: int = 2) -> GangModel:
    gang = a_gang(job, racks(nodes))
    gang.capacity = lambda: sum_capacity(node_amounts(n, gang.ledger.now.get(n.name)) for n in gang.nodes.values())
    return gang


def resized(gang: GangModel, replicas: int) -> None:
    role = msgspec.structs.replace(gang.job.spec.roles[0], replicas=replicas)
    gang.job = msgspec.structs.replace(gang.job, spec=msgspec.structs.replace(gang.job.spec, roles=[role]))


def test_nothing_is_made_of_it_and_time_alone_changes_nothing() -> None:
    gang = measured(a_job().replicas(100_000).gpus(1))
    gang.look()
    gang.deliver()
    plan = gang.look()
    assert not gang.gang
    assert (gang.status.phase, gang.status.reason) == ("Pending", GANG_TOO_LARGE)
    assert is_condition_true(gang.status.conditions, GANG_TOO_LARGE)
    assert plan.look_again_s is None
    resized(gang, 16)
    gang.settle()
    assert gang.status.phase == "Running"
    assert not is_condition_true(gang.status.conditions, GANG_TOO_LARGE)


def test_pods_that_wait_already_go_and_come_again_when_it_fits() -> None:
    gang = measured(a_job().replicas(3).gpus(8))
    know, gang.capacity = gang.capacity, None  # as an older release, which did not look
    gang.settle(2)
    assert len(gang.gang) == 3
    gang.capacity = know
    gang.settle()
    assert not gang.gang
    assert gang.status.reason == GANG_TOO_LARGE
    more = racks(3)[2]
    gang.nodes[more.name] = more.node()
    gang.ledger.put(more.name, more.devices())
    gang.settle()
    assert gang.status.phase == "Running"


def test_a_job_that_runs_and_asks_for_100000_goes_on_and_makes_none() -> None:
    gang = measured(a_job().replicas(2).gpus(8)).settle()
    before = {p.uid for p in gang.gang}
    resized(gang, 100_000)
    gang.settle(5)
    assert {p.uid for p in gang.gang} == before


def test_a_gang_that_lost_its_node_for_good_still_asks_for_the_pod_it_lost() -> None:
    gang = measured(a_job().replicas(2).gpus(8)).settle()
    lost = gang.member(1)
    gang.capacity = lambda: ClusterCapacity((NodeMake(1, NODE),))
    gang.pods.put(lost.uid, None)
    gang.launchers.pop(lost.uid, None)
    del gang.nodes[lost.node]
    gang.settle(5)
    assert any(not p.spec.node_name for p in gang.gang), "whoever adds nodes on demand sees what is missing"
    assert not is_condition_true(gang.status.conditions, GANG_TOO_LARGE)


def test_a_large_gang_is_made_a_part_at_a_time() -> None:
    gang = a_gang(a_job().replicas(3 * PODS_A_LOOK).gpus(1), racks(1))
    made = []
    for _ in range(4):
        made.append(len(gang.look().create))
        gang.deliver()
    assert made == [PODS_A_LOOK, PODS_A_LOOK, PODS_A_LOOK, 0]
    assert len({p.name for p in gang.gang}) == 3 * PODS_A_LOOK


def test_the_job_can_be_written_while_it_is_too_large() -> None:
    gang = measured(a_job().replicas(100_000).gpus(1))
    gang.look()
    assert len(str(to_wire(gang.job))) < 10_000
