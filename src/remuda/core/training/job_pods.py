"""The pods of a TrainingJob: names, labels and the wire body. A spare is made from the same template as a member.

Pod names count upwards (`job-worker-0`, `-1`, ...) and are never reused; they say nothing about rank, because promotion moves
a rank to another pod. Making the same pod twice after a crash gives the same name and so cannot make two.
"""

from __future__ import annotations

import hashlib
import math

import msgspec

from remuda.api.checkpoint_volume import with_checkpoint_volume
from remuda.api.codec import to_wire
from remuda.api.injected_fields import without_injected_names
from remuda.api.meta import JsonObject, OwnerReference
from remuda.api.names import (
    ANNOTATION_DOMAIN,
    ANNOTATION_GANG_SIZE,
    ANNOTATION_HAS_RUN,
    ANNOTATION_LAUNCH,
    ANNOTATION_LOST_NODE,
    ANNOTATION_OPTIONAL,
    ANNOTATION_PREFER_NODE,
    ANNOTATION_SEGMENT,
    ANNOTATION_SEGMENT_SIZE,
    ANNOTATION_SPARE,
    ANNOTATION_TEMPLATE,
    ANNOTATION_TOPOLOGY_REQUIRED,
    LABEL_GANG,
    LABEL_INDEX,
    LABEL_ROLE,
    RESOURCE_GPU,
    SCHEDULER,
)
from remuda.api.training import Checkpoint, Role, TrainingJob, gpus_in_role_spec

NO_VOLUME = Checkpoint()


def job_pod_name(job: str, role: str, index: int) -> str:
    return f"{job}-{role}-{index}"


def template_digest(role: Role, checkpoint: Checkpoint = NO_VOLUME) -> str:
    """Of all that shapes the role's pods; each carries the one it was made from. A job without a checkpoint volume has the digest
    that it had before there were any: its pods run on through an upgrade."""
    place = [checkpoint.volume, checkpoint.directory] if checkpoint.volume else []
    text = msgspec.json.encode([role.template, gpus_in_role_spec(role), *place], order="sorted")
    return hashlib.sha256(text).hexdigest()[:16]


def build_job_pod(
    job: TrainingJob,
    role: Role,
    index: int,
    *,
    spare: bool,
    domain: str,
    prefer: str = "",
    lost: str = "",
    optional: bool = False,
    segment: int = -1,
) -> JsonObject:
    """`domain`: where the rest of the gang sits, or '' when it sits nowhere yet. `prefer`: the node it had better sit on.
    `lost`: the one its predecessor was lost on. `optional`: the gang may start without it. `segment`: the one it is made for,
    -1 = none."""
    annotations = {
        **without_injected_names(role.template.metadata.annotations),
        ANNOTATION_LAUNCH: "true",
        ANNOTATION_TEMPLATE: template_digest(role, job.spec.checkpoint),
        **job_pod_sizes(job, segment),
    }
    if job.spec.topology.required:
        annotations[ANNOTATION_TOPOLOGY_REQUIRED] = job.spec.topology.required
    if domain:
        annotations[ANNOTATION_DOMAIN] = domain
    if spare:
        annotations[ANNOTATION_SPARE] = "true"
    if segment >= 0:
        annotations[ANNOTATION_SEGMENT] = str(segment)
    if optional:
        annotations[ANNOTATION_OPTIONAL] = "true"
    if prefer:
        annotations[ANNOTATION_PREFER_NODE] = prefer
    if lost:
        annotations[ANNOTATION_LOST_NODE] = lost
    if job.status.started_at is not None and not spare:
        annotations[ANNOTATION_HAS_RUN] = "true"
    owner = OwnerReference(
        job.resource.api_version, job.resource.kind, job.name, job.uid, controller=True, block_owner_deletion=True
    )
    theirs = without_injected_names(role.template.metadata.labels)
    labels = {**theirs, LABEL_GANG: job.name, LABEL_ROLE: role.name, LABEL_INDEX: str(index)}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": job_pod_name(job.name, role.name, index),
            "namespace": job.namespace,
            "labels": labels,
            "annotations": annotations,
            "ownerReferences": [to_wire(owner)],
        },
        "spec": _job_pod_spec(job, role),
    }


def job_pod_sizes(job: TrainingJob, segment: int) -> dict[str, str]:
    """How many pods are placed together with one, as it says itself: of the gang, and of its segment (-1 = it has none)."""
    ranks = sum(role.replicas for role in job.spec.roles)
    if segment < 0:
        return {ANNOTATION_GANG_SIZE: str(ranks)}
    block = job.spec.topology.segment_size  # the last segment may be smaller
    return {ANNOTATION_GANG_SIZE: str(ranks), ANNOTATION_SEGMENT_SIZE: str(min(block, ranks - segment * block))}


def _job_pod_spec(job: TrainingJob, role: Role) -> JsonObject:
    spec: JsonObject = dict(role.template.spec)
    container = dict(spec["containers"][0])
    container.setdefault("name", "main")
    gpus = gpus_in_role_spec(role)
    if gpus:
        resources = dict(container.get("resources") or {})
        resources["limits"] = {**(resources.get("limits") or {}), RESOURCE_GPU: gpus}
        container["resources"] = resources
    spec["containers"] = [container]
    spec.setdefault("restartPolicy", "OnFailure")  # a dead launcher comes back in the same pod, on the same devices
    spec.setdefault("schedulerName", SCHEDULER)
    spec.setdefault("terminationGracePeriodSeconds", math.ceil(job.spec.failure.stop_grace_seconds) + 3)
    return with_checkpoint_volume(spec, job.spec.checkpoint)
