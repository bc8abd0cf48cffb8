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
from remuda.core.remedies.ladder.admission import hold_ladder_until_device_free, may_ladder_take_nodes
from remuda.core.remedies.ladder.state import GO, NEXT, WAIT, LadderMove, LadderState, is_rung_open
from remuda.core.remedies.ladder.types import LadderCase, ladder_execution_order_id
from remuda.core.remedies.rungs import RECYCLES, VERIFY_S, LadderStage

GRACE_S = 10.0  # after a deadline: the agent's own word of it may be on its way
POLL_S = 5.0  # between two looks at an object of a hook

_AGENT, _COMMAND, _OBJECT = "agent order", "command hook", "object hook"
WAITS_S = 10.0  # between two looks at a drain that knows no time of its own

_RECORD, _CORDON = "record", "cordon and eviction"


def drain_nodes_for_ladder_rung(state: LadderState, key: str, stage: LadderStage) -> LadderMove:
    """Drain the nodes."""
    targets, drain = state.targets(stage.rung.action), state.case.policy.spec.drain
    record = state.records.get(key)
    if record is None:
        words = f"For {stage.key}: {', '.join(targets)}."
        record = state.start(key, "drain", ", ".join(targets), drain.deadline_seconds + GRACE_S, _CORDON, words)
    if record.outcome is not RemedyOutcome.RUNNING:
        return GO if record.outcome is RemedyOutcome.SUCCEEDED else NEXT
    started = to_seconds(record.started_at or to_time(state.now))
    plan = plan_drain({n: state.case.pods.get(n, ()) for n in targets}, drain, started, state.now)
    state.keep_empty(targets)
    if not plan.is_done:
        state.request = DrainRequest(state.case.incident.name, started + drain.checkpoint_seconds)
        state.drain = plan
        state.looks.append(state.now + (plan.look_again_s or WAITS_S))
        return WAIT
    state.amend(key, RemedyOutcome.SUCCEEDED, "", plan.message)
    return GO


def do_rung(
    state: LadderState, key: str, rung: Rung, targets: Sequence[str], *, is_waiting_for_device: bool
) -> LadderMove:
    """The rung itself: begun once, waited for, ended."""
    record = state.records.get(key)
    if record is None or is_rung_open(record):
        if rung.action is Action.TICKET and rung.hook is None:
            words = f"Recorded here; the policy's webhooks are notified. {state.how_it_is_left}"
            state.start(key, rung.action, state.target(rung.action), rung.timeout_seconds, _RECORD)
            state.amend(key, RemedyOutcome.SUCCEEDED, "", words)
            return GO
        if is_waiting_for_device and rung.action is not Action.TICKET:
            move = hold_ladder_until_device_free(state, key, rung)
            if move is not GO:
                return move
        is_free = rung.action is Action.TICKET or state.hold >= set(targets)
        if not is_free and may_ladder_take_nodes(state, key, rung, targets) is not GO:
            return WAIT
        record = state.start(
            key, rung.action, state.target(rung.action), rung.timeout_seconds, rung_executor(rung.hook)
        )
    if record.outcome is RemedyOutcome.RUNNING:
        return _follow_rung(state, record, rung, targets)
    return GO if record.outcome is RemedyOutcome.SUCCEEDED else NEXT


def probe_after_rung(state: LadderState, stage: LadderStage) -> LadderMove:
    """The probe after a rung. The nodes stay ours and, when they were drained, empty until it has ended."""
    key, node = stage.verify_key, state.case.subject.node
    if stage.drain_rung_key and not state.has_ended(key):
        state.keep_empty(state.targets(stage.rung.action))
    if state.case.subject.kind is not SubjectKind.DEVICE:
        if key not in state.records:
            state.start(key, Action.PROBE, node, VERIFY_S, _RECORD)
            state.amend(key, RemedyOutcome.SUCCEEDED, "", "The node came back; the soak decides.")
        return GO if state.records[key].outcome is RemedyOutcome.SUCCEEDED else NEXT
    return do_rung(state, key, Rung(Action.PROBE, timeout_seconds=VERIFY_S), (node,), is_waiting_for_device=False)


# --- the rung itself --------------------------------------------------------------------------------------------------


def rung_executor(hook: Hook | None) -> str:
    """What a record says of who does it."""
    return _AGENT if hook is None else _COMMAND if hook.command else _OBJECT


