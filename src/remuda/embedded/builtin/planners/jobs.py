"""Job: run pods to completion.

Counting survives deleted pods: every pod carries a finalizer until its end is in the counters. A look (1) moves uids whose
finalizer is gone from `uncountedTerminatedPods` into the counters, (2) lists newly finished pods there; the shell then writes
the status and takes the finalizers off. So each end is counted once, whatever crashes in between.

The end of a Job is two steps: a target condition (FailureTarget, SuccessCriteriaMet) when the verdict is known, at which
point all pods are told to go; then Failed or Complete when none is left. A finished Job never changes again.
"""

from __future__ import annotations

from typing import Any

import msgspec

from remuda.api.conditions import find_condition, is_condition_true, with_condition
from remuda.api.kubernetes.batch_v1 import (
    TRACKING,
    Job,
    JobStatus,
    UncountedPods,
    format_batch_v1_completion_indexes,
    parse_batch_v1_completion_indexes,
)
from remuda.api.kubernetes.core_v1 import Pod
from remuda.api.meta import Condition, JsonObject, to_seconds, to_time
from remuda.core.foreign.job_policies import (
    COUNT,
    FAIL_INDEX,
    FAIL_JOB,
    IGNORE,
    FailedJobPodVerdict,
    judge_failed_foreign_pod,
)
from remuda.core.foreign.refused_pods import is_foreign_admission_budget_spent, is_pod_refused_by_node
from remuda.embedded.builtin.planners.job_pods import (
    failures_of_job_index,
    job_completion_index,
    job_delay_left,
    job_success_rule,
    new_job_pod,
)
from remuda.embedded.builtin.planners.pod_state import (
    is_active_pod,
    is_ready_pod,
    is_terminating_replica,
    replica_pods_to_make_now,
)

COMPLETE, FAILED, SUSPENDED = "Complete", "Failed", "Suspended"
SUCCESS_TARGET, FAILURE_TARGET = "SuccessCriteriaMet", "FailureTarget"


class JobObserved(msgspec.Struct, frozen=True):
    """`pods`: those the Job controls."""

    job: Job
    pods: tuple[Pod, ...]


class JobPlan(msgspec.Struct, frozen=True):
    status: JobStatus
    create: tuple[JsonObject, ...] = ()
    delete: tuple[Pod, ...] = ()
    withdraw: tuple[Pod, ...] = ()  # to delete as well, but not to count: nobody failed, there were simply too many
    release: tuple[Pod, ...] = ()  # pods whose finalizer may go once the status is written
    expire: bool = False  # the Job itself may go
    look_again_s: float | None = None


class JobTally(msgspec.Struct, frozen=True):
    """What has happened, as of this look."""

    succeeded: int
    failed: int
    completed_indexes: set[int]
    failed_indexes: set[int]
    uncounted: UncountedPods
    failure: FailedJobPodVerdict | None = None  # a rule that fails the whole Job


def plan_batch_job(observed: JobObserved, now: float) -> JobPlan:
    job = observed.job
    if end := finished_condition(job):
        return _plan_finished_job(job, observed.pods, end, now)
    pods = observed.pods
    tally = _count_job_pods(job, pods)
    active = [p for p in pods if is_active_pod(p)]
    leaving = [p for p in pods if is_terminating_replica(p)]
    release = tuple(p for p in pods if _is_job_pod_over(p, job) and TRACKING in p.metadata.finalizers)
    plan = _JobPlanDraft(job, now, tally, active, leaving, release)
    if job.is_deleting:
        return plan.done(delete=active)
    target = _job_end(job, tally, active, now)
    if target is not None:
        return plan.ending(*target)
    if job.spec.suspend:
        return plan.suspended()
    return plan.running(pods)


def finished_condition(job: Job) -> Condition | None:
    return next((c for c in job.status.conditions if c.type in (COMPLETE, FAILED) and c.status == "True"), None)


def _is_job_pod_over(pod: Pod, job: Job) -> bool:
    return pod.is_terminal or _counts_as_failed(pod, job)


def _counts_as_failed(pod: Pod, job: Job) -> bool:
    """A deleted pod is a failed one, unless the Job waits for it to end; one that never ran has nothing to wait for."""
    if pod.status.phase == "Failed":
        return True
    if not pod.is_deleting or pod.status.phase == "Succeeded":
        return False
    return job.spec.pod_replacement_policy != "Failed" or not pod.spec.node_name


