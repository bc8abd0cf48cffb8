"""The moves of one stage: the nodes are emptied, the rung is done, a probe says whether it has cured. Pure.

Each is begun once, waited for, and ended; which of them it is at is in the records alone. From the drain's begin to the
probe's end the nodes stay ours and empty.
"""

from __future__ import annotations

from collections.abc import Sequence

from remuda.api.incidents import RemedyOutcome, SubjectKind
from remuda.api.meta import to_seconds, to_time
from remuda.api.remedies import Action, Rung
from remuda.core.remedies.drain import DrainRequest, plan_drain
from remuda.core.remedies.ladder.admission import device_freed, may_have
from remuda.core.remedies.ladder.orders import GRACE_S, follow, via
from remuda.core.remedies.ladder.state import GO, NEXT, WAIT, Climber, Move, is_open
from remuda.core.remedies.rungs import VERIFY_S, Stage

WAITS_S = 10.0  # between two looks at a drain that knows no time of its own

_RECORD, _CORDON = "record", "cordon and eviction"


def emptied(climber: Climber, key: str, stage: Stage) -> Move:
    """Drain the nodes."""
    targets, drain = climber.targets(stage.rung.action), climber.case.policy.spec.drain
    record = climber.records.get(key)
    if record is None:
        words = f"For {stage.key}: {', '.join(targets)}."
        record = climber.start(key, "drain", ", ".join(targets), drain.deadline_seconds + GRACE_S, _CORDON, words)
    if record.outcome is not RemedyOutcome.RUNNING:
        return GO if record.outcome is RemedyOutcome.SUCCEEDED else NEXT
    started = to_seconds(record.started_at or to_time(climber.now))
    plan = plan_drain({n: climber.case.pods.get(n, ()) for n in targets}, drain, started, climber.now)
    climber.keep_empty(targets)
    if not plan.is_done:
        climber.request = DrainRequest(climber.case.incident.name, started + drain.checkpoint_seconds)
        climber.drain = plan
        climber.looks.append(climber.now + (plan.look_again_s or WAITS_S))
        return WAIT
    climber.amend(key, RemedyOutcome.SUCCEEDED, "", plan.message)
    return GO


def done(climber: Climber, key: str, rung: Rung, targets: Sequence[str], *, is_waiting_for_device: bool) -> Move:
    """The rung itself: begun once, waited for, ended."""
    record = climber.records.get(key)
    if record is None or is_open(record):
        if rung.action is Action.TICKET and rung.hook is None:
            words = f"Recorded here; the policy's webhooks are told. {climber.is_left}"
            climber.start(key, rung.action, climber.target(rung.action), rung.timeout_seconds, _RECORD)
            climber.amend(key, RemedyOutcome.SUCCEEDED, "", words)
            return GO
        if is_waiting_for_device and rung.action is not Action.TICKET:
            move = device_freed(climber, key, rung)
            if move is not GO:
                return move
        is_free = rung.action is Action.TICKET or climber.hold >= set(targets)
        if not is_free and may_have(climber, key, rung, targets) is not GO:
            return WAIT
        record = climber.start(key, rung.action, climber.target(rung.action), rung.timeout_seconds, via(rung.hook))
    if record.outcome is RemedyOutcome.RUNNING:
        return follow(climber, record, rung, targets)
    return GO if record.outcome is RemedyOutcome.SUCCEEDED else NEXT


def verified(climber: Climber, stage: Stage) -> Move:
    """The probe after a rung. The nodes stay ours and, when they were drained, empty until it has ended."""
    key, node = stage.verify_key, climber.case.subject.node
    if stage.drain_key and not climber.has_ended(key):
        climber.keep_empty(climber.targets(stage.rung.action))
    if climber.case.subject.kind is not SubjectKind.DEVICE:
        if key not in climber.records:
            climber.start(key, Action.PROBE, node, VERIFY_S, _RECORD)
            climber.amend(key, RemedyOutcome.SUCCEEDED, "", "The node came back; the soak decides.")
        return GO if climber.records[key].outcome is RemedyOutcome.SUCCEEDED else NEXT
    return done(climber, key, Rung(Action.PROBE, timeout_seconds=VERIFY_S), (node,), is_waiting_for_device=False)
