"""Gangs in segments: blocks of ranks that share a domain, and move by themselves."""

from __future__ import annotations

from remuda.api.training import Remedy, Topology
from tests.builders.gang_model import GangModel, a_gang
from tests.builders.gangs import RACK, JobBuilder, NodeBuilder, a_job, racks

JOB = a_job().replicas(4).gpus(8).spec(topology=Topology(required=RACK, segment_size=2))


def running(job: JobBuilder = JOB, nodes: list[NodeBuilder] | None = None) -> GangModel:
    return a_gang(job, nodes or racks(2, 2, 2)).start()


def rack_of(gang: GangModel, rank: int) -> str:
    return gang.nodes[gang.member(rank).node].labels[RACK]


def segments_of(gang: GangModel) -> list[str]:
    """The rack of each segment; every member of one sits there."""
    found = []
    for first in (0, 2):
        here = {rack_of(gang, first), rack_of(gang, first + 1)}
        assert len(here) == 1, here
        found.append(here.pop())
    assert gang.status.placement.segments == found
    return found


def test_segments_may_sit_apart_but_each_is_whole() -> None:
    assert sorted(segments_of(running())) == ["rack-1", "rack-2"]


def test_one_rack_is_filled_before_another_is_broken_into() -> None:
    gang = running(nodes=racks(4, 5))
    assert segments_of(gang) == ["rack-1", "rack-1"]


def test_a_gang_whose_segments_do_not_fit_waits_whole() -> None:
    gang = a_gang(JOB, racks(3, 1)).settle()
    assert gang.status.phase == "Pending"
    assert not [p for p in gang.gang if p.spec.node_name]


def test_a_lost_pod_is_replaced_beside_its_segment() -> None:
    gang = running(nodes=racks(3, 3))
    before = segments_of(gang)
    kept = {rank: gang.member(rank).uid for rank in (0, 1, 3)}
    gang.lose_node(2)
    gang.settle()
    assert gang.is_running
    assert gang.recovery.remedy is Remedy.REPLACE_POD
    assert segments_of(gang) == before
    assert {rank: gang.member(rank).uid for rank in (0, 1, 3)} == kept


def test_without_room_the_segment_moves_and_the_other_stays() -> None:
    gang = running()
    before = segments_of(gang)
    kept = {rank: gang.member(rank).uid for rank in (0, 1)}
    gang.lose_node(3)
    gang.settle()
    assert gang.is_running
    assert gang.recovery.remedy is Remedy.MOVE_SEGMENT
    assert segments_of(gang) == [before[0], "rack-3"]
    assert {rank: gang.member(rank).uid for rank in (0, 1)} == kept


def test_a_spare_serves_the_segment_it_sits_beside() -> None:
    gang = running(JOB.spares(1), racks(3, 3))
    spare = gang.status.spares[0]
    beside = gang.nodes[spare.node].labels[RACK]
    rank = 2 * segments_of(gang).index(beside)
    gang.lose_node(rank)
    gang.settle()
    assert gang.is_running
    assert gang.recovery.remedy is Remedy.PROMOTE_SPARE
    assert gang.member(rank).uid == spare.uid


def test_a_spare_of_another_rack_is_not_taken() -> None:
    gang = running(JOB.spares(1), racks(3, 3))
    beside = gang.nodes[gang.status.spares[0].node].labels[RACK]
    rank = 2 * (1 - segments_of(gang).index(beside))
    before = segments_of(gang)
    gang.lose_node(rank)
    gang.settle()
    assert gang.is_running
    assert gang.recovery.remedy is Remedy.REPLACE_POD
    assert segments_of(gang) == before


def test_a_segment_that_waits_moves_once_another_rack_has_room() -> None:
    gang = running(nodes=racks(2, 2, 2))
    before = segments_of(gang)
    for node in ("node-05", "node-06"):
        gang.occupy(node)
    gang.lose_node(3)
    gang.settle()
    assert gang.status.reason == "DomainFull"
    gang.vacate()
    gang.settle()
    assert gang.is_running
    assert gang.recovery.remedy is Remedy.MOVE_SEGMENT
    assert segments_of(gang) == [before[0], "rack-3"]
    assert gang.status.interruptions == 1
