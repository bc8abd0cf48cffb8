"""Deployment: roll a set of pods from one template to the next, through one ReplicaSet per template.

The ReplicaSet with the Deployment's template is the *new* one; all others are old. A rolling update keeps

    total pods          <= replicas + maxSurge          and
    available pods      >= replicas - maxUnavailable

by raising the new set as far as the first line allows and lowering the old ones as far as the second does. Old sets stay, at
zero, as the history to roll back to. Going back to an old template makes its set the new one again, with the next revision.
"""

from __future__ import annotations

import hashlib
import json

import msgspec

from remuda.api.conditions import find_condition, with_condition
from remuda.api.kubernetes.apps_v1 import (
    REPLICA_FAILURE,
    REVISION,
    TEMPLATE_HASH,
    Deployment,
    DeploymentStatus,
    ReplicaSet,
)
from remuda.api.meta import Condition, JsonObject, to_seconds, to_time
from remuda.embedded.builtin.planners.deployment_conditions import deployment_conditions
from remuda.embedded.builtin.planners.pod_state import count_or_percentage_of, owner_reference_for_planned_object

_ALPHABET = "bcdfghjklmnpqrstvwxz2456789"
DESIRED = "deployment.kubernetes.io/desired-replicas"
MAX_REPLICAS = "deployment.kubernetes.io/max-replicas"


class DeploymentObserved(msgspec.Struct, frozen=True):
    """`old_pods`: how many pods of old sets are still there, terminating ones included (for Recreate)."""

    deployment: Deployment
    sets: tuple[ReplicaSet, ...]
    old_pods: int = 0


class ReplicaSetScale(msgspec.Struct, frozen=True):
    replica_set: ReplicaSet
    replicas: int


class DeploymentPlan(msgspec.Struct, frozen=True):
    status: DeploymentStatus
    create: JsonObject | None = None
    scale: tuple[ReplicaSetScale, ...] = ()
    revision: int = 0  # of the new set and the Deployment; 0 = leave as it is
    new: ReplicaSet | None = None
    delete: tuple[ReplicaSet, ...] = ()
    look_again_s: float | None = None


def plan_deployment(observed: DeploymentObserved, now: float) -> DeploymentPlan:
    own = observed.deployment
    sets = sorted(observed.sets, key=_replica_set_age)
    wanted = template_without_hash(own)
    new = next((s for s in sets if template_without_hash(s) == wanted), None)
    old = [s for s in sets if s is not new]
    if own.is_deleting:
        return DeploymentPlan(_deployment_status(own, sets, new, own.status.conditions), new=new)
    revision = max((deployment_revision(s) for s in old), default=0) + 1
    create: JsonObject | None = None
    scale: list[ReplicaSetScale] = []
    if own.spec.paused:
        if new is not None and not any(s.spec.replicas for s in old):
            scale = _changed_scales([(new, own.spec.replicas)])
    elif own.spec.strategy.type == "Recreate":
        scale = _changed_scales([(s, 0) for s in old])
        if not observed.old_pods and not any(s.status.replicas for s in old):
            if new is None:
                create = new_replica_set(own, own.spec.replicas, revision)
            else:
                scale += _changed_scales([(new, own.spec.replicas)])
    elif new is None:
        create = new_replica_set(own, _room_for_new_pods(own, old, 0), revision)
    else:
        raised = max(new.spec.replicas, new.spec.replicas + _room_for_new_pods(own, old, new.spec.replicas))
        scale = _changed_scales([(new, min(own.spec.replicas, raised))])
        if not scale:
            scale = _changed_scales(_scale_down_old_sets(own, new, old))
    conditions, again = deployment_conditions(own, sets, new, bool(create or scale), now)
    conditions = _with_replica_failure(conditions, new, now)
    is_complete = new is not None and not create and not scale and _is_rollout_complete(own, sets, new)
    return DeploymentPlan(
        status=_deployment_status(own, sets, new, conditions),
        create=create,
        scale=tuple(scale),
        revision=_next_deployment_revision(own, new, revision) if not own.spec.paused else 0,
        new=new,
        delete=tuple(_sets_beyond_history(own, old)) if is_complete else (),
        look_again_s=again,
    )


def _with_replica_failure(conditions: list[Condition], new: ReplicaSet | None, now: float) -> list[Condition]:
    """That the pods of the new set are refused is told by the Deployment, too: there users look first."""
    failure = find_condition(new.status.conditions, REPLICA_FAILURE) if new is not None else None
    if failure is None or failure.status != "True":
        return [c for c in conditions if c.type != REPLICA_FAILURE]
    return with_condition(conditions, REPLICA_FAILURE, True, failure.reason, failure.message, to_time(int(now)))


def template_without_hash(holder: Deployment | ReplicaSet) -> JsonObject:
    """The template without the label that tells the sets apart."""
    template = holder.spec.template
    meta = template.get("metadata") or {}
    labels = {k: v for k, v in (meta.get("labels") or {}).items() if k != TEMPLATE_HASH}
    return {**template, "metadata": {**meta, "labels": labels}}


def template_hash(template: JsonObject, collisions: int) -> str:
    text = json.dumps([template, collisions], sort_keys=True)
    number = int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big")
    letters = []
    for _ in range(10):
        number, digit = divmod(number, len(_ALPHABET))
        letters.append(_ALPHABET[digit])
    return "".join(letters)


