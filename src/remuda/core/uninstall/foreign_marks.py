"""What Remuda left on objects that are not its own, and the patches that take it off. Pure.

  Node   annotations `remuda.dev/*`; the cordon, where `remuda.dev/cordoned-by` says that it is ours; the labels that its agent
         wrote (`remuda.dev/written-labels` names them) and `remuda.dev/agent`, which says where agents run
  Pod    the annotations and conditions that the manager writes; those that users write to tell Remuda something stay
  Job    the annotations that the manager writes
  pods of a TrainingJob: its ownerReference, so that they outlive it

Labels that people wrote about their nodes (`topology.remuda.dev/rack`, `remuda.dev/reservation`) are theirs.
"""

from __future__ import annotations

from remuda.api.codec import to_wire
from remuda.api.kubernetes.batch_v1 import Job
from remuda.api.kubernetes.core_v1 import Node, Pod
from remuda.api.meta import JsonObject
from remuda.api.names import (
    ANNOTATION_CORDONED_BY,
    ANNOTATION_DEVICES,
    ANNOTATION_FAILED_BECAUSE,
    ANNOTATION_FORGIVEN,
    ANNOTATION_REJECTIONS,
    ANNOTATION_RETRY_OF,
    ANNOTATION_WRITTEN_LABELS,
    GROUP,
    LABEL_AGENT,
)
from remuda.core.foreign.device_failures import DEVICE_FAILED
from remuda.core.foreign.refused_pods import ADMISSION_REJECTED, PLACED
from remuda.core.remedies.idle_devices import DEVICE_IDLE
from remuda.core.training.spare_lending import DEVICE_RECALLED

POD_ANNOTATIONS = (ANNOTATION_DEVICES, ANNOTATION_REJECTIONS, ANNOTATION_RETRY_OF)
POD_CONDITIONS = (DEVICE_FAILED, ADMISSION_REJECTED, PLACED, DEVICE_IDLE, DEVICE_RECALLED)
JOB_ANNOTATIONS = (ANNOTATION_FORGIVEN, ANNOTATION_FAILED_BECAUSE)


def unmark_node(node: Node) -> JsonObject:
    """The merge patch of the node; {} when there is nothing of ours."""
    marks = sorted(name for name in node.annotations if name.startswith(f"{GROUP}/"))
    written = filter(None, node.annotations.get(ANNOTATION_WRITTEN_LABELS, "").split(","))
    labels = sorted({name for name in (*written, LABEL_AGENT) if name in node.labels})
    meta: JsonObject = {}
    if marks:
        meta["annotations"] = dict.fromkeys(marks)
    if labels:
        meta["labels"] = dict.fromkeys(labels)
    patch: JsonObject = {"metadata": meta} if meta else {}
    if node.annotations.get(ANNOTATION_CORDONED_BY) and node.spec.unschedulable:
        patch["spec"] = {"unschedulable": None}
    return patch


def node_patch_in_words(patch: JsonObject) -> str:
    meta = patch.get("metadata", {})
    parts = ["uncordon"] if "spec" in patch else []
    for part, word in (("annotations", "annotation"), ("labels", "label")):
        if count := len(meta.get(part, ())):
            parts.append(f"remove {count} {word}{'' if count == 1 else 's'}")
    return ", ".join(parts)


def unmark_pod_at_uninstall(pod: Pod) -> tuple[JsonObject, JsonObject]:
    """Merge patches of the pod and of its status; {} where there is nothing of ours."""
    marks = [name for name in POD_ANNOTATIONS if name in pod.annotations]
    meta: JsonObject = {"metadata": {"annotations": dict.fromkeys(marks)}} if marks else {}
    left = [condition for condition in pod.status.conditions if condition.type not in POD_CONDITIONS]
    if len(left) == len(pod.status.conditions):
        return meta, {}
    return meta, {"status": {"conditions": [to_wire(condition) for condition in left] or None}}


def unmark_job(job: Job) -> JsonObject:
    marks = [name for name in JOB_ANNOTATIONS if name in job.annotations]
    return {"metadata": {"annotations": dict.fromkeys(marks)}} if marks else {}


def is_training_pod_at_uninstall(pod: Pod) -> bool:
    return any(_is_training_job(owner.api_version, owner.kind) for owner in pod.metadata.owner_references)


def orphan_pod_at_uninstall(pod: Pod) -> JsonObject:
    """The merge patch after which no TrainingJob owns the pod: what deletes the job then leaves the pod alone."""
    owners = pod.metadata.owner_references
    left = [to_wire(owner) for owner in owners if not _is_training_job(owner.api_version, owner.kind)]
    return {"metadata": {"ownerReferences": left or None}}


def _is_training_job(api_version: str, kind: str) -> bool:
    return kind == "TrainingJob" and api_version.startswith(f"{GROUP}/")
