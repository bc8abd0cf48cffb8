"""ReplicaSet: keep so many pods of one template.

A pod counts while it is active. Too few: make more. Too many: the ones that would be missed least go. Pods that match the
selector and belong to nobody are adopted.
"""

from __future__ import annotations

import msgspec

from remuda.api.kubernetes.apps_v1 import REPLICA_FAILURE, ReplicaSet, ReplicaSetStatus
from remuda.api.kubernetes.core_v1 import Pod
from remuda.api.meta import JsonObject
from remuda.api.selectors import label_selector_matches
from remuda.embedded.builtin.planners.pod_state import (
    BURST,
    has_no_replica_controller,
    is_active_pod,
    is_ready_pod,
    is_replica_controlled_by,
    is_terminating_replica,
    pod_available_at,
    pod_from_template,
    pod_removal_order,
    replica_pods_to_make_now,
)


class ReplicaSetObserved(msgspec.Struct, frozen=True):
    """`pods`: those of the namespace that the selector matches or that are ours already."""

    replica_set: ReplicaSet
    pods: tuple[Pod, ...]


class ReplicaSetPlan(msgspec.Struct, frozen=True):
    status: ReplicaSetStatus
    create: tuple[JsonObject, ...] = ()
    delete: tuple[Pod, ...] = ()
    adopt: tuple[Pod, ...] = ()
    look_again_s: float | None = None


def plan_replica_set(observed: ReplicaSetObserved, now: float) -> ReplicaSetPlan:
    own = observed.replica_set
    mine = [p for p in observed.pods if is_replica_controlled_by(p, own)]
    adopt = [] if own.is_deleting else [p for p in observed.pods if _is_stray_pod(p, own)]
    active = [p for p in mine if is_active_pod(p)]
    missing = own.spec.replicas - len(active) - len(adopt)
    status, again = _replica_set_status(own, mine, active, now, has_all=missing <= 0)
    if own.is_deleting:
        return ReplicaSetPlan(status)
    create = tuple(
        pod_from_template(own.spec.template, own, f"{own.name}-")
        for _ in range(replica_pods_to_make_now(missing, active))
    )
    doomed = sorted(active, key=pod_removal_order)[: min(-missing, BURST)] if missing < 0 else []
    return ReplicaSetPlan(status, create, tuple(doomed), tuple(adopt), again)


def _is_stray_pod(pod: Pod, own: ReplicaSet) -> bool:
    return (
        has_no_replica_controller(pod) and is_active_pod(pod) and label_selector_matches(own.spec.selector, pod.labels)
    )


def _replica_set_status(
    own: ReplicaSet, mine: list[Pod], active: list[Pod], now: float, *, has_all: bool
) -> tuple[ReplicaSetStatus, float | None]:
    template_labels = (own.spec.template.get("metadata") or {}).get("labels") or {}
    times = [t for p in active if (t := pod_available_at(p, own.spec.min_ready_seconds)) is not None]
    status = ReplicaSetStatus(
        replicas=len(active),
        fully_labeled_replicas=sum(template_labels.items() <= p.labels.items() for p in active),
        ready_replicas=sum(map(is_ready_pod, active)),
        available_replicas=sum(t <= now for t in times),
        terminating_replicas=sum(map(is_terminating_replica, mine)),
        observed_generation=own.metadata.generation,
        conditions=[c for c in own.status.conditions if not has_all or c.type != REPLICA_FAILURE],
    )
    return status, min((t - now for t in times if t > now), default=None)
