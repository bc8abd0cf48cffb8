"""The pods of a TrainingJob: names, labels and the wire body. A spare is made from the same template as a member.

Pod names count upwards (`job-worker-0`, `-1`, ...) and are never reused; they say nothing about rank, because promotion moves
a rank to another pod. Making the same pod twice after a crash gives the same name and so cannot make two.
"""

from __future__ import annotations

import math

from remuda.api.codec import to_wire
from remuda.api.meta import JsonObject, OwnerReference
from remuda.api.names import (
    ANNOTATION_DOMAIN,
    ANNOTATION_GANG_SIZE,
    ANNOTATION_LAUNCH,
    ANNOTATION_SPARE,
    ANNOTATION_TOPOLOGY_REQUIRED,
    LABEL_GANG,
    LABEL_INDEX,
    LABEL_ROLE,
    RESOURCE_GPU,
    SCHEDULER,
)
from remuda.api.training import Role, TrainingJob
from remuda.api.validation import gpus_of


def pod_name(job: str, role: str, index: int) -> str:
    return f"{job}-{role}-{index}"


def build_pod(job: TrainingJob, role: Role, index: int, *, spare: bool, domain: str) -> JsonObject:
    """`domain`: where the rest of the gang sits, or '' when it sits nowhere yet."""
    annotations = {
        **role.template.metadata.annotations,
        ANNOTATION_LAUNCH: "true",
        ANNOTATION_GANG_SIZE: str(sum(r.replicas for r in job.spec.roles)),
    }
    if job.spec.topology.required:
        annotations[ANNOTATION_TOPOLOGY_REQUIRED] = job.spec.topology.required
    if domain:
        annotations[ANNOTATION_DOMAIN] = domain
    if spare:
        annotations[ANNOTATION_SPARE] = "true"
    owner = OwnerReference(
        job.resource.api_version, job.resource.kind, job.name, job.uid, controller=True, block_owner_deletion=True
    )
    labels = {**role.template.metadata.labels, LABEL_GANG: job.name, LABEL_ROLE: role.name, LABEL_INDEX: str(index)}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": pod_name(job.name, role.name, index),
            "namespace": job.namespace,
            "labels": labels,
            "annotations": annotations,
            "ownerReferences": [to_wire(owner)],
        },
        "spec": _spec(job, role),
    }


def _spec(job: TrainingJob, role: Role) -> JsonObject:
    spec: JsonObject = dict(role.template.spec)
    container = dict(spec["containers"][0])
    container.setdefault("name", "main")
    gpus = gpus_of(role)
    if gpus:
        resources = dict(container.get("resources") or {})
        resources["limits"] = {**(resources.get("limits") or {}), RESOURCE_GPU: gpus}
        container["resources"] = resources
    spec["containers"] = [container]
    spec.setdefault("restartPolicy", "OnFailure")  # a dead launcher comes back in the same pod, on the same devices
    spec.setdefault("schedulerName", SCHEDULER)
    spec.setdefault("terminationGracePeriodSeconds", math.ceil(job.spec.failure.stop_grace_seconds) + 3)
    return spec
