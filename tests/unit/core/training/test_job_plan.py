"""The life of a gang as scenarios on the pure model: what is kept, what is replaced, who is charged, and when it ends."""

import pytest

from remuda.api.training import Cause, Remedy
from remuda.core.training.job_plan import plan_training
from tests.builders.gang_model import GangModel, a_gang
from tests.builders.gangs import JobBuilder, NodeBuilder, a_job, racks


def trained(job: JobBuilder | None = None, nodes: list[NodeBuilder] | None = None, steps: int = 12) -> GangModel:
    """Four ranks of four GPUs and one spare in a rack of four nodes; trained past a checkpoint."""
    builder = job or a_job().replicas(4).gpus(4).spares(1).in_one_rack()
    gang = a_gang(builder, nodes or racks(4, 4)).settle()
    assert gang.is_running
    gang.train(steps)
    return gang.settle(3)


def pods_of(gang: GangModel) -> dict[int, tuple[str, tuple[str, ...]]]:
    return {m.rank: (m.uid, tuple(m.devices)) for m in gang.status.members}


def assert_others_kept(before: dict[int, tuple[str, tuple[str, ...]]], gang: GangModel, moved: set[int]) -> None:
    after = pods_of(gang)
    assert {r for r in before if before[r][0] != after[r][0]} == moved
    assert all(before[r] == after[r] for r in before if r not in moved)


def test_first_placement_waits_for_all_and_opens_once() -> None:
    gang = trained()
    assert [m.rank for m in gang.status.members] == [0, 1, 2, 3]
    assert gang.status.attempt == 1
    assert gang.status.placement.domain
    assert [s.parked for s in gang.status.spares] == [True]


def test_a_killed_process_restarts_everyone_in_place() -> None:
    gang = trained()
    before = pods_of(gang)
    gang.crash(gang.member(2).uid, 137)
    gang.recover()
    assert_others_kept(before, gang, set())
    assert (gang.recovery.remedy, gang.recovery.cause) == (Remedy.RESTART_IN_PLACE, Cause.CODE)
    assert (gang.status.attempt, gang.status.used) == (2, {"code": 1})
    assert gang.status.resume_step == 10


def test_a_failed_device_costs_one_pod() -> None:
    gang = trained()
    before, spare = pods_of(gang), gang.status.spares[0]
    victim = gang.member(1)
    gang.fail_device(victim.node, victim.devices[0])
    gang.recover()
    assert_others_kept(before, gang, {1})
    assert gang.member(1).uid == spare.uid
    assert (gang.recovery.remedy, gang.status.used) == (Remedy.PROMOTE_SPARE, {"device": 1})
    assert [s.parked for s in gang.status.spares] == [True]
    assert gang.status.spares[0].uid != spare.uid


def test_a_failed_spare_is_replaced_without_an_attempt() -> None:
    gang = trained()
    spare = gang.status.spares[0]
    gang.fail_device(spare.node, spare.devices[0])
    gang.settle()
    assert gang.status.attempt == 1
    assert gang.status.used == {}
    assert [s.parked for s in gang.status.spares] == [True]
    assert gang.status.spares[0].uid != spare.uid


def test_without_a_spare_a_pod_is_made_in_the_same_rack() -> None:
    gang = trained(a_job().replicas(4).gpus(4).in_one_rack())
    before, rack = pods_of(gang), gang.status.placement.domain
    victim = gang.member(1)
    gang.fail_device(victim.node, victim.devices[0])
    gang.recover()
    assert_others_kept(before, gang, {1})
    assert gang.recovery.remedy is Remedy.REPLACE_POD
    assert any("PromoteSpare: 0 spares" in why for why in gang.recovery.why_not)
    assert gang.status.placement.domain == rack


def test_a_full_rack_moves_the_gang() -> None:
    gang = trained(a_job().replicas(2).gpus(8).in_one_rack(), racks(2, 2))
    victim = gang.member(0)
    gang.fail_device(victim.node, victim.devices[0])
    gang.recover()
    assert gang.recovery.remedy is Remedy.REPLACE_GANG
    assert gang.status.placement.domain == "rack-2"
    assert gang.status.resume_step == 10


def test_nowhere_to_go_waits_with_a_reason_and_goes_on_when_there_is_room() -> None:
    gang = trained(a_job().replicas(2).gpus(8).in_one_rack(), racks(3))
    gang.occupy("node-03")
    victim = gang.member(0)
    gang.fail_device(victim.node, victim.devices[0])
    gang.settle()
    assert (gang.status.phase, gang.status.reason) == ("Recovering", "DomainFull")
    assert gang.status.message
    gang.vacate()
    gang.recover()
    assert gang.member(0).node == "node-03"


@pytest.mark.parametrize("how", ["deleted", "lost"])
def test_a_pod_that_goes_is_replaced_and_charged_to_the_infrastructure(how: str) -> None:
    gang = trained(a_job().replicas(2).gpus(8).spares(1).in_one_rack())
    victim = gang.member(1)
    if how == "deleted":
        gang.delete_pod(victim.uid)
    else:
        gang.power_off(victim.node)
        gang.expire(victim.node)
    gang.recover()
    assert gang.member(1).uid != victim.uid
    assert gang.status.used == {"infra": 1}


