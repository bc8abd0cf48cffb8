"""The control plane: scheduler, failure and workload controllers over one set of informers. Holds no state of its own.

Everything it knows it reads from the API, so stopping it in the middle of anything and starting another one is safe; that is
how the tests crash it.
"""

from __future__ import annotations

import asyncio
import math
import random
from collections.abc import Callable

from remuda.api.drills import Drill
from remuda.controllers.abandoned_marks import AbandonedMarksController
from remuda.controllers.cluster_view import ClusterView
from remuda.controllers.device_annotations import DeviceAnnotationController
from remuda.controllers.drills import DrillController
from remuda.controllers.foreign_workloads import WORKERS as FOREIGN_WORKERS
from remuda.controllers.foreign_workloads import ForeignController, ForeignSettings
from remuda.controllers.idle_devices import IdleController
from remuda.controllers.incidents import WORKERS as INCIDENT_WORKERS
from remuda.controllers.incidents import IncidentController
from remuda.controllers.policy_status import PolicyController
from remuda.controllers.quarantine_taints import TaintController, TaintRules
from remuda.controllers.remedies import WORKERS as REMEDY_WORKERS
from remuda.controllers.remedies import RemedyController
from remuda.controllers.remedy_table import RemedyTable
from remuda.controllers.rollouts import RolloutController
from remuda.controllers.stragglers import StragglerController
from remuda.controllers.training import TrainingController
from remuda.controllers.verdicts import WORKERS, VerdictController
from remuda.controllers.webhook_notices import WebhookNoticeController
from remuda.core.gang.kubelet_pods import KubeletGangPodForm
from remuda.core.health.mass_silence import MassSilenceRule
from remuda.core.health.own_stalls import OwnStalls
from remuda.core.remedies.hook_kinds import HookKinds
from remuda.kube.client.webhooks import HttpWebhookClient, WebhookClient
from remuda.kube.cluster import Cluster
from remuda.kube.runtime.controller import run_controller
from remuda.kube.runtime.events import EventRecorder
from remuda.kube.runtime.informer import Informer
from remuda.kube.runtime.stall_watch import watch_api_writes_for_stalls, watch_loop_lag
from remuda.kube.runtime.work_queue import WorkQueue
from remuda.link.progress_board import ProgressBoard
from remuda.scheduler.scheduling_cycle import Scheduler

# On the embedded cluster there is no other scheduler, so pods that name none are ours too.
EMBEDDED_SCHEDULERS = frozenset({"", "default-scheduler", "remuda"})


PART = "manager"  # whose stalls


