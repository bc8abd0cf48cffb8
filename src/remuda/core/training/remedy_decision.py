"""What an interruption means for this job: its own rules and policies first, then the cheapest remedy that cures.

In this order, and the first that has something to say decides:

  1 a failure rule       Fail ends the job (RuleFail, the rule is named). RestartInPlace, ReplacePod and ReplaceGang are taken
                         when they are possible, else the cheapest other rung that cures. Ignore restarts in place and charges
                         nobody. `charge` names the budget that pays instead of the cause's own.
  2 the same step        The limit-th failure at one step, of two pods or more, is charged to the code, whatever broke; one more
                         ends the job.
  3 deviceFailed         Fail ends the job (DeviceFailed); the rungs work as above. RestartInPlace never cures a broken device and
                         is refused (InPlaceRefused): the next rung is taken. Ignore is no decision: such a device is no
                         fault while its rank runs (see `faults`).
  4 neither              the cheapest rung that cures.

The same step: a failure counts when the gang had got to that step by training (it has made a step in its attempt, or a process of
it ended or hung). Nodes that die while the gang starts, and everything planned, say nothing about the step. Two different pods
must have failed there: one pod that keeps failing may sit on hardware that is broken without saying so.

Rules: the first match wins. Only faults that explain the interruption are asked: ranks that die beside a broken device, or of one
another, end with codes that say nothing. All that a rule names must hold of one and the same fault.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cache

import msgspec

from remuda.api.training import Cause, DeviceFailedPolicy, FailureRule, Remedy, RuleAction
from remuda.api.validation.patterns import matches_validated_log_pattern
from remuda.core.devices.fault_codes import fault_table
from remuda.core.gang.gang_remedy import (
    ChosenRemedy,
    MemberFault,
    causes_to_charge,
    choose_gang_remedy,
    root_gang_fault,
)
from remuda.core.gang.pod_view import OPEN
from remuda.core.training.elastic_size import ranks_after_shrink
from remuda.core.training.placement_options import training_job_remedy_costs
from remuda.core.training.planning_context import PlanningContext
from remuda.core.training.segments import placement_options_for

FAULTS_MATCHED = 32  # so many faults are held against patterns: a gang that dies whole dies of one thing

SAME_STEP = "SameStepFailing"
_SYMPTOMS = (Cause.CODE, Cause.HANG)
_COUNTED = (*_SYMPTOMS, Cause.DEVICE, Cause.INFRA)

RULE_FAIL = "RuleFail"
DEVICE_FAILED = "DeviceFailed"

_RULE_RUNGS = {
    RuleAction.IGNORE: Remedy.RESTART_IN_PLACE,
    RuleAction.RESTART_IN_PLACE: Remedy.RESTART_IN_PLACE,
    RuleAction.REPLACE_POD: Remedy.REPLACE_POD,
    RuleAction.REPLACE_GANG: Remedy.REPLACE_GANG,
}
_DEVICE_RUNGS = {
    DeviceFailedPolicy.RESTART_IN_PLACE: Remedy.RESTART_IN_PLACE,
    DeviceFailedPolicy.REPLACE_POD: Remedy.REPLACE_POD,
    DeviceFailedPolicy.REPLACE_GANG: Remedy.REPLACE_GANG,
}


def decide_job_remedy(ctx: PlanningContext, faults: Sequence[MemberFault]) -> ChosenRemedy:
    """`Remedy.FAIL` ends the job, with the reason and the message that it carries."""
    ruling = find_training_failure_rule(ctx.spec.failure.rules, faults)
    if ruling is not None:
        return _remedy_by_rule(ctx, faults, ruling)
    root = root_gang_fault(faults)
    count, limit = job_failures_at_step(ctx, faults), ctx.spec.failure.same_step_limit
    if limit and count >= limit and not root.planned:
        return _remedy_for_same_step(ctx, faults, count)
    view = ctx.views.get(root.uid)
    if root.cause is Cause.DEVICE and view is not None and view.bad_device is not None:  # failed, not merely slow
        return _job_remedy_for_device(ctx, faults)
    return _cheapest_job_remedy(ctx, faults)


def _cheapest_job_remedy(
    ctx: PlanningContext, faults: Sequence[MemberFault], wanted: Remedy | None = None
) -> ChosenRemedy:
    options = placement_options_for(ctx, faults, ranks_after_shrink(ctx, faults))
    return choose_gang_remedy(faults, options, training_job_remedy_costs(ctx, faults), wanted)


def _job_failing_remedy(faults: Sequence[MemberFault], reason: str, message: str) -> ChosenRemedy:
    return ChosenRemedy(Remedy.FAIL, root_gang_fault(faults).cause, reason, message, 0.0, faults=tuple(faults))


def _remedy_by_rule(ctx: PlanningContext, faults: Sequence[MemberFault], ruling: MatchedRule) -> ChosenRemedy:
    rule, first = ruling.rule, root_gang_fault(ruling.matched)
    charge: tuple[Cause, ...] | None = (rule.charge,) if rule.charge is not None else None
    if rule.action is RuleAction.FAIL:
        is_said = first.code is None or f"exit code {first.code}" in first.message
        code = "" if is_said else f" with exit code {first.code}"
        text = f"Rule `{ruling.name}` ends the job: {first.pod} failed{code}: {first.message}"
        chosen = _job_failing_remedy(faults, RULE_FAIL, text)
        return msgspec.structs.replace(chosen, charge=charge, rule=ruling.name)
    if rule.action is RuleAction.IGNORE:
        charge = ()
    elif rule.action is RuleAction.REPLACE_POD:
        given_up = {f.uid for f in ruling.matched}
        faults = [msgspec.structs.replace(f, lost=True) if f.uid in given_up else f for f in faults]
    chosen = _cheapest_job_remedy(ctx, faults, _RULE_RUNGS[rule.action])
    return msgspec.structs.replace(chosen, charge=charge, rule=ruling.name)


def _remedy_for_same_step(ctx: PlanningContext, faults: Sequence[MemberFault], count: int) -> ChosenRemedy:
    root, step = root_gang_fault(faults), ctx.fresh.step
    text = f"The gang has failed {count} times at step {step}, so the hardware is not to blame. Last failure: {root.message}"
    is_over = count > ctx.spec.failure.same_step_limit
    chosen = _job_failing_remedy(faults, SAME_STEP, text) if is_over else _cheapest_job_remedy(ctx, faults)
    return msgspec.structs.replace(
        chosen, cause=Cause.CODE, reason=SAME_STEP, message=text, charge=(Cause.CODE,), is_code=True
    )


def _job_remedy_for_device(ctx: PlanningContext, faults: Sequence[MemberFault]) -> ChosenRemedy:
    policy = ctx.spec.failure.device_failed
    if policy is DeviceFailedPolicy.FAIL:
        text = f"{root_gang_fault(faults).message} The job asks for this (spec.failure.deviceFailed is Fail)."
        return _job_failing_remedy(faults, DEVICE_FAILED, text)
    return _cheapest_job_remedy(ctx, faults, _DEVICE_RUNGS.get(policy))


# -- failures at one step ----------------------------------------------------------------------------------------------


def job_failures_at_step(ctx: PlanningContext, faults: Sequence[MemberFault]) -> int:
    """How often the gang has failed at the step it is at, this time included; 0 when that says nothing about the step."""
    step, past = ctx.fresh.step, ctx.status.recoveries
    root = root_gang_fault(faults)
    if (
        step <= 0
        or ctx.status.barrier != OPEN
        or not _counts_for_step(root.cause, has_trained=_has_job_trained(ctx, len(past)))
    ):
        return 0
    there = [
        recovery
        for index, recovery in enumerate(past)
        if recovery.step_at_fault == step and _counts_for_step(recovery.cause, has_trained=_has_job_trained(ctx, index))
    ]
    pods = {fault.uid for fault in faults}.union(*({seat.uid for seat in r.seats} for r in there))
    return 1 + len(there) if len(pods) > 1 else 0


def _counts_for_step(cause: Cause, *, has_trained: bool) -> bool:
    return cause in _SYMPTOMS or (cause in _COUNTED and has_trained)


def _has_job_trained(ctx: PlanningContext, index: int) -> bool:
    """Whether the gang made a step before the interruption of that number and after the one before it."""
    return index == 0 or ctx.status.recoveries[index - 1].first_step_at is not None


# -- the job's own rules -----------------------------------------------------------------------------------------------


class MatchedRule(msgspec.Struct, frozen=True):
    """The rule that decides, by the name it is told by, and the faults it matches."""

    rule: FailureRule
    name: str
    matched: tuple[MemberFault, ...]


def find_training_failure_rule(rules: Sequence[FailureRule], faults: Sequence[MemberFault]) -> MatchedRule | None:
    if not rules:
        return None
    causes = set(causes_to_charge(faults))
    asked = [f for f in faults if f.cause in causes]
    for index, rule in enumerate(rules):
        matched = tuple(f for f in _faults_for_rule(rule, asked) if training_rule_matches_fault(rule, f))
        if matched:
            return MatchedRule(rule, rule.name or f"rules[{index}]", matched)
    return None


def _faults_for_rule(rule: FailureRule, faults: Sequence[MemberFault]) -> Iterable[MemberFault]:
    return faults[:FAULTS_MATCHED] if rule.log_pattern else faults


def training_rule_matches_fault(rule: FailureRule, fault: MemberFault) -> bool:
    if rule.exit_codes and fault.code not in rule.exit_codes:
        return False
    if rule.faults and not {fault.reason.lower(), _rule_fault_class(fault.reason)} & {
        name.lower() for name in rule.faults
    }:
        return False
    return not rule.log_pattern or matches_validated_log_pattern(rule.log_pattern, fault.tail or fault.message)


def _rule_fault_class(reason: str) -> str:
    return _rule_fault_classes().get(reason, "")


@cache
def _rule_fault_classes() -> dict[str, str]:
    return {fault.reason: fault.cls for fault in fault_table().by_code.values()}
