"""Whether a rung may be begun. Pure.

Asked in this order, and the first that says no is what the record says: can it be done here at all, does the policy let
it (mode, approvals), is it its time and its turn, would it disturb work that others have on the node, do pause, limits and
breaker let it (`gate`), is the node free of other actors. A no that may turn into a yes is looked at anew each time and
binds nobody; only what can never be done here, or was denied, is left for the next rung. None of it is asked of what is
under way.

What was denied once is not asked again under the number of its next attempt.
"""

from __future__ import annotations

from collections.abc import Sequence

from remuda.api.incidents import Approval, RemedyOutcome, SubjectKind
from remuda.api.meta import to_time
from remuda.api.remedies import Action, Mode, Rung
from remuda.core.health.device_holders import DeviceHolder, device_holders_on
from remuda.core.incidents.node_incidents import NODE_LOST, is_node_well_again
from remuda.core.remedies.drain import other_actor_on_node, remedy_marks
from remuda.core.remedies.ladder.state import GO, HELD_S, NEXT, WAIT, LadderMove, LadderState
from remuda.core.remedies.ladder.types import LadderCase
from remuda.core.remedies.limits import HeldBack
from remuda.core.remedies.rungs import (
    DEVICE_IN_USE,
    NODE_IN_USE,
    NODE_TAKEN,
    PART_OF_DOMAIN,
    RECYCLES,
    TOO_EARLY,
    LadderStage,
)

_DONE_TO = {Action.PROBE: "probed", Action.RESET: "reset"}


def admit_rung(state: LadderState, stage: LadderStage) -> LadderMove:
    """Whether a stage that was not begun may be."""
    case, key, action = state.case, stage.key, stage.rung.action
    if (impossible := _why_rung_impossible(case, stage)) is not None:
        state.record(key, stage.rung, impossible[0], impossible[1], impossible[2])
        return NEXT
    if case.policy.spec.mode is Mode.OBSERVE:
        words = f"Policy {case.policy.name} only observes; {action} would be next."
        state.record(key, stage.rung, RemedyOutcome.OBSERVED, "ObserveOnly", words)
        return WAIT
    said = _operator_decision(case, key) or next(
        filter(_is_denied, (_operator_decision(case, earlier) for earlier in stage.before)), None
    )
    if said is not None and not said.granted:
        by = f" by {said.by}" if said.by else ""
        as_what = f", as {said.remedy}" if said.remedy != key else ""
        state.record(key, stage.rung, RemedyOutcome.REFUSED, "Denied", f"Denied{by}{as_what}.")
        return NEXT
    if _is_rung_due(state, stage, is_asked_for=said is not None) is not GO:
        return WAIT
    if case.policy.spec.mode is Mode.APPROVE and said is None:
        words = f"Policy {case.policy.name} asks first. Approve with: remuda approve {case.incident.name} {key}"
        state.record(key, stage.rung, RemedyOutcome.WAITING, "AwaitingApproval", words)
        return WAIT
    targets = state.targets(action)
    if _wait_for_pods_on_node(state, key, stage.rung, targets) is not GO:
        return WAIT
    held = case.gate.held(targets, state.now) if case.gate is not None and action is not Action.TICKET else None
    if held is not None:
        state.hold_back(key, stage.rung, held)
        return WAIT
    return GO if action is Action.TICKET else may_ladder_take_nodes(state, key, stage.rung, targets)


def _operator_decision(case: LadderCase, key: str) -> Approval | None:
    """An operator's newest word on it."""
    return next((a for a in reversed(case.incident.spec.approvals) if a.remedy == key), None)


def _is_denied(said: Approval | None) -> bool:
    return said is not None and not said.granted


def _is_rung_due(state: LadderState, stage: LadderStage, *, is_asked_for: bool) -> LadderMove:
    """What comes back by itself is given its time, and what is well again is left alone. What failed because of something that
    several nodes share is not cured one by one: that waits until somebody has seen to it, or says so."""
    case, rung = state.case, stage.rung
    if case.subject.kind is SubjectKind.NODE and is_node_well_again(case.incident.status):
        words = f"{case.subject.node} is well again; this runs only if it fails again before the incident closes."
        state.record(stage.key, rung, RemedyOutcome.HELD_BACK, "WellAgain", words)
        return WAIT
    if not (state.has_begun or is_asked_for) and case.is_device_well:
        words = f"{case.subject.device} is well again; this runs only if it fails again before the incident closes."
        state.record(stage.key, rung, RemedyOutcome.HELD_BACK, "WellAgain", words)
        return WAIT
    begins = state.opened + rung.after_seconds
    if not is_asked_for and state.now < begins:
        words = f"{case.subject.node or case.subject.domain} may come back by itself; this starts at {to_time(begins):%H:%M:%S}."
        state.record(stage.key, rung, RemedyOutcome.HELD_BACK, TOO_EARLY, words)
        state.looks.append(begins)
        return WAIT
    is_harsh = rung.action in RECYCLES or case.subject.kind is SubjectKind.NODE
    if is_harsh and case.cause is not None and not is_asked_for and case.policy.spec.mode is Mode.AUTO:
        words = (
            f"{case.cause.spec.subject.domain} failed as a whole, so its parts are not recycled one by one. To go on: "
            f"`remuda approve {case.incident.name} {stage.key}`, or dismiss {case.cause.name}."
        )
        state.record(stage.key, rung, RemedyOutcome.HELD_BACK, PART_OF_DOMAIN, words)
        return WAIT
    return GO


