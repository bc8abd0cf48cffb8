"""Job controller: the shell around `plan_batch_job`.

Order of writes: the status first (it lists the pods that ended), then the finalizers of those pods, then deletes and creates.
A crash anywhere leaves a state from which the next look goes on without counting anything twice.
"""

from __future__ import annotations

import msgspec

from remuda.api.errors import ApiError, Conflict, NotFound
from remuda.api.kubernetes.batch_v1 import TRACKING, Job
from remuda.api.kubernetes.core_v1 import Pod
from remuda.api.meta import JsonObject
from remuda.embedded.builtin.deployments import delete_pod_for_builtin
from remuda.embedded.builtin.informers import BuiltinView
from remuda.embedded.builtin.planners.jobs import JobObserved, JobPlan, plan_batch_job
from remuda.embedded.builtin.status_patch import write_builtin_status
from remuda.kube.cluster import Cluster, Preconditions
from remuda.kube.runtime.bulk_writes import write_all_objects, write_objects_from_few
from remuda.kube.runtime.events import SILENCE, EventSink
from remuda.kube.runtime.work_queue import WorkQueue

Key = tuple[str, str, str]  # namespace, name, uid of the Job


class OrphanedJobPods(msgspec.Struct, frozen=True):
    """Pods of a Job that is gone: nobody will count them."""

    pods: tuple[Pod, ...]


class JobController:
    """A `Reconciler` keyed by (namespace, name, uid)."""

    def __init__(self, cluster: Cluster, view: BuiltinView, queue: WorkQueue[Key], events: EventSink = SILENCE) -> None:
        self._cluster, self._view, self._queue, self._events = cluster, view, queue, events
        view.jobs.subscribe(self._on_job)
        view.pods.subscribe(self._on_pod)

    def _on_job(self, old: Job | None, new: Job | None) -> None:
        job = new or old
        if job is not None and job.spec.managed_by in ("", "kubernetes.io/job-controller"):
            self._queue.add((job.namespace, job.name, job.uid))

    def _on_pod(self, old: Pod | None, new: Pod | None) -> None:
        pod = new or old
        owner = pod.owner("Job") if pod is not None else None
        if pod is not None and owner is not None:
            self._queue.add((pod.namespace, owner.name, owner.uid))

    async def observe(self, key: Key) -> JobObserved | OrphanedJobPods:
        namespace, name, uid = key
        job = self._view.jobs.get(name, namespace)
        pods = tuple(self._view.pods_of(uid))
        if job is None or job.uid != uid:
            return OrphanedJobPods(tuple(p for p in pods if TRACKING in p.metadata.finalizers))
        return JobObserved(job, pods)

    def plan(self, observed: JobObserved | OrphanedJobPods, now: float) -> tuple[Job, JobPlan] | OrphanedJobPods:
        if isinstance(observed, OrphanedJobPods):
            return observed
        return observed.job, plan_batch_job(observed, now)

    async def apply(self, planned: tuple[Job, JobPlan] | OrphanedJobPods) -> float | None:
        if isinstance(planned, OrphanedJobPods):
            await write_all_objects(self._release, planned.pods)
            return None
        job, plan = planned
        await write_builtin_status(self._cluster, job, job.status, plan.status)
        await write_all_objects(self._release, [*plan.release, *plan.withdraw])
        await write_all_objects(lambda pod: delete_pod_for_builtin(self._cluster, pod), [*plan.delete, *plan.withdraw])
        try:
            await write_objects_from_few(self._create, plan.create)
        except ApiError as error:
            if error.is_refusal:
                self._events.warning(job, "FailedCreate", f"Error creating: {error.message}")
            raise
        if plan.expire:
            try:
                await self._cluster.delete(Job, job.name, job.namespace, when=Preconditions(uid=job.uid))
            except (NotFound, Conflict):
                pass
        return plan.look_again_s

    async def _create(self, body: JsonObject) -> None:
        self._view.made_pod(await self._cluster.create(Pod, body))

    async def _release(self, pod: Pod) -> None:
        """Take our finalizer off, on the newest version: its other finalizers are not ours to touch."""
        try:
            newest = await self._cluster.get(Pod, pod.name, pod.namespace)
            if newest.uid != pod.uid or TRACKING not in newest.metadata.finalizers:
                return
            kept = [f for f in newest.metadata.finalizers if f != TRACKING]
            when = Preconditions(uid=newest.uid, resource_version=newest.metadata.resource_version)
            await self._cluster.patch(Pod, pod.name, {"metadata": {"finalizers": kept}}, pod.namespace, when=when)
        except NotFound:
            pass
