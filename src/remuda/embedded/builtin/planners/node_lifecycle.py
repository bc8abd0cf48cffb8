"""Node lifecycle: a node whose lease has run out is unreachable; pods that do not tolerate that are evicted in time.

    lease expired     -> condition Ready=Unknown, taints unreachable:NoSchedule and :NoExecute
    Ready is not True -> taints not-ready
    lease renewed     -> its own agent says Ready again, and the taints go

A pod on a node with NoExecute taints stays as long as its tolerations allow (`tolerationSeconds`, the smallest of the matching
ones), from the moment of the taint. Members of a TrainingJob are left alone: its controller watches the leases itself.
"""

from __future__ import annotations

import msgspec

from remuda.api.conditions import find_condition, with_condition
from remuda.api.kubernetes.core_v1 import Lease, Node, Pod, Taint, Toleration
from remuda.api.meta import Condition, to_seconds, to_time
from remuda.core.health.own_stalls import NO_STALLS, StallHistory
from remuda.core.state.snapshot import tolerates_taint
from remuda.embedded.builtin.planners.pod_state import is_active_pod

HELD_S = 5.0  # between two looks at a node that is silent together with most others
NOT_READY = "node.kubernetes.io/not-ready"
UNREACHABLE = "node.kubernetes.io/unreachable"
UNSCHEDULABLE = "node.kubernetes.io/unschedulable"
_OURS = frozenset({NOT_READY, UNREACHABLE, UNSCHEDULABLE})


class NodeLifecycleObserved(msgspec.Struct, frozen=True):
    """`pods`: those bound to the node. `stalls`: our own, in which no renewal could be written or seen."""

    node: Node
    lease: Lease | None
    pods: tuple[Pod, ...] = ()
    stalls: StallHistory = NO_STALLS
    is_held: bool = False  # silent together with most others: nobody is evicted for it


class NodeLifecyclePlan(msgspec.Struct, frozen=True):
    node: Node
    conditions: list[Condition] | None = None  # None: as they are
    taints: tuple[Taint, ...] | None = None
    evict: tuple[Pod, ...] = ()
    look_again_s: float | None = None


def node_lease_expiry(lease: Lease | None, stalls: StallHistory = NO_STALLS) -> float | None:
    if lease is None or lease.spec.renew_time is None:
        return None
    return stalls.countdown_ends_at(to_seconds(lease.spec.renew_time), lease.spec.lease_duration_seconds)


def plan_node_lifecycle(observed: NodeLifecycleObserved, now: float) -> NodeLifecyclePlan:
    node = observed.node
    expiry = node_lease_expiry(observed.lease, observed.stalls)
    is_lost = expiry is not None and now > expiry
    conditions = node.status.conditions
    if is_lost:
        conditions = with_condition(
            conditions, "Ready", None, "NodeStatusUnknown", "The node stopped renewing its lease.", to_time(int(now))
        )
    ready = find_condition(conditions, "Ready")
    wanted = _wanted_node_taints(ready, node.spec.unschedulable)
    taints = _with_node_lifecycle_taints(node.spec.taints, wanted, now)
    evict, wait = ([], HELD_S) if observed.is_held else _taint_evictions(observed.pods, taints, now)
    waits = [w for w in (wait, None if is_lost or expiry is None else expiry - now + 0.01) if w is not None]
    return NodeLifecyclePlan(
        node=node,
        conditions=conditions if conditions is not node.status.conditions else None,
        taints=taints if list(taints) != node.spec.taints else None,
        evict=tuple(evict),
        look_again_s=min(waits, default=None),
    )


def _wanted_node_taints(ready: Condition | None, unschedulable: bool) -> list[tuple[str, str]]:
    wanted: list[tuple[str, str]] = []
    if ready is not None and ready.status == "Unknown":
        wanted = [(UNREACHABLE, "NoSchedule"), (UNREACHABLE, "NoExecute")]
    elif ready is not None and ready.status != "True":
        wanted = [(NOT_READY, "NoSchedule"), (NOT_READY, "NoExecute")]
    return [*wanted, *([(UNSCHEDULABLE, "NoSchedule")] if unschedulable else [])]


def _with_node_lifecycle_taints(there: list[Taint], wanted: list[tuple[str, str]], now: float) -> tuple[Taint, ...]:
    kept = [t for t in there if t.key not in _OURS or (t.key, t.effect) in wanted]
    has = {(t.key, t.effect) for t in kept}
    at = to_time(int(now))
    return (*kept, *(Taint(key, effect, time_added=at) for key, effect in wanted if (key, effect) not in has))


def _taint_evictions(pods: tuple[Pod, ...], taints: tuple[Taint, ...], now: float) -> tuple[list[Pod], float | None]:
    """Pods whose time is over, and how long until the next one's is."""
    executing = [t for t in taints if t.effect == "NoExecute"]
    if not executing:
        return [], None
    evict: list[Pod] = []
    wait: float | None = None
    for pod in pods:
        if not is_active_pod(pod) or pod.owner("TrainingJob") is not None:
            continue
        until = tolerated_until(pod.spec.tolerations, executing, now)
        if until is None:
            continue
        if until <= now:
            evict.append(pod)
        else:
            wait = until - now if wait is None else min(wait, until - now)
    return evict, wait


def tolerated_until(tolerations: list[Toleration], taints: list[Taint], now: float) -> float | None:
    """When the pod must go; None: never. A taint without a toleration means now."""
    ends: list[float] = []
    for taint in taints:
        matching = [t for t in tolerations if tolerates_taint(t, taint)]
        if not matching:
            return now
        limits = [t.toleration_seconds for t in matching if t.toleration_seconds is not None]
        if limits:
            added = to_seconds(taint.time_added) if taint.time_added is not None else now
            ends.append(added + max(0, min(limits)))
    return min(ends, default=None)
