"""Taking a pod away: by eviction, which disruption budgets may refuse for now, or for good. Only while it is the same pod."""

from __future__ import annotations

import contextlib

import structlog

from remuda.api.core_v1 import Pod
from remuda.api.errors import NotFound, TooManyRequests
from remuda.kube.cluster import Cluster, Preconditions

log = structlog.get_logger(__name__)


async def evict(cluster: Cluster, pod: Pod) -> None:
    """A budget that refuses is asked again at the next look; the caller's deadline ends that."""
    try:
        await cluster.evict(pod.name, pod.namespace, when=Preconditions(uid=pod.uid))
    except TooManyRequests as error:
        log.info("pod.budget", pod=f"{pod.namespace}/{pod.name}", message=error.message)
    except NotFound:
        pass


async def remove(cluster: Cluster, pod: Pod) -> None:
    with contextlib.suppress(NotFound):
        await cluster.delete(Pod, pod.name, pod.namespace, when=Preconditions(uid=pod.uid))
