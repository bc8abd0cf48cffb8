"""What a NodeRollout does next. Pure: the same nodes, ledgers, pods and status give the same plan.

Each node goes Draining -> Acting -> Verifying -> Done or Failed, and what must stand in each phase (the node's cordon, the order
to its agent, the object of its hook) follows from the status alone. So a manager that dies between any two writes is replaced by
one that makes the same plan. A node that somebody else has is not begun.

The nodes of one domain go together (`rollout_units`): none of them leaves a phase before the others do, so that nothing runs on
a domain of which a node is down.

Invariants: while a canary is not Done no node beside the canaries is begun; after a failure none is; at most `maxUnavailable`
nodes are under way, or one unit that is larger; a node that failed keeps its cordon. A roll-out that is deleted gives back what
it has.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from remuda.api.conditions import is_true
from remuda.api.devices import DeviceOrder, NodeDevices, OrderAnswer
from remuda.api.errors import Refusal
from remuda.api.kubernetes.core_v1 import Node
from remuda.api.meta import JsonObject, to_seconds, to_time
from remuda.api.rollouts import (
    NodeRollout,
    NodeRolloutStatus,
    NodeStep,
    RolloutPhase,
    StepPhase,
    check_rollout,
)
from remuda.core.remedies.drain import DrainPlan, DrainRequest, node_patch, plan_drain
from remuda.core.remedies.ladder.types import ObjectCall
from remuda.core.remedies.rollout_units import (
    BUSY,
    RolloutSeen,
    domain_of_step,
    is_proven,
    next_nodes,
    owner_named,
    owner_of,
    unfit,
)

LOOK_S = 5.0
ANSWER_S = 30.0  # after its deadline an order must be answered


class RolloutPlan(msgspec.Struct, frozen=True):
    """What should stand. `orders`: by node, all of this roll-out's; what is not among them is taken away."""

    rollout: NodeRollout
    status: NodeRolloutStatus
    patches: Mapping[str, JsonObject] = {}  # of nodes
    orders: Mapping[str, Mapping[str, DeviceOrder]] = {}
    drains: tuple[DrainPlan, ...] = ()
    calls: Mapping[str, ObjectCall] = {}
    look_again_s: float | None = None


def is_of(order_id: str, rollout: NodeRollout) -> bool:
    return order_id.startswith(f"{owner_of(rollout)}.")


def given_back(name: str, node: Node) -> JsonObject:
    """The patch of a node whose roll-out is gone; {} when it has none of it."""
    return node_patch(node, owner_named(name), hold=False, cordon=False, request=None)


def selects(rollout: NodeRollout, node: Node) -> bool:
    return all(node.labels.get(key) == value for key, value in rollout.spec.selector.items())


def plan_rollout(seen: RolloutSeen, now: float) -> RolloutPlan:
    rollout = seen.rollout
    if not rollout.is_over and (refused := _refusal(rollout)) is not None:
        because = f"{refused.reason}: {refused.message} {refused.fix}"
        stopped = msgspec.structs.replace(rollout.status, phase=RolloutPhase.STOPPED, stopped_because=because)
        return RolloutPlan(rollout, stopped, {}, {}, (), {}, None)
    if _is_cut_short(rollout):
        return RolloutPlan(rollout, rollout.status, {}, {}, (), {}, None)
    steps = _in_step(rollout.status.steps, [_advance(seen, step, now) for step in rollout.status.steps], now)
    steps += [_begun(seen, name, now, is_canary) for name, is_canary in next_nodes(seen, steps)]
    status = _status(seen, steps)
    patches, orders, calls, drains = {}, {}, {}, []
    for step in steps:
        node, ledger = seen.nodes.get(step.node), seen.ledgers.get(step.node)
        if node is not None and (patch := _mark(rollout, node, step)):
            patches[step.node] = patch
        if ledger is not None:
            orders[step.node] = _orders(rollout, step, ledger)
        if step.phase is StepPhase.DRAINING:
            drains.append(_drain(seen, step, now))
        if step.phase is StepPhase.ACTING and rollout.spec.hook.object:
            calls[step.node] = _call(rollout, step)
    is_moving = any(step.phase in BUSY for step in steps) or status.phase is RolloutPhase.PENDING
    is_waiting = status.phase in (RolloutPhase.CANARY, RolloutPhase.ROLLING)
    look = LOOK_S if is_moving or is_waiting else None
    return RolloutPlan(rollout, status, patches, orders, tuple(drains), calls, look)


def _refusal(rollout: NodeRollout) -> Refusal | None:
    """Why it would not have been let in. Where the API checks types alone, it may be there all the same: it is stopped."""
    try:
        check_rollout(rollout)
    except Refusal as refusal:
        return refusal
    return None


def _is_cut_short(rollout: NodeRollout) -> bool:
    """Stopped although no node failed: it was invalid, and begins nothing more. Nodes it had begun stay out of use."""
    return rollout.status.phase is RolloutPhase.STOPPED and not rollout.status.failed


