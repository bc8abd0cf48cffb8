"""Jobs: what one look decides."""

from typing import Any

import pytest
from msgspec.structs import replace

from remuda.api.kubernetes.batch_v1 import Job, format_batch_v1_completion_indexes, parse_batch_v1_completion_indexes
from remuda.api.kubernetes.core_v1 import Pod
from remuda.api.meta import JsonObject
from remuda.api.names import ANNOTATION_REJECTIONS
from remuda.embedded.builtin.planners.jobs import JobObserved, JobPlan, plan_batch_job
from tests.unit.embedded.builtin.planners.objects import NOW, a_job, job_pod, stamp

STARTED = {"startTime": stamp(NOW - 50)}


def look(job: Job, *pods: Pod, now: float = NOW) -> JobPlan:
    return plan_batch_job(JobObserved(job, pods), now)


def verdict(plan: JobPlan) -> tuple[str, str]:
    """The newest condition."""
    condition = plan.status.conditions[-1]
    return condition.type, condition.reason


@pytest.mark.parametrize(
    ("spec", "pods", "created"),
    [
        pytest.param({"completions": 3, "parallelism": 2}, [], 2, id="as many as may run"),
        pytest.param({"completions": 3, "parallelism": 5}, [], 3, id="never more than are needed"),
        pytest.param({"completions": 3, "parallelism": 2}, [job_pod("a")], 1, id="fill up"),
        pytest.param({"parallelism": 2}, [], 2, id="a work queue"),
        pytest.param(
            {"parallelism": 2}, [job_pod("a"), job_pod("b", "Succeeded")], 0, id="an empty queue is empty for all"
        ),
        pytest.param(
            {"completions": 2, "parallelism": 2, "podReplacementPolicy": "Failed"},
            [job_pod("a"), job_pod("b", deleting=True)],
            0,
            id="wait for one that goes",
        ),
        pytest.param(
            {"completions": 2, "parallelism": 2}, [job_pod("a"), job_pod("b", deleting=True)], 1, id="or do not wait"
        ),
    ],
)
def test_how_many_pods_are_made(spec: JsonObject, pods: list[Pod], created: int) -> None:
    assert len(look(a_job(status=STARTED, **spec), *pods).create) == created


@pytest.mark.parametrize(
    ("waiting", "placed", "created"), [(0, 0, 500), (500, 0, 500), (900, 0, 100), (1000, 0, 0), (999, 4000, 1)]
)
def test_a_huge_job_is_made_in_batches_and_never_has_a_crowd_without_a_node(
    waiting: int, placed: int, created: int
) -> None:
    pods = [job_pod(f"w{n}", node="") for n in range(waiting)] + [job_pod(f"p{n}") for n in range(placed)]
    job = a_job(status=STARTED, completions=2**31 - 1, parallelism=2**31 - 1)
    assert len(look(job, *pods).create) == created


def test_each_index_has_one_pod_at_a_time() -> None:
    job = a_job(completionMode="Indexed", completions=5, parallelism=3, status={**STARTED, "completedIndexes": "1"})
    plan = look(job, job_pod("a", index=0), job_pod("b", "Succeeded", index=2))
    assert [b["metadata"]["annotations"]["batch.kubernetes.io/job-completion-index"] for b in plan.create] == ["3", "4"]
    assert plan.status.completed_indexes == "1,2"
    assert [p.name for p in plan.release] == ["b"]


def test_every_end_is_counted_once() -> None:
    job = a_job(completions=3, parallelism=3, status=STARTED)
    done = job_pod("a", "Succeeded")
    first = look(job, done)
    assert (first.status.succeeded, first.status.uncounted_terminated_pods.succeeded) == (0, ["uid-a"])
    assert first.release == (done,)
    listed = a_job(
        completions=3, parallelism=3, status={**STARTED, "uncountedTerminatedPods": {"succeeded": ["uid-a"]}}
    )
    again = look(listed, done)  # crashed before the finalizer went
    assert (again.status.succeeded, again.status.uncounted_terminated_pods.succeeded) == (0, ["uid-a"])
    released = look(listed, job_pod("a", "Succeeded", tracked=False))
    gone = look(listed)
    for plan in (released, gone):
        assert (plan.status.succeeded, plan.status.uncounted_terminated_pods.succeeded) == (1, [])


