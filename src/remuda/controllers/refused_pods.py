"""Refused pods, recorded and helped: the shell of `core.foreign.refused_pods`.

What is done for a pod once (a Job's try given back, a bare pod made again) is done before the write that says so, and can be
told by what it leaves behind: a crash in between repeats it without effect.
"""

from __future__ import annotations

import contextlib

from remuda.api.codec import to_wire
from remuda.api.conditions import with_condition
from remuda.api.errors import AlreadyExists, ApiError, Conflict, NotFound
from remuda.api.kubernetes.batch_v1 import Job
from remuda.api.kubernetes.core_v1 import Pod
from remuda.api.meta import JsonObject, KObject, OwnerReference, to_time
from remuda.api.names import ANNOTATION_REJECTIONS
from remuda.controllers.pod_conditions import write_pod_conditions
from remuda.controllers.pod_removal import delete_pod
from remuda.core.foreign import refused_pods as rules
from remuda.core.foreign.job_policies import IGNORE, judge_failed_foreign_pod
from remuda.kube.cluster import Cluster, Preconditions
from remuda.kube.runtime.events import EventSink


class WholePod(KObject, frozen=True, rename="camel", omit_defaults=True, kw_only=True):
    """A pod with all its fields: what is made again must not lose those that we never read."""

    resource = Pod.resource

    spec: JsonObject = {}


class RefusedPods:
    """`forgives`: Jobs get the tries back that refused pods cost them, because their controller is Kubernetes' own."""

    def __init__(self, cluster: Cluster, events: EventSink, *, forgives: bool) -> None:
        self._cluster, self._events, self._forgives = cluster, events, forgives

    async def record(self, pod: Pod, number: int, now: float) -> None:
        """First the number, then the condition that says it is there. What is done for a pod once is done before that."""
        is_over = rules.foreign_pod_wants_retry(pod) and number > rules.ADMISSION_BUDGET
        if self._forgives and (owner := pod.owner("Job")) is not None:
            is_over = not await self._forgive_job(pod, owner, number)
        count: JsonObject = {"metadata": {"annotations": {ANNOTATION_REJECTIONS: str(number)}}}
        try:
            if rules.is_foreign_pod_refusal_recorded(await self._cluster.get(Pod, pod.name, pod.namespace)):
                return  # our copy is late; counted again, it would count twice
            newest = await self._cluster.patch(Pod, pod.name, count, pod.namespace, when=Preconditions(uid=pod.uid))
        except (NotFound, Conflict):
            return
        why = f"{pod.spec.node_name} refused the pod ({pod.status.reason}): {pod.status.message}"[:1024]
        told = with_condition(
            newest.status.conditions, rules.ADMISSION_REJECTED, True, pod.status.reason, why, to_time(int(now))
        )
        await write_pod_conditions(self._cluster, newest, told)
        self._events.warning(
            pod, rules.ADMISSION_REJECTED, f"Refused {number} time{'s' * (number != 1)} in a row. {why}"
        )
        if is_over:
            words = f"Refused {number} times in a row: from now on this counts against its workload. {why}"
            self._events.warning(pod, rules.BUDGET_EXHAUSTED, words)

    async def _forgive_job(self, pod: Pod, owner: OwnerReference, number: int) -> bool:
        """False when the Job has used up what it is forgiven."""
        try:
            job = await self._cluster.get(Job, owner.name, pod.namespace)
            if judge_failed_foreign_pod(job, pod, is_spent=True).action == IGNORE:
                return True  # by a rule of its own; there is nothing to give back
            if number > rules.foreign_job_admission_budget(job):
                return False
            patch = rules.patch_forgiving_foreign_job(job, pod.uid) if job.uid == owner.uid else {}
            if patch:
                when = Preconditions(uid=job.uid, resource_version=job.metadata.resource_version)
                await self._cluster.patch(Job, job.name, patch, job.namespace, when=when)
        except NotFound:
            pass
        return True

    async def retry(self, pod: Pod, number: int) -> None:
        try:
            whole = await self._cluster.get(WholePod, pod.name, pod.namespace)
            if whole.uid != pod.uid:
                return
            body = rules.foreign_retry_pod_body({"metadata": to_wire(whole.metadata), "spec": whole.spec}, number)
            await self._cluster.create(Pod, body)
            self._events.normal(pod, "MadeAgain", f"{body['metadata']['name']} replaces it.")
        except AlreadyExists:
            pass  # made before, and then somebody ended
        except NotFound:
            return
        except ApiError as error:
            if not error.is_refusal:
                raise
            # For good: what its owner could make need not be the manager's to make. The old one stays, for him to see.
            self._events.warning(pod, "NotMadeAgain", error.message)
            return
        await self.delete(pod)

    async def delete(self, pod: Pod) -> None:
        with contextlib.suppress(Conflict):
            await delete_pod(self._cluster, pod)