def _count_job_pods(job: Job, pods: tuple[Pod, ...]) -> JobTally:
    status, completions = job.status, job.spec.completions
    tracked = {p.uid for p in pods if TRACKING in p.metadata.finalizers}
    listed = status.uncounted_terminated_pods
    succeeded = [uid for uid in listed.succeeded if uid in tracked]
    failed = [uid for uid in listed.failed if uid in tracked]
    completed = parse_batch_v1_completion_indexes(status.completed_indexes, completions)
    bad = parse_batch_v1_completion_indexes(status.failed_indexes, completions)
    fatal: FailedJobPodVerdict | None = None
    pays = is_foreign_admission_budget_spent(job, filter(is_pod_refused_by_node, pods))
    done = status.succeeded + len(listed.succeeded) - len(succeeded)
    lost = status.failed + len(listed.failed) - len(failed)
    for pod in sorted(pods, key=lambda p: p.name):
        index = job_completion_index(pod)
        if pod.uid not in tracked or not _is_job_pod_over(pod, job) or pod.uid in succeeded or pod.uid in failed:
            continue
        if pod.status.phase == "Succeeded":
            if not job.spec.is_indexed:
                succeeded.append(pod.uid)
            elif index is not None and (completions is None or index < completions):
                completed.add(index)
            continue
        verdict = judge_failed_foreign_pod(job, pod, is_spent=pays)
        if verdict.action == FAIL_JOB:
            fatal = fatal or verdict
        if verdict.action == IGNORE:
            continue
        failed.append(pod.uid)
        limit = job.spec.backoff_limit_per_index
        if index is not None and limit is not None and index not in completed:
            used_up = failures_of_job_index(pods, index) > limit
            if verdict.action == FAIL_INDEX or (verdict.action == COUNT and used_up):
                bad.add(index)
    if job.spec.is_indexed:
        done = len(completed)
    return JobTally(done, lost, completed, bad - completed, UncountedPods(succeeded, failed), fatal)


def _job_end(job: Job, tally: JobTally, active: list[Pod], now: float) -> tuple[str, str, str] | None:
    """(condition, reason, message) once it is known how the Job ends."""
    for type_ in (FAILURE_TARGET, SUCCESS_TARGET):
        standing = find_condition(job.status.conditions, type_)
        if standing is not None and standing.status == "True":
            return type_, standing.reason, standing.message
    spec = job.spec
    failed = tally.failed + len(tally.uncounted.failed)
    succeeded = tally.succeeded + len(tally.uncounted.succeeded)
    if tally.failure is not None:
        return FAILURE_TARGET, "PodFailurePolicy", tally.failure.message
    if failed > spec.backoff_limit or _restarts_in_place(job, active) > spec.backoff_limit:
        return FAILURE_TARGET, "BackoffLimitExceeded", "Job has reached the specified backoff limit"
    started = job.status.start_time
    limit = spec.active_deadline_seconds
    if limit is not None and started is not None and not spec.suspend and now >= to_seconds(started) + limit:
        return FAILURE_TARGET, "DeadlineExceeded", "Job was active longer than specified deadline"
    if spec.max_failed_indexes is not None and len(tally.failed_indexes) > spec.max_failed_indexes:
        return (
            FAILURE_TARGET,
            "MaxFailedIndexesExceeded",
            "Job has exceeded the specified maximal number of failed indexes",
        )
    if spec.is_indexed and spec.success_policy:
        rule = job_success_rule(job, tally.completed_indexes)
        if rule is not None:
            return SUCCESS_TARGET, "SuccessPolicy", f"Matched rules at index {rule}"
    if spec.completions is None:
        if succeeded and not active:
            return SUCCESS_TARGET, "CompletionsReached", "Reached expected number of succeeded pods"
    elif spec.is_indexed and len(tally.completed_indexes | tally.failed_indexes) >= spec.completions:
        if tally.failed_indexes:
            return FAILURE_TARGET, "FailedIndexes", "Job has failed indexes"
        return SUCCESS_TARGET, "CompletionsReached", "Reached expected number of succeeded pods"
    elif not spec.is_indexed and succeeded >= spec.completions:
        return SUCCESS_TARGET, "CompletionsReached", "Reached expected number of succeeded pods"
    return None


def _restarts_in_place(job: Job, active: list[Pod]) -> int:
    """Restarts in place count against the limit, too."""
    pod = (job.spec.template.get("spec") or {}).get("restartPolicy")
    if pod != "OnFailure":
        return 0
    return sum(s.restart_count for p in active for s in p.status.container_statuses)