def new_replica_set(own: Deployment, replicas: int, revision: int) -> JsonObject:
    template = template_without_hash(own)
    digest = template_hash(template, own.status.collision_count)
    meta = template["metadata"]
    labels = {**meta["labels"], TEMPLATE_HASH: digest}
    selector = own.spec.selector
    matched = {**(selector.get("matchLabels") or {}), TEMPLATE_HASH: digest}
    annotations = {k: v for k, v in own.annotations.items() if k != "kubectl.kubernetes.io/last-applied-configuration"}
    surge = _max_surge(own)
    return {
        "apiVersion": "apps/v1",
        "kind": "ReplicaSet",
        "metadata": {
            "name": f"{own.name}-{digest}",
            "namespace": own.namespace,
            "labels": labels,
            "annotations": {
                **annotations,
                REVISION: str(revision),
                DESIRED: str(own.spec.replicas),
                MAX_REPLICAS: str(own.spec.replicas + surge),
            },
            "ownerReferences": [owner_reference_for_planned_object(own)],
        },
        "spec": {
            "replicas": replicas,
            "minReadySeconds": own.spec.min_ready_seconds,
            "selector": {**selector, "matchLabels": matched},
            "template": {**template, "metadata": {**meta, "labels": labels}},
        },
    }


def deployment_revision(holder: ReplicaSet | Deployment) -> int:
    text = holder.annotations.get(REVISION, "0")
    return int(text) if text.isdigit() else 0


def _next_deployment_revision(own: Deployment, new: ReplicaSet | None, revision: int) -> int:
    if new is None:
        return revision
    return max(revision, deployment_revision(new))


def _max_surge(own: Deployment) -> int:
    return count_or_percentage_of(own.spec.strategy.rolling_update.max_surge, own.spec.replicas, up=True)


def _max_unavailable(own: Deployment) -> int:
    rolling = own.spec.strategy.rolling_update
    allowed = count_or_percentage_of(rolling.max_unavailable, own.spec.replicas, up=False)
    # Small Deployments with percentages may come to nothing and nothing; then one may be missing, or it would never move.
    return 1 if allowed == 0 and _max_surge(own) == 0 else min(allowed, own.spec.replicas)


def _room_for_new_pods(own: Deployment, old: list[ReplicaSet], new: int) -> int:
    """How many pods may be added to the new set's `new`."""
    total = sum(s.spec.replicas for s in old) + new
    return max(0, min(own.spec.replicas + _max_surge(own) - total, own.spec.replicas - new))


def _scale_down_old_sets(own: Deployment, new: ReplicaSet, old: list[ReplicaSet]) -> list[tuple[ReplicaSet, int]]:
    """Old sets after taking away what is not needed: first pods that are not available anyway, then available ones."""
    target = {s.uid: s.spec.replicas for s in old}
    total_old = sum(target.values())
    if not total_old:
        return []
    least = own.spec.replicas - _max_unavailable(own)
    missing_new = new.spec.replicas - new.status.available_replicas
    budget = total_old + new.spec.replicas - least - missing_new
    for unhealthy in old:
        taken = min(budget, unhealthy.spec.replicas - unhealthy.status.available_replicas)
        if taken > 0:
            target[unhealthy.uid] -= taken
            budget -= taken
    available = new.status.available_replicas + sum(min(target[s.uid], s.status.available_replicas) for s in old)
    spare = max(0, available - least)
    for healthy in old:
        taken = min(spare, target[healthy.uid])
        target[healthy.uid] -= taken
        spare -= taken
    return [(s, target[s.uid]) for s in old]


def _changed_scales(wanted: list[tuple[ReplicaSet, int]]) -> list[ReplicaSetScale]:
    return [ReplicaSetScale(s, replicas) for s, replicas in wanted if s.spec.replicas != replicas]


def _is_rollout_complete(own: Deployment, sets: list[ReplicaSet], new: ReplicaSet) -> bool:
    return (
        new.status.available_replicas == own.spec.replicas
        and new.status.replicas == own.spec.replicas
        and all(s is new or not s.status.replicas for s in sets)
    )


def _sets_beyond_history(own: Deployment, old: list[ReplicaSet]) -> list[ReplicaSet]:
    idle = [s for s in old if not s.spec.replicas and not s.status.replicas and not s.is_deleting]
    return sorted(idle, key=deployment_revision)[: max(0, len(idle) - own.spec.revision_history_limit)]


def _replica_set_age(replica_set: ReplicaSet) -> tuple[float, str]:
    made = replica_set.metadata.creation_timestamp
    return (to_seconds(made) if made else 0.0, replica_set.name)


def _deployment_status(
    own: Deployment, sets: list[ReplicaSet], new: ReplicaSet | None, conditions: list[Condition]
) -> DeploymentStatus:
    available = sum(s.status.available_replicas for s in sets)
    asked = sum(s.spec.replicas for s in sets)
    return DeploymentStatus(
        replicas=sum(s.status.replicas for s in sets),
        updated_replicas=new.status.replicas if new is not None else 0,
        ready_replicas=sum(s.status.ready_replicas for s in sets),
        available_replicas=available,
        unavailable_replicas=max(0, asked - available),
        terminating_replicas=sum(s.status.terminating_replicas for s in sets),
        observed_generation=own.metadata.generation,
        collision_count=own.status.collision_count,
        conditions=conditions,
    )
