"""Success of some ranks, roles that come after others, and a gang that is not whole."""

from __future__ import annotations

import msgspec

from remuda.api.conditions import find_condition
from remuda.api.training import SuccessPolicy
from remuda.core.training.rendezvous import rendezvous_env_of_rank
from tests.builders.gang_model import GangModel, a_gang
from tests.builders.gangs import JobBuilder, a_job, racks


def leader_first(is_: str) -> JobBuilder:
    return a_job().replicas(1).gpus(1).role("follower", 2, 1).after("follower", "worker", is_)


def roles(gang: GangModel) -> list[tuple[int, str]]:
    return [(m.rank, m.role) for m in gang.status.members]


# --- success ----------------------------------------------------------------------------------------------------------


def test_the_leader_done_the_job_is_done_and_the_rest_is_removed() -> None:
    job = a_job().replicas(1).gpus(1).role("follower", 2, 1).spec(success=SuccessPolicy(role="worker"))
    gang = a_gang(job, racks(3)).settle()
    assert gang.is_running
    gang.crash(gang.member(0).uid, 0)
    gang.settle(5)
    assert (gang.status.phase, gang.status.reason) == ("Succeeded", "SuccessPolicyMet")
    assert not gang.gang


def test_ranks_of_a_role_are_counted_within_it() -> None:
    job = a_job().replicas(2).gpus(1).role("follower", 2, 1).spec(success=SuccessPolicy(role="follower", ranks=[1]))
    gang = a_gang(job, racks(3)).settle()
    gang.crash(gang.member(1).uid, 0)
    gang.crash(gang.member(2).uid, 0)
    gang.settle(3)
    assert gang.status.phase == "Running"
    gang.crash(gang.member(3).uid, 0)
    gang.settle(3)
    assert gang.status.phase == "Succeeded"


def test_a_member_lost_after_others_have_completed_is_replaced() -> None:
    gang = a_gang(a_job().replicas(3).gpus(8), racks(4)).settle()
    gang.train(7)
    gang.crash(gang.member(0).uid, 0)
    gang.settle(3)
    assert gang.status.phase == "Running"
    gang.delete_pod(gang.member(1).uid)
    gang.settle()
    assert gang.is_running
    assert gang.status.resume_step == 5
    for member in gang.status.members:
        gang.crash(member.uid, 0)
    gang.settle(3)
    assert gang.status.phase == "Succeeded"


# --- after: Succeeded -------------------------------------------------------------------------------------------------


def test_a_role_after_another_one_starts_when_that_has_ended() -> None:
    gang = a_gang(leader_first("Succeeded"), racks(3)).settle()
    assert gang.is_running
    assert roles(gang) == [(0, "worker")]
    assert {p.labels["remuda.dev/role"] for p in gang.gang} == {"worker"}
    gang.crash(gang.member(0).uid, 0)
    gang.settle()
    assert gang.is_running, gang.status
    assert roles(gang) == [(0, "follower"), (1, "follower")], "a world of their own, counted from 0"
    assert gang.status.done_roles == ["worker"]
    assert {p.labels["remuda.dev/role"] for p in gang.gang} == {"follower"}
    assert (gang.status.attempt, gang.status.used, gang.status.recoveries) == (2, {}, [])
    env = rendezvous_env_of_rank(gang.job, gang.member(0), 1)
    assert (env["RANK"], env["WORLD_SIZE"]) == ("0", "2")
    for member in gang.status.members:
        gang.crash(member.uid, 0)
    gang.settle(5)
    assert gang.status.phase == "Succeeded"


def test_a_stage_does_not_resume_from_the_checkpoints_of_the_one_before() -> None:
    gang = a_gang(leader_first("Succeeded"), racks(3)).settle()
    gang.checkpoints = {0: {5}, 1: {5}}
    gang.crash(gang.member(0).uid, 0)
    gang.settle()
    assert (gang.is_running, gang.status.resume_step) == (True, None)
    gang.checkpoints = {0: {10}, 1: {10}}
    gang.crash(gang.member(1).uid, 1)
    gang.settle()
    assert (gang.is_running, gang.status.resume_step) == (True, 10), "its own it does"


