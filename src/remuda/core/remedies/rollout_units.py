"""Which nodes a roll-out begins next. Pure.

A node of a multi-node domain is never recycled alone: its *unit* is the whole domain, all others are a unit by themselves. A unit
is begun together. A domain that is selected only in part, or not known whole, is not begun at all, and `unfit` says why.

Units that are cheapest to empty come first, and canaries before all others. One that is larger than `maxUnavailable` goes when
nothing else does.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence

import msgspec

from remuda.api.conditions import is_true
from remuda.api.devices import NodeDevices
from remuda.api.kubernetes.core_v1 import Node, Pod
from remuda.api.rollouts import NodeRollout, NodeStep, StepPhase
from remuda.core.remedies.drain import Domain, has_to_go, holder_of, other_actor
from remuda.core.remedies.ladder.types import Made
from remuda.core.remedies.limits import bound

BUSY = (StepPhase.DRAINING, StepPhase.ACTING, StepPhase.VERIFYING)


class RolloutSeen(msgspec.Struct, frozen=True):
    """`nodes`: of the pool. `pods` by node. `made`: objects of object hooks, by node. `domains`: by node."""

    rollout: NodeRollout
    nodes: Mapping[str, Node]
    ledgers: Mapping[str, NodeDevices]
    pods: Mapping[str, Sequence[Pod]]
    made: Mapping[str, Made] = {}
    domains: Mapping[str, Domain] = {}  # only nodes that are recycled with others


def owner_of(rollout: NodeRollout) -> str:
    """How nodes and orders name it, beside incidents."""
    return owner_named(rollout.name)


def owner_named(name: str) -> str:
    return f"rollout-{name}"


def next_nodes(seen: RolloutSeen, steps: Sequence[NodeStep]) -> Iterable[tuple[str, bool]]:
    """Nodes to begin now, and whether each is a canary."""
    spec = seen.rollout.spec
    if spec.paused or any(step.phase is StepPhase.FAILED for step in steps):
        return []
    begun = {step.node for step in steps}
    busy = sum(step.phase in BUSY for step in steps)
    is_canary = not is_proven(spec.canary, len(seen.nodes), steps)
    at_a_time = bound(spec.max_unavailable, len(seen.nodes))
    most = len(seen.nodes) if at_a_time is None else at_a_time
    chosen: list[str] = []
    for unit in sorted(_units(seen, begun), key=lambda unit: _cost(seen, unit)):
        if is_canary and len(begun) + len(chosen) >= spec.canary:
            break
        taken = busy + len(chosen)
        has_room = taken + len(unit) <= most or (most > 0 and not taken)
        if has_room and not set(unit) & set(chosen):
            chosen += unit
    return [(name, is_canary) for name in chosen]


def is_proven(canary: int, nodes: int, steps: Sequence[NodeStep]) -> bool:
    """Every canary is done. More than asked for are begun when they are of one domain."""
    done = sum(step.phase is StepPhase.DONE for step in steps)
    return done >= min(canary, nodes) and not any(step.is_canary and step.phase in BUSY for step in steps)


def _cost(seen: RolloutSeen, unit: Sequence[str]) -> tuple[int, Sequence[str]]:
    """The cheapest to empty comes first."""
    return sum(has_to_go(pod) for name in unit for pod in seen.pods.get(name, ())), unit


def _units(seen: RolloutSeen, begun: Collection[str]) -> list[tuple[str, ...]]:
    """Nodes that may be begun, each with all that goes with it."""
    units = {_unit(seen, name) for name in seen.nodes if name not in begun and not unfit(seen, name, begun)}
    return [unit for unit in units if all(_is_ready(seen, seen.nodes[name]) for name in unit)]


def _unit(seen: RolloutSeen, name: str) -> tuple[str, ...]:
    domain = domain_of_step(seen, name)
    return domain.nodes if domain is not None else (name,)


def domain_of_step(seen: RolloutSeen, name: str) -> Domain | None:
    return seen.domains.get(name) if seen.rollout.spec.drain.whole_domain else None


def unfit(seen: RolloutSeen, name: str, begun: Collection[str]) -> str:
    """Why the node's domain cannot be taken as a whole, and what to do about it; "" when it can."""
    domain = domain_of_step(seen, name)
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
        return (
            f"{name} joined {domain.name} when that was begun, and is not recycled alone. Make another roll-out, {fix}"
        )
    return ""


def _is_ready(seen: RolloutSeen, node: Node) -> bool:
    """Up, with devices, and nobody else's."""
    ledger = seen.ledgers.get(node.name)
    is_up = is_true(node.status.conditions, "Ready") and ledger is not None and bool(ledger.observed.devices)
    is_free = not holder_of(node) or holder_of(node) == owner_of(seen.rollout)
    return is_up and is_free and not other_actor(node)
