"""One stage under way: the nodes are drained, the rung is done, a probe says whether it has cured. Pure.

Each of the three is begun once, waited for, and ended; which of them it is at is in the records alone. From the drain's begin to
the probe's end the nodes stay ours and empty.

A rung is done by orders to agents or by the objects of a hook. They stand while its record runs and are gone with it. The
record ends with the first bad answer, with the last good one, or at its deadline; an agent's own word of a deadline may be on its
way, so it is given `GRACE_S` more.
"""

from __future__ import annotations

from collections.abc import Sequence

from remuda.api.devices import DeviceOrder, OrderAnswer
from remuda.api.incidents import RemedyOutcome, RemedyRecord, SubjectKind
from remuda.api.meta import to_seconds, to_time
from remuda.api.remedies import Action, Hook, Rung
from remuda.core.remedies.drain import DrainRequest, plan_drain
from remuda.core.remedies.hook_objects import HookCall, hook_body
from remuda.core.remedies.ladder.abandoned_rungs import NOBODY_WAITS, POLICY_CHANGED
from remuda.core.remedies.ladder.admission import device_freed, may_have
from remuda.core.remedies.ladder.state import GO, NEXT, WAIT, Climber, Move, is_open
from remuda.core.remedies.ladder.types import Case, order_id
from remuda.core.remedies.rungs import RECYCLES, VERIFY_S, Stage

GRACE_S = 10.0  # after a deadline: the agent's own word of it may be on its way
POLL_S = 5.0  # between two looks at an object of a hook

_AGENT, _COMMAND, _OBJECT = "agent order", "command hook", "object hook"
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


# --- the rung itself --------------------------------------------------------------------------------------------------


def via(hook: Hook | None) -> str:
    """What a record says of who does it."""
    return _AGENT if hook is None else _COMMAND if hook.command else _OBJECT


def follow(climber: Climber, record: RemedyRecord, rung: Rung, targets: Sequence[str]) -> Move:
    """What became of a rung that was begun; what stands for it as long as it runs."""
    climber.hold.update(targets)
    deadline = to_seconds(record.deadline) if record.deadline is not None else climber.now
    if record.via in (_COMMAND, _OBJECT) and record.via != via(rung.hook):
        climber.amend(record.key, RemedyOutcome.FAILED, POLICY_CHANGED, NOBODY_WAITS)
        return NEXT
    if record.via == _OBJECT and rung.hook is not None:
        return _follow_objects(climber, record, rung.hook, targets, deadline)
    id = order_id(climber.case.incident, record.key)
    answers = {name: _answer(climber.case, name, id) for name in targets}
    ended = [a for a in answers.values() if a is not None and a.outcome != RemedyOutcome.RUNNING]
    bad = next((a for a in ended if a.outcome != RemedyOutcome.SUCCEEDED), None)
    if bad is not None:
        climber.amend(record.key, _outcome(bad.outcome), bad.reason, bad.message)
        return NEXT
    if len(ended) == len(targets):
        started = to_seconds(record.started_at) if record.started_at is not None else climber.now
        times = [at for a in ended if a.time is not None and started <= (at := to_seconds(a.time)) <= climber.now]
        words = " ".join(dict.fromkeys(a.message for a in ended if a.message))
        climber.amend(record.key, RemedyOutcome.SUCCEEDED, "", words, max(times, default=climber.now))
        if record.action == Action.TICKET:
            climber.ticket = words.strip().split("\n")[0][:200]
        return GO
    if climber.now >= deadline + GRACE_S:
        silent = ", ".join(name for name in targets if answers[name] not in ended)
        climber.amend(record.key, RemedyOutcome.TIMED_OUT, "DeadlinePassed", f"{silent} did not answer in time.")
        return NEXT
    for name in targets:
        climber.orders.setdefault(name, {})[id] = _order_for(climber.case, name, record, rung)
    climber.looks.append(deadline + GRACE_S)
    return WAIT


def _follow_objects(
    climber: Climber, record: RemedyRecord, hook: Hook, targets: Sequence[str], deadline: float
) -> Move:
    made = climber.case.made if climber.case.made is not None and climber.case.made.key == record.key else None
    if made is not None and made.outcome:
        climber.amend(
            record.key, _outcome(made.outcome), "" if made.outcome == "Succeeded" else "HookFailed", made.message
        )
        if record.action == Action.TICKET and made.outcome == "Succeeded":
            climber.ticket = ", ".join(made.names)
        return GO if made.outcome == "Succeeded" else NEXT
    if climber.now >= deadline:
        climber.amend(record.key, RemedyOutcome.TIMED_OUT, "DeadlinePassed", "The hook's object did not end in time.")
        return NEXT
    action = Action(record.action)
    bodies = tuple(
        hook_body(
            hook, _facts(climber.case, name, action), f"{climber.case.incident.name}-{record.key}", index, len(targets)
        )
        for index, name in enumerate(targets or ("",))
    )
    climber.call = HookCall(record.key, bodies, hook.success_condition, hook.failure_condition)
    climber.looks.append(min(climber.now + POLL_S, deadline))
    return WAIT


def _order_for(case: Case, node: str, record: RemedyRecord, rung: Rung) -> DeviceOrder:
    command = rung.hook.command if rung.hook is not None else []
    is_about_device = node == case.subject.node and (bool(command) or rung.action not in RECYCLES)
    env = {f"REMUDA_{name.upper()}": value for name, value in _facts(case, node, rung.action).items()}
    return DeviceOrder(
        action="command" if command else rung.action.value,
        device=case.subject.device if is_about_device else "",
        command=command,
        env=env if command else {},
        by=case.incident.name,
        since=record.started_at,
        deadline=record.deadline,
    )


def _facts(case: Case, node: str, action: Action) -> dict[str, str]:
    """What a hook is told."""
    is_subject = node == case.subject.node
    return {
        "node": node,
        "device": case.subject.device if is_subject else "",
        "uuid": case.seen.uuid if is_subject and case.seen is not None else "",
        "incident": case.incident.name,
        "action": action.value,
    }


def _answer(case: Case, node: str, id: str) -> OrderAnswer | None:
    ledger = case.ledgers.get(node)
    return next((a for a in ledger.observed.answers if a.id == id), None) if ledger is not None else None


def _outcome(word: str) -> RemedyOutcome:
    known = {o.value: o for o in (RemedyOutcome.SUCCEEDED, RemedyOutcome.TIMED_OUT, RemedyOutcome.REFUSED)}
    return known.get(word, RemedyOutcome.FAILED)