@pytest.mark.parametrize(
    ("spec", "status", "pods", "target"),
    [
        pytest.param(
            {"completions": 1}, {"succeeded": 1}, [], ("Complete", "CompletionsReached"), id="all have succeeded"
        ),
        pytest.param(
            {"completions": 2, "completionMode": "Indexed"},
            {"completedIndexes": "0,1"},
            [],
            ("Complete", "CompletionsReached"),
            id="all indexes have",
        ),
        pytest.param(
            {"completions": 1},
            {"succeeded": 1},
            [job_pod("a")],
            ("SuccessCriteriaMet", "CompletionsReached"),
            id="one lingers",
        ),
        pytest.param(
            {"completions": 1, "backoffLimit": 1}, {"failed": 2}, [], ("Failed", "BackoffLimitExceeded"), id="too often"
        ),
        pytest.param(
            {"completions": 1, "backoffLimit": 0},
            {},
            [job_pod("a", "Failed")],
            ("FailureTarget", "BackoffLimitExceeded"),
            id="too often, not all counted yet",
        ),
        pytest.param(
            {"completions": 1, "activeDeadlineSeconds": 50}, {}, [], ("Failed", "DeadlineExceeded"), id="too long"
        ),
        pytest.param(
            {"completions": 3, "completionMode": "Indexed", "backoffLimitPerIndex": 1, "maxFailedIndexes": 1},
            {"failedIndexes": "0,1"},
            [],
            ("Failed", "MaxFailedIndexesExceeded"),
            id="too many indexes failed",
        ),
        pytest.param(
            {"completions": 3, "completionMode": "Indexed", "backoffLimitPerIndex": 1},
            {"failedIndexes": "0", "completedIndexes": "1,2"},
            [],
            ("Failed", "FailedIndexes"),
            id="an index failed, all others are done",
        ),
        pytest.param(
            {
                "completions": 3,
                "completionMode": "Indexed",
                "successPolicy": {"rules": [{"succeededIndexes": "2"}, {"succeededCount": 2}]},
            },
            {"completedIndexes": "2"},
            [job_pod("a", index=0)],
            ("SuccessCriteriaMet", "SuccessPolicy"),
            id="the leader has succeeded",
        ),
    ],
)
def test_how_a_job_ends(spec: JsonObject, status: JsonObject, pods: list[Pod], target: tuple[str, str]) -> None:
    plan = look(a_job(status={**STARTED, **status}, **spec), *pods)
    assert verdict(plan) == target
    assert plan.create == ()
    assert list(plan.delete) == [p for p in pods if p.status.phase == "Running"]


def rules(*found: JsonObject) -> JsonObject:
    return {"podFailurePolicy": {"rules": list(found)}, "podReplacementPolicy": "Failed"}


IGNORE = {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]}
FAIL = {"action": "FailJob", "onExitCodes": {"operator": "In", "values": [42]}}
NOT_IN = {"action": "FailJob", "onExitCodes": {"operator": "NotIn", "values": [1, 2]}}
DISRUPTED: dict[str, Any] = {"conditions": [{"type": "DisruptionTarget", "status": "True"}]}


@pytest.mark.parametrize(
    ("policy", "pod", "failed", "is_over"),
    [
        pytest.param(rules(FAIL), job_pod("a", "Failed", code=42), 1, True, id="a declared code"),
        pytest.param(rules(FAIL), job_pod("a", "Failed", code=1), 1, False, id="another code"),
        pytest.param(rules(NOT_IN), job_pod("a", "Failed", code=7), 1, True, id="not in"),
        pytest.param(rules(NOT_IN), job_pod("a", "Failed", code=2), 1, False, id="in"),
        pytest.param(rules(IGNORE, FAIL), job_pod("a", "Failed", code=42, **DISRUPTED), 0, False, id="first rule wins"),
        pytest.param(rules(FAIL, IGNORE), job_pod("a", "Failed", code=42, **DISRUPTED), 1, True, id="in that order"),
    ],
)
def test_the_failure_policy(policy: JsonObject, pod: Pod, failed: int, is_over: bool) -> None:
    plan = look(a_job(completions=1, status=STARTED, **policy), pod)
    assert len(plan.status.uncounted_terminated_pods.failed) == failed
    assert (plan.status.conditions != []) == is_over
    assert plan.release == (pod,)


@pytest.mark.parametrize(
    ("failures", "ago", "created", "wait"),
    [(1, 0, 0, 10), (1, 10, 1, None), (2, 10, 0, 10), (3, 5, 0, 35), (5, 0, 0, 160)],
)
def test_failures_delay_the_next_pod(failures: int, ago: int, created: int, wait: float | None) -> None:
    failed = [job_pod(f"p{n}", "Failed", ended=NOW - ago, tracked=False) for n in range(failures)]
    job = a_job(completions=1, backoffLimit=100, status={**STARTED, "failed": failures})
    plan = look(job, *failed)
    assert (len(plan.create), plan.look_again_s) == (created, wait)


