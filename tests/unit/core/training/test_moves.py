"""Members that had better go elsewhere: slow devices, and nodes that are about to go."""

from __future__ import annotations

import pytest

from remuda.api.conditions import find_condition
from remuda.api.devices import Signal
from remuda.api.meta import Condition, to_time
from remuda.api.training import Cause, DegradedPolicy, Remedy, Straggler
from tests.builders.gang_model import GangModel, a_gang
from tests.builders.gangs import JobBuilder, NodeBuilder, a_job, racks

JOB = a_job().replicas(3).gpus(8).spares(1).in_one_rack()


def running(job: JobBuilder = JOB, nodes: list[NodeBuilder] | None = None) -> GangModel:
    gang = a_gang(job, nodes or racks(6, 6)).settle()
    assert gang.is_running, gang.status.message
    return gang.train_in_rounds(17)


def slow(gang: GangModel, rank: int = 1, factor: float = 2.0) -> str:
    member = gang.member(rank)
    gang.slow_device(member.node, member.devices[3], factor)
    gang.round(0.0)
    return member.devices[3]


def with_policy(policy: DegradedPolicy, job: JobBuilder = JOB) -> JobBuilder:
    return job.failure(straggler=Straggler(policy=policy))


# --- slow devices -----------------------------------------------------------------------------------------------------


def test_a_slow_rank_is_swapped_at_the_next_checkpoint_and_loses_no_step() -> None:
    gang = running()
    old = gang.member(1)
    device = slow(gang)
    assert gang.status.attempt == 1, "not before the checkpoint"
    gang.train_in_rounds(3)  # step 20 has a checkpoint
    assert gang.status.attempt == 2
    gang.settle()
    record = gang.recovery
    assert (record.cause, record.reason, record.remedy) == (Cause.DEVICE, "SlowRank", Remedy.PROMOTE_SPARE)
    assert record.step_at_fault == record.resume_step == 20
    for word in ("Rank 1", old.pod, old.node, device, "2 times slower"):
        assert word in record.message
    assert gang.is_running
    assert gang.member(1).node != old.node
    assert gang.pod(old.pod) is None


def test_a_checkpoint_is_asked_for_when_none_comes() -> None:
    gang = running()
    slow(gang)
    gang.advance(30.0)
    gang.settle(2)
    request = gang.status.checkpoint_request
    assert request is not None
    assert (request.why, request.answered_at) == ("SlowRank", None)
    assert request.step > gang.status.progress.step


def test_swap_now_waits_for_nothing() -> None:
    gang = running(with_policy(DegradedPolicy.SWAP_NOW))
    slow(gang)
    gang.settle()
    assert (gang.status.attempt, gang.recovery.reason) == (2, "SlowRank")
    assert gang.is_running


@pytest.mark.parametrize("factor", [1.3, 3.0])
def test_carry_on_carries_on(factor: float) -> None:
    gang = running(with_policy(DegradedPolicy.CARRY_ON))
    slow(gang, factor=factor)
    gang.train_in_rounds(20)
    assert gang.status.attempt == 1


def test_several_slow_ones_are_swapped_in_one_stop() -> None:
    gang = running(with_policy(DegradedPolicy.SWAP_NOW, JOB.spares(2)))
    before = {rank: gang.member(rank).node for rank in range(3)}
    for rank in (0, 2):
        member = gang.member(rank)
        gang.slow_device(member.node, member.devices[3], 2.0)
    gang.settle()
    assert gang.is_running
    assert gang.status.attempt == 2
    assert [gang.member(rank).node == before[rank] for rank in range(3)] == [False, True, False]


def test_with_room_for_one_the_worst_is_swapped() -> None:
    gang = running(with_policy(DegradedPolicy.SWAP_NOW), racks(4))
    before = {rank: gang.member(rank).node for rank in range(3)}
    for rank, factor in ((0, 1.5), (2, 3.0)):
        member = gang.member(rank)
        gang.slow_device(member.node, member.devices[3], factor)
    gang.settle()
    assert gang.is_running
    assert [gang.member(rank).node == before[rank] for rank in range(3)] == [True, True, False]


def test_a_gang_degraded_as_a_whole_is_left_alone() -> None:
    gang = running(with_policy(DegradedPolicy.SWAP_NOW))
    for rank in range(3):
        member = gang.member(rank)
        for device in member.devices:
            gang.signal(member.node, device, Signal("smi", "power-cap", time=to_time(gang.now)))
    gang.settle()
    assert gang.status.attempt == 1


def test_without_a_place_to_go_the_slow_one_stays() -> None:
    gang = running(JOB.spares(0), racks(3, 6))
    slow(gang)
    gang.train_in_rounds(20)
    assert gang.status.attempt == 1, "moving the whole gang, or waiting for room, costs more than it brings"


def test_a_swap_that_does_not_pay_is_not_made() -> None:
    gang = running(JOB.spec(total_steps=21))
    slow(gang, factor=1.05)
    gang.train_in_rounds(3)
    assert gang.status.attempt == 1, "one more step is not worth a stop"