def _begun(seen: RolloutSeen, name: str, now: float, is_canary: bool) -> NodeStep:
    ledger = seen.ledgers[name]
    count = len(_whole(ledger))
    domain = domain_of_step(seen, name)
    moment, named = to_time(now), domain.name if domain is not None else ""
    return NodeStep(name, is_canary=is_canary, devices=count, started_at=moment, since=moment, domain=named)


def _whole(ledger: NodeDevices) -> list[str]:
    return [row.id for row in ledger.observed.devices if not row.parent]


# --- one node ---------------------------------------------------------------------------------------------------------


def _in_step(before: Sequence[NodeStep], after: Sequence[NodeStep], now: float) -> list[NodeStep]:
    """The nodes of one domain leave a phase together: who is ahead waits. Of a domain that a node was lost from before anything
    was done to it, nothing is done to the others either."""
    units: dict[str, list[NodeStep]] = {}
    for step in after:
        units.setdefault(step.domain, []).append(step)
    steps = []
    for was, step in zip(before, after, strict=True):
        peers = units[step.domain] if step.domain else [step]
        lost = next((peer for peer in peers if peer.phase is StepPhase.FAILED), None)
        if was.phase is StepPhase.DRAINING and lost is not None and step.phase is not StepPhase.FAILED:
            words = f"{lost.node} of {step.domain} failed, and the domain is not recycled in part."
            step = _to(was, StepPhase.FAILED, now, "DomainFailed", words)
        elif was.phase in BUSY and step.phase not in (was.phase, StepPhase.FAILED):
            behind = [peer.node for peer in peers if peer.phase is was.phase]
            if behind:
                words = f"{step.message} Waits for {len(behind)} more of {step.domain}: {', '.join(behind[:3])}."
                step = msgspec.structs.replace(was, message=words.strip())
        steps.append(step)
    return steps


def _advance(seen: RolloutSeen, step: NodeStep, now: float) -> NodeStep:
    if step.phase not in BUSY:
        return step
    if step.node not in seen.nodes:
        return _to(step, StepPhase.FAILED, now, "NodeGone", "The node is not there any more.")
    match step.phase:
        case StepPhase.DRAINING:
            drain = _drain(seen, step, now)
            if drain.is_done:
                return _to(step, StepPhase.ACTING, now)
            return msgspec.structs.replace(step, message=drain.message)
        case StepPhase.ACTING:
            return _acted(seen, step, now)
        case _:
            return _verified(seen, step, now)


def _drain(seen: RolloutSeen, step: NodeStep, now: float) -> DrainPlan:
    return plan_drain({step.node: seen.pods.get(step.node, ())}, seen.rollout.spec.drain, _since(step, now), now)


def _acted(seen: RolloutSeen, step: NodeStep, now: float) -> NodeStep:
    spec = seen.rollout.spec
    limit = _since(step, now) + spec.timeout_seconds
    if spec.hook.object:
        made = seen.made.get(step.node)
        if made is not None and made.outcome == "Succeeded":
            return _to(step, StepPhase.VERIFYING, now, message=made.message)
        if made is not None and made.outcome == "Failed":
            return _to(step, StepPhase.FAILED, now, "HookFailed", made.message)
        if now >= limit:
            return _to(step, StepPhase.FAILED, now, "HookTimedOut", "The hook's object did not end in time.")
        return step
    answer = _answer(seen, step, _id(seen.rollout, step, "act"))
    if answer is None or answer.outcome == "Running":
        if now >= limit + ANSWER_S:
            return _to(step, StepPhase.FAILED, now, "NoAnswer", f"The agent of {step.node} did not answer in time.")
        return step
    if answer.outcome == "Succeeded":
        return _to(step, StepPhase.VERIFYING, now, message=answer.message)
    return _to(step, StepPhase.FAILED, now, answer.reason or answer.outcome, answer.message)


def _verified(seen: RolloutSeen, step: NodeStep, now: float) -> NodeStep:
    spec, node, ledger = seen.rollout.spec, seen.nodes[step.node], seen.ledgers.get(step.node)
    devices = _whole(ledger) if ledger is not None else []
    answers = {device: _answer(seen, step, _id(seen.rollout, step, f"probe-{device}")) for device in devices}
    for device, answer in answers.items():
        if answer is not None and answer.outcome not in ("Running", "Succeeded"):
            return _to(step, StepPhase.FAILED, now, "ProbeFailed", f"{device}: {answer.message}")
    wrong = missing_of(spec.expect, node, len(devices), step.devices)
    passed = [device for device, answer in answers.items() if answer is not None and answer.outcome == "Succeeded"]
    if not wrong and len(passed) == len(devices):
        return _to(step, StepPhase.DONE, now, message=f"{len(passed)} devices passed their probe.")
    if now >= _since(step, now) + spec.verify_seconds:
        words = wrong or f"Only {len(passed)} of {len(devices)} devices passed a probe in time."
        return _to(step, StepPhase.FAILED, now, "NotVerified", words)
    return msgspec.structs.replace(step, message=wrong or f"{len(passed)} of {len(devices)} probes passed.")


