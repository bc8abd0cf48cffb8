"""The device ladder: what is next for one incident. Pure: `climb_ladder(case, now)` gives the records as they should be, and
what has to stand in the cluster because of them.

A record is written before what it stands for is done, and all else follows from the records: an order stands while its
record runs, the device is under quarantine from the first rung until it is given back, the node is ours while something
runs on it. So a look that is repeated, by this manager or the next, arrives at the same, and nothing is begun twice.

    quarantine -> rung -> probe passes? -> soak (Verifying) -> quarantine lifted
                    |          | no, or a fault in the soak
                    +----------+-> the next rung ... -> the ladder has ended: NotCured. Somebody is told, the device stays out

An incident whose ladder has ended stays open, because the cure is still owed: it is over when the subject is well again or
another one, or when an operator says so. What has no ladder says why in the same condition.

A soak is broken by what was heard *after* the probe. What a rung itself stirs up (a monitor that starts anew and tells
the old fault again) lies before it and starts nothing. Before every rung the policy is asked: its mode, and the `gate`
of pause, limits and breaker. They never stand in the way of what is under way, nor of giving a device back.
"""

from __future__ import annotations

import msgspec

from remuda.api.conditions import find_condition, with_condition
from remuda.api.devices import DeviceState, QuarantineOrder
from remuda.api.incidents import IncidentOutcome, IncidentPhase, IncidentStatus, RemedyOutcome, SubjectKind
from remuda.api.meta import to_seconds, to_time
from remuda.api.remedies import Action, Ladder, Rung
from remuda.core.remedies.ladder.abandoned_rungs import take_over_abandoned_rungs
from remuda.core.remedies.ladder.admission import admit_rung
from remuda.core.remedies.ladder.execution import do_rung, drain_nodes_for_ladder_rung, probe_after_rung
from remuda.core.remedies.ladder.soak import fault_during_ladder_soak, why_soak_failed
from remuda.core.remedies.ladder.state import CURED, GO, NEXT, LadderMove, LadderState, is_rung_open
from remuda.core.remedies.ladder.types import LadderCase, LadderStep
from remuda.core.remedies.policies import ANY_FAULT, BY_JOB, policy_ladders, remedy_policy_ladder_for_verdict
from remuda.core.remedies.remedy_keys import is_remedy_key_of_recheck
from remuda.core.remedies.rungs import (
    ENDED,
    LADDER,
    NO_LADDER,
    RECYCLES,
    VERIFY_S,
    LadderStage,
    are_remedies_exhausted,
    first_ladder_stage,
    is_repeat_offender_by_policy,
    ladder_rungs_in_words,
    lay_out_remedy_stages,
)

# Closed like this, a device is given back: it is well, it is another one, or an operator said so.
GIVEN_BACK = (
    IncidentOutcome.CURED,
    IncidentOutcome.FALSE_ALARM,
    IncidentOutcome.REPLACED,
    IncidentOutcome.DISMISSED,
)
SILENT_S = 30.0  # between two looks at a soak whose agent says nothing
BY = "remuda"
ANY = "Any"  # the reason of the condition for a ladder that waits for `*`
RECHECKED = "Recheck"
LEFT = "no more rungs; what was started is finished"


def climb_ladder(case: LadderCase, now: float) -> LadderStep:
    """What should stand for this incident now."""
    if not case.incident.is_open:
        keeps = case.incident.status.outcome not in GIVEN_BACK and not case.is_replaced
        return LadderStep(case.incident.status, _own_quarantine(case) if keeps else None)
    ladder = _ladder_in_use(case)
    state = LadderState(case, now)
    stages = lay_out_remedy_stages(ladder) if ladder is not None else []
    left = take_over_abandoned_rungs(state, stages, follows=ladder is None or ladder.when != RECHECKED)
    move = _climb_stage(state, left, now) if left is not None else NEXT
    if move is NEXT:
        move = _climb_stages(state, stages, now)
    if ladder is None and not state.has_begun:
        return LadderStep(_status_without_ladder(case, now), None)
    if move is NEXT:  # nothing is left to try
        move = _recheck_device(state, now)
    status = _climbed_status(
        state, move, ladder.when if ladder else "None", ladder_rungs_in_words(ladder) if ladder else LEFT, now
    )
    wants = state.has_begun and not state.is_given_back
    return state.step(status, _quarantine_order(case, now) if wants else None)


