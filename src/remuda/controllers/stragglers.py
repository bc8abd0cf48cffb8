"""Straggler watch: the newest steps of each gang -> who is slow -> findings in NodeDevices, and GangSlow for its job.

One key per gang; ("", node) looks at a node's findings after a probe. Heartbeats wake a gang at most once in LOOK_S, and a look
without a new step costs nothing. Only transitions are written: a finding when a rank turns slow, its end when it is normal.

What a look needs of the past outlasts the manager: that a rank was slow is the finding itself, that the gang was is its condition
GangSlow with the pace it had before, and the window of samples is told to a new manager by the agents.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import msgspec
import structlog

from remuda.api.codec import to_wire
from remuda.api.conditions import find_condition
from remuda.api.devices import NodeDevices
from remuda.api.meta import JsonObject
from remuda.api.training import TrainingJob
from remuda.controllers.cluster_view import ClusterView
from remuda.core.health.gang_pace import GangPace, GangPaceLook, judge_gang_pace
from remuda.core.health.slow_ranks import (
    SlowRankFindings,
    answered_slow_findings,
    has_slow_finding,
    plan_slow_rank_findings,
)
from remuda.core.health.step_samples import NOT_SLOW, GangSlow, StepSample
from remuda.core.training.job_status import GANG_SLOW
from remuda.kube.cluster import Cluster, Preconditions
from remuda.kube.runtime.events import SILENCE, EventSink
from remuda.kube.runtime.work_queue import WorkQueue
from remuda.link.progress_board import ProgressBoard

log = structlog.get_logger(__name__)

Key = tuple[str, str]

LOOK_S = 1.0


class StragglerObserved(msgspec.Struct, frozen=True):
    """A gang (`job`) or, after a probe, a node (`probed`)."""

    job: TrainingJob | None = None
    groups: tuple[Mapping[int, Sequence[StepSample]], ...] = ()
    nodes: Mapping[str, NodeDevices] = {}
    pace: GangPace | None = None
    was: GangSlow = NOT_SLOW
    newest: tuple[int, int] = (0, 0)
    probed: NodeDevices | None = None


class StragglerPlan(msgspec.Struct, frozen=True):
    job: TrainingJob | None
    findings: tuple[SlowRankFindings, ...] = ()
    look: GangPaceLook | None = None
    gang: GangSlow | None = None  # None: too early to say
    newest: tuple[int, int] = (0, 0)


class StragglerController:
    """A `Reconciler` keyed by (namespace, name) of a TrainingJob, or ("", node). `wake`: what makes the job's own controller
    look, which alone writes its status."""

    def __init__(
        self,
        cluster: Cluster,
        view: ClusterView,
        board: ProgressBoard,
        queue: WorkQueue[Key],
        wake: Callable[[Key], None],
        *,
        events: EventSink = SILENCE,
    ) -> None:
        self._cluster = cluster
        self._view = view
        self._board = board
        self._queue = queue
        self._wake = wake
        self._events = events
        self._paces: dict[Key, GangPace] = {}
        self._seen: dict[Key, tuple[int, int]] = {}  # attempt and newest step of the last look
        self._waiting: set[Key] = set()
        view.jobs.subscribe(self._on_job)
        view.devices.subscribe(self._on_devices)
        board.subscribe(self._on_progress)

    def _on_job(self, old: TrainingJob | None, new: TrainingJob | None) -> None:
        if new is None and old is not None:
            key = (old.namespace, old.name)
            for memory in (self._paces, self._seen, self._view.slow_gangs):
                memory.pop(key, None)
            self._waiting.discard(key)

    def _on_devices(self, old: NodeDevices | None, new: NodeDevices | None) -> None:
        if new is not None and new.findings and answered_slow_findings(new) is not None:
            self._queue.add(("", new.name))

    def _on_progress(self, namespace: str, gang: str, notable: bool) -> None:
        key = (namespace, gang)
        if key not in self._waiting:
            self._waiting.add(key)
            self._queue.add_after(key, LOOK_S)

    async def observe(self, key: Key) -> StragglerObserved | None:
        self._waiting.discard(key)
        if not key[0]:
            return StragglerObserved(probed=self._view.devices.get(key[1]))
        job = self._view.jobs.get(key[1], key[0])
        newest = self._board.samples.newest(*key)
        if job is None or job.status.barrier != "Open" or job.spec.failure.straggler.factor <= 1.0:
            return None
        if self._seen.get(key) == newest or newest[0] != job.status.attempt:
            return None
        samples = self._board.samples.of_gang(*key, job.status.attempt)
        groups: dict[str, dict[int, Sequence[StepSample]]] = {}
        for member in job.status.members:
            groups.setdefault(member.role, {})[member.rank] = tuple(samples.get(member.uid, ()))
        names = {m.node for m in job.status.members}
        nodes = {name: node for name in names if (node := self._view.devices.get(name)) is not None}
        was = self._view.slow_gangs.get(key) or _earlier_manager_slow_gang(job)
        return StragglerObserved(job, tuple(groups.values()), nodes, self._paces.get(key), was, newest)

    def plan(self, observed: StragglerObserved | None, now: float) -> StragglerPlan | None:
        if observed is None:
            return None
        if observed.probed is not None:
            gone = answered_slow_findings(observed.probed)
            return StragglerPlan(None, (gone,)) if gone is not None else None
        if (job := observed.job) is None:
            return None
        nodes = observed.nodes
        known = [m.rank for m in job.status.members if has_slow_finding(nodes.get(m.node), m.devices)]
        factor = job.spec.failure.straggler.factor
        look = judge_gang_pace(observed.groups, factor, known, observed.pace, observed.was)
        findings, uneven = plan_slow_rank_findings(job, look.speeds, nodes, now)
        gang = uneven or look.gang or (NOT_SLOW if look.is_enough else None)
        return StragglerPlan(job, tuple(findings), look, gang, observed.newest)

    async def apply(self, planned: StragglerPlan | None) -> float | None:
        if planned is None:
            return None
        job = planned.job
        for found in planned.findings:
            # A list is written whole: guarded by the version, so that nobody else's entries are lost.
            lists: JsonObject = {d: [to_wire(s) for s in kept] or None for d, kept in found.devices.items()}
            when = Preconditions(resource_version=found.version)
            await self._cluster.patch(NodeDevices, found.node, {"findings": lists}, when=when)
            for words in found.told:
                log.warning("straggler", node=found.node, devices=sorted(found.devices), message=words)
                if job is not None:
                    self._events.warning(job, "SlowRank", words)
        if job is not None:
            self._remember(job, planned)
        return None

    def _remember(self, job: TrainingJob, planned: StragglerPlan) -> None:
        key = (job.namespace, job.name)
        self._seen[key] = planned.newest
        if planned.look is not None:
            self._paces[key] = planned.look.pace
        before, gang = self._view.slow_gangs.get(key), planned.gang
        # The sentence moves with every step; the condition is a transition.
        if gang is not None and (before is None or before.reason != gang.reason):
            self._view.slow_gangs[key] = gang
            self._wake(key)


def _earlier_manager_slow_gang(job: TrainingJob) -> GangSlow:
    """What an earlier manager said of the gang. A best step of an earlier attempt may be that of a gang of another size."""
    found = find_condition(job.status.conditions, GANG_SLOW)
    if found is None or found.status != "True":
        return NOT_SLOW
    raised, since = job.status.attempt_raised_at, found.last_transition_time
    is_same = raised is None or (since is not None and raised <= since)
    return GangSlow(found.reason, found.message, 1.0, job.status.best_step_seconds if is_same else 0.0)
