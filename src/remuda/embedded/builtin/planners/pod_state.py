"""What the small controllers ask about a pod, and how they make one from a template. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

from remuda.api.conditions import find_condition, is_condition_true
from remuda.api.kubernetes.core_v1 import Pod
from remuda.api.meta import JsonObject, KObject, to_seconds

BURST = 500  # pods made or deleted for one object in one look
_DELETION_COST = re.compile(r"-?[0-9]{1,10}")
MOST_WAITING = 1000  # pods of one object without a node: more of them would wait no less, and cost everybody


def is_active_pod(pod: Pod) -> bool:
    """Runs or will run: neither finished nor told to go."""
    return not pod.is_terminal and not pod.is_deleting


def is_terminating_replica(pod: Pod) -> bool:
    return pod.is_deleting and not pod.is_terminal


def is_ready_pod(pod: Pod) -> bool:
    return pod.status.phase == "Running" and is_condition_true(pod.status.conditions, "Ready")


def replica_ready_since(pod: Pod) -> float | None:
    condition = find_condition(pod.status.conditions, "Ready")
    if condition is None or condition.status != "True":
        return None
    return to_seconds(condition.last_transition_time) if condition.last_transition_time else 0.0


def pod_available_at(pod: Pod, min_ready_s: int) -> float | None:
    """When the pod counts as available: ready, and ready for long enough. None: not ready."""
    since = replica_ready_since(pod)
    return None if since is None or pod.status.phase != "Running" else since + min_ready_s


def job_pod_finished_at(pod: Pod) -> float | None:
    """When its last container ended."""
    ends = [s.state.terminated.finished_at for s in pod.status.container_statuses if s.state.terminated is not None]
    times = [to_seconds(end) for end in ends if end is not None]
    if times:
        return max(times)
    deleted = pod.metadata.deletion_timestamp
    return None if deleted is None else to_seconds(deleted)


def pod_removal_order(pod: Pod) -> tuple[Any, ...]:
    """Smallest first is the first to go: unscheduled, then pending, then not ready, then the youngest ready."""
    since = replica_ready_since(pod)
    made = pod.metadata.creation_timestamp
    cost = pod.annotations.get("controller.kubernetes.io/pod-deletion-cost", "0")
    return (
        bool(pod.spec.node_name),
        {"Pending": 0, "Unknown": 1}.get(pod.status.phase, 2),
        is_ready_pod(pod),
        int(cost) if _DELETION_COST.fullmatch(cost) else 0,
        -(since or 0.0),
        sum(s.restart_count for s in pod.status.container_statuses) * -1,
        -to_seconds(made) if made else 0.0,
        pod.name,
    )


def owner_reference_for_planned_object(owner: KObject) -> JsonObject:
    return {
        "apiVersion": owner.resource.api_version,
        "kind": owner.resource.kind,
        "name": owner.name,
        "uid": owner.uid,
        "controller": True,
        "blockOwnerDeletion": True,
    }


def pod_from_template(template: JsonObject, owner: KObject, prefix: str) -> JsonObject:
    """A pod's body; its name is made from the prefix by the server."""
    meta = template.get("metadata") or {}
    metadata = {
        "generateName": prefix,
        "namespace": owner.namespace,
        "labels": dict(meta.get("labels") or {}),
        "ownerReferences": [owner_reference_for_planned_object(owner)],
    }
    if meta.get("annotations"):
        metadata["annotations"] = dict(meta["annotations"])
    if meta.get("finalizers"):
        metadata["finalizers"] = list(meta["finalizers"])
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": dict(template.get("spec") or {})}


def is_replica_controlled_by(obj: KObject, owner: KObject) -> bool:
    return any(ref.uid == owner.uid and ref.controller for ref in obj.metadata.owner_references)


def has_no_replica_controller(obj: KObject) -> bool:
    return not any(ref.controller for ref in obj.metadata.owner_references)


def count_or_percentage_of(value: int | str, total: int, *, up: bool) -> int:
    """A number, or a percentage of the total, rounded up or down."""
    if isinstance(value, int):
        return value
    percent = int(value.rstrip("%"))
    return -(-percent * total // 100) if up else percent * total // 100


def replica_pods_to_make_now(missing: int, active: Iterable[Pod]) -> int:
    """Of the pods an object lacks: a batch, and no more than may wait for a node. The rest is made as those find one."""
    waiting = sum(not pod.spec.node_name for pod in active)
    return max(0, min(missing, BURST, MOST_WAITING - waiting))