def _ladder_in_use(case: LadderCase) -> Ladder | None:
    """The one that was begun, as long as the policy has it: what the rungs themselves bring to light (a probe that failed)
    does not start another. One that has ended is not climbed again; there are only the probes that operators ask for."""
    begun = find_condition(case.incident.status.conditions, LADDER)
    if begun is not None and (begun.status == "False" or begun.reason == RECHECKED):
        return Ladder(RECHECKED, [])
    if begun is not None:
        when = begun.reason if begun.reason != ANY else ANY_FAULT
        kept = next((ladder for ladder in policy_ladders(case.policy) if ladder.when == when), None)
        if kept is not None:
            return kept
    return remedy_policy_ladder_for_verdict(case.policy, case.incident.status.verdict)


def _climb_stages(state: LadderState, stages: list[LadderStage], now: float) -> LadderMove:
    case = state.case
    offender = case.policy.spec.offender
    is_offender = is_repeat_offender_by_policy(case.devices, case.subject, offender, now)
    start = first_ladder_stage(stages, state.records, is_offender, offender.action)
    if start and is_offender and not state.has_begun:
        state.why_not = [f"{s.key}: skipped for a repeat offender" for s in stages[:start]]
    for stage in stages[start:]:
        move = _climb_stage(state, stage, now)
        if move is not NEXT:
            return move
    return NEXT


def _climb_stage(state: LadderState, stage: LadderStage, now: float) -> LadderMove:
    """One attempt of one rung, as far as it goes now."""
    records, rung = state.records, stage.rung
    if not any(key in records and records[key].started_at is not None for key in stage.keys):
        act = records.get(stage.key)
        if act is not None and not is_rung_open(act):
            return NEXT
        move = admit_rung(state, stage)
        if move is not GO:
            return move
    if stage.drain_rung_key:
        move = drain_nodes_for_ladder_rung(state, stage.drain_rung_key, stage)
        if move is not GO:
            return move
        if not state.has_ended(stage.key):
            state.keep_empty(state.targets(rung.action))
    move = do_rung(
        state, stage.key, rung, state.targets(rung.action), is_waiting_for_device=rung.action not in RECYCLES
    )
    if move is not GO:
        return move
    if rung.action is Action.TICKET:
        return NEXT
    probe = stage.verify_key or stage.key
    if stage.verify_key:
        move = probe_after_rung(state, stage)
        if move is not GO:
            return move
    return _soak_device(state, probe, now)


def _soak_device(state: LadderState, probe: str, now: float) -> LadderMove:
    """The probe has passed: wait for the soak's end, and give the device back."""
    case, record = state.case, state.records[probe]
    passed = to_seconds(record.ended_at) if record.ended_at is not None else now
    until = passed + case.policy.spec.soak.seconds
    broken = fault_during_ladder_soak(case, passed)
    if not broken and now >= until and not case.is_silent:
        broken = why_soak_failed(case, now)
    if broken:
        state.amend(probe, RemedyOutcome.FAILED, "FaultDuringSoak", broken)
        return NEXT
    state.soak_until = until
    if now < until:
        state.looks.append(until)
    elif case.is_silent:
        state.looks.append(now + SILENT_S)
    else:
        state.is_given_back = True
    return CURED


def _recheck_device(state: LadderState, now: float) -> LadderMove:
    """After the ladder's end: probes that operators ask for, the newest last."""
    asked = [a.remedy for a in state.case.incident.spec.approvals if a.granted and is_remedy_key_of_recheck(a.remedy)]
    for key in dict.fromkeys(asked):
        probe = Rung(Action.PROBE, timeout_seconds=VERIFY_S)
        move = do_rung(state, key, probe, state.targets(Action.PROBE), is_waiting_for_device=True)
        if move is GO:
            move = _soak_device(state, key, now)
        if move is not NEXT:
            return move
    return NEXT


