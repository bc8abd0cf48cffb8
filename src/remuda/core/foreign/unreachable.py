"""Pods that are not ours on a node that does not answer: when they count as ended. Pure.

A pod on an unreachable node is told to go once its tolerations are used up, but nobody is there to confirm that it did. An owner
that waits for that (a Job with podReplacementPolicy: Failed, a StatefulSet) would wait for ever. So, once the node's lease has
run out and `after` seconds have passed since, such a pod is marked Failed with DisruptionTarget: the API's word that it is over.

`after` is the pod's annotation `remuda.dev/replace-unreachable-after`, which counts from the end of the lease, or the cluster's
setting, which counts from then and from when the pod was to be gone, and touches only pods that were told to go. On a real
cluster the setting is off: a node that is merely cut off may still run the pod, and only its owner knows whether that may be.

The device is not free by that: the node's last report holds it until the node answers again, and then ends the pod.
"""

from __future__ import annotations

from collections.abc import Iterable

from remuda.api.conditions import with_condition
from remuda.api.kubernetes.core_v1 import Pod
from remuda.api.meta import to_seconds, to_time
from remuda.api.names import ANNOTATION_REPLACE_UNREACHABLE
from remuda.core.foreign.device_failures import DISRUPTION_TARGET, ForeignPodMark
from remuda.core.foreign.gangs import is_remuda_pod

NODE_UNREACHABLE = "NodeUnreachable"


def fail_unreachable_pods(
    node: str, pods: Iterable[Pod], expiry: float | None, now: float, default_after_s: float | None
) -> tuple[list[ForeignPodMark], float | None]:
    """Pods to mark, and seconds until the next one's time. `expiry`: when the node's lease runs, or ran, out."""
    if expiry is None or now <= expiry:
        return [], None
    marks: list[ForeignPodMark] = []
    waits: list[float] = []
    for pod in pods:
        at = None if is_remuda_pod(pod) or pod.is_terminal else _foreign_pod_ends_at(pod, expiry, default_after_s)
        if at is None:
            continue
        if at > now:
            waits.append(at - now + 0.001)
            continue
        text = f"Node {node} has not answered for {now - expiry:.0f} s; the pod counts as ended."
        told = with_condition(pod.status.conditions, DISRUPTION_TARGET, True, NODE_UNREACHABLE, text, to_time(int(now)))
        marks.append(ForeignPodMark(pod, told, NODE_UNREACHABLE, text, phase="Failed"))
    return marks, min(waits, default=None)


def _foreign_pod_ends_at(pod: Pod, expiry: float, default_after_s: float | None) -> float | None:
    asked = replace_foreign_pod_after_s(pod)
    if asked is not None:
        return expiry + asked
    gone_at = pod.metadata.deletion_timestamp
    if default_after_s is None or gone_at is None:
        return None
    return max(expiry, to_seconds(gone_at)) + default_after_s


def replace_foreign_pod_after_s(pod: Pod) -> float | None:
    text = pod.annotations.get(ANNOTATION_REPLACE_UNREACHABLE, "")
    return float(text) if text.isascii() and text.isdigit() else None
