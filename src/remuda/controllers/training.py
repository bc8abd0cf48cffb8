"""TrainingJob controller: observe one gang -> `plan_training` -> apply.

Woken by the job, its pods, launcher reports, verdicts, leases and notable progress. Apply writes the status first, guarded by
the version the plan was made on: raising the attempt *is* the fence, so nothing is deleted or made on a stale look. Deletes
carry the pod's uid; creates use fixed names. Every step may be repeated after a crash.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec
import structlog

from remuda.api.codec import to_wire
from remuda.api.conditions import is_condition_true, with_condition
from remuda.api.devices import DeviceState, NodeDevices, QuarantineOrder, Signal, Verdict
from remuda.api.errors import AlreadyExists, ApiError, Conflict, NotFound, Refusal
from remuda.api.kubernetes.core_v1 import Lease, Node, Pod
from remuda.api.meta import JsonObject, to_time
from remuda.api.names import LABEL_GANG
from remuda.api.training import TrainingJob, TrainingJobSpec
from remuda.controllers.cluster_view import ClusterView, waits_preemptible_in_cluster_view
from remuda.core.gang.kubelet_pods import KubeletGangPodForm, gang_pod_asks_for_devices, is_gang_host_path_refused
from remuda.core.gang.pod_view import MemberProgress, PodView
from remuda.core.remedies.policies import BY_JOB
from remuda.core.scheduling.waiting_gangs import waiting_pod_created_at
from remuda.core.state.cluster_capacity import (
    ClusterCapacity,
    ledger_keeps_cluster_capacity,
    node_keeps_cluster_capacity,
)
from remuda.core.state.leaving_nodes import NodeLeavingState, leaving_state_of_node
from remuda.core.state.snapshot import snapshot_devices_of_pod
from remuda.core.training.backoff import (
    PodCreateBackoff,
    is_new_training_pod_refusal,
    next_training_pod_backoff,
    pod_create_wait_s,
)
from remuda.core.training.job_plan import plan_training
from remuda.core.training.job_status import invalid_job_refusal, with_invalid_job
from remuda.core.training.planning_context import BorrowerRecall, GangObserved, LendingView, PodDeletion, TrainingPlan
from remuda.core.training.spare_lending import DEVICE_RECALLED
from remuda.core.training.status_events import training_job_status_events
from remuda.kube.cluster import Cluster, Preconditions
from remuda.kube.runtime.bulk_writes import write_all_objects
from remuda.kube.runtime.events import SILENCE, EventSink
from remuda.kube.runtime.work_queue import WorkQueue
from remuda.link.progress_board import PodProgress, ProgressBoard

log = structlog.get_logger(__name__)

Key = tuple[str, str]

# For how long a pod that was made counts although the informer does not show it. Longer than any lag worth the name; one that
# came and went within it would otherwise be waited for for ever.
MADE_S = 10.0

NODES_SETTLE_S = 1.0
MOST_BORROWERS = 16  # waiting pods that a gang looks at when it lends


class GangObservation(msgspec.Struct, frozen=True):
    gang: GangObserved
    wake_at: float | None = None  # when a lease under the gang would run out


HELD_S = 2.0  # between two looks at a gang with nodes that are silent together with most others

BAD = (DeviceState.UNHEALTHY, DeviceState.QUARANTINED)
SLOW = (DeviceState.DEGRADED,)


class PlannedTraining(msgspec.Struct, frozen=True):
    job: TrainingJob
    plan: TrainingPlan
    wake_s: float | None


class TrainingController:
    """A `Reconciler` keyed by (namespace, name)."""

    def __init__(
        self,
        cluster: Cluster,
        view: ClusterView,
        board: ProgressBoard,
        queue: WorkQueue[Key],
        clock: Callable[[], float],
        *,
        events: EventSink = SILENCE,
        form: KubeletGangPodForm | None = None,
        capacity: Callable[[], ClusterCapacity] | None = None,
    ) -> None:
        """`form`: how pods are written for kubelets; None = for embedded nodes. `capacity`: what the cluster has in all; None =
        that says nothing, nodes come on demand."""
        self._cluster = cluster
        self._form = form
        self._capacity = capacity
        self._view = view
        self._board = board
        self._queue = queue
        self._clock = clock
        self._events = events
        self._written: dict[Key, tuple[frozenset[str], TrainingJob]] = {}  # versions written over, and what came of it
        self._made: dict[Key, dict[str, tuple[float, Pod]]] = {}  # pods made and not seen in the informer yet, by uid
        self._refused: dict[Key, PodCreateBackoff] = {}
        self._checked: dict[Key, tuple[TrainingJobSpec, Refusal | None]] = {}
        self._relists = 0
        self._since = clock()
        view.jobs.subscribe(self._on_job)
        view.pods.subscribe(self._on_pod)
        view.devices.subscribe(self._on_devices)
        view.leases.subscribe(self._on_lease)
        view.nodes.subscribe(self._on_node)
        board.subscribe(self._on_progress)

    # -- what wakes a gang ------------------------------------------------------------------------------------------

    def _on_job(self, old: TrainingJob | None, new: TrainingJob | None) -> None:
        job = new or old
        if job is None:
            return
        if new is None:
            self._written.pop((job.namespace, job.name), None)
            self._made.pop((job.namespace, job.name), None)
            self._refused.pop((job.namespace, job.name), None)
            self._checked.pop((job.namespace, job.name), None)
            self._board.forget(job.namespace, job.name)
        elif new.metadata.resource_version not in self._written.get((job.namespace, job.name), (frozenset(), None))[0]:
            self._written.pop((job.namespace, job.name), None)  # the informer has caught up
        self._queue.add((job.namespace, job.name))

    def _on_pod(self, old: Pod | None, new: Pod | None) -> None:
        pod = new or old
        if pod is not None and LABEL_GANG in pod.labels:
            key = (pod.namespace, pod.labels[LABEL_GANG])
            self._made.get(key, {}).pop(pod.uid, None)
            self._queue.add(key)
        elif pod is not None:
            lenders = self._view.jobs.by_index("borrower", pod.uid)
            if (
                new is not None
                and waits_preemptible_in_cluster_view(new)
                and (old is None or not waits_preemptible_in_cluster_view(old))
            ):
                lenders = self._view.jobs.by_index("lender", "*")
            for job in lenders:
                self._queue.add((job.namespace, job.name))

    def _on_devices(self, old: NodeDevices | None, new: NodeDevices | None) -> None:
        node = new or old
        if node is not None:
            self._wake_node(node.name)
        if not ledger_keeps_cluster_capacity(old, new):
            self._wake_too_large()

    def _on_node(self, old: Node | None, new: Node | None) -> None:
        """Nodes change all the time; a gang is concerned by the word that one is about to go, and one that waits for larger
        clusters by what a node has."""
        if new is not None and leaving_state_of_node(new) != (leaving_state_of_node(old) if old is not None else None):
            self._wake_node(new.name)
        if not node_keeps_cluster_capacity(old, new):
            self._wake_too_large()

    def _wake_too_large(self) -> None:
        """Nodes come many at a time: a moment later is soon enough."""
        for job in self._view.jobs.by_index("too-large", "*"):
            self._queue.add_after((job.namespace, job.name), NODES_SETTLE_S)

    def _on_lease(self, old: Lease | None, new: Lease | None) -> None:
        if new is None and old is not None:
            self._wake_node(old.name)

    def _wake_node(self, node: str) -> None:
        for pod in self._view.pods.by_index("node", node):
            self._on_pod(None, pod)

    def _on_progress(self, namespace: str, gang: str, notable: bool) -> None:
        if notable:
            self._queue.add((namespace, gang))
        else:
            self._queue.add_after((namespace, gang), 1.0)

    # -- observe, plan, apply ---------------------------------------------------------------------------------------

    async def observe(self, key: Key) -> GangObservation | None:
        job = self._newest(key)
        if job is None:
            return None
        now = self._clock()
        pods = self._pods(key)
        beats = self._board.of_gang(*key)
        mine = [p for p in pods if (owner := p.owner("TrainingJob")) is not None and owner.uid == job.uid]
        await self._view.confirm_dead((p.spec.node_name for p in mine if p.spec.node_name), now)
        views = tuple(self._view_of(p, beats.get(p.uid), now) for p in mine)
        expiries = [
            e for p in mine if p.spec.node_name and (e := self._view.lease_expiry(p.spec.node_name)) and e > now
        ]
        if any(view.node_held or view.is_unheard(now) for view in views):
            expiries.append(now + HELD_S)  # its end, or an operator's word, is no event of this gang
        refused = self._refused.get(key)
        said = refused.message if refused else ""
        gang = GangObserved(
            job,
            views,
            lambda: self._view.snapshot(now, f"{key[0]}/{key[1]}"),
            said,
            self._view.slow_gangs.get(key),
            self._since,
            self._view.own_stalls,
            self._lending(job, now),
            self._capacity,
            on_kubelets=self._form is not None,
        )
        return GangObservation(gang, min(expiries, default=None))

    def _lending(self, job: TrainingJob, now: float) -> LendingView | None:
        if not (job.spec.lend_spares or job.status.loans):
            return None
        waiting = sorted(
            self._view.pods.by_index("would-borrow", "*"), key=lambda p: (waiting_pod_created_at(p), p.name)
        )
        lent = [b for loan in job.status.loans for b in loan.borrowers]
        found = ((b.uid, self._view.pods.get(b.pod, b.namespace)) for b in lent)
        return LendingView(
            waiting=tuple(waiting[:MOST_BORROWERS]),
            pods={**{p.uid: p for p in waiting}, **{u: pod for u, pod in found if pod is not None and pod.uid == u}},
            picture=lambda node: self._view.snapshot_of(node, now, f"{job.namespace}/{job.name}"),
        )

    def plan(self, observed: GangObservation | None, now: float) -> PlannedTraining | None:
        if observed is None:
            return None
        job = observed.gang.job
        if not job.is_finished and not job.is_deleting and (refused := self._refusal(job)) is not None:
            return PlannedTraining(job, TrainingPlan(with_invalid_job(job.status, refused, now)), None)
        plan = plan_training(observed.gang, now)
        waits = [plan.look_again_s] if plan.look_again_s is not None else []
        if observed.wake_at is not None:  # also of a finished job: nobody else clears away what it had on a dead node
            waits.append(max(0.0, observed.wake_at - now) + 0.01)
        return PlannedTraining(observed.gang.job, plan, min(waits, default=None))

    def _refusal(self, job: TrainingJob) -> Refusal | None:
        """Why the job would not have been let in, where the API checks types alone. Looked at once per spec."""
        key = (job.namespace, job.name)
        known = self._checked.get(key)
        if known is None or known[0] != job.spec:
            known = self._checked[key] = job.spec, invalid_job_refusal(job)
        return known[1]

    async def apply(self, planned: PlannedTraining | None) -> float | None:
        if planned is None:
            return None
        job, plan = planned.job, planned.plan
        if plan.status != job.status:
            written = await self._cluster.replace(
                TrainingJob, msgspec.structs.replace(job, status=plan.status), subresource="status"
            )
            self._remember_written(job, written)
            for news in training_job_status_events(job.status, plan.status):
                (self._events.warning if news.is_warning else self._events.normal)(job, news.reason, news.message)
            if plan.status.attempt != job.status.attempt:
                log.info("attempt", job=job.name, attempt=plan.status.attempt, reason=plan.status.reason)
        for order in plan.quarantine:
            by = f"{BY_JOB}{job.namespace}/{job.name}"
            entry = QuarantineOrder(order.reason, order.message, by, to_time(self._clock()))
            patch: JsonObject = {"quarantine": {order.device: to_wire(entry)}}
            await self._cluster.patch(NodeDevices, order.node, patch)
            self._events.warning(job, "DeviceQuarantined", f"{order.device} of {order.node}: {order.message}")
        await write_all_objects(lambda deletion: self._delete(job, deletion), plan.delete)
        await write_all_objects(self._recall, plan.recall)
        if plan.is_over:
            await self._delete_job(job)
            return None
        retry_s = await self._create_all(job, plan.create)
        return min((s for s in (planned.wake_s, retry_s) if s is not None), default=None)

    async def _delete(self, job: TrainingJob, deletion: PodDeletion) -> None:
        when = Preconditions(uid=deletion.uid)
        try:
            await self._cluster.delete(
                Pod, deletion.name, job.namespace, when=when, grace_s=0 if deletion.force else None
            )
        except (NotFound, Conflict):
            pass  # gone already, or another pod of that name: not ours to delete

    async def _recall(self, recalled: BorrowerRecall) -> None:
        """Told first, then deleted with its own grace. No PodDisruptionBudget is asked: preemptible work has agreed."""
        pod, now = recalled.pod, to_time(self._clock())
        said = with_condition(pod.status.conditions, DEVICE_RECALLED, True, recalled.reason, recalled.message, now)
        said = with_condition(said, "DisruptionTarget", True, DEVICE_RECALLED, recalled.message, now)
        try:
            if said is not pod.status.conditions:
                patch: JsonObject = {"status": {"conditions": [to_wire(c) for c in said]}}
                when = Preconditions(uid=pod.uid, resource_version=pod.metadata.resource_version)
                await self._cluster.patch(Pod, pod.name, patch, pod.namespace, subresource="status", when=when)
                self._events.warning(pod, DEVICE_RECALLED, recalled.message)
            await self._cluster.delete(Pod, pod.name, pod.namespace, when=Preconditions(uid=pod.uid))
        except NotFound:
            pass

    async def _delete_job(self, job: TrainingJob) -> None:
        try:
            await self._cluster.delete(TrainingJob, job.name, job.namespace, when=Preconditions(uid=job.uid))
        except (NotFound, Conflict):
            return  # gone already, or another job of that name
        log.info("ttl over", job=job.name, namespace=job.namespace)

    async def _create_all(self, job: TrainingJob, bodies: Sequence[JsonObject]) -> float | None:
        """Seconds until the next try, where they are refused. A new refusal is told, and the next look writes it down."""
        key, now = (job.namespace, job.name), self._clock()
        before = self._refused.get(key)
        if bodies and (pause_s := pod_create_wait_s(before, now)) is not None:
            return pause_s
        try:
            await write_all_objects(lambda body: self._create(job, body), bodies)
        except ApiError as error:
            if not error.is_refusal:
                raise
            after = self._refused[key] = next_training_pod_backoff(before, error.message, now)
            if not is_new_training_pod_refusal(before, after):
                return after.until - now
            log.warning("pods refused", job=job.name, reason=error.reason, message=error.message)
            self._events.warning(job, "FailedCreate", error.message)
            return 0.0
        self._refused.pop(key, None)
        return None

    async def _create(self, job: TrainingJob, body: JsonObject) -> None:
        try:
            pod = await self._create_in_form(job, body)
        except AlreadyExists:
            pod = await self._cluster.get(Pod, body["metadata"]["name"], job.namespace)
            owner = pod.owner("TrainingJob")
            if owner is None or owner.uid != job.uid:
                log.warning("pod name taken", pod=pod.name, job=job.name)
                raise
        seen = self._view.pods.get(pod.name, pod.namespace)
        if seen is None or seen.uid != pod.uid:
            self._made.setdefault((job.namespace, job.name), {})[pod.uid] = (self._clock(), pod)

    async def _create_in_form(self, job: TrainingJob, body: JsonObject) -> Pod:
        if self._form is None:
            return await self._cluster.create(Pod, body)
        try:
            return await self._cluster.create(Pod, self._form.rewrite(body, job.spec.checkpoint))
        except ApiError as error:
            if not (is_gang_host_path_refused(error.message) and gang_pod_asks_for_devices(body)):
                raise
        return await self._cluster.create(Pod, self._form.rewrite(body, job.spec.checkpoint, by_plugin=True))

    def _pods(self, key: Key) -> list[Pod]:
        """The gang's pods: those the informer shows, and those made here that it has yet to show. Without these a look that
        comes too early would make them again, under other names."""
        if self._relists != self._view.pods.relists:
            # The informer listed anew. A pod it did not show then is gone, and nothing would ever say so.
            self._relists = self._view.pods.relists
            self._made.clear()
        made = self._made.get(key, {})
        for uid in [uid for uid, (at, _) in made.items() if self._clock() - at > MADE_S]:
            del made[uid]
        return [*self._view.pods.by_index("gang", f"{key[0]}/{key[1]}"), *(pod for _, pod in made.values())]

    def _newest(self, key: Key) -> TrainingJob | None:
        """The informer's job, or the one written last while the informer has not caught up with that write."""
        job = self._view.jobs.get(key[1], key[0])
        if job is None:
            return None
        over, written = self._written.get(key, (frozenset(), job))
        return written if job.metadata.resource_version in over else job

    def _remember_written(self, job: TrainingJob, written: TrainingJob) -> None:
        """Several of our writes may be ahead of the informer: each version of that row that it shows yet is an old one."""
        key = (job.namespace, job.name)
        over, last = self._written.get(key, (frozenset(), None))
        is_row = last is not None and last.metadata.resource_version == job.metadata.resource_version
        self._written[key] = (over if is_row else frozenset()) | {job.metadata.resource_version}, written

    def _view_of(self, pod: Pod, beat: PodProgress | None, now: float) -> PodView:
        node = pod.spec.node_name
        held = self._view.held.get(pod.uid, ())
        return PodView(
            pod=pod,
            held=held,
            report=self._view.reports.get(pod.uid),
            progress=_observed_member_progress(beat),
            bad_device=self._judged(node, held or snapshot_devices_of_pod(pod), BAD) if node else None,
            slow_device=self._judged(node, held or snapshot_devices_of_pod(pod), SLOW) if node else None,
            leaving=self._leaving(node) if node else None,
            node_dead=bool(node) and self._view.is_dead(node, now),
            node_held=bool(node) and self._view.is_held(node, now),
            unheard=self._view.unheard_times(node, now) if node else (),
            signals=self._signals(node, held or snapshot_devices_of_pod(pod)) if node else (),
            memory_pressure=bool(node) and self._has_pressure(node),
        )

    def _signals(self, node: str, held: tuple[str, ...]) -> tuple[Signal, ...]:
        """What stands against those devices and their node."""
        ledger = self._view.devices.get(node)
        if ledger is None:
            return ()
        own = (s for d in ledger.observed.devices if d.signals and d.id in held for s in d.signals)
        return (*own, *ledger.observed.signals)

    def _has_pressure(self, name: str) -> bool:
        node = self._view.nodes.get(name)
        return node is not None and is_condition_true(node.status.conditions, "MemoryPressure")

    def _judged(self, node: str, held: tuple[str, ...], states: tuple[DeviceState, ...]) -> Verdict | None:
        """The first of those devices whose verdict is one of `states`."""
        ledger = self._view.devices.get(node)
        found = (v for v in ledger.verdicts if v.device in held and v.state in states) if ledger and held else iter(())
        return next(found, None)

    def _leaving(self, name: str) -> NodeLeavingState | None:
        node = self._view.nodes.get(name)
        return leaving_state_of_node(node) if node is not None else None


def _observed_member_progress(beat: PodProgress | None) -> MemberProgress | None:
    if beat is None:
        return None
    return MemberProgress(
        attempt=beat.last.attempt,
        step=beat.last.step,
        time=beat.last.time,
        first_step_time=beat.first_step_time,
        step_seconds=beat.last.step_seconds,
        checkpoint=beat.checkpoint,
        checkpoint_time=beat.checkpoint_time,
        checkpoint_seconds=beat.checkpoint_seconds,
        total_steps=beat.last.total_steps,
        kept=beat.kept,
        safe=beat.last.safe,
    )
