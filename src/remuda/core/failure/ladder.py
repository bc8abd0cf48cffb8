"""The device ladder: what is next for one incident. Pure: `climb(case, now)` gives the records as they should be, and
what has to stand in the cluster because of them.

A record is written before what it stands for is done, and all else follows from the records: an order stands while its
record runs, the device is under quarantine from the first rung until it is given back, the node is ours while something
runs on it. So a look that is repeated, by this manager or the next, arrives at the same, and nothing is begun twice.

    quarantine -> rung -> probe passes? -> soak (Verifying) -> quarantine lifted
                    |          | no, or a fault in the soak
                    +----------+-> the next rung ... -> the ladder has ended: somebody is told, the device stays out

A soak is broken by what was heard *after* the probe. What a rung itself stirs up (a monitor that starts anew and tells
the old fault again) lies before it and starts nothing. Before every rung the policy is asked: its mode, and the `gate`
of pause, limits and breaker. They never stand in the way of what is under way, nor of giving a device back.
"""

from __future__ import annotations

from remuda.api.conditions import find_condition, with_condition
from remuda.api.devices import DeviceState, QuarantineOrder
from remuda.api.incidents import IncidentOutcome, IncidentPhase, IncidentStatus, RemedyOutcome, SubjectKind
from remuda.api.meta import to_seconds, to_time
from remuda.api.remedies import Action, Ladder, Mode, Rung
from remuda.core.failure.ladder_case import Case, Step
from remuda.core.failure.ladder_moves import CURED, GO, NEXT, WAIT, Climber, Move, is_open
from remuda.core.failure.ladder_soak import heard_since, is_still_bad
from remuda.core.failure.policy import ANY_FAULT, ladder_for, ladders_of
from remuda.core.failure.rungs import (
    ENDED,
    LADDER,
    RECHECK,
    RECYCLES,
    VERIFY_S,
    Stage,
    describe,
    first_stage,
    is_repeat_offender,
    ladder_has_ended,
    stages_of,
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


def climb(case: Case, now: float) -> Step:
    """What should stand for this incident now."""
    if not case.incident.is_open:
        keeps = case.incident.status.outcome not in GIVEN_BACK
        return Step(case.incident.status, _standing(case) if keeps else None)
    ladder = _ladder(case)
    climber = Climber(case, now)
    stages = stages_of(ladder) if ladder is not None else []
    move = _walk(climber, stages, now)
    if ladder is None and not climber.has_begun:
        return Step(case.incident.status, None)
    if move is NEXT:  # nothing is left to try
        move = _recheck(climber, now)
    status = _status(climber, move, ladder.when if ladder else "None", describe(ladder) if ladder else "", now)
    wants = climber.has_begun and not climber.is_given_back
    return climber.step(status, _order(case, now) if wants else None)


def _ladder(case: Case) -> Ladder | None:
    """The one that was begun, as long as the policy has it: what the rungs themselves bring to light (a probe that failed)
    does not start another. One that has ended is not climbed again; there are only the probes that operators ask for."""
    begun = find_condition(case.incident.status.conditions, LADDER)
    if begun is not None and (begun.status == "False" or begun.reason == RECHECKED):
        return Ladder(RECHECKED, [])
    if begun is not None:
        when = begun.reason if begun.reason != ANY else ANY_FAULT
        kept = next((ladder for ladder in ladders_of(case.policy) if ladder.when == when), None)
        if kept is not None:
            return kept
    return ladder_for(case.policy, case.incident.status.verdict)


def _walk(climber: Climber, stages: list[Stage], now: float) -> Move:
    case = climber.case
    offender = case.policy.spec.offender
    is_offender = is_repeat_offender(case.devices, case.subject, offender, now)
    start = first_stage(stages, climber.records, is_offender, offender.action)
    if start and is_offender and not climber.has_begun:
        climber.why_not = [f"{s.key}: skipped for a repeat offender" for s in stages[:start]]
    for stage in stages[start:]:
        move = _stage(climber, stage, now)
        if move is not NEXT:
            return move
    return NEXT


def _stage(climber: Climber, stage: Stage, now: float) -> Move:
    """One attempt of one rung, as far as it goes now."""
    records, rung = climber.records, stage.rung
    if not any(key in records and records[key].started_at is not None for key in stage.keys):
        act = records.get(stage.key)
        if act is not None and not is_open(act):
            return NEXT
        move = _admit(climber, stage)
        if move is not GO:
            return move
    if stage.drain_key:
        move = climber.emptied(stage.drain_key, stage)
        if move is not GO:
            return move
        if not climber.has_ended(stage.key):
            climber.keep_empty(climber.targets(rung.action))
    move = climber.done(
        stage.key, rung, climber.targets(rung.action), is_waiting_for_device=rung.action not in RECYCLES
    )
    if move is not GO:
        return move
    if rung.action is Action.TICKET:
        return NEXT
    probe = stage.verify_key or stage.key
    if stage.verify_key:
        move = climber.verified(stage)
        if move is not GO:
            return move
    return _soaked(climber, probe, now)


def _admit(climber: Climber, stage: Stage) -> Move:
    """Whether a stage that was not begun may be."""
    case, key, action = climber.case, stage.key, stage.rung.action
    if (impossible := climber.impossible(stage)) is not None:
        climber.record(key, stage.rung, impossible[0], impossible[1], impossible[2])
        return NEXT
    if case.policy.spec.mode is Mode.OBSERVE:
        words = f"Policy {case.policy.name} only observes; {action} would be next."
        climber.record(key, stage.rung, RemedyOutcome.OBSERVED, "ObserveOnly", words)
        return WAIT
    said = next((a for a in reversed(case.incident.spec.approvals) if a.remedy == key), None)
    if said is not None and not said.granted:
        by = f" by {said.by}" if said.by else ""
        climber.record(key, stage.rung, RemedyOutcome.REFUSED, "Denied", f"Denied{by}.")
        return NEXT
    if case.policy.spec.mode is Mode.APPROVE and said is None:
        words = f"Policy {case.policy.name} asks first: remuda approve {case.incident.name} {key}"
        climber.record(key, stage.rung, RemedyOutcome.WAITING, "AwaitingApproval", words)
        return WAIT
    targets = climber.targets(action)
    if climber.disturbs(key, stage.rung, targets) is not GO:
        return WAIT
    held = case.gate.held(targets, climber.now) if case.gate is not None and action is not Action.TICKET else None
    if held is not None:
        climber.hold_back(key, stage.rung, held)
        return WAIT
    return GO if action is Action.TICKET else climber.may_have(key, stage.rung, targets)


def _soaked(climber: Climber, probe: str, now: float) -> Move:
    """The probe has passed: wait for the soak's end, and give the device back."""
    case, record = climber.case, climber.records[probe]
    passed = to_seconds(record.ended_at) if record.ended_at is not None else now
    until = passed + case.policy.spec.soak.seconds
    broken = heard_since(case, passed)
    if not broken and now >= until and not case.is_silent:
        broken = is_still_bad(case, now)
    if broken:
        climber.amend(probe, RemedyOutcome.FAILED, "FaultDuringSoak", broken)
        return NEXT
    climber.soak_until = until
    if now < until:
        climber.looks.append(until)
    elif case.is_silent:
        climber.looks.append(now + SILENT_S)
    else:
        climber.is_given_back = True
    return CURED


def _recheck(climber: Climber, now: float) -> Move:
    """After the ladder's end: probes that operators ask for, the newest last."""
    asked = [a.remedy for a in climber.case.incident.spec.approvals if a.granted and a.remedy.startswith(RECHECK)]
    for key in dict.fromkeys(asked):
        probe = Rung(Action.PROBE, timeout_seconds=VERIFY_S)
        move = climber.done(key, probe, climber.targets(Action.PROBE), is_waiting_for_device=True)
        if move is GO:
            move = _soaked(climber, key, now)
        if move is not NEXT:
            return move
    return NEXT


def _status(climber: Climber, move: Move, when: str, rungs: str, now: float) -> IncidentStatus:
    status = climber.case.incident.status
    records = [*climber.workload, *climber.records.values()]
    conditions, moment = status.conditions, to_time(now)
    phase = status.phase
    if move is CURED:
        phase = IncidentPhase.VERIFYING
    elif move is NEXT:
        phase = IncidentPhase.OPEN
        tried = ", ".join(f"{r.key} {r.outcome}" for r in climber.records.values())
        words = f"The ladder for {when} has ended without a cure ({tried}). The device stays out of use."
        if not ladder_has_ended(climber.case.incident):
            conditions = with_condition(conditions, LADDER, False, ENDED, words, moment)
    else:
        is_asked = any(r.outcome is RemedyOutcome.WAITING for r in climber.records.values())
        phase = IncidentPhase.REMEDYING if climber.has_begun or is_asked else IncidentPhase.OPEN
    if move is not NEXT and climber.has_begun:
        reason = when if when != ANY_FAULT else ANY
        words = f"Policy {climber.case.policy.name}: {rungs}." if rungs else "An operator asked for another probe."
        conditions = with_condition(conditions, LADDER, True, reason, words, moment)
    return climber.changed(status, phase, records, conditions)


def _standing(case: Case) -> QuarantineOrder | None:
    """Our own order, as it stands."""
    order = case.devices.quarantine.get(case.subject.device) if case.devices is not None else None
    return order if order is not None and order.incident == case.incident.name else None


def _order(case: Case, now: float) -> QuarantineOrder | None:
    if case.subject.kind is not SubjectKind.DEVICE:
        return None
    verdict = case.incident.status.verdict
    return _standing(case) or QuarantineOrder(
        reason=verdict.reason or DeviceState.UNHEALTHY.value,
        message=verdict.message,
        by=BY,
        since=to_time(now),
        incident=case.incident.name,
    )