def test_a_swap_never_ends_the_job() -> None:
    gang = running(JOB.budgets(device=0))
    slow(gang)
    gang.train_in_rounds(10)
    assert (gang.status.attempt, gang.status.phase) == (1, "Running")


# --- what is said of those that stay ----------------------------------------------------------------------------------


def said(gang: GangModel) -> Condition | None:
    return find_condition(gang.status.conditions, "SlowRanks")


@pytest.mark.parametrize(
    ("job", "nodes", "factor", "reason", "fix"),
    [
        (with_policy(DegradedPolicy.CARRY_ON), 6, 2.0, "CarryOn", "set it to SwapAtCheckpoint"),
        (JOB.spares(0), 3, 2.0, "NoRoomToMove", "spec.spares"),
        (JOB.budgets(device=0), 6, 2.0, "BudgetSpent", "spec.failure.budgets.device"),
        (JOB.spec(total_steps=21), 6, 1.05, "SwapCostsMore", "SwapNow"),
        (JOB, 6, 2.0, "WaitsForCheckpoint", "SwapNow"),
    ],
)
def test_who_stays_slow_is_told_with_since_when_how_much_why_and_what_helps(
    job: JobBuilder, nodes: int, factor: float, reason: str, fix: str
) -> None:
    gang = running(job, racks(nodes, 6))
    member, device = gang.member(1), slow(gang, factor=factor)
    found = said(gang)
    assert found is not None
    assert (found.status, found.reason) == ("True", reason)
    who = f"Rank 1 ({member.pod} on {member.node}, {device}): {factor:g} times slower than its peers since "
    assert found.message.startswith(who), found.message
    assert fix in found.message
    gang.train_in_rounds(1)
    assert said(gang) == found, "said once"


def test_what_holds_everybody_back_alike_is_told_so() -> None:
    gang = running()
    for member in gang.status.members:
        for device in member.devices:
            gang.signal(member.node, device, Signal("smi", "power-cap", time=to_time(gang.now)))
    gang.settle()
    found = said(gang)
    assert found is not None
    assert (found.status, found.reason) == ("True", "AllAlike")
    assert "PowerCap" in found.message


def test_once_nobody_is_slow_that_is_said() -> None:
    gang = running()
    slow(gang)
    gang.train_in_rounds(3)
    gang.settle()
    gang.train_in_rounds(3)
    found = said(gang)
    assert found is not None
    assert (found.status, found.reason) == ("False", "NoSlowRank")
    never = running()
    assert said(never) is None


# --- nodes that go ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("condition", "cause"), [("MaintenancePlanned", Cause.MAINTENANCE), ("SpotTermination", Cause.PREEMPTION)]
)
def test_members_leave_before_the_node_goes(condition: str, cause: Cause) -> None:
    gang = running()
    old = gang.member(0)
    gang.announce(old.node, condition, 300.0)
    gang.settle(2)
    request = gang.status.checkpoint_request
    assert request is not None, "asked for a checkpoint first"
    gang.train_in_rounds(6)
    gang.settle()
    assert gang.is_running
    record = gang.recovery
    assert (record.cause, record.reason, record.remedy) == (cause, condition, Remedy.PROMOTE_SPARE)
    assert record.step_at_fault - record.resume_step <= 1
    assert gang.status.used == {cause.value: 1}
    assert old.node not in {m.node for m in gang.status.members}
    gang.train_in_rounds(3)
    assert old.node not in {p.spec.node_name for p in gang.gang}, "the new spare does not go there either"


def test_a_gang_that_cannot_save_moves_in_time_all_the_same() -> None:
    gang = running()
    gang.answers_requests = False
    old = gang.member(0)
    gang.announce(old.node, "MaintenancePlanned", 60.0)
    gang.settle(2)
    assert gang.status.attempt == 1
    gang.advance(31.0)
    gang.settle(30)
    assert gang.is_running
    assert old.node not in {m.node for m in gang.status.members}


def test_a_whole_gang_moves_when_its_rack_has_no_room() -> None:
    gang = running(JOB.spares(0), racks(3, 3))
    gang.announce(gang.member(0).node, "MaintenancePlanned", 300.0)
    gang.train_in_rounds(8)
    gang.settle()
    assert gang.is_running
    assert gang.recovery.remedy is Remedy.REPLACE_GANG


def test_with_nowhere_to_go_it_stays_and_saves_late() -> None:
    gang = running(JOB.spares(0), racks(3))
    gang.announce(gang.member(0).node, "SpotTermination", 600.0)
    gang.train_in_rounds(5)
    assert (gang.status.attempt, gang.status.checkpoint_request) == (1, None)
    gang.advance(550.0)
    gang.settle(2)
    assert gang.status.attempt == 1
    assert gang.status.checkpoint_request is not None


def test_a_node_that_went_as_it_was_said_is_charged_to_who_took_it() -> None:
    gang = running(JOB.spares(0), racks(3))
    node = gang.member(0).node
    gang.announce(node, "SpotTermination", 5.0)
    gang.settle(2)
    gang.power_off(node)
    gang.expire(node)
    gang.settle(2)
    assert gang.status.used == {"preemption": 1}
