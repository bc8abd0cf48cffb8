"""Incident controller: one record per failure, from its first signal to its verified cure.

Keyed by subject, so that a look costs its own node or gang: ("node", name) for devices and nodes, ("gang", namespace, name) for
interruptions, ("domains",) for what failed together, ("leases",) and ("retention",) for what only time tells. Everything is
decided in `core.incidents`; names are made there, so whatever this repeats after a crash it finds done.

An incident is made first and its status written after, guarded by its version: the remedy controller writes the same status. A
blank one that a crash left behind is filled by the next look. What a look at a node has itself written about a device that is
still failed tells it nothing: the informer's word of it wakes no other look.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import msgspec
import structlog

from remuda.api.codec import to_wire
from remuda.api.devices import DeviceState, NodeDevices
from remuda.api.errors import AlreadyExists, Conflict, NotFound
from remuda.api.incidents import Incident, IncidentPhase, IncidentStatus, SubjectKind
from remuda.api.kubernetes.core_v1 import Lease, Node, Pod
from remuda.api.meta import JsonObject
from remuda.api.training import TrainingJob
from remuda.controllers.cluster_view import ClusterView
from remuda.controllers.domain_suspicion import DomainSuspicion
from remuda.controllers.incident_observation import (
    GonePods,
    cluster_view_incidents_by_member,
    gang_incident_observation,
    node_incident_observation,
)
from remuda.core.health.agent_liveness import node_of_liveness_lease
from remuda.core.incidents.closing import Retention, outdated_incidents
from remuda.core.incidents.device_incidents import plan_device_incidents
from remuda.core.incidents.domain_incidents import plan_domain_incidents
from remuda.core.incidents.gang_incidents import GangIncidentView, plan_gang_incidents
from remuda.core.incidents.mass_silence_incidents import is_mass_silence_incident, plan_mass_silence_incidents
from remuda.core.incidents.names import IncidentPlan, IncidentTimes, incident_subject_name
from remuda.core.incidents.node_incidents import plan_node_incidents
from remuda.core.incidents.pods import NodeIncidentView
from remuda.kube.cluster import Cluster, Preconditions
from remuda.kube.runtime.events import SILENCE, EventSink
from remuda.kube.runtime.work_queue import WorkQueue

log = structlog.get_logger(__name__)

Key = tuple[str, ...]
IncidentView = NodeIncidentView | GangIncidentView | Key

WORKERS = 8
LEASES_S = 5.0  # how often leases are looked over: one that ran out says nothing
RETENTION_S = 600.0
CORRELATE_S = 1.0  # several failures with one cause come one after another
# What a look at a node writes from what it sees there; a second look would say the same.
_LOOKED_AT = frozenset("affected deviceUuid devices evidence firstSignalAt message nodeUid openedAt verdict".split())
DOMAINS: Key = ("domains",)
LEASES: Key = ("leases",)
RETENTION: Key = ("retention",)


class IncidentController:
    """A `Reconciler` keyed by subject."""

    def __init__(
        self,
        cluster: Cluster,
        view: ClusterView,
        queue: WorkQueue[Key],
        clock: Callable[[], float],
        suspicion: DomainSuspicion,
        *,
        events: EventSink = SILENCE,
    ) -> None:
        self._cluster = cluster
        self._view = view
        self._queue = queue
        self._clock = clock
        self._times = IncidentTimes()
        self._retention = Retention()
        self._events = events
        self._watching_since: float | None = None
        self._lost: set[str] = set()  # nodes whose lease had run out at the last look over
        self._making: set[str] = set()  # incidents whose beginning the informer has yet to bring
        self._writing: dict[str, IncidentStatus] = {}  # as of a look at their node, and not yet brought back
        self._gone = GonePods(clock)
        self._suspicion = suspicion
        suspicion.subscribe(lambda _: queue.add_after(DOMAINS, CORRELATE_S))
        view.devices.subscribe(self._on_devices)
        view.pods.subscribe(self._on_pod)
        view.nodes.subscribe(self._on_node)
        view.leases.subscribe(self._on_lease)
        view.jobs.subscribe(self._on_job)
        view.incidents.subscribe(self._on_incident)

    def begin(self) -> None:
        """The looks that only time asks for. Called when the informers are synced."""
        for key in (LEASES, RETENTION, DOMAINS):
            self._queue.add(key)

    # -- what wakes a look ------------------------------------------------------------------------------------------

    def _on_devices(self, old: NodeDevices | None, new: NodeDevices | None) -> None:
        devices = new or old
        assert devices is not None
        is_changed = (
            new is None or old is None or _bad_verdicts(old) != _bad_verdicts(new) or old.notices != new.notices
        )
        if (is_changed and (new is None or _bad_verdicts(new) or new.notices)) or self._has_open_incident(devices.name):
            self._queue.add(("node", devices.name))

    def _on_pod(self, old: Pod | None, new: Pod | None) -> None:
        pod = new or old
        assert pod is not None
        if new is None:
            self._gone.add(pod)
        is_news = old is None or new is None or _pod_facts_that_wake(old) != _pod_facts_that_wake(new)
        if is_news and pod.spec.node_name and self._has_open_incident(pod.spec.node_name):
            self._queue.add(("node", pod.spec.node_name))

    def _on_node(self, old: Node | None, new: Node | None) -> None:
        node = new or old
        assert node is not None
        if (old is None or new is None or old.uid != new.uid) and self._has_open_incident(node.name):
            self._queue.add(("node", node.name))

    def _on_lease(self, old: Lease | None, new: Lease | None) -> None:
        lease = new or old
        assert lease is not None
        if lease.name in self._lost:
            self._queue.add(("node", lease.name))

    def _on_job(self, old: TrainingJob | None, new: TrainingJob | None) -> None:
        job = new or old
        assert job is not None
        key = ("gang", job.namespace, job.name)
        is_news = old is None or new is None or _job_interruptions(old) != _job_interruptions(new)
        if (is_news and job.status.recoveries) or self._has_gang_incident(job.namespace, job.name):
            self._queue.add(key)

    def _on_incident(self, old: Incident | None, new: Incident | None) -> None:
        incident = new or old
        assert incident is not None
        subject = incident.spec.subject
        if subject.node and not self._is_echo(old, new):
            self._queue.add(("node", subject.node))
        elif subject.gang and new is not None:
            self._queue.add(("gang", subject.namespace, subject.gang))
        if new is None or subject.gang:
            return
        if old is None or old.status.first_signal_at != new.status.first_signal_at:
            for job in self._view.jobs.by_index("seat-node", subject.node) if subject.node else ():
                self._queue.add(("gang", job.namespace, job.name))
        if new.status.part_of or subject.domain or (old is None and self._suspicion.suspects):
            self._queue.add_after(DOMAINS, CORRELATE_S)

    def _is_echo(self, old: Incident | None, new: Incident | None) -> bool:
        """Whether it is our own write that comes back, as it was written."""
        if new is None:
            return False
        if old is None:
            is_made = new.name in self._making
            self._making.discard(new.name)
            return is_made and new.status == IncidentStatus()
        written = self._writing.pop(new.name, None)
        return written is not None and new.status == written and new.spec == old.spec

    def _has_open_incident(self, node: str) -> bool:
        return bool(self._view.incidents.by_index("open-node", node))

    def _has_gang_incident(self, namespace: str, gang: str) -> bool:
        named = self._view.incidents.by_index("gang", f"{namespace}/{gang}")
        return any(i.is_open and i.spec.subject.kind is SubjectKind.GANG for i in named)

    # -- observe, plan, apply ---------------------------------------------------------------------------------------

    async def observe(self, key: Key) -> IncidentView:
        now = self._clock()
        if self._watching_since is None:
            self._watching_since = now
        match key:
            case ("node", name):
                await self._view.confirm_dead([name], now)
                return node_incident_observation(self._view, name, self._gone.of(name), now)
            case ("gang", namespace, name):
                return gang_incident_observation(self._view, namespace, name)
        if key == LEASES:
            await self._view.confirm_silent(now)
        return key

    def plan(self, observed: IncidentView, now: float) -> IncidentPlan:
        incidents = self._view.incidents
        if isinstance(observed, NodeIncidentView):
            since = self._watching_since or now
            mine = incidents.by_index("node", observed.name)
            of_devices = plan_device_incidents(observed, mine, now, self._times)
            return _joined_plans(of_devices, plan_node_incidents(observed, mine, now, self._times, since))
        if isinstance(observed, GangIncidentView):
            return plan_gang_incidents(observed, self._incidents_concerning(observed), now, self._times)
        if observed == DOMAINS:
            suspects = self._suspicion.suspects
            parts = cluster_view_incidents_by_member(self._view, suspects)
            domains = [i for i in incidents.by_index("domain", "*") if not is_mass_silence_incident(i)]
            return plan_domain_incidents(suspects, domains, parts, incidents.get, now)
        if observed == RETENTION:
            needed = {order.incident for devices in self._view.devices.items() for order in devices.quarantine.values()}
            removed = outdated_incidents(incidents.items(), now, self._retention, needed)
            return IncidentPlan(removed=tuple(removed), look_again_s=RETENTION_S)
        lost = {node for node in self._view.dead_nodes(now) if not node_of_liveness_lease(node)}
        for node in sorted(lost ^ self._lost):
            self._queue.add(("node", node))
        self._lost = lost
        silences = self._view.mass_silences
        self._view.held_nodes(now)
        domains = incidents.by_index("domain", "*")
        together = plan_mass_silence_incidents(silences.standing.values(), domains, silences.rule, now)
        return _joined_plans(together, IncidentPlan(look_again_s=LEASES_S))

    def _incidents_concerning(self, sight: GangIncidentView) -> list[Incident]:
        found = {i.name: i for i in self._view.incidents.by_index("gang", sight.target)}
        for recovery in sight.job.status.recoveries if sight.job is not None else ():
            for node in sorted({seat.node for seat in recovery.seats}):
                found |= {i.name: i for i in self._view.incidents.by_index("node", node)}
        return sorted(found.values(), key=lambda i: i.name)

    async def apply(self, planned: IncidentPlan) -> float | None:
        for before, status in planned.amended_before_opening:
            await self._write_status(before, status)
        made: dict[str, Incident] = {}
        for incident in planned.opened:
            try:
                self._making.add(incident.name)
                made[incident.name] = await self._cluster.create(Incident, incident)
            except AlreadyExists:
                self._making.discard(incident.name)
                # Made by an earlier life of ours, or a moment ago: the informer brings it, and the next look amends it.
                made[incident.name] = await self._cluster.get(Incident, incident.name)
        for before, status in planned.amended_after_opening:
            incident = made.get(before.name, before)
            if before.name in made and incident.status != IncidentStatus():
                raise Conflict(f"{before.name} is there already")
            await self._write_status(incident, status)
        for incident in planned.removed:
            try:
                when = Preconditions(uid=incident.uid, resource_version=incident.metadata.resource_version)
                await self._cluster.delete(Incident, incident.name, when=when)
            except (NotFound, Conflict):
                pass  # gone, or written meanwhile: the next look decides anew
        return planned.look_again_s

    async def _write_status(self, incident: Incident, status: IncidentStatus) -> None:
        patch = _incident_status_patch(incident.status, status)
        if not patch:
            return
        when = Preconditions(uid=incident.uid, resource_version=incident.metadata.resource_version)
        if incident.spec.subject.device and patch.keys() <= _LOOKED_AT and status.phase is not IncidentPhase.CLOSED:
            self._writing[incident.name] = status
        try:
            await self._cluster.patch(Incident, incident.name, {"status": patch}, subresource="status", when=when)
        except NotFound:
            return
        self._record_events(incident, status)

    def _record_events(self, incident: Incident, status: IncidentStatus) -> None:
        before = incident.status
        what = incident_subject_name(incident.spec.subject)
        if before.opened_at is None:
            log.warning("incident opened", incident=incident.name, reason=status.verdict.reason)
            hit = f" Hit: {', '.join(a.pod for a in status.affected[:4])}." if status.affected else ""
            self._events.warning(incident, "IncidentOpened", f"{what}: {status.verdict.reason}.{hit} {status.message}")
        if before.phase is not IncidentPhase.CLOSED and status.phase is IncidentPhase.CLOSED:
            log.info("incident closed", incident=incident.name, outcome=status.outcome)
            words = f"{what}: {status.outcome}. {status.message} {status.lost_gpu_hours:.2f} GPU-hours lost."
            self._events.normal(incident, "IncidentClosed", words)


def _incident_status_patch(before: IncidentStatus, after: IncidentStatus) -> JsonObject:
    """A merge patch of the fields that changed."""
    old, new = to_wire(before), to_wire(after)
    changed: JsonObject = {name: value for name, value in new.items() if old.get(name) != value}
    for name in old.keys() - new.keys():
        changed[name] = None
    if isinstance(changed.get("verdict"), dict):  # a merge patch merges it; what it no longer says has to go
        gone = to_wire(before.verdict).keys() - changed["verdict"].keys()
        changed["verdict"] = {**changed["verdict"], **dict.fromkeys(gone)}
    return changed


def _joined_plans(one: IncidentPlan, other: IncidentPlan) -> IncidentPlan:
    waits = [s for s in (one.look_again_s, other.look_again_s) if s is not None]
    return IncidentPlan(
        (*one.opened, *other.opened), (*one.amended, *other.amended), look_again_s=min(waits, default=None)
    )


def _bad_verdicts(devices: NodeDevices) -> list[tuple[object, ...]]:
    """What is wrong with its devices; holders come and go without an incident."""
    fine = (DeviceState.HEALTHY, DeviceState.UNKNOWN)
    return [(v.device, v.state, v.reason, v.since) for v in devices.verdicts if v.state not in fine]


def _pod_facts_that_wake(pod: Pod) -> tuple[object, ...]:
    """All that an incident tells of a pod; what conditions say follows from it, and some of them are ours."""
    meta = pod.metadata
    status = msgspec.structs.replace(pod.status, conditions=[])
    return pod.spec, status, meta.uid, meta.labels, meta.annotations, meta.owner_references, pod.is_deleting


def _job_interruptions(job: TrainingJob) -> Iterable[object]:
    return job.status.recoveries, job.status.phase
