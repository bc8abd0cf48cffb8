"""The controllers a Kubernetes cluster has anyway, for the embedded one, which has no kube-controller-manager.

`run_builtin_controllers` runs them all over one set of informers. With none of their kinds in the cluster they only keep the node
lifecycle's timers.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable

from remuda.api.kinds import KINDS
from remuda.api.kubernetes.policy_v1 import EndpointSlice, PodDisruptionBudget, ResourceQuota
from remuda.api.meta import KObject, Resource
from remuda.core.health.mass_silence import MassSilenceRule
from remuda.core.health.own_stalls import OwnStalls
from remuda.embedded.builtin.deployments import DeploymentController, ReplicaSetController
from remuda.embedded.builtin.event_expiry import expire_events
from remuda.embedded.builtin.informers import BuiltinView
from remuda.embedded.builtin.jobs import JobController
from remuda.embedded.builtin.namespaces import NamespaceController, structless_kind_for_builtin
from remuda.embedded.builtin.node_lifecycle import NodeLifecycleController
from remuda.embedded.builtin.pod_field_events import PodFieldEvents
from remuda.embedded.builtin.pod_summaries import (
    WATCHED_KINDS,
    DisruptionBudgetController,
    EndpointsController,
    QuotaController,
)
from remuda.embedded.pod_fields.judge_pod import PodHost
from remuda.kube.cluster import Cluster
from remuda.kube.runtime.controller import run_controller
from remuda.kube.runtime.events import EventRecorder
from remuda.kube.runtime.work_queue import WorkQueue

_ROOT = PodHost()
Kinds = Callable[[], Iterable[type[KObject]]]

_STORED_ONLY = tuple(
    structless_kind_for_builtin(Resource(group, version, kind, plural))
    for group, version, kind, plural in (
        ("", "v1", "ConfigMap", "configmaps"),
        ("", "v1", "Secret", "secrets"),
        ("", "v1", "ServiceAccount", "serviceaccounts"),
        ("", "v1", "Event", "events"),
        ("", "v1", "LimitRange", "limitranges"),
        ("", "v1", "PersistentVolumeClaim", "persistentvolumeclaims"),
        ("autoscaling", "v2", "HorizontalPodAutoscaler", "horizontalpodautoscalers"),
    )
)
# The order in which a namespace is emptied: what makes others goes first.
BUILTIN_KINDS: tuple[type[KObject], ...] = tuple(
    dict.fromkeys(
        (
            *reversed(WATCHED_KINDS),
            *KINDS,
            EndpointSlice,
            PodDisruptionBudget,
            ResourceQuota,
            *_STORED_ONLY,
        )
    )
)


async def run_builtin_controllers(
    cluster: Cluster,
    clock: Callable[[], float],
    jitter: Callable[[], float],
    kinds: Kinds = lambda: BUILTIN_KINDS,
    stalls: OwnStalls | None = None,
    host: PodHost = _ROOT,
    mass_silence: MassSilenceRule = MassSilenceRule(),  # noqa: B008 - an immutable value
) -> None:
    """Until cancelled. `kinds`: every kind served at the time, for emptying namespaces and counting quotas. `stalls`: those of
    this process; whose silence it was that nobody renewed a lease. `host`: what pods run on, which
    decides what they cannot have."""
    own = stalls or OwnStalls()
    view = BuiltinView(cluster, jitter=jitter)
    recorder = EventRecorder(cluster, clock)
    pod_fields = PodFieldEvents(cluster, view.pods, recorder.source("remuda-pod-fields"), host)

    def queue() -> WorkQueue[tuple[str, str]]:
        return WorkQueue(jitter=jitter)

    # Counted on whole bodies: our projections leave out some of what a quota counts.
    counted = {(k.resource.group, k.resource.plural): structless_kind_for_builtin(k.resource) for k in BUILTIN_KINDS}
    nodes: WorkQueue[str] = WorkQueue(jitter=jitter)
    namespaces: WorkQueue[str] = WorkQueue(jitter=jitter)
    jobs: WorkQueue[tuple[str, str, str]] = WorkQueue(jitter=jitter)
    quotas: WorkQueue[str] = WorkQueue(jitter=jitter)
    sets, deployments, budgets, endpoints = (queue() for _ in range(4))
    lifecycle = NodeLifecycleController(cluster, view, nodes, lambda: own.known(clock()), mass_silence)
    running = (
        run_controller("nodelifecycle", nodes, lifecycle, clock),
        run_controller("namespace", namespaces, NamespaceController(cluster, view, namespaces, kinds), clock),
        run_controller("job", jobs, JobController(cluster, view, jobs, recorder.source("job-controller")), clock),
        run_controller("replicaset", sets, ReplicaSetController(cluster, view, sets, clock), clock),
        run_controller("deployment", deployments, DeploymentController(cluster, view, deployments), clock),
        run_controller("disruption", budgets, DisruptionBudgetController(cluster, view, budgets), clock),
        run_controller("resourcequota", quotas, QuotaController(cluster, view, quotas, counted), clock),
        run_controller("endpointslice", endpoints, EndpointsController(cluster, view, endpoints), clock),
        expire_events(cluster, clock),
        pod_fields.run(),
        recorder.run(),
    )
    try:
        async with asyncio.TaskGroup() as group:
            for informer in view.informers:
                group.create_task(informer.run(), name=f"builtin-{informer.kind.resource.plural}")
            for informer in view.informers:
                await informer.synced()
            for controller in running:
                group.create_task(controller)
    finally:
        for controller in running:
            controller.close()  # those that never began
