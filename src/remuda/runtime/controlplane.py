"""The control plane: scheduler, failure and workload controllers over one set of informers. Holds no state of its own.

Everything it knows it reads from the API, so stopping it in the middle of anything and starting another one is safe; that is
how the tests crash it.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable

from remuda.controllers.failure import WORKERS, FailureController
from remuda.controllers.training import TrainingController
from remuda.controllers.view import ClusterView
from remuda.core.workload.kubelet_form import KubeletForm
from remuda.kube.cluster import Cluster
from remuda.kube.controller import run_controller
from remuda.kube.events import EventRecorder
from remuda.kube.workqueue import WorkQueue
from remuda.link.progress import ProgressBoard
from remuda.scheduler.cycle import Scheduler

# On the embedded cluster there is no other scheduler, so pods that name none are ours too.
EMBEDDED_SCHEDULERS = frozenset({"", "default-scheduler", "remuda"})


class ControlPlane:
    def __init__(
        self,
        cluster: Cluster,
        board: ProgressBoard,
        clock: Callable[[], float],
        *,
        chance: random.Random,
        schedulers: frozenset[str] = EMBEDDED_SCHEDULERS,
        form: KubeletForm | None = None,
    ) -> None:
        """`form`: how pods are written where kubelets run them."""
        self.view = ClusterView(cluster, jitter=chance.random)
        self._clock = clock
        self._jobs: WorkQueue[tuple[str, str]] = WorkQueue(jitter=chance.random)
        self._nodes: WorkQueue[str] = WorkQueue(jitter=chance.random)
        view = self.view
        self._events = EventRecorder(cluster, clock)
        self.scheduler = Scheduler(
            cluster,
            view.pods,
            view.nodes,
            view.devices,
            view.dead_nodes,
            clock,
            schedulers,
            events=self._events.source("remuda-scheduler"),
        )
        self.failure = FailureController(cluster, view, self._nodes, events=self._events.source("remuda-failure"))
        told = self._events.source("remuda-training")
        self.training = TrainingController(cluster, view, board, self._jobs, clock, events=told, form=form)

    async def run(self) -> None:
        async with asyncio.TaskGroup() as group:
            for informer in self.view.informers:
                group.create_task(informer.run(), name=f"informer-{informer.kind.resource.plural}")
            for informer in self.view.informers:
                await informer.synced()
            group.create_task(self.scheduler.run(), name="scheduler")
            group.create_task(self._events.run(), name="events")
            judging = run_controller("failure", self._nodes, self.failure, self._clock, WORKERS)
            group.create_task(judging, name="failure")
            group.create_task(run_controller("training", self._jobs, self.training, self._clock), name="training")