def test_a_dead_node_is_not_waited_for() -> None:
    gang = trained(a_job().replicas(2).gpus(8).spares(1).in_one_rack())
    victim = gang.member(1)
    gang.power_off(victim.node)
    gang.expire(victim.node)
    plan = gang.plan()
    assert [(d.name, d.force) for d in plan.delete] == [(victim.pod, True)]


def test_a_hung_rank_restarts_everyone() -> None:
    gang = trained()
    before = pods_of(gang)
    gang.hang(gang.member(3).uid)
    gang.recover()
    assert_others_kept(before, gang, set())
    assert gang.status.used == {"hang": 1}


def test_a_dead_launcher_comes_back_in_its_pod() -> None:
    gang = trained()
    before = pods_of(gang)
    gang.kill_launcher(gang.member(0).uid)
    gang.recover()
    assert_others_kept(before, gang, set())
    assert (gang.recovery.reason, gang.status.used) == ("LauncherDied", {"infra": 1})


def test_two_devices_at_once() -> None:
    gang = trained()
    before = pods_of(gang)
    for rank in (0, 3):
        gang.fail_device(gang.member(rank).node, gang.member(rank).devices[0])
    gang.recover()
    assert_others_kept(before, gang, {0, 3})
    assert gang.status.used == {"device": 1}


def test_a_fault_during_recovery_raises_the_attempt_again() -> None:
    gang = trained()
    gang.crash(gang.member(2).uid)
    gang.round()
    assert gang.status.attempt == 2
    victim = gang.member(1)
    gang.delete_pod(victim.uid)
    gang.recover()
    assert gang.status.attempt >= 3
    assert gang.member(1).uid != victim.uid


def test_a_corrupt_newest_checkpoint_costs_one_interval() -> None:
    gang = trained(steps=22)
    gang.checkpoints[2].discard(20)
    gang.crash(gang.member(0).uid)
    gang.recover()
    assert gang.status.resume_step == 15
    assert gang.recovery.resume_step == 15


def test_a_crash_explained_by_its_device_is_given_back() -> None:
    gang = trained()
    victim = gang.member(1)
    gang.crash(victim.uid)
    gang.round()
    assert gang.status.used == {"code": 1}
    gang.fail_device(victim.node, victim.devices[0])
    gang.recover()
    assert gang.status.used == {"device": 1}


def test_another_pods_device_does_not_explain_a_crash_the_gang_got_over() -> None:
    gang = trained()
    gang.crash(gang.member(1).uid)
    gang.recover()
    other = gang.member(3)
    gang.fail_device(other.node, other.devices[0])
    gang.recover()
    assert gang.status.used == {"code": 1, "device": 1}
    assert set(gang.status.goodput.lost_gpu_seconds) == {"code", "device"}


def test_an_overdrawn_budget_fails_the_job_by_name() -> None:
    gang = trained(a_job().replicas(2).budgets(code=1))
    gang.crash(gang.member(0).uid)
    gang.recover()
    gang.train(20)
    gang.settle(3)
    gang.crash(gang.member(0).uid)
    gang.settle()
    assert (gang.status.phase, gang.status.reason) == ("Failed", "CodeBudgetExhausted")
    first, _, rest = gang.status.message.partition(" Last: ")
    assert first == "Failed 2 times because of its own code (limit 1)."
    assert rest.endswith(". See remuda logs job; a new job may fail more often with --budget code=N.")
    gang.settle()
    assert (gang.live, gang.kept) == ([], {m.pod for m in gang.status.members})


def test_a_command_that_does_not_exist_fails_at_once() -> None:
    gang = a_gang(a_job(), racks(1)).settle()
    gang.crash(gang.member(0).uid, 127, "command not found: trian.py")
    gang.settle()
    assert (gang.status.phase, gang.status.reason) == ("Failed", "CommandNotFound")
    assert gang.status.used == {}


def test_all_done_is_success_and_gives_everything_back() -> None:
    gang = trained()
    for member in gang.status.members:
        gang.crash(member.uid, 0)
    gang.settle()
    assert gang.status.phase == "Succeeded"
    assert gang.gang == []


def test_the_time_lost_is_charged_to_its_cause() -> None:
    gang = trained()
    gang.crash(gang.member(0).uid)
    gang.recover()
    goodput = gang.status.goodput
    assert set(goodput.lost_gpu_seconds) == {"code"}
    assert goodput.lost_gpu_seconds["code"] == pytest.approx(goodput.lost_seconds * 16, rel=0.01)
    assert 0 < goodput.ettr < 1


def test_planning_twice_gives_the_same_plan() -> None:
    gang = trained()
    gang.crash(gang.member(0).uid)
    gang.deliver()
    observed = gang.observe()
    first, second = plan_training(observed, gang.now), plan_training(observed, gang.now)
    assert (first.status, first.delete, first.create) == (second.status, second.delete, second.create)