class _JobPlanDraft:
    """The parts of a plan that every branch shares."""

    def __init__(
        self,
        job: Job,
        now: float,
        tally: JobTally,
        active: list[Pod],
        leaving: list[Pod],
        release: tuple[Pod, ...],
    ) -> None:
        self.job, self.now, self.tally = job, now, tally
        self.active, self.leaving, self.release = active, leaving, release
        self.at = to_time(int(now))

    def done(self, delete: list[Pod], conditions: list[Condition] | None = None, **more: Any) -> JobPlan:
        doomed = tuple(delete)
        kept = [p for p in self.active if p not in doomed]
        status = self._status(kept, self.job.status.conditions if conditions is None else conditions, len(doomed))
        return JobPlan(
            status=msgspec.structs.replace(status, **more) if more else status, delete=doomed, release=self.release
        )

    def ending(self, type_: str, reason: str, message: str) -> JobPlan:
        conditions = with_condition(self.job.status.conditions, type_, True, reason, message, self.at)
        uncounted = self.tally.uncounted
        if self.active or self.leaving or uncounted.succeeded or uncounted.failed or self.release:
            return self.done(self.active, conditions)
        final = FAILED if type_ == FAILURE_TARGET else COMPLETE
        conditions = with_condition(conditions, final, True, reason, message, self.at)
        more = {"completion_time": self.at} if final == COMPLETE else {}
        plan = self.done([], conditions, **more)
        ttl = self.job.spec.ttl_seconds_after_finished
        return plan if ttl is None else msgspec.structs.replace(plan, look_again_s=float(ttl))

    def suspended(self) -> JobPlan:
        conditions = with_condition(
            self.job.status.conditions, SUSPENDED, True, "JobSuspended", "Job suspended", self.at
        )
        plan = self.done(self.active, conditions, start_time=None)
        return msgspec.structs.replace(plan, delete=(), withdraw=plan.delete)

    def running(self, pods: tuple[Pod, ...]) -> JobPlan:
        job, spec, now = self.job, self.job.spec, self.now
        conditions = job.status.conditions
        started = job.status.start_time
        if is_condition_true(conditions, SUSPENDED):
            conditions = with_condition(conditions, SUSPENDED, False, "JobResumed", "Job resumed", self.at)
        if started is None:
            started = self.at
        succeeded = self.tally.succeeded + len(self.tally.uncounted.succeeded)
        wanted = spec.parallelism
        if spec.completions is not None:
            left = spec.completions - succeeded - len(self.tally.failed_indexes)
            wanted = min(wanted, max(0, left))
        elif succeeded:
            wanted = len(self.active)  # a work queue that is empty for one is empty for all
        holding = self.active + (self.leaving if spec.pod_replacement_policy == "Failed" else [])
        doomed: list[Pod] = []
        create: list[JsonObject] = []
        again: list[float] = []
        if len(self.active) > spec.parallelism:
            doomed = sorted(self.active, key=lambda p: (is_ready_pod(p), p.name))[: len(self.active) - spec.parallelism]
        else:
            create, again = self._new_pods(pods, holding, replica_pods_to_make_now(wanted - len(holding), self.active))
        if spec.active_deadline_seconds is not None:
            again.append(to_seconds(started) + spec.active_deadline_seconds - now)
        kept = [p for p in self.active if p not in doomed]
        status = self._status(kept, conditions, len(doomed))
        return JobPlan(
            status=msgspec.structs.replace(status, start_time=started),
            create=tuple(create),
            withdraw=tuple(doomed),
            release=self.release,
            look_again_s=min(again, default=None),
        )

    def _new_pods(self, pods: tuple[Pod, ...], holding: list[Pod], count: int) -> tuple[list[JsonObject], list[float]]:
        job, spec = self.job, self.job.spec
        if count <= 0:
            return [], []
        if not spec.is_indexed:
            wait = job_delay_left(pods, self.now)
            return ([], [wait]) if wait > 0 else ([new_job_pod(job) for _ in range(count)], [])
        busy = {job_completion_index(p) for p in holding} | self.tally.completed_indexes | self.tally.failed_indexes
        create: list[JsonObject] = []
        waits: list[float] = []
        per_index = spec.backoff_limit_per_index is not None
        common = 0.0 if per_index else job_delay_left(pods, self.now)
        for index in range(spec.completions or 0):
            if len(create) >= count:
                break
            if index in busy:
                continue
            failures = failures_of_job_index(pods, index)
            wait = (
                job_delay_left([p for p in pods if job_completion_index(p) == index], self.now) if per_index else common
            )
            if wait > 0 and (per_index or failures):
                waits.append(wait)
                continue
            create.append(new_job_pod(job, index, failures if per_index else None))
        return create, waits

    def _status(self, active: list[Pod], conditions: list[Condition], told_to_go: int) -> JobStatus:
        tally = self.tally
        return msgspec.structs.replace(
            self.job.status,
            active=len(active),
            ready=sum(map(is_ready_pod, active)),
            terminating=len(self.leaving) + told_to_go,
            succeeded=tally.succeeded,
            failed=tally.failed,
            completed_indexes=format_batch_v1_completion_indexes(tally.completed_indexes),
            failed_indexes=format_batch_v1_completion_indexes(tally.failed_indexes),
            uncounted_terminated_pods=tally.uncounted,
            conditions=conditions,
        )


def _plan_finished_job(job: Job, pods: tuple[Pod, ...], end: Condition, now: float) -> JobPlan:
    release = tuple(p for p in pods if TRACKING in p.metadata.finalizers)
    ttl = job.spec.ttl_seconds_after_finished
    plan = JobPlan(job.status, release=release)
    if ttl is None or end.last_transition_time is None or job.is_deleting:
        return plan
    left = to_seconds(end.last_transition_time) + ttl - now
    return msgspec.structs.replace(plan, expire=left <= 0, look_again_s=left if left > 0 else None)