class ControlPlane:
    def __init__(
        self,
        cluster: Cluster,
        board: ProgressBoard,
        clock: Callable[[], float],
        *,
        chance: random.Random,
        schedulers: frozenset[str] = EMBEDDED_SCHEDULERS,
        form: KubeletGangPodForm | None = None,
        poster: WebhookClient | None = None,
        hook_kinds: HookKinds = (),
        stalls: OwnStalls | None = None,
        proves_api: bool = False,
        term_left: Callable[[], float] = lambda: math.inf,
        nodes_on_demand: bool = False,
        mass_silence: MassSilenceRule = MassSilenceRule(),  # noqa: B008 - an immutable value
    ) -> None:
        """`form`: how pods are written where kubelets run them. `poster`: how webhooks are posted to. `stalls`: ours, where
        `proves_api` says that somebody else proves that the API takes our writes. `term_left`: seconds in which nobody else can
        lead. `hook_kinds`: what objects of hooks may be. `nodes_on_demand`: what the cluster has says nothing of what
        it could have. `mass_silence`: what to do when most nodes fall silent at once."""
        self._cluster = cluster
        self.stalls = stalls or OwnStalls()
        self._proves_api = proves_api
        self.view = ClusterView(
            cluster,
            jitter=chance.random,
            clock=clock,
            stalls=self.stalls,
            term_left=term_left,
            mass_silence=mass_silence,
        )
        self._clock = clock
        self._jobs: WorkQueue[tuple[str, str]] = WorkQueue(jitter=chance.random)
        self._nodes: WorkQueue[str] = WorkQueue(jitter=chance.random)
        self._paces: WorkQueue[tuple[str, str]] = WorkQueue(jitter=chance.random)
        self._foreign: WorkQueue[str] = WorkQueue(jitter=chance.random)
        self._idle: WorkQueue[str] = WorkQueue(jitter=chance.random)
        self._renamed: WorkQueue[str] = WorkQueue(jitter=chance.random)
        self._told: WorkQueue[tuple[str, str]] = WorkQueue(jitter=chance.random)
        self._subjects: WorkQueue[tuple[str, ...]] = WorkQueue(jitter=chance.random)
        self._remedied: WorkQueue[str] = WorkQueue(jitter=chance.random)
        self._policies: WorkQueue[str] = WorkQueue(jitter=chance.random)
        self._rollouts: WorkQueue[str] = WorkQueue(jitter=chance.random)
        self._tainted: WorkQueue[str] = WorkQueue(jitter=chance.random)
        self._marked: WorkQueue[str] = WorkQueue(jitter=chance.random)
        view = self.view
        self._events = EventRecorder(cluster, clock)
        self.scheduler = Scheduler(
            cluster,
            view.pods,
            view.nodes,
            view.devices,
            view.unfit_nodes,
            clock,
            schedulers,
            penalties=view.penalties,
            reserved=view.reserved,
            unreported=view.unreported_nodes,
            agentless=view.agentless_nodes,
            events=self._events.source("remuda-scheduler"),
        )
        self.verdicts = VerdictController(cluster, view, self._nodes, events=self._events.source("remuda-failure"))
        self.idle = IdleController(cluster, view, self._idle, events=self._events.source("remuda-idle"))
        self.device_annotations = DeviceAnnotationController(cluster, view, self._renamed)
        self.remedy_table = RemedyTable(view)
        # Where kubelets run the pods, a node that does not answer may still do so, and others' controllers count the failures.
        settings = ForeignSettings() if form is None else ForeignSettings(unreachable_s=None, forgives=True)
        self.foreign = ForeignController(
            cluster,
            view,
            self._foreign,
            clock,
            settings=settings,
            events=self._events.source("remuda-foreign"),
            shut_until=self.remedy_table.shut_until,
        )
        self.incidents = IncidentController(
            cluster,
            view,
            self._subjects,
            clock,
            self.verdicts.suspicion,
            events=self._events.source("remuda-incidents"),
        )
        self.remedies = RemedyController(
            cluster,
            view,
            self.remedy_table,
            self._remedied,
            events=self._events.source("remuda-remedies"),
            hook_kinds=hook_kinds,
        )
        self.taints: TaintController | None = None
        if form is not None:  # the embedded cluster has no claims
            told = self._events.source("remuda-remedies")
            self.taints = TaintController(view, self._tainted, TaintRules(cluster), events=told)
        self._drills: Informer[Drill] | None = None
        if form is not None:  # embedded nodes answer all drills themselves
            self._drilled: WorkQueue[str] = WorkQueue(jitter=chance.random)
            self._drills = Informer(cluster, Drill, jitter=chance.random)
            self.drills = DrillController(cluster, view, self._drills, self._drilled, clock)
        self.policies = PolicyController(
            cluster, view, self.remedy_table, self._policies, events=self._events.source("remuda-remedies")
        )
        self.notices = WebhookNoticeController(
            cluster,
            view,
            self._told,
            clock,
            poster or HttpWebhookClient(),
            jitter=chance.random,
            events=self._events.source("remuda-notices"),
        )
        self.rollouts = RolloutController(
            cluster, view, self._rollouts, events=self._events.source("remuda-rollouts"), hook_kinds=hook_kinds
        )
        self.marks = AbandonedMarksController(
            cluster, view, self._marked, events=self._events.source("remuda-remedies")
        )
        told = self._events.source("remuda-training")
        size = None if nodes_on_demand else view.capacity
        self.training = TrainingController(
            cluster, view, board, self._jobs, clock, events=told, form=form, capacity=size
        )
        self.stragglers = StragglerController(cluster, view, board, self._paces, self._jobs.add, events=told)

    async def run(self) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(watch_loop_lag(self.stalls, self._clock, PART), name="loop-lag")
            if not self._proves_api:
                writing = watch_api_writes_for_stalls(self.stalls, self._cluster, self._clock, PART)
                group.create_task(writing, name="api-writes")
            for informer in self.view.informers:
                group.create_task(informer.run(), name=f"informer-{informer.kind.resource.plural}")
            for informer in self.view.informers:
                await informer.synced()
            group.create_task(self.scheduler.run(), name="scheduler")
            group.create_task(self._events.run(), name="events")
            self.incidents.begin()
            recording = run_controller("incidents", self._subjects, self.incidents, self._clock, INCIDENT_WORKERS)
            group.create_task(recording, name="incidents")
            group.create_task(run_controller("notices", self._told, self.notices, self._clock), name="notices")
            group.create_task(self.notices.run(), name="webhooks")
            curing = run_controller("remedies", self._remedied, self.remedies, self._clock, REMEDY_WORKERS)
            group.create_task(curing, name="remedies")
            group.create_task(run_controller("policies", self._policies, self.policies, self._clock), name="policies")
            group.create_task(run_controller("rollouts", self._rollouts, self.rollouts, self._clock), name="rollouts")
            group.create_task(run_controller("marks", self._marked, self.marks, self._clock), name="marks")
            if self.taints is not None:
                self.taints.begin()
                group.create_task(run_controller("taints", self._tainted, self.taints, self._clock), name="taints")
            if self._drills is not None:
                group.create_task(self._drills.run(), name="informer-drills")
                group.create_task(run_controller("drills", self._drilled, self.drills, self._clock), name="drills")
            judging = run_controller("verdicts", self._nodes, self.verdicts, self._clock, WORKERS)
            group.create_task(judging, name="verdicts")
            watching = run_controller("foreign", self._foreign, self.foreign, self._clock, FOREIGN_WORKERS)
            group.create_task(watching, name="foreign")
            group.create_task(run_controller("idle", self._idle, self.idle, self._clock), name="idle")
            naming = run_controller("device-annotations", self._renamed, self.device_annotations, self._clock)
            group.create_task(naming, name="device-annotations")
            group.create_task(run_controller("training", self._jobs, self.training, self._clock), name="training")
            group.create_task(
                run_controller("stragglers", self._paces, self.stragglers, self._clock), name="stragglers"
            )
