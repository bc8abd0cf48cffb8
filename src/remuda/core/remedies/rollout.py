"""What a NodeRollout does next. Pure: the same nodes, ledgers, pods and status give the same plan.

Each node goes Draining -> Acting -> Verifying -> Done or Failed, and what must stand in each phase (the node's cordon, the order
to its agent, the object of its hook) follows from the status alone. So a manager that dies between any two writes is replaced by
one that makes the same plan.

A node of a multi-node domain is never recycled alone: its *unit* is the whole domain; every other node is a unit by itself. The
nodes of a unit are begun together and leave each phase together. A domain that is selected only in part, or not known whole, is
not begun, and `waitingFor` says why. Units that are cheapest to empty come first. One that is larger than `maxUnavailable` goes
when nothing else does. A node that another incident or actor has is not begun.

Invariants: while a canary is not Done no node beside the canaries is begun; after a failure none is; at most `maxUnavailable`
nodes are under way, or one unit that is larger; a node that failed keeps its cordon. `abandoned_marks` frees the
nodes of one that is deleted.

A remedy ladder does none of this: it acts on what has failed, and one that fails stops no other (docs/adr/0018).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

import msgspec

from remuda.api.conditions import is_condition_true
from remuda.api.devices import DeviceOrder, NodeDevices, OrderAnswer
from remuda.api.errors import Refusal
from remuda.api.kubernetes.core_v1 import Node, Pod
from remuda.api.meta import JsonObject, to_seconds, to_time
from remuda.api.rollouts import NodeRollout, NodeRolloutStatus, NodeStep, RolloutPhase, StepPhase, check_rollout
from remuda.core.remedies.drain import (
    DrainPlan,
    DrainRequest,
    RecycleDomain,
    has_to_be_drained,
    node_drain_patch_for_remedy,
    other_actor_on_node,
    plan_drain,
    remedy_holder,
)
from remuda.core.remedies.hook_objects import HookCall, HookResult, hook_body
from remuda.core.remedies.limits import limit_of_share

LOOK_S = 5.0
ANSWER_S = 30.0  # after its deadline an order must be answered
BUSY = (StepPhase.DRAINING, StepPhase.ACTING, StepPhase.VERIFYING)
ROLLOUT_PREFIX = "rollout-"  # no incident's name begins so


class ObservedRollout(msgspec.Struct, frozen=True):
    """`nodes`: of the pool. `pods` by node. `made`: objects of object hooks, by node."""

    rollout: NodeRollout
    nodes: Mapping[str, Node]
    ledgers: Mapping[str, NodeDevices]
    pods: Mapping[str, Sequence[Pod]]
    made: Mapping[str, HookResult] = {}
    domains: Mapping[str, RecycleDomain] = {}  # by node; only nodes that are recycled with others

    def domain(self, node: str) -> RecycleDomain | None:
        return self.domains.get(node) if self.rollout.spec.drain.whole_domain else None

    def answer(self, step: NodeStep, what: str) -> OrderAnswer | None:
        ledger, id = self.ledgers.get(step.node), _rollout_order_id(self.rollout, step, what)
        return next((a for a in ledger.observed.answers if a.id == id), None) if ledger is not None else None


class RolloutPlan(msgspec.Struct, frozen=True):
    """What should stand. `orders`: by node, all of this roll-out's; what is not among them is taken away."""

    rollout: NodeRollout
    status: NodeRolloutStatus
    patches: Mapping[str, JsonObject] = {}  # of nodes
    orders: Mapping[str, Mapping[str, DeviceOrder]] = {}
    drains: tuple[DrainPlan, ...] = ()
    calls: Mapping[str, HookCall] = {}
    look_again_s: float | None = None


def rollout_owner(name: str) -> str:
    """How nodes and orders name a roll-out, beside incidents."""
    return f"{ROLLOUT_PREFIX}{name}"


def is_rollout_order(order_id: str, rollout: NodeRollout) -> bool:
    return order_id.startswith(f"{rollout_owner(rollout.name)}.")


def rollout_selects_node(rollout: NodeRollout, node: Node) -> bool:
    return all(node.labels.get(key) == value for key, value in rollout.spec.selector.items())