def _why_rung_impossible(case: LadderCase, stage: LadderStage) -> tuple[RemedyOutcome, str, str] | None:
    """Why this rung cannot be done here at all: outcome, reason, sentence."""
    action, hook = stage.rung.action, stage.rung.hook
    kind, domain = case.subject.kind, case.domain
    if kind is not SubjectKind.DEVICE and action in (Action.PROBE, Action.RESET) and hook is None:
        return RemedyOutcome.SKIPPED, "NotADevice", f"A {kind.value.lower()} cannot be {_DONE_TO[action]}."
    if not case.subject.node and (action is not Action.TICKET or (hook is not None and hook.command)):
        return RemedyOutcome.SKIPPED, "NoNode", f"{action} needs a node; {case.subject.domain} is none."
    is_by_agent = hook.command != [] if hook is not None else action is not Action.TICKET
    if is_by_agent and kind is SubjectKind.NODE and case.incident.status.verdict.reason == NODE_LOST:
        has = "has no hook" if hook is None else "has only a command"
        words = f"{case.subject.node} is lost and its agent cannot be reached; policy {case.policy.name} {has} for {action}."
        return RemedyOutcome.REFUSED, "NoHook", f"{words} Add an object hook that reaches it from outside."
    if action is Action.REPLACE and hook is None:
        words = f"Policy {case.policy.name} has no hook for replace, and Remuda cannot replace a node by itself. Add a hook."
        return RemedyOutcome.REFUSED, "NoHook", words
    if action in RECYCLES and case.policy.spec.drain.whole_domain and domain.name and domain.missing:
        known = f"{len(domain.nodes)} of its {len(domain.nodes) + domain.missing} nodes are known"
        words = (
            f"{case.subject.node} is part of {domain.name} and is not recycled alone; {known}. Bring the others back, or set "
            "drain.wholeDomain to false."
        )
        return RemedyOutcome.REFUSED, "DomainIncomplete", words
    return None


def _wait_for_pods_on_node(state: LadderState, key: str, rung: Rung, targets: Sequence[str]) -> LadderMove:
    """One failed device is not worth the work on the other seven: it is waited for a time when nobody has them."""
    patience = state.opened + state.case.policy.spec.drain.patience_seconds
    if rung.action not in RECYCLES or state.now >= patience:
        return GO
    pods: set[str] = set()
    for name in targets:
        ledger = state.case.ledgers.get(name)
        if ledger is not None:
            held = device_holders_on(ledger, state.case.pods.get(name, ()))
            pods |= {h.pod for holders in held.values() for h in holders if not h.draining}
    if not pods:
        return GO
    named = ", ".join(sorted(pods)[:3]) + (" ..." if len(pods) > 3 else "")
    words = f"{named} would have to leave; protected until {to_time(patience):%H:%M:%S}."
    state.record(key, rung, RemedyOutcome.HELD_BACK, NODE_IN_USE, words)
    state.looks.append(patience)
    return WAIT


def may_ladder_take_nodes(state: LadderState, key: str, rung: Rung, targets: Sequence[str]) -> LadderMove:
    """Whether the nodes are free to be worked on: of other actors, and of our own incidents."""
    for name in targets:
        node = state.case.nodes.get(name)
        if node is None:
            state.hold_back(key, rung, HeldBack("NodeGone", f"There is no node {name} now."))
            return WAIT
        if words := other_actor_on_node(node, take_over=state.case.policy.spec.drain.take_over):
            state.record(key, rung, RemedyOutcome.REFUSED, NODE_TAKEN, words)
            state.looks.append(state.now + HELD_S)
            return WAIT
        busy = sorted((remedy_marks(node) - {state.case.incident.name}) & state.case.at_work)
        if busy:
            state.hold_back(key, rung, HeldBack("NodeBusy", f"{name} is being worked on for {busy[0]}."))
            return WAIT
    return GO


def hold_ladder_until_device_free(state: LadderState, key: str, rung: Rung) -> LadderMove:
    """Nobody's process may be on a device that is tested or reset. A holder that is to stay is waited for as long
    as it stays; one that was told to go and does not, for as long as the rung may take."""
    holders = _holders_of_subject(state.case)
    if not holders:
        return GO
    named = ", ".join(sorted({h.pod for h in holders}))
    ends = state.opened + rung.timeout_seconds
    if all(h.draining for h in holders):
        if state.now >= ends:
            words = f"{named} was told to stop and still holds it."
            state.record(key, rung, RemedyOutcome.HELD_BACK, DEVICE_IN_USE, words)
            state.amend(key, RemedyOutcome.TIMED_OUT, DEVICE_IN_USE, words)
            return NEXT
        state.looks.append(ends)
    state.record(key, rung, RemedyOutcome.HELD_BACK, DEVICE_IN_USE, f"{state.case.subject.device} is held by {named}.")
    return WAIT


def _holders_of_subject(case: LadderCase) -> list[DeviceHolder]:
    devices, name = case.devices, case.subject.device
    if devices is None or not name:
        return []
    held = device_holders_on(devices, case.pods.get(devices.name, ()))
    rows = [name, *(d.id for d in devices.observed.devices if d.parent == name)]
    return [holder for row in rows for holder in held.get(row, ())]
