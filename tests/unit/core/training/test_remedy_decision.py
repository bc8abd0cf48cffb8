"""The job's own rules and policies: each has its outcome, and says so."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from remuda.api.training import Cause, DeviceFailedPolicy, FailureRule, Remedy, RuleAction
from tests.builders.gang_model import GangModel, a_gang
from tests.builders.gangs import JobBuilder, a_job, racks

JOB = a_job().replicas(3).gpus(8).spares(1).in_one_rack().failure(same_step_limit=0)


def running(job: JobBuilder = JOB) -> GangModel:
    return a_gang(job, racks(6, 6)).start()


def ruled(*rules: FailureRule, job: JobBuilder = JOB) -> GangModel:
    return running(job.failure(rules=list(rules)))


# --- rules ------------------------------------------------------------------------------------------------------------


def test_an_exit_code_that_is_not_to_be_retried_ends_the_job_and_names_the_rule() -> None:
    gang = ruled(FailureRule(RuleAction.FAIL, name="bad-config", exit_codes=[42]))
    gang.crash(gang.member(1).uid, 42, "exit code 42: no such dataset")
    gang.settle(3)
    assert (gang.status.phase, gang.status.reason) == ("Failed", "RuleFail")
    assert "`bad-config`" in gang.status.message
    assert gang.status.message.count("exit code 42") == 1
    assert (gang.recovery.remedy, gang.recovery.rule) == (Remedy.FAIL, "bad-config")
    assert not gang.live


def test_another_exit_code_is_no_match() -> None:
    gang = ruled(FailureRule(RuleAction.FAIL, exit_codes=[42]))
    gang.crash(gang.member(1).uid, 41)
    gang.recover()
    assert (gang.status.used, gang.recovery.rule) == ({"code": 1}, "")


def test_the_first_rule_that_matches_decides() -> None:
    ignore = FailureRule(RuleAction.IGNORE, name="first", exit_codes=[7])
    gang = ruled(ignore, FailureRule(RuleAction.FAIL, name="second", exit_codes=[7]))
    gang.crash(gang.member(0).uid, 7)
    gang.recover()
    assert (gang.status.used, gang.recovery.rule, gang.recovery.charged) == ({}, "first", "")


def test_all_that_a_rule_names_must_hold() -> None:
    rule = FailureRule(RuleAction.FAIL, exit_codes=[1], log_pattern="out of memory")
    gang = ruled(rule)
    gang.crash(gang.member(0).uid, 1, tail="ValueError: no")
    gang.recover()
    gang.crash(gang.member(0).uid, 1, tail="RuntimeError\nCUDA out of memory.\n")
    gang.settle(3)
    assert gang.status.reason == "RuleFail"
    assert "`rules[0]`" in gang.status.message


@pytest.mark.parametrize("name", ["Xid79", "xid79", "bus"])
def test_a_fault_is_matched_by_reason_and_by_class(name: str) -> None:
    gang = ruled(FailureRule(RuleAction.FAIL, faults=[name]))
    gang.break_device(0)
    gang.settle(3)
    assert gang.status.reason == "RuleFail", gang.recovery


def test_a_crash_beside_a_broken_device_is_not_held_against_the_rules() -> None:
    gang = ruled(FailureRule(RuleAction.FAIL, exit_codes=[1]))
    gang.crash(gang.member(1).uid, 1)
    gang.break_device(0)
    gang.recover()
    assert gang.status.used == {"device": 1}


def test_another_budget_pays() -> None:
    rule = FailureRule(RuleAction.RESTART_IN_PLACE, exit_codes=[75], charge=Cause.PREEMPTION)
    gang = ruled(rule)
    gang.crash(gang.member(1).uid, 75)
    gang.recover()
    assert gang.status.used == {"preemption": 1}
    assert (gang.recovery.cause, gang.recovery.charged) == (Cause.CODE, "preemption")


def test_what_another_budget_paid_is_given_back_to_it_when_a_device_explains_the_crash() -> None:
    gang = ruled(FailureRule(RuleAction.RESTART_IN_PLACE, exit_codes=[75], charge=Cause.INFRA))
    gang.crash(gang.member(1).uid, 75)
    gang.deliver()
    gang.look()
    assert gang.status.used == {"infra": 1}
    gang.break_device(1)
    gang.recover()
    assert gang.status.used == {"device": 1}


@pytest.mark.parametrize(
    ("action", "remedies", "moved"),
    [
        (RuleAction.RESTART_IN_PLACE, {Remedy.RESTART_IN_PLACE}, 0),
        (RuleAction.REPLACE_POD, {Remedy.PROMOTE_SPARE, Remedy.REPLACE_POD}, 1),
        (RuleAction.REPLACE_GANG, {Remedy.REPLACE_GANG}, 3),
    ],
)
def test_a_rule_takes_its_rung(action: RuleAction, remedies: set[Remedy], moved: int) -> None:
    gang = ruled(FailureRule(action, exit_codes=[9]))
    before = {m.uid for m in gang.status.members}
    gang.crash(gang.member(2).uid, 9)
    gang.recover()
    assert gang.recovery.remedy in remedies
    assert len({m.uid for m in gang.status.members} - before) == moved
    assert gang.status.used == {"code": 1}


def test_ignored_crashes_cost_no_budget_and_wait_longer_and_longer() -> None:
    gang = ruled(FailureRule(RuleAction.IGNORE, exit_codes=[9]), job=JOB.budgets(code=0))
    pauses = []
    for _ in range(9):
        gang.crash(gang.member(2).uid, 9)
        began = gang.now
        while not (gang.status.attempt > 1 and gang.is_running):
            gang.round(0.5)
            assert gang.now < began + 60
        pauses.append(gang.now - began)
    assert gang.status.used == {}
    assert pauses[0] < 2.0
    assert pauses[4] > 7.0
    assert 29.0 < pauses[-1] < 33.0
    gang.train(8)
    gang.settle(3)
    gang.crash(gang.member(2).uid, 9)
    began = gang.now
    gang.recover()
    assert gang.now - began < 8.0, "a step further, and the next restart comes at once"


# --- deviceFailed -----------------------------------------------------------------------------------------------------


def _in_place_refused(gang: GangModel) -> None:
    assert gang.recovery.remedy is Remedy.PROMOTE_SPARE
    assert any("RestartInPlace: InPlaceRefused" in text for text in gang.recovery.why_not)


def _replaced(gang: GangModel) -> None:
    assert gang.recovery.remedy in (Remedy.PROMOTE_SPARE, Remedy.REPLACE_POD)


def _moved(gang: GangModel) -> None:
    assert gang.recovery.remedy is Remedy.REPLACE_GANG
    assert any(text.startswith("PromoteSpare: ") for text in gang.recovery.why_not)


@pytest.mark.parametrize(
    ("policy", "check"),
    [
        (DeviceFailedPolicy.CHEAPEST, _replaced),
        (DeviceFailedPolicy.RESTART_IN_PLACE, _in_place_refused),
        (DeviceFailedPolicy.REPLACE_POD, _replaced),
        (DeviceFailedPolicy.REPLACE_GANG, _moved),
    ],
)
def test_each_device_policy_has_its_outcome(policy: DeviceFailedPolicy, check: Callable[[GangModel], None]) -> None:
    gang = running(JOB.failure(device_failed=policy))
    bad = (gang.member(0).node, gang.member(0).devices[0])
    gang.break_device(0)
    gang.recover()
    check(gang)
    assert bad not in {(m.node, d) for m in gang.status.members for d in m.devices}
    assert gang.status.used == {"device": 1}


def test_a_device_that_fails_may_end_the_job() -> None:
    gang = running(JOB.failure(device_failed=DeviceFailedPolicy.FAIL))
    gang.break_device(0)
    gang.settle(3)
    assert (gang.status.phase, gang.status.reason) == ("Failed", "DeviceFailed")
    assert gang.recovery.remedy is Remedy.FAIL
    gang.settle(2)
    assert not gang.live
    assert set(gang.recovery.members) <= gang.kept, "what failed can be looked at"


def test_an_ignored_device_is_kept_until_something_stops_its_rank() -> None:
    gang = running(JOB.failure(device_failed=DeviceFailedPolicy.IGNORE))
    victim = gang.member(0)
    gang.break_device(0)
    gang.settle(5)
    assert (gang.is_running, gang.status.attempt, gang.status.used) == (True, 1, {})
    gang.crash(gang.member(1).uid, 1)
    gang.recover()
    assert victim.uid not in {m.uid for m in gang.status.members}, "nothing is started on a device that is not well"


def test_a_quarantined_device_is_not_ignored() -> None:
    gang = running(JOB.failure(device_failed=DeviceFailedPolicy.IGNORE))
    victim = gang.member(0)
    gang._quarantine(victim.node, victim.devices[0], "Suspect")
    gang.recover()
    assert victim.uid not in {m.uid for m in gang.status.members}


# --- not hardware -----------------------------------------------------------------------------------------------------


def test_the_same_step_failing_on_whatever_devices_is_the_codes_fault() -> None:
    gang = running(JOB.failure(same_step_limit=3))
    for count in (1, 2, 3):
        gang.break_device(count % 3)
        gang.settle()
        assert gang.is_running
        gang.train(2)  # from the checkpoint of step 5 to step 7, where it fails again
        gang.settle(2)
        assert gang.status.progress.step == 7
        assert gang.status.used == ({"device": count} if count < 3 else {"device": 2, "code": 1})
    assert (gang.recovery.cause, gang.recovery.reason) == (Cause.CODE, "SameStepFailing")
    gang.break_device(0)
    gang.settle(3)
    assert (gang.status.phase, gang.status.reason) == ("Failed", "SameStepFailing")
    assert "step 7" in gang.status.message


def test_one_pod_failing_at_one_step_is_moved_before_the_code_is_blamed() -> None:
    gang = running(JOB.failure(same_step_limit=3).budgets(code=9).failure(same_step_limit=3))
    first = gang.member(0).uid
    for count in range(1, 9):
        assert "SameStepFailing" not in {r.reason for r in gang.status.recoveries}, f"failure {count}"
        if gang.member(0).uid != first:
            break
        gang.crash(gang.member(0).uid)
        gang.settle(60)
        assert gang.is_running
    assert gang.member(0).uid != first
    gang.crash(gang.member(0).uid)
    gang.settle(3)
    assert (gang.status.phase, gang.status.reason) == ("Failed", "SameStepFailing")


def test_several_ranks_that_fail_at_one_step_need_no_move() -> None:
    gang = running(JOB.failure(same_step_limit=2).budgets(code=9).failure(same_step_limit=2))
    for rank in (0, 1):
        gang.crash(gang.member(rank).uid)
        gang.settle(60)
    assert gang.recovery.reason == "SameStepFailing"
    assert gang.recovery.remedy is Remedy.RESTART_IN_PLACE


def test_a_step_further_is_another_failure() -> None:
    gang = running(JOB.failure(same_step_limit=2).budgets(code=9).failure(same_step_limit=2))
    for _ in range(4):
        gang.crash(gang.member(0).uid)
        gang.settle(60)
        gang.train(6)  # past the next checkpoint
        gang.settle(2)
    assert gang.status.used == {"code": 4}
    assert {r.reason for r in gang.status.recoveries} == {"ProcessExited"}


def test_nodes_that_die_while_the_gang_starts_say_nothing_about_the_step() -> None:
    gang = running(JOB.failure(same_step_limit=1))
    gang.train(3)
    gang.settle(2)
    gang.crash(gang.member(0).uid)
    gang.deliver()
    gang.look()
    node = gang.member(1).node
    gang.power_off(node)
    gang.expire(node)
    gang.settle()
    assert gang.is_running
    assert "infra" in gang.status.used


def test_a_loss_that_is_not_finite_is_never_the_devices_fault() -> None:
    gang = running()
    gang.crash(gang.member(1).uid, 1, "exit code 1: remuda_train.LossNotFinite: the loss is nan at step 8")
    gang.deliver()
    gang.look()
    assert (gang.recovery.cause, gang.recovery.reason) == (Cause.CODE, "LossNotFinite")
    gang.break_device(1)
    gang.recover()
    assert gang.status.used == {"code": 1, "device": 1}
