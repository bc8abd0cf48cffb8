"""A Job's podFailurePolicy applied to its pods. First matching rule wins."""

from __future__ import annotations

import msgspec

from remuda.api.kubernetes.batch_v1 import Job
from remuda.api.kubernetes.core_v1 import Pod
from remuda.api.meta import JsonObject
from remuda.core.foreign.refused_pods import is_pod_refused_by_node

COUNT, IGNORE, FAIL_JOB, FAIL_INDEX = "Count", "Ignore", "FailJob", "FailIndex"


class FailedJobPodVerdict(msgspec.Struct, frozen=True):
    """What a failed pod means for its Job."""

    action: str = COUNT
    message: str = ""


def judge_failed_foreign_pod(job: Job, pod: Pod, *, is_spent: bool = False) -> FailedJobPodVerdict:
    """`is_spent`: its nodes have refused the Job's pods so often that it pays for the next ones itself."""
    if pod.status.phase != "Failed":
        return FailedJobPodVerdict()  # deleted before it could say why
    if is_pod_refused_by_node(pod) and not is_spent:
        return FailedJobPodVerdict(IGNORE)  # its node's doing; kube-controller-manager would count it
    for number, rule in enumerate(job.spec.pod_failure_policy.get("rules") or ()):
        why = (
            _foreign_exit_code_match(rule, pod) if rule.get("onExitCodes") else _foreign_pod_condition_match(rule, pod)
        )
        if why:
            return FailedJobPodVerdict(
                rule.get("action", COUNT), f"{why} matching {rule.get('action')} rule at index {number}"
            )
    return FailedJobPodVerdict()


def _foreign_exit_code_match(rule: JsonObject, pod: Pod) -> str:
    wanted = rule["onExitCodes"]
    only, values = wanted.get("containerName"), wanted.get("values") or ()
    for status in pod.status.container_statuses:
        end = status.state.terminated
        if end is None or end.exit_code == 0 or (only and status.name != only):
            continue
        if (end.exit_code in values) == (wanted.get("operator") == "In"):
            return f"Container {status.name} for pod {pod.namespace}/{pod.name} failed with exit code {end.exit_code}"
    return ""


def _foreign_pod_condition_match(rule: JsonObject, pod: Pod) -> str:
    for pattern in rule.get("onPodConditions") or ():
        for condition in pod.status.conditions:
            if condition.type == pattern.get("type") and condition.status == pattern.get("status", "True"):
                return f"Pod {pod.namespace}/{pod.name} has condition {condition.type}"
    return ""
