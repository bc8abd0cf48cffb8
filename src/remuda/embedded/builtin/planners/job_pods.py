"""A Job's pods: how they are made, how long to wait before the next one after failures, and when enough have succeeded."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from remuda.api.kubernetes.batch_v1 import (
    COMPLETION_INDEX,
    CONTROLLER_UID,
    INDEX_FAILURES,
    JOB_NAME,
    TRACKING,
    Job,
    parse_batch_v1_completion_indexes,
)
from remuda.api.kubernetes.core_v1 import Pod
from remuda.api.meta import JsonObject
from remuda.embedded.builtin.planners.pod_state import job_pod_finished_at, pod_from_template

FIRST_DELAY_S = 10.0
LONGEST_DELAY_S = 600.0


def new_job_pod(job: Job, index: int | None = None, failures: int | None = None) -> JsonObject:
    """`failures`: how often the index has failed so far; kept on the pod when the Job limits that."""
    prefix = f"{job.name}-" if index is None else f"{job.name}-{index}-"
    pod = pod_from_template(job.spec.template, job, prefix)
    meta, spec = pod["metadata"], pod["spec"]
    meta["labels"] |= {JOB_NAME: job.name, CONTROLLER_UID: job.uid, "job-name": job.name, "controller-uid": job.uid}
    meta["finalizers"] = [*meta.get("finalizers", ()), TRACKING]
    if index is not None:
        meta["labels"][COMPLETION_INDEX] = str(index)
        meta["annotations"] = {**meta.get("annotations", {}), COMPLETION_INDEX: str(index)}
        if failures is not None:
            meta["annotations"][INDEX_FAILURES] = str(failures)
        spec.setdefault("hostname", f"{job.name}-{index}"[:63].rstrip("-."))
        for field in ("containers", "initContainers"):
            if spec.get(field):
                spec[field] = [_with_completion_index(container, index) for container in spec[field]]
    return pod


def _with_completion_index(container: JsonObject, index: int) -> JsonObject:
    env = container.get("env") or []
    if any(variable.get("name") == "JOB_COMPLETION_INDEX" for variable in env):
        return container
    return {**container, "env": [*env, {"name": "JOB_COMPLETION_INDEX", "value": str(index)}]}


def failures_of_job_index(pods: Iterable[Pod], index: int) -> int:
    """Each failed pod of the index says how many failed before it; deleted ones are remembered by those after them."""
    failed = [p for p in pods if job_completion_index(p) == index and p.status.phase == "Failed"]
    before = [int(text) if (text := p.annotations.get(INDEX_FAILURES, "")).isdigit() else 0 for p in failed]
    return max(len(failed), max(before, default=-1) + 1)


def job_delay_left(pods: Iterable[Pod], now: float) -> float:
    """10 s after the first failure in a row, doubling with each, at most 10 minutes; a success in between forgives them."""
    ended = list(pods)
    successes = [t for p in ended if p.status.phase == "Succeeded" and (t := job_pod_finished_at(p)) is not None]
    last_success = max(successes, default=0.0)
    failures = [
        t
        for p in ended
        if p.status.phase == "Failed" and (t := job_pod_finished_at(p)) is not None and t > last_success
    ]
    if not failures:
        return 0.0
    delay = min(LONGEST_DELAY_S, FIRST_DELAY_S * 2.0 ** min(len(failures) - 1, 16))
    return max(0.0, max(failures) + delay - now)


def job_completion_index(pod: Pod) -> int | None:
    text = pod.annotations.get(COMPLETION_INDEX, "")
    return int(text) if text.isdigit() else None


def job_success_rule(job: Job, succeeded: Collection[int]) -> int | None:
    """The number of the first rule of the successPolicy that these indexes satisfy."""
    for number, rule in enumerate(job.spec.success_policy.get("rules") or ()):
        counted, count = set(succeeded), rule.get("succeededCount")
        if rule.get("succeededIndexes"):
            named = parse_batch_v1_completion_indexes(rule["succeededIndexes"])
            counted &= named
            count = len(named) if count is None else count
        if count is not None and len(counted) >= count:
            return number
    return None