def _climbed_status(state: LadderState, move: LadderMove, when: str, rungs: str, now: float) -> IncidentStatus:
    status = state.case.incident.status
    records = [*state.workload, *state.records.values()]
    conditions, moment = status.conditions, to_time(now)
    phase = status.phase
    if move is CURED:
        phase = IncidentPhase.VERIFYING
    elif move is NEXT:
        phase = IncidentPhase.OPEN
        ends = {RemedyOutcome.REFUSED, RemedyOutcome.SKIPPED}
        tried = ", ".join(f"{r.key} {r.reason if r.outcome in ends else r.outcome}" for r in state.records.values())
        is_domain = state.case.subject.kind is SubjectKind.DOMAIN
        what = "Operators were told" if is_domain else f"The ladder for {when} has ended without a cure"
        words = f"{what} ({tried}). {state.how_it_is_left}"
        if not are_remedies_exhausted(state.case.incident):
            conditions = with_condition(conditions, LADDER, False, ENDED, words, moment)
    else:
        is_asked = any(r.outcome is RemedyOutcome.WAITING for r in state.records.values())
        phase = IncidentPhase.REMEDYING if state.has_begun or is_asked else IncidentPhase.OPEN
    if move is not NEXT and state.has_begun:
        reason = when if when != ANY_FAULT else ANY
        words = f"Policy {state.case.policy.name}: {rungs}." if rungs else "An operator asked for another probe."
        conditions = with_condition(conditions, LADDER, True, reason, words, moment)
    elif move is not NEXT:  # for what it failed with at first there was none; for what it is now there is
        conditions = [c for c in conditions if (c.type, c.reason) != (LADDER, NO_LADDER)]
    return state.changed_status(status, phase, records, conditions, is_cure_owed=move is NEXT)


def _status_without_ladder(case: LadderCase, now: float) -> IncidentStatus:
    """Of a node or a domain: why nothing is done to it. (A device without one is fine, or goes on serving.) What waited on a
    ladder that it had for something else waits no more."""
    status, kind = case.incident.status, case.subject.kind
    if kind is SubjectKind.DEVICE or not status.verdict.reason or are_remedies_exhausted(case.incident):
        return status
    words = f"Policy {case.policy.name} has no ladder for {status.verdict.reason}: nothing is done automatically."
    if kind is SubjectKind.DOMAIN:
        words += " Its parts have ladders of their own."
    conditions = with_condition(status.conditions, LADDER, None, NO_LADDER, words, to_time(now))
    remedies = [r for r in status.remedies if not (is_rung_open(r) and r.started_at is None)]
    if conditions is status.conditions and len(remedies) == len(status.remedies):
        return status
    return msgspec.structs.replace(status, conditions=conditions, remedies=remedies)


def may_take_over_quarantine(order: QuarantineOrder) -> bool:
    """Given for something that was found, by us or by a job: a ladder that climbs for it gives the device back when it is well
    again. A person's order is taken back by a person, another incident's by that."""
    return not order.incident and (order.by == BY or order.by.startswith(BY_JOB))


def _own_quarantine(case: LadderCase) -> QuarantineOrder | None:
    """Our own order, as it stands."""
    order = case.devices.quarantine.get(case.subject.device) if case.devices is not None else None
    return order if order is not None and order.incident == case.incident.name else None


def _quarantine_order(case: LadderCase, now: float) -> QuarantineOrder | None:
    if case.subject.kind is not SubjectKind.DEVICE:
        return None
    verdict = case.incident.status.verdict
    return _own_quarantine(case) or QuarantineOrder(
        reason=verdict.reason or DeviceState.UNHEALTHY.value,
        message=verdict.message,
        by=BY,
        since=to_time(now),
        incident=case.incident.name,
    )