def _follow_rung(state: LadderState, record: RemedyRecord, rung: Rung, targets: Sequence[str]) -> LadderMove:
    """What became of a rung that was begun; what stands for it as long as it runs."""
    state.hold.update(targets)
    deadline = to_seconds(record.deadline) if record.deadline is not None else state.now
    if record.via in (_COMMAND, _OBJECT) and record.via != rung_executor(rung.hook):
        state.amend(record.key, RemedyOutcome.FAILED, POLICY_CHANGED, NOBODY_WAITS)
        return NEXT
    if record.via == _OBJECT and rung.hook is not None:
        return _follow_hook_objects(state, record, rung.hook, targets, deadline)
    id = ladder_execution_order_id(state.case.incident, record.key)
    answers = {name: _rung_answer(state.case, name, id) for name in targets}
    ended = [a for a in answers.values() if a is not None and a.outcome != RemedyOutcome.RUNNING]
    bad = next((a for a in ended if a.outcome != RemedyOutcome.SUCCEEDED), None)
    if bad is not None:
        state.amend(record.key, _rung_outcome(bad.outcome), bad.reason, bad.message)
        return NEXT
    if len(ended) == len(targets):
        started = to_seconds(record.started_at) if record.started_at is not None else state.now
        times = [at for a in ended if a.time is not None and started <= (at := to_seconds(a.time)) <= state.now]
        words = " ".join(dict.fromkeys(a.message for a in ended if a.message))
        state.amend(record.key, RemedyOutcome.SUCCEEDED, "", words, max(times, default=state.now))
        if record.action == Action.TICKET:
            state.ticket = words.strip().split("\n")[0][:200]
        return GO
    if state.now >= deadline + GRACE_S:
        silent = ", ".join(name for name in targets if answers[name] not in ended)
        state.amend(record.key, RemedyOutcome.TIMED_OUT, "DeadlinePassed", f"{silent} did not answer in time.")
        return NEXT
    for name in targets:
        state.orders.setdefault(name, {})[id] = _rung_order(state.case, name, record, rung)
    state.looks.append(deadline + GRACE_S)
    return WAIT


def _follow_hook_objects(
    state: LadderState, record: RemedyRecord, hook: Hook, targets: Sequence[str], deadline: float
) -> LadderMove:
    made = state.case.made if state.case.made is not None and state.case.made.key == record.key else None
    if made is not None and made.outcome:
        state.amend(
            record.key,
            _rung_outcome(made.outcome),
            "" if made.outcome == "Succeeded" else made.reason or "HookFailed",
            made.message,
        )
        if record.action == Action.TICKET and made.outcome == "Succeeded":
            state.ticket = ", ".join(made.names)
        return GO if made.outcome == "Succeeded" else NEXT
    if state.now >= deadline:
        state.amend(record.key, RemedyOutcome.TIMED_OUT, "DeadlinePassed", "The hook's object did not end in time.")
        return NEXT
    action = Action(record.action)
    bodies = tuple(
        hook_body(
            hook, _hook_facts(state.case, name, action), f"{state.case.incident.name}-{record.key}", index, len(targets)
        )
        for index, name in enumerate(targets or ("",))
    )
    state.call = HookCall(record.key, bodies, hook.success_condition, hook.failure_condition)
    state.looks.append(min(state.now + POLL_S, deadline))
    return WAIT


def _rung_order(case: LadderCase, node: str, record: RemedyRecord, rung: Rung) -> DeviceOrder:
    command = rung.hook.command if rung.hook is not None else []
    is_about_device = node == case.subject.node and (bool(command) or rung.action not in RECYCLES)
    env = {f"REMUDA_{name.upper()}": value for name, value in _hook_facts(case, node, rung.action).items()}
    return DeviceOrder(
        action="command" if command else rung.action.value,
        device=case.subject.device if is_about_device else "",
        command=command,
        env=env if command else {},
        by=case.incident.name,
        since=record.started_at,
        deadline=record.deadline,
    )


def _hook_facts(case: LadderCase, node: str, action: Action) -> dict[str, str]:
    """What a hook is told."""
    is_subject = node == case.subject.node
    return {
        "node": node,
        "device": case.subject.device if is_subject else "",
        "uuid": case.device_row.uuid if is_subject and case.device_row is not None else "",
        "incident": case.incident.name,
        "action": action.value,
    }


def _rung_answer(case: LadderCase, node: str, id: str) -> OrderAnswer | None:
    ledger = case.ledgers.get(node)
    return next((a for a in ledger.observed.answers if a.id == id), None) if ledger is not None else None


def _rung_outcome(word: str) -> RemedyOutcome:
    known = {o.value: o for o in (RemedyOutcome.SUCCEEDED, RemedyOutcome.TIMED_OUT, RemedyOutcome.REFUSED)}
    return known.get(word, RemedyOutcome.FAILED)