def missing_of(expect: Mapping[str, str], node: Node, devices: int, before: int) -> str:
    """What the node lacks of what it should be afterwards, in a sentence; "" when nothing."""
    if not is_true(node.status.conditions, "Ready"):
        return f"{node.name} is not ready."
    for key, value in sorted(expect.items()):
        if node.labels.get(key) != value:
            return f"{node.name} should have {key}={value} and has {node.labels.get(key, 'none')}."
    if devices < before:
        return f"{node.name} had {before} devices and shows {devices}."
    return ""


# --- what stands ------------------------------------------------------------------------------------------------------


def _mark(rollout: NodeRollout, node: Node, step: NodeStep) -> JsonObject:
    owner = owner_of(rollout)
    is_ours = step.phase is not StepPhase.DONE
    request = None
    if step.phase is StepPhase.DRAINING and step.since is not None:
        request = DrainRequest(owner, to_seconds(step.since) + rollout.spec.drain.checkpoint_seconds)
    return node_patch(node, owner, hold=is_ours and step.phase in BUSY, cordon=is_ours, request=request)


def _orders(rollout: NodeRollout, step: NodeStep, ledger: NodeDevices) -> dict[str, DeviceOrder]:
    spec, owner = rollout.spec, owner_of(rollout)
    if step.phase is StepPhase.ACTING and spec.hook.command:
        deadline = to_time(to_seconds(step.since) + spec.timeout_seconds) if step.since is not None else None
        env = {"REMUDA_ACTION": "rollout", "REMUDA_ROLLOUT": rollout.name}
        order = DeviceOrder("command", "", list(spec.hook.command), env, owner, step.since, deadline)
        return {_id(rollout, step, "act"): order}
    if step.phase is StepPhase.VERIFYING:
        deadline = to_time(to_seconds(step.since) + spec.verify_seconds) if step.since is not None else None
        probe = DeviceOrder("probe", by=owner, since=step.since, deadline=deadline)
        return {
            _id(rollout, step, f"probe-{device}"): msgspec.structs.replace(probe, device=device)
            for device in _whole(ledger)
        }
    return {}


def _call(rollout: NodeRollout, step: NodeStep) -> ObjectCall:
    hook = rollout.spec.hook
    body = _filled(hook.object, {"{node}": step.node, "{rollout}": rollout.name, "{action}": "rollout"})
    body["metadata"] = {"name": f"{owner_of(rollout)}-{step.node}", **body.get("metadata", {})}
    return ObjectCall(_id(rollout, step, "act"), (body,), hook.success_condition, hook.failure_condition)


def _filled(value: Any, words: Mapping[str, str]) -> Any:
    if isinstance(value, str):
        for word, meaning in words.items():
            value = value.replace(word, meaning)
        return value
    if isinstance(value, dict):
        return {key: _filled(part, words) for key, part in value.items()}
    return [_filled(part, words) for part in value] if isinstance(value, list) else value


def _status(seen: RolloutSeen, steps: list[NodeStep]) -> NodeRolloutStatus:
    spec = seen.rollout.spec
    total = len({*seen.nodes, *(step.node for step in steps)})
    done = sum(step.phase is StepPhase.DONE for step in steps)
    failed = [step for step in steps if step.phase is StepPhase.FAILED]
    if failed and not any(step.phase in BUSY for step in steps):
        phase = RolloutPhase.STOPPED
    elif not failed and done == total and total:
        phase = RolloutPhase.SUCCEEDED
    elif not total:
        phase = RolloutPhase.PENDING
    else:
        phase = RolloutPhase.ROLLING if is_proven(spec.canary, total, steps) else RolloutPhase.CANARY
    because = ""
    if failed:
        first = failed[0]
        what = "canary" if first.is_canary else "node"
        because = f"The {what} {first.node} failed ({first.reason}): {first.message}"
    begun = {step.node for step in steps}
    left = sorted(name for name in seen.domains if name in seen.nodes and name not in begun) if not failed else []
    waiting = next(filter(None, (unfit(seen, name, begun) for name in left)), "")
    return NodeRolloutStatus(phase, total, done, len(failed), because, steps, waiting)


def _to(step: NodeStep, phase: StepPhase, now: float, reason: str = "", message: str = "") -> NodeStep:
    return msgspec.structs.replace(step, phase=phase, since=to_time(now), reason=reason, message=message[:1024])


def _id(rollout: NodeRollout, step: NodeStep, what: str) -> str:
    return f"{owner_of(rollout)}.{step.node}.{what}"


def _answer(seen: RolloutSeen, step: NodeStep, id: str) -> OrderAnswer | None:
    ledger = seen.ledgers.get(step.node)
    return next((a for a in ledger.observed.answers if a.id == id), None) if ledger is not None else None


def _since(step: NodeStep, now: float) -> float:
    return to_seconds(step.since) if step.since is not None else now
