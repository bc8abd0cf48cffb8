"""Gangs of workloads that are not ours: which pods are one thing to their owner. Pure.

Whoever made the pods says it in labels and annotations, each scheduler and controller in its own; the pod alone is enough to
tell, so nobody has to be asked. The first that is given counts: what a user wrote for us, a pod group, a JobSet or another set
of jobs, an Indexed Job. Members of a TrainingJob are its controller's business and in no gang here.
"""

from __future__ import annotations

from remuda.api.kubernetes.batch_v1 import COMPLETION_INDEX, CONTROLLER_UID
from remuda.api.kubernetes.core_v1 import Pod
from remuda.api.names import LABEL_GANG

_ANNOTATIONS = (
    LABEL_GANG,
    "scheduling.k8s.io/group-name",  # Volcano
    "scheduling.volcano.sh/group-name",
    "pod-group-name",  # KAI
    "gang.scheduling.koordinator.sh/name",
)
_LABELS = (
    LABEL_GANG,
    "scheduling.x-k8s.io/pod-group",  # the coscheduling plug-in
    "pod-group.scheduling.sigs.k8s.io",  # the same, earlier
    "kueue.x-k8s.io/pod-group-name",
    "jobset.sigs.k8s.io/jobset-name",
    "training.kubeflow.org/job-name",
    "volcano.sh/job-name",
)
_LWS, _LWS_GROUP = "leaderworkerset.sigs.k8s.io/name", "leaderworkerset.sigs.k8s.io/group-index"


def is_remuda_pod(pod: Pod) -> bool:
    return pod.owner("TrainingJob") is not None


def foreign_gang_of(pod: Pod) -> str:
    """`namespace/how/name`; "" for a pod that stands alone."""
    if is_remuda_pod(pod):
        return ""
    if group := pod.spec.scheduling_group.get("podGroupName"):
        return f"{pod.namespace}/podgroup/{group}"
    for key in _ANNOTATIONS:
        if name := pod.annotations.get(key):
            return f"{pod.namespace}/{key}/{name}"
    labels = pod.labels
    for key in _LABELS:
        if name := labels.get(key):
            return f"{pod.namespace}/{key}/{name}"
    if name := labels.get(_LWS):
        return f"{pod.namespace}/{_LWS}/{name}/{labels.get(_LWS_GROUP, '')}"
    if COMPLETION_INDEX in labels and (uid := labels.get(CONTROLLER_UID)):
        return f"{pod.namespace}/job/{uid}"
    return ""
