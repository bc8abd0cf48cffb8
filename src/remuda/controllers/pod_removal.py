"""Taking a pod away: by eviction, which disruption budgets may refuse for now, or for good. Only while it is the same pod.

A pod that is gone already is no news. Another pod under its name is a Conflict, and that is for the caller: a drain has to
look at the node anew; whoever meant just this pod has nothing left to do.
"""

from __future__ import annotations

import structlog

from remuda.api.errors import NotFound, TooManyRequests
from remuda.api.kubernetes.core_v1 import Pod
from remuda.core.remedies.drain import DrainPlan
from remuda.kube.cluster import Cluster, Preconditions
from remuda.kube.runtime.events import SILENCE, EventSink

log = structlog.get_logger(__name__)


async def evict_pod(cluster: Cluster, pod: Pod, events: EventSink = SILENCE) -> bool:
    """Whether it goes now. A budget that refuses is asked again at the next look; the caller's deadline, if it has one, ends
    that. `events`: of callers that have no record of their own to say so in."""
    try:
        await cluster.evict(pod.name, pod.namespace, when=Preconditions(uid=pod.uid))
    except TooManyRequests as error:
        log.info("pod.budget", pod=f"{pod.namespace}/{pod.name}", message=error.message)
        events.normal(pod, "EvictionHeldUp", f"{error.message} It is tried again.")
        return False
    except NotFound:
        return False
    return True


async def delete_pod(cluster: Cluster, pod: Pod) -> bool:
    """Whether it was there to be removed."""
    try:
        await cluster.delete(Pod, pod.name, pod.namespace, when=Preconditions(uid=pod.uid))
    except NotFound:
        return False
    return True


async def carry_out_drain_pod_removal(cluster: Cluster, plan: DrainPlan) -> None:
    for pod in plan.evict:
        await evict_pod(cluster, pod)
    for pod in plan.delete:
        await delete_pod(cluster, pod)
