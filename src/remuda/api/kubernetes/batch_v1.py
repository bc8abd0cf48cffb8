"""Projection of Job. The pod template and the policies stay wire dicts."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from typing import ClassVar

import msgspec

from remuda.api.meta import Condition, JsonObject, KObject, Resource

JOB_NAME = "batch.kubernetes.io/job-name"
CONTROLLER_UID = "batch.kubernetes.io/controller-uid"
COMPLETION_INDEX = "batch.kubernetes.io/job-completion-index"
INDEX_FAILURES = "batch.kubernetes.io/job-index-failure-count"
TRACKING = "batch.kubernetes.io/job-tracking"  # the finalizer that keeps a finished pod until it is counted


class JobSpec(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    parallelism: int = 1
    completions: int | None = None
    completion_mode: str = "NonIndexed"
    backoff_limit: int = 6
    backoff_limit_per_index: int | None = None
    max_failed_indexes: int | None = None
    active_deadline_seconds: int | None = None
    ttl_seconds_after_finished: int | None = None
    suspend: bool = False
    managed_by: str = ""
    pod_replacement_policy: str = "TerminatingOrFailed"
    pod_failure_policy: JsonObject = {}
    success_policy: JsonObject = {}
    selector: JsonObject = {}
    template: JsonObject = {}

    @property
    def is_indexed(self) -> bool:
        return self.completion_mode == "Indexed"


class UncountedPods(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """Uids of finished pods that the counters do not hold yet."""

    succeeded: list[str] = []
    failed: list[str] = []


class JobStatus(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    active: int = 0
    ready: int = 0
    terminating: int = 0
    succeeded: int = 0
    failed: int = 0
    completed_indexes: str = ""
    failed_indexes: str = ""
    uncounted_terminated_pods: UncountedPods = UncountedPods()
    start_time: datetime | None = None
    completion_time: datetime | None = None
    conditions: list[Condition] = []


class Job(KObject, frozen=True, rename="camel", omit_defaults=True, kw_only=True):
    resource: ClassVar[Resource] = Resource("batch", "v1", "Job", "jobs", subresources=("status",))

    spec: JobSpec = JobSpec()
    status: JobStatus = JobStatus()


# --- sets of completion indexes, as Kubernetes writes them: `0-2,5` ---------------------------------------------------


def parse_batch_v1_completion_indexes(text: str, completions: int | None = None) -> set[int]:
    """Unreadable parts are passed over, as are indexes beyond `completions`."""
    found: set[int] = set()
    for part in filter(None, text.split(",")):
        first, _, last = part.partition("-")
        if first.isdigit() and (not last or last.isdigit()):
            found.update(range(int(first), int(last or first) + 1))
    return found if completions is None else {index for index in found if index < completions}


def format_batch_v1_completion_indexes(indexes: Iterable[int]) -> str:
    runs: list[list[int]] = []
    for index in sorted(set(indexes)):
        if runs and index == runs[-1][1] + 1:
            runs[-1][1] = index
        else:
            runs.append([index, index])
    return ",".join(str(a) if a == b else f"{a}-{b}" if b > a + 1 else f"{a},{b}" for a, b in runs)