def plan_rollout(seen: ObservedRollout, now: float) -> RolloutPlan:
    rollout = seen.rollout
    if not rollout.is_over and (refused := _rollout_refusal(rollout)) is not None:
        because = f"{refused.reason}: {refused.message} {refused.fix}"
        return RolloutPlan(
            rollout, msgspec.structs.replace(rollout.status, phase=RolloutPhase.STOPPED, stopped_because=because)
        )
    if rollout.status.phase is RolloutPhase.STOPPED and not rollout.status.failed:
        return RolloutPlan(rollout, rollout.status)  # it was refused as above; nodes it had begun stay out of use
    steps = _keep_rollout_units_together(
        rollout.status.steps, [_advance_rollout_step(seen, s, now) for s in rollout.status.steps], now
    )
    steps += _begin_rollout_steps(seen, steps, now)
    status = _rollout_status(seen, steps)
    patches, orders, calls, drains = {}, {}, {}, []
    for step in steps:
        node, ledger = seen.nodes.get(step.node), seen.ledgers.get(step.node)
        if node is not None and (patch := _rollout_node_patch(rollout, node, step)):
            patches[step.node] = patch
        if ledger is not None:
            orders[step.node] = _rollout_step_orders(rollout, step, ledger)
        if step.phase is StepPhase.DRAINING:
            drains.append(_drain_for_rollout(seen, step, now))
        if step.phase is StepPhase.ACTING and (hook := rollout.spec.hook).object:
            facts = {"node": step.node, "rollout": rollout.name, "action": "rollout"}
            body = hook_body(hook, facts, f"{rollout_owner(rollout.name)}-{step.node}", 0, 1)
            id = _rollout_order_id(rollout, step, "act")
            calls[step.node] = HookCall(id, (body,), hook.success_condition, hook.failure_condition)
    look = None if status.phase in (RolloutPhase.SUCCEEDED, RolloutPhase.STOPPED) else LOOK_S
    return RolloutPlan(rollout, status, patches, orders, tuple(drains), calls, look)


def _rollout_refusal(rollout: NodeRollout) -> Refusal | None:
    """Why it would not have been let in. Where the API checks types alone, it may be there all the same: it is stopped."""
    try:
        check_rollout(rollout)
    except Refusal as refusal:
        return refusal
    return None


# --- who is begun -----------------------------------------------------------------------------------------------------


def _begin_rollout_steps(seen: ObservedRollout, steps: Sequence[NodeStep], now: float) -> list[NodeStep]:
    spec = seen.rollout.spec
    if spec.paused or any(step.phase is StepPhase.FAILED for step in steps):
        return []
    begun = {step.node for step in steps}
    busy = sum(step.phase in BUSY for step in steps)
    is_canary = not _canaries_passed(spec.canary, len(seen.nodes), steps)
    at_a_time = limit_of_share(spec.max_unavailable, len(seen.nodes))
    most = len(seen.nodes) if at_a_time is None else at_a_time
    chosen: list[str] = []
    for unit in sorted(_free_rollout_units(seen, begun), key=lambda unit: _cost_of_emptying(seen, unit)):
        if is_canary and len(begun) + len(chosen) >= spec.canary:
            break
        taken = busy + len(chosen)
        has_room = taken + len(unit) <= most or (most > 0 and not taken)
        if has_room and not set(unit) & set(chosen):
            chosen += unit
    found = []
    for name in chosen:
        domain, count = seen.domain(name), len(_rollout_whole_devices(seen.ledgers[name]))
        named = domain.name if domain is not None else ""
        moment = to_time(now)
        found.append(NodeStep(name, is_canary=is_canary, devices=count, started_at=moment, since=moment, domain=named))
    return found


def _canaries_passed(canary: int, nodes: int, steps: Sequence[NodeStep]) -> bool:
    """Every canary is done. More than asked for are begun when they are of one domain."""
    done = sum(step.phase is StepPhase.DONE for step in steps)
    return done >= min(canary, nodes) and not any(step.is_canary and step.phase in BUSY for step in steps)


def _cost_of_emptying(seen: ObservedRollout, unit: Sequence[str]) -> tuple[int, Sequence[str]]:
    return sum(has_to_be_drained(pod) for name in unit for pod in seen.pods.get(name, ())), unit


def _free_rollout_units(seen: ObservedRollout, begun: Collection[str]) -> list[tuple[str, ...]]:
    """Units that may be begun: whole, up, with devices, and nobody else's."""
    units = set()
    for name in seen.nodes:
        if name not in begun and not _why_rollout_waits(seen, name, begun):
            domain = seen.domain(name)
            units.add(domain.nodes if domain is not None else (name,))
    return [unit for unit in units if all(_is_free_for_rollout(seen, seen.nodes[name]) for name in unit)]


