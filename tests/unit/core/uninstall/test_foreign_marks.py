"""What is taken off others' objects: everything that Remuda wrote, and nothing else."""

from __future__ import annotations

from remuda.api.codec import merge_patch, to_wire
from remuda.api.kubernetes.batch_v1 import Job
from remuda.api.kubernetes.core_v1 import Node, NodeSpec, Pod, PodStatus
from remuda.api.meta import Condition, ObjectMeta, OwnerReference
from remuda.core.uninstall.foreign_marks import (
    is_training_pod_at_uninstall,
    node_patch_in_words,
    orphan_pod_at_uninstall,
    unmark_job,
    unmark_node,
    unmark_pod_at_uninstall,
)

OURS = {
    "remuda.dev/remedy-by": "rollout-driver",
    "remuda.dev/cordoned-by": "rollout-driver",
    "remuda.dev/drain-requested": "rollout-driver/2026-01-01T00:00:00+00:00",
    "remuda.dev/written-labels": "nvidia.com/gpu.count,nvidia.com/gpu.present",
    "remuda.dev/given-up": "2026-01-01T00:00:00.000000Z",
}
LABELS = {
    "nvidia.com/gpu.count": "8",
    "nvidia.com/gpu.present": "true",
    "nvidia.com/gpu.product": "by-somebody-else",
    "remuda.dev/agent": "true",
    "remuda.dev/reservation": "team-a",
    "topology.remuda.dev/rack": "r1",
}


def a_node(marks: dict[str, str], labels: dict[str, str] | None = None, *, cordoned: bool = True) -> Node:
    theirs = {"example.com/theirs": "kept"}
    return Node(
        metadata=ObjectMeta(name="n1", annotations={**theirs, **marks}, labels=labels or {}),
        spec=NodeSpec(unschedulable=cordoned),
    )


def test_a_node_is_as_before() -> None:
    node = a_node(OURS, LABELS)
    patch = unmark_node(node)
    after = merge_patch(to_wire(node), patch)
    assert after["metadata"]["annotations"] == {"example.com/theirs": "kept"}
    assert after["metadata"]["labels"] == {
        "nvidia.com/gpu.product": "by-somebody-else",
        "remuda.dev/reservation": "team-a",
        "topology.remuda.dev/rack": "r1",
    }
    assert not after.get("spec", {}).get("unschedulable")
    assert node_patch_in_words(patch) == "uncordon, remove 5 annotations, remove 3 labels"


def test_somebody_elses_cordon_stays() -> None:
    node = a_node({"remuda.dev/remedy-by": "dev-n1-gpu-0-a"})
    assert "spec" not in unmark_node(node)


def test_a_node_without_marks_is_not_written() -> None:
    assert unmark_node(a_node({})) == {}


def test_a_pod_keeps_what_its_user_told_remuda() -> None:
    said = {"remuda.dev/device-failed": "restart", "remuda.dev/devices": "gpu-0", "remuda.dev/rejections": "2"}
    conditions = [Condition("Ready", "True"), Condition("DeviceFailed", "True"), Condition("PlacedByRemuda", "True")]
    pod = Pod(metadata=ObjectMeta(name="p", annotations=said), status=PodStatus(conditions=conditions))
    meta, status = unmark_pod_at_uninstall(pod)
    assert merge_patch(to_wire(pod), meta)["metadata"]["annotations"] == {"remuda.dev/device-failed": "restart"}
    assert [condition["type"] for condition in status["status"]["conditions"]] == ["Ready"]


def test_a_pod_without_marks_is_not_written() -> None:
    assert unmark_pod_at_uninstall(Pod(metadata=ObjectMeta(name="p"))) == ({}, {})


def test_a_job_is_as_before() -> None:
    said = {"remuda.dev/forgiven-rejections": "u1", "remuda.dev/failed-because": "Xid79", "a": "b"}
    job = Job(metadata=ObjectMeta(name="j", annotations=said))
    assert merge_patch(to_wire(job), unmark_job(job))["metadata"]["annotations"] == {"a": "b"}


def test_a_rank_loses_its_job_as_owner_and_no_other() -> None:
    job = OwnerReference("remuda.dev/v1alpha1", "TrainingJob", "job", "u1", controller=True, block_owner_deletion=True)
    other = OwnerReference("v1", "ConfigMap", "other", "u2")
    pod = Pod(metadata=ObjectMeta(name="p", owner_references=[job, other]))
    assert is_training_pod_at_uninstall(pod)
    after = merge_patch(to_wire(pod), orphan_pod_at_uninstall(pod))
    assert [owner["kind"] for owner in after["metadata"]["ownerReferences"]] == ["ConfigMap"]


def test_a_job_of_another_group_is_nobody_of_ours() -> None:
    job = OwnerReference("example.com/v1", "TrainingJob", "job", "u1", controller=True)
    assert not is_training_pod_at_uninstall(Pod(metadata=ObjectMeta(name="p", owner_references=[job])))
