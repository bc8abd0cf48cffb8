"""Gangs in segments: blocks of ranks that share a domain, and move by themselves."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from remuda.api.names import ANNOTATION_GANG_SIZE, ANNOTATION_SEGMENT_SIZE
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


# -- other replicas ------------------------------------------------------------------------------------------------------


def resize(gang: GangModel, replicas: int) -> None:
    gang.edit(roles=[replace(gang.job.spec.roles[0], replicas=replicas)])


def sizes_said(gang: GangModel) -> list[tuple[str, str]]:
    """(of the gang, of the segment), as its pods have it written on them."""
    return [(p.annotations[ANNOTATION_GANG_SIZE], p.annotations.get(ANNOTATION_SEGMENT_SIZE, "")) for p in gang.gang]


def test_a_gang_that_waits_is_placed_once_it_asks_for_what_there_is() -> None:
    """Its pods said how many of them there were when they were made, and waited for the others for ever."""
    gang = a_gang(JOB.replicas(5), racks(2, 2)).settle()
    assert gang.status.phase == "Pending"
    resize(gang, 3)
    gang.settle()
    assert gang.is_running
    assert sizes_said(gang) == [("3", "2"), ("3", "2"), ("3", "1")]
    assert gang.status.placement.segments == ["rack-1", "rack-2"]


def test_a_gang_that_fits_into_one_segment_now_has_none() -> None:
    gang = a_gang(JOB, racks(2, 1)).settle()
    resize(gang, 2)
    gang.settle()
    assert gang.is_running
    assert sizes_said(gang) == [("2", ""), ("2", "")]


def test_a_segment_that_waits_for_a_place_and_gets_smaller_is_placed() -> None:
    gang = running(nodes=racks(2, 2, 2))
    gang.occupy("node-06")
    gang.lose_node(3)
    gang.settle()
    assert gang.status.reason == "DomainFull"
    resize(gang, 3)
    gang.settle()
    assert gang.is_running
    assert len(gang.status.members) == 3


@pytest.mark.parametrize("lost", [0, 2, 5])
def test_ranks_that_a_gang_has_no_more_go_with_the_next_attempt(lost: int) -> None:
    """The loss of such a rank was an error of ours, and the gang stood still."""
    gang = running(JOB.replicas(6), racks(3, 3, 3))
    before = {m.rank: m.uid for m in gang.status.members}
    resize(gang, 3)
    gang.settle()
    assert gang.is_running
    assert len(gang.status.members) == 6, "a running gang is not stopped for it"
    gang.lose_node(lost)
    gang.settle()
    assert gang.is_running
    assert gang.status.placement.segments == ["rack-1", "rack-2"]
    now = {m.rank: m.uid for m in gang.status.members}
    assert sorted(now) == [0, 1, 2]
    assert {rank for rank in now if now[rank] != before[rank]} == ({lost} if lost < 3 else set())
    assert len(gang.gang) == 3