def _is_free_for_rollout(seen: ObservedRollout, node: Node) -> bool:
    ledger = seen.ledgers.get(node.name)
    is_up = is_condition_true(node.status.conditions, "Ready") and ledger is not None and bool(ledger.observed.devices)
    return is_up and remedy_holder(node) in ("", rollout_owner(seen.rollout.name)) and not other_actor_on_node(node)


def _why_rollout_waits(seen: ObservedRollout, name: str, begun: Collection[str]) -> str:
    """Why the node's domain cannot be taken as a whole, and what to do about it; "" when it can."""
    domain = seen.domain(name)
    if domain is None:
        return ""
    fix = "or set drain.wholeDomain to false."
    if domain.missing:
        known = f"{len(domain.nodes)} of its {len(domain.nodes) + domain.missing} nodes are known"
        return f"{domain.name} is not recycled in part, and {known}. Wait until it is whole, {fix}"
    if left := [node for node in domain.nodes if node not in seen.nodes]:
        words = f"{', '.join(left[:3])}{' ...' if len(left) > 3 else ''} of it is not in this roll-out"
        return f"{domain.name} is not recycled in part, and {words}. Select all of it, {fix}"
    if any(node in begun for node in domain.nodes):
        joined = f"{name} joined {domain.name} when that was begun, and is not recycled alone."
        return f"{joined} Make another roll-out, {fix}"
    return ""


def _rollout_whole_devices(ledger: NodeDevices) -> list[str]:
    return [row.id for row in ledger.observed.devices if not row.parent]


# --- one node ---------------------------------------------------------------------------------------------------------


def _keep_rollout_units_together(before: Sequence[NodeStep], after: Sequence[NodeStep], now: float) -> list[NodeStep]:
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
            step = _move_rollout_step(was, StepPhase.FAILED, now, "DomainFailed", words)
        elif was.phase in BUSY and step.phase not in (was.phase, StepPhase.FAILED):
            behind = [peer.node for peer in peers if peer.phase is was.phase]
            if behind:
                words = f"{step.message} Waits for {len(behind)} more of {step.domain}: {', '.join(behind[:3])}."
                step = msgspec.structs.replace(was, message=words.strip())
        steps.append(step)
    return steps


def _advance_rollout_step(seen: ObservedRollout, step: NodeStep, now: float) -> NodeStep:
    if step.phase not in BUSY:
        return step
    if step.node not in seen.nodes:
        return _move_rollout_step(step, StepPhase.FAILED, now, "NodeGone", "The node is gone.")
    if step.phase is StepPhase.DRAINING:
        drain = _drain_for_rollout(seen, step, now)
        if drain.is_done:
            return _move_rollout_step(step, StepPhase.ACTING, now)
        return msgspec.structs.replace(step, message=drain.message)
    return (
        _check_rollout_hook(seen, step, now)
        if step.phase is StepPhase.ACTING
        else _verify_rollout_step(seen, step, now)
    )


def _drain_for_rollout(seen: ObservedRollout, step: NodeStep, now: float) -> DrainPlan:
    return plan_drain(
        {step.node: seen.pods.get(step.node, ())}, seen.rollout.spec.drain, _rollout_step_since(step, now), now
    )


def _check_rollout_hook(seen: ObservedRollout, step: NodeStep, now: float) -> NodeStep:
    spec = seen.rollout.spec
    limit = _rollout_step_since(step, now) + spec.timeout_seconds
    made, answer = seen.made.get(step.node), seen.answer(step, "act")
    if spec.hook.object:
        outcome, message = (made.outcome, made.message) if made is not None else ("", "")
        reason = made.reason if made is not None and made.reason else "HookFailed"
        late = "HookTimedOut", "The hook's object did not end in time."
    else:
        outcome, message = (answer.outcome, answer.message) if answer is not None else ("", "")
        reason = answer.reason or outcome if answer is not None else ""
        late, limit = ("NoAnswer", f"The agent of {step.node} did not answer in time."), limit + ANSWER_S
    if outcome == "Succeeded":
        return _move_rollout_step(step, StepPhase.VERIFYING, now, message=message)
    if outcome not in ("", "Running"):
        return _move_rollout_step(step, StepPhase.FAILED, now, reason, message)
    return _move_rollout_step(step, StepPhase.FAILED, now, *late) if now >= limit else step