def test_an_index_that_fails_too_often_is_given_up_and_the_others_go_on() -> None:
    spec: JsonObject = {"completions": 3, "parallelism": 3, "completionMode": "Indexed", "backoffLimitPerIndex": 1}
    job = a_job(status=STARTED, backoffLimit=2**31 - 1, **spec)
    first = look(job, job_pod("a", "Failed", index=0, failures=0, ended=NOW - 60))
    assert first.status.failed_indexes == ""
    retried = next(b for b in first.create if b["metadata"]["generateName"] == "job-0-")
    assert retried["metadata"]["annotations"]["batch.kubernetes.io/job-index-failure-count"] == "1"
    second = look(
        job,
        job_pod("a", "Failed", index=0, failures=0, ended=NOW - 60, tracked=False),
        job_pod("b", "Failed", index=0, failures=1, ended=NOW - 30),
    )
    assert second.status.failed_indexes == "0"
    assert [b["metadata"]["generateName"] for b in second.create] == ["job-1-", "job-2-"]


def test_fail_index_gives_up_at_once() -> None:
    rule = {"action": "FailIndex", "onExitCodes": {"operator": "In", "values": [3]}}
    job = a_job(completions=2, completionMode="Indexed", backoffLimitPerIndex=5, status=STARTED, **rules(rule))
    assert look(job, job_pod("a", "Failed", index=1, code=3)).status.failed_indexes == "1"


def test_a_suspended_job_withdraws_its_pods_and_starts_its_clock_anew() -> None:
    running = job_pod("a")
    plan = look(a_job(suspend=True, completions=1, status=STARTED), running)
    assert (plan.withdraw, plan.delete, plan.status.start_time) == ((running,), (), None)
    assert verdict(plan) == ("Suspended", "JobSuspended")
    resumed = look(a_job(completions=1, status={"conditions": [{"type": "Suspended", "status": "True"}]}))
    assert resumed.status.start_time is not None
    assert verdict(resumed) == ("Suspended", "JobResumed")


def test_fewer_in_parallel_withdraws_the_rest() -> None:
    plan = look(a_job(completions=5, parallelism=1, status=STARTED), job_pod("a"), job_pod("b", ready=None))
    assert [p.name for p in plan.withdraw] == ["b"]


@pytest.mark.parametrize(("ago", "expires", "wait"), [(5, False, 15.0), (20, True, None), (100, True, None)])
def test_a_finished_job_stays_as_it_is_and_goes_after_its_time(ago: int, expires: bool, wait: float | None) -> None:
    done = {"type": "Complete", "status": "True", "lastTransitionTime": stamp(NOW - ago)}
    job = a_job(ttlSecondsAfterFinished=20, status={"succeeded": 1, "conditions": [done]})
    plan = look(job, job_pod("a"))
    assert (plan.status, plan.create, plan.delete) == (job.status, (), ())
    assert (plan.expire, plan.look_again_s) == (expires, wait)


@pytest.mark.parametrize(
    ("indexes", "text"), [([], ""), ([0], "0"), ([0, 1], "0,1"), ([0, 1, 2, 5], "0-2,5"), ([1, 3, 4, 5], "1,3-5")]
)
def test_indexes_as_text(indexes: list[int], text: str) -> None:
    assert format_batch_v1_completion_indexes(indexes) == text
    assert parse_batch_v1_completion_indexes(text) == set(indexes)


@pytest.mark.parametrize(("parallelism", "before", "counted"), [(1, 59, 0), (1, 60, 1), (2, 60, 0), (2, 120, 1)])
def test_refused_pods_are_the_jobs_own_once_their_budget_is_spent(parallelism: int, before: int, counted: int) -> None:
    def refused(name: str, number: int, *, tracked: bool) -> Pod:
        pod = job_pod(name, "Failed", tracked=tracked)
        status = replace(pod.status, reason="OutOfcpu")
        meta = replace(pod.metadata, annotations={ANNOTATION_REJECTIONS: str(number)} if number else {})
        return replace(pod, metadata=meta, status=status)

    job = a_job(completions=2, parallelism=parallelism, status=STARTED)
    plan = look(job, refused("a", before, tracked=False), refused("b", 0, tracked=True))
    assert len(plan.status.uncounted_terminated_pods.failed) == counted
