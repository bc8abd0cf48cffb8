"""The conditions of a Deployment, which `kubectl rollout status` and `kubectl wait` read: Available and Progressing.

Kubernetes adds a time of the last progress (`lastUpdateTime`) to them, from which the progress deadline counts. Our Condition
has only the transition time, so progress is told by a condition that changes: its message carries the counts.
"""

from __future__ import annotations

from remuda.api.conditions import find_condition, with_condition
from remuda.api.kubernetes.apps_v1 import Deployment, ReplicaSet
from remuda.api.meta import Condition, to_seconds, to_time
from remuda.embedded.builtin.planners.pod_state import count_or_percentage_of


def deployment_conditions(
    own: Deployment, sets: list[ReplicaSet], new: ReplicaSet | None, is_moving: bool, now: float
) -> tuple[list[Condition], float | None]:
    """The conditions, and when to look again for the deadline."""
    at = to_time(int(now))
    spec = own.spec
    available = sum(s.status.available_replicas for s in sets)
    rolling = spec.strategy.rolling_update
    allowed = (
        count_or_percentage_of(rolling.max_unavailable, spec.replicas, up=False)
        if spec.strategy.type == "RollingUpdate"
        else 0
    )
    has_minimum = available >= spec.replicas - allowed
    conditions = with_condition(
        own.status.conditions,
        "Available",
        has_minimum,
        "MinimumReplicasAvailable" if has_minimum else "MinimumReplicasUnavailable",
        "Deployment has minimum availability." if has_minimum else "Deployment does not have minimum availability.",
        at,
    )
    name = new.name if new is not None else own.name
    old = find_condition(conditions, "Progressing")
    if spec.paused:
        return with_condition(conditions, "Progressing", None, "DeploymentPaused", "Deployment is paused", at), None
    if new is not None and not is_moving and _is_deployment_done(own, sets, new):
        done = f'ReplicaSet "{name}" has successfully progressed.'
        return with_condition(conditions, "Progressing", True, "NewReplicaSetAvailable", done, at), None
    updated = new.status.replicas if new is not None else 0
    ready = new.status.available_replicas if new is not None else 0
    left = sum(s.status.replicas for s in sets) - updated
    progress = f'ReplicaSet "{name}" is progressing: {updated} updated, {ready} available, {left} old.'
    if old is not None and (old.message == progress or old.reason == "ProgressDeadlineExceeded"):
        since = to_seconds(old.last_transition_time) if old.last_transition_time else now
        deadline = since + spec.progress_deadline_seconds
        if old.reason == "ProgressDeadlineExceeded" and is_moving:
            return with_condition(conditions, "Progressing", True, "ReplicaSetUpdated", progress, at), None
        if old.reason == "ProgressDeadlineExceeded" or now >= deadline:
            late = f'ReplicaSet "{name}" has timed out progressing.'
            return with_condition(conditions, "Progressing", False, "ProgressDeadlineExceeded", late, at), None
        return conditions, deadline - now
    # Progress renews the deadline: the condition is set anew, with a new time, though its status stays True.
    fresh = Condition("Progressing", "True", _progress_reason(new, is_moving), progress, at)
    others = [c for c in conditions if c.type != "Progressing"]
    return [*others, fresh], float(spec.progress_deadline_seconds)


def _progress_reason(new: ReplicaSet | None, is_moving: bool) -> str:
    return "NewReplicaSetCreated" if new is None and is_moving else "ReplicaSetUpdated"


def _is_deployment_done(own: Deployment, sets: list[ReplicaSet], new: ReplicaSet) -> bool:
    return (
        new.status.replicas == own.spec.replicas
        and new.status.available_replicas >= own.spec.replicas
        and sum(s.status.replicas for s in sets) == own.spec.replicas
        and new.status.observed_generation >= new.metadata.generation
    )