def _verify_rollout_step(seen: ObservedRollout, step: NodeStep, now: float) -> NodeStep:
    spec, node, ledger = seen.rollout.spec, seen.nodes[step.node], seen.ledgers.get(step.node)
    devices = _rollout_whole_devices(ledger) if ledger is not None else []
    answers = {device: seen.answer(step, f"probe-{device}") for device in devices}
    for device, answer in answers.items():
        if answer is not None and answer.outcome not in ("Running", "Succeeded"):
            return _move_rollout_step(step, StepPhase.FAILED, now, "ProbeFailed", f"{device}: {answer.message}")
    wrong = _missing_after_rollout(spec.expect, node, len(devices), step.devices)
    passed = [device for device, answer in answers.items() if answer is not None and answer.outcome == "Succeeded"]
    if not wrong and len(passed) == len(devices):
        return _move_rollout_step(step, StepPhase.DONE, now, message=f"{len(passed)} devices passed their probe.")
    if now >= _rollout_step_since(step, now) + spec.verify_seconds:
        words = wrong or f"Only {len(passed)} of {len(devices)} devices passed a probe in time."
        return _move_rollout_step(step, StepPhase.FAILED, now, "NotVerified", words)
    return msgspec.structs.replace(step, message=wrong or f"{len(passed)} of {len(devices)} probes passed.")


def _missing_after_rollout(expect: Mapping[str, str], node: Node, devices: int, before: int) -> str:
    """What the node lacks of what it should be afterwards, in a sentence; "" when nothing."""
    if not is_condition_true(node.status.conditions, "Ready"):
        return f"{node.name} is not ready."
    for key, value in sorted(expect.items()):
        if node.labels.get(key) != value:
            return f"{node.name} should have {key}={value} and has {node.labels.get(key, 'none')}."
    return f"{node.name} had {before} devices and shows {devices}." if devices < before else ""


def _move_rollout_step(step: NodeStep, phase: StepPhase, now: float, reason: str = "", message: str = "") -> NodeStep:
    return msgspec.structs.replace(step, phase=phase, since=to_time(now), reason=reason, message=message[:1024])


def _rollout_step_since(step: NodeStep, now: float) -> float:
    return to_seconds(step.since) if step.since is not None else now


# --- what stands ------------------------------------------------------------------------------------------------------


def _rollout_node_patch(rollout: NodeRollout, node: Node, step: NodeStep) -> JsonObject:
    owner = rollout_owner(rollout.name)
    request = None
    if step.phase is StepPhase.DRAINING and step.since is not None:
        request = DrainRequest(owner, to_seconds(step.since) + rollout.spec.drain.checkpoint_seconds)
    is_cordoned = step.phase is not StepPhase.DONE
    return node_drain_patch_for_remedy(node, owner, hold=step.phase in BUSY, cordon=is_cordoned, request=request)


def _rollout_step_orders(rollout: NodeRollout, step: NodeStep, ledger: NodeDevices) -> dict[str, DeviceOrder]:
    spec, owner = rollout.spec, rollout_owner(rollout.name)
    seconds = spec.timeout_seconds if step.phase is StepPhase.ACTING else spec.verify_seconds
    deadline = to_time(to_seconds(step.since) + seconds) if step.since is not None else None
    if step.phase is StepPhase.ACTING and spec.hook.command:
        env = {"REMUDA_ACTION": "rollout", "REMUDA_ROLLOUT": rollout.name}
        order = DeviceOrder("command", "", list(spec.hook.command), env, owner, step.since, deadline)
        return {_rollout_order_id(rollout, step, "act"): order}
    if step.phase is StepPhase.VERIFYING:
        return {
            _rollout_order_id(rollout, step, f"probe-{device}"): DeviceOrder(
                "probe", device, by=owner, since=step.since, deadline=deadline
            )
            for device in _rollout_whole_devices(ledger)
        }
    return {}


def _rollout_order_id(rollout: NodeRollout, step: NodeStep, what: str) -> str:
    return f"{rollout_owner(rollout.name)}.{step.node}.{what}"


def _rollout_status(seen: ObservedRollout, steps: list[NodeStep]) -> NodeRolloutStatus:
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
        is_proven = _canaries_passed(seen.rollout.spec.canary, total, steps)
        phase = RolloutPhase.ROLLING if is_proven else RolloutPhase.CANARY
    because = ""
    if failed:
        first = failed[0]
        what = "canary" if first.is_canary else "node"
        because = f"The {what} {first.node} failed ({first.reason}): {first.message}"
    begun = {step.node for step in steps}
    left = sorted(name for name in seen.domains if name in seen.nodes and name not in begun) if not failed else []
    waiting = next(filter(None, (_why_rollout_waits(seen, name, begun) for name in left)), "")
    return NodeRolloutStatus(phase, total, done, len(failed), because, steps, waiting)