def test_a_stage_refills_the_budgets_by_its_own_steps() -> None:
    gang = a_gang(leader_first("Succeeded").budgets(refill_after_steps=10), racks(3)).settle()
    status = msgspec.structs.replace(gang.status, refill_step=50)
    gang.job = msgspec.structs.replace(gang.job, status=status)
    gang.crash(gang.member(0).uid, 0)
    gang.settle()
    assert (roles(gang)[0], gang.status.refill_step) == ((0, "follower"), 0), "its steps begin at 0"


def test_a_role_that_fails_keeps_the_next_one_waiting() -> None:
    gang = a_gang(leader_first("Succeeded"), racks(3)).settle()
    gang.crash(gang.member(0).uid, 1)
    gang.settle()
    assert roles(gang) == [(0, "worker")]
    assert gang.status.used == {"code": 1}


# --- after: Running ---------------------------------------------------------------------------------------------------


def test_a_role_joins_when_the_other_one_runs_and_leaves_it_alone() -> None:
    gang = a_gang(leader_first("Running"), racks(3))
    seen = []
    for _ in range(40):
        gang.round()
        seen.append((gang.status.barrier, [m.role for m in gang.status.members], list(gang.status.held_roles)))
    assert ("Open", ["worker"], []) in seen
    assert any(barrier == "Open" and held == ["follower"] for barrier, _, held in seen)
    assert gang.is_running, gang.status
    assert roles(gang) == [(0, "worker"), (1, "follower"), (2, "follower")]
    assert (gang.status.attempt, gang.status.held_roles) == (1, [])
    assert rendezvous_env_of_rank(gang.job, gang.member(0), 1)["WORLD_SIZE"] == "3"


def test_the_first_one_is_told_the_size_of_the_whole_world() -> None:
    gang = a_gang(leader_first("Running"), racks(3))
    while gang.status.barrier != "Open":
        gang.round()
    assert [m.role for m in gang.status.members] == ["worker"]
    assert rendezvous_env_of_rank(gang.job, gang.member(0), 1)["WORLD_SIZE"] == "3"


def test_a_held_role_starts_whole() -> None:
    gang = a_gang(leader_first("Running"), racks(3))
    while len(gang.gang) < 3:
        gang.round()
        gang.lagging = {p.uid for p in gang.gang if p.name == "job-follower-2"}
    gang.settle(10)
    assert gang.status.held_roles == ["follower"]
    assert sorted(r.state for r in gang.launchers.values()) == ["parked", "ready", "running"]
    gang.lagging.clear()
    gang.settle(10)
    assert gang.is_running


def test_after_a_fault_all_of_them_go_through_one_barrier() -> None:
    gang = a_gang(leader_first("Running"), racks(3)).settle(40)
    assert gang.is_running
    gang.delete_pod(gang.member(2).uid)
    gang.settle(40)
    assert gang.is_running
    assert roles(gang) == [(0, "worker"), (1, "follower"), (2, "follower")]
    assert (gang.status.attempt, gang.status.used) == (2, {"infra": 1})


# --- a gang that is not whole -----------------------------------------------------------------------------------------


def test_a_gang_below_its_size_says_so_for_as_long_as_it_is() -> None:
    gang = a_gang(a_job().replicas(3).gpus(8), racks(3)).settle()
    condition = find_condition(gang.status.conditions, "GangComplete")
    assert condition is not None
    assert (condition.status, condition.reason) == ("True", "AllRanksThere")
    node = gang.member(1).node
    gang.power_off(node)
    gang.expire(node)
    gang.settle(10)
    condition = find_condition(gang.status.conditions, "GangComplete")
    assert condition is not None
    assert (condition.status, condition.reason) == ("False", "BelowMinimum")
    assert condition.message.startswith("2 of 3 ranks")
    gang.off.clear()
    gang.dead.clear()
    gang.settle()
    condition = find_condition(gang.status.conditions, "GangComplete")
    assert condition is not None
    assert condition.status == "True"
