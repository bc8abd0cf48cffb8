"""A gang that goes on with fewer ranks, and takes the others in again."""

from __future__ import annotations

import pytest

from remuda.api.training import Cause, Remedy
from remuda.core.training.elastic_size import GROW_AFTER_S, SHRINK_AFTER_S
from tests.builders.gang_model import GangModel, a_gang
from tests.builders.gangs import JobBuilder, NodeBuilder, a_job, racks

JOB = a_job().replicas(4).gpus(8).least(2).in_one_rack()


def running(job: JobBuilder = JOB, nodes: list[NodeBuilder] | None = None) -> GangModel:
    gang = a_gang(job, nodes or racks(4)).settle()
    assert gang.is_running, gang.status.message
    return gang.train_in_rounds(12)


def ranks(gang: GangModel) -> list[int]:
    return [m.rank for m in gang.status.members]


def test_without_room_it_goes_on_with_fewer_ranks_counted_anew() -> None:
    gang = running()
    kept = [gang.member(rank).uid for rank in (0, 2, 3)]
    gang.lose_node(1)
    gang.settle()
    assert gang.is_running
    assert gang.recovery.remedy is Remedy.SHRINK
    assert (ranks(gang), [m.uid for m in gang.status.members]) == ([0, 1, 2], kept)
    assert gang.status.sizes == {"worker": 3}
    assert gang.status.message == "3 of 4 ranks run attempt 2."
    assert gang.status.used == {"infra": 1}


def test_it_waits_when_too_few_are_left() -> None:
    gang = running(JOB.least(4))
    gang.lose_node(1)
    gang.settle()
    assert gang.status.barrier == "Closed"
    assert not gang.status.sizes
    both = running(JOB.least(3))
    both.lose_node(0)
    both.lose_node(1)
    both.settle()
    assert both.status.barrier == "Closed"


@pytest.mark.parametrize("spares", [0, 1])
def test_room_elsewhere_or_a_spare_comes_first(spares: int) -> None:
    gang = running(JOB.spares(spares), racks(5))
    gang.lose_node(1)
    gang.settle()
    assert gang.recovery.remedy is (Remedy.PROMOTE_SPARE if spares else Remedy.REPLACE_POD)
    assert not gang.status.sizes


def test_it_grows_again_behind_a_checkpoint_when_room_is_back() -> None:
    gang = running()
    node = gang.lose_node(1)
    gang.settle()
    gang.train_in_rounds(3)
    gang.off.discard(node)
    gang.dead.discard(node)
    gang.train_in_rounds(5)
    assert gang.status.attempt == 2, "not so soon"
    gang.train_in_rounds(int(GROW_AFTER_S) + 5)
    gang.settle()
    assert gang.is_running
    assert (gang.recovery.remedy, gang.recovery.cause) == (Remedy.GROW, Cause.MAINTENANCE)
    assert gang.recovery.step_at_fault - gang.recovery.resume_step <= 1
    assert (ranks(gang), gang.status.sizes) == ([0, 1, 2, 3], {})
    assert gang.status.attempt == 3


def test_a_replacement_that_waits_too_long_is_done_without() -> None:
    gang = running(nodes=racks(5))
    gang.lose_node(1)
    gang.look()
    assert gang.recovery.remedy is Remedy.REPLACE_POD
    gang.occupy(next(n for n in gang.nodes if n not in {m.node for m in gang.status.members} and n not in gang.dead))
    gang.settle()
    assert gang.status.reason == "DomainFull"
    gang.advance(SHRINK_AFTER_S)
    gang.settle()
    assert gang.is_running
    assert (gang.recovery.remedy, ranks(gang)) == (Remedy.SHRINK, [0, 1, 2])
    assert gang.status.interruptions == 1


def test_it_starts_with_what_there_is_room_for() -> None:
    gang = a_gang(JOB, racks(3)).settle()
    assert gang.is_running
    assert (ranks(gang), gang.status.sizes) == ([0, 1, 2], {"worker": 3})
    assert gang.status.interruptions == 0


def test_it_starts_whole_when_there_is_room_for_all() -> None:
    gang = a_gang(JOB, racks(3, 4)).settle()
    assert gang.is_running
    assert (ranks(gang), gang.status.sizes, gang.status.placement.domain) == ([0, 1, 2, 3], {}, "rack-2")


def test_it_does_not_start_below_its_least() -> None:
    gang = a_gang(JOB, racks(1, 1)).settle()
    assert gang.status.phase == "Pending"
    assert not [p for p in gang.gang if p.spec.node_name]


def test_a_gang_that_shrank_shrinks_again_and_no_further_than_its_least() -> None:
    gang = running()
    gang.lose_node(0)
    gang.settle()
    gang.train_in_rounds(3)
    gang.lose_node(0)
    gang.settle()
    assert gang.is_running
    assert ranks(gang) == [0, 1]
    gang.train_in_rounds(3)
    gang.lose_node(0)
    gang.settle()
    assert gang.status.barrier == "Closed"
    assert gang.status.sizes == {"worker": 2}
