"""Pods, sets and jobs as the planners see them."""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from remuda.api.codec import from_wire
from remuda.api.kubernetes.apps_v1 import Deployment, ReplicaSet
from remuda.api.kubernetes.batch_v1 import COMPLETION_INDEX, INDEX_FAILURES, TRACKING, Job
from remuda.api.kubernetes.core_v1 import Pod
from remuda.api.meta import JsonObject, to_time

NOW = 1_800_000_000.0


def stamp(seconds: float) -> str:
    return to_time(int(seconds)).strftime("%Y-%m-%dT%H:%M:%SZ")


def owner(kind: str, uid: str) -> JsonObject:
    return {"apiVersion": "x/v1", "kind": kind, "name": kind.lower(), "uid": uid, "controller": True}


def a_pod(
    name: str,
    of: tuple[str, str] | None = ("ReplicaSet", "set"),
    *,
    phase: str = "Running",
    ready: float | None = NOW - 100,
    deleting: bool = False,
    node: str = "node",
    index: int | None = None,
    failures: int | None = None,
    code: int | None = None,
    ended: float = NOW,
    tracked: bool = True,
    labels: JsonObject | None = None,
    **more: Any,
) -> Pod:
    meta: JsonObject = {"name": name, "namespace": "n", "uid": f"uid-{name}", "labels": labels or {"a": "b"}}
    meta["annotations"] = {}
    if of is not None:
        meta["ownerReferences"] = [owner(*of)]
        if of[0] == "Job" and tracked:
            meta["finalizers"] = [TRACKING]
    if deleting:
        meta["deletionTimestamp"] = stamp(NOW)
    if index is not None:
        meta["annotations"][COMPLETION_INDEX] = str(index)
    if failures is not None:
        meta["annotations"][INDEX_FAILURES] = str(failures)
    status: JsonObject = {"phase": phase, "conditions": list(more.pop("conditions", []))}
    if ready is not None and phase == "Running":
        status["conditions"].append({"type": "Ready", "status": "True", "lastTransitionTime": stamp(ready)})
    if phase in ("Succeeded", "Failed"):
        end = {"exitCode": code if code is not None else int(phase == "Failed"), "finishedAt": stamp(ended)}
        status["containerStatuses"] = [{"name": "main", "state": {"terminated": end}}]
    return from_wire(Pod, {"metadata": meta, "spec": {"nodeName": node, **more}, "status": status})


def a_set(name: str = "set", replicas: int = 3, image: str = "x:1", **status: Any) -> ReplicaSet:
    meta = {"name": name, "namespace": "n", "uid": name, "generation": 1, "annotations": status.pop("annotations", {})}
    counts = {"observedGeneration": 1, **status}
    template = {"metadata": {"labels": {"a": "b"}}, "spec": {"containers": [{"name": "main", "image": image}]}}
    spec = {"replicas": replicas, "selector": {"matchLabels": {"a": "b"}}, "template": template}
    return from_wire(ReplicaSet, {"metadata": meta, "spec": spec, "status": counts})


def full(name: str, replicas: int, image: str, *, available: int | None = None, **more: Any) -> ReplicaSet:
    """A set with all its pods, `available` of them available."""
    ready = replicas if available is None else available
    found = a_set(name, replicas, image, readyReplicas=ready, availableReplicas=ready, **more)
    return replace(found, status=replace(found.status, replicas=replicas))


def a_deployment(replicas: int = 4, image: str = "x:2", **spec: Any) -> Deployment:
    template = {"metadata": {"labels": {"a": "b"}}, "spec": {"containers": [{"name": "main", "image": image}]}}
    status = spec.pop("status", {})
    body = {
        "metadata": {"name": "web", "namespace": "n", "uid": "web", "generation": 1},
        "spec": {"replicas": replicas, "selector": {"matchLabels": {"a": "b"}}, "template": template, **spec},
        "status": status,
    }
    return from_wire(Deployment, body)


def a_job(*, status: JsonObject | None = None, deleting: bool = False, **spec: Any) -> Job:
    meta = {"name": "job", "namespace": "n", "uid": "job"}
    if deleting:
        meta["deletionTimestamp"] = stamp(NOW)
    template = {"metadata": {}, "spec": {"containers": [{"name": "main", "image": "x"}], "restartPolicy": "Never"}}
    body = {"metadata": meta, "spec": {"template": template, **spec}, "status": status or {}}
    return from_wire(Job, body)


def job_pod(name: str, phase: str = "Running", **more: Any) -> Pod:
    return a_pod(name, ("Job", "job"), phase=phase, **more)
