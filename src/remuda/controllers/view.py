"""The informers that the manager's controllers share, and the joins over them that more than one controller needs."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from remuda.api.core_v1 import NODE_LEASE_NAMESPACE, Lease, Node, Pod
from remuda.api.devices import LauncherReport, NodeDevices
from remuda.api.errors import NotFound
from remuda.api.incidents import Incident
from remuda.api.meta import to_seconds
from remuda.api.names import LABEL_GANG
from remuda.api.remedies import RemedyPolicy
from remuda.api.rollouts import NodeRollout
from remuda.api.training import TrainingJob
from remuda.core.failure.foreign_gangs import gang_of
from remuda.core.failure.incidents import is_workload_key
from remuda.core.failure.rejections import is_rejection, owner_key
from remuda.core.failure.samples import GangSlow
from remuda.core.placement.snapshot import Snapshot, build_snapshot
from remuda.kube.cluster import Cluster
from remuda.kube.informer import Informer


class ClusterView:
    """What the manager sees: one informer per kind, synced before any controller starts."""

    def __init__(self, cluster: Cluster, *, jitter: Callable[[], float]) -> None:
        self._cluster = cluster
        self._asked: dict[str, Lease] = {}  # by node: leases as the API itself gave them
        self.jobs = Informer(cluster, TrainingJob, jitter=jitter)
        self.pods = Informer(cluster, Pod, jitter=jitter)
        self.nodes = Informer(cluster, Node, jitter=jitter)
        self.devices = Informer(cluster, NodeDevices, jitter=jitter)
        self.leases = Informer(cluster, Lease, namespace=NODE_LEASE_NAMESPACE, jitter=jitter)
        self.policies = Informer(cluster, RemedyPolicy, jitter=jitter)
        self.incidents = Informer(cluster, Incident, jitter=jitter)
        self.rollouts = Informer(cluster, NodeRollout, jitter=jitter)
        self.pods.add_index("gang", lambda p: [gang_key(p)] if LABEL_GANG in p.labels else [])
        self.pods.add_index("node", lambda p: [p.spec.node_name] if p.spec.node_name else [])
        self.pods.add_index("foreign-gang", lambda p: [gang] if (gang := gang_of(p)) else [])
        self.pods.add_index("rejected", lambda p: [owner_key(p)] if is_rejection(p) else [])
        self.incidents.add_index("node", lambda i: [i.spec.subject.node] if i.spec.subject.node else [])
        self.incidents.add_index("gang", incident_gangs)
        self.incidents.add_index("open-node", lambda i: [i.spec.subject.node] if i.is_open else [])
        self.incidents.add_index("domain", lambda i: ["*"] if i.spec.subject.domain else [])
        self.jobs.add_index("seat-node", lambda j: {s.node for r in j.status.recoveries for s in r.seats})
        # Launcher reports by pod uid, kept as the agents write them: a look costs its own gang, not the cluster.
        self.reports: dict[str, LauncherReport] = {}
        self.penalties: dict[str, int] = {}  # by node: what speaks against placing there, as the failure controller says
        self.slow_gangs: dict[tuple[str, str], GangSlow] = {}  # by job: the straggler watch's word; none = not known
        self.held: dict[str, tuple[str, ...]] = {}  # devices by pod uid, as its node says it
        self.devices.subscribe(self._index_reports)

    @property
    def informers(self) -> tuple[Informer[Any], ...]:
        return (self.jobs, self.pods, self.nodes, self.devices, self.leases, self.policies, self.incidents, self.rollouts)

    def _index_reports(self, old: NodeDevices | None, new: NodeDevices | None) -> None:
        if old is not None:
            for report in old.observed.launchers:
                self.reports.pop(report.uid, None)
            for holding in old.observed.holdings:
                self.held.pop(holding.uid, None)
        if new is not None:
            for report in new.observed.launchers:
                self.reports[report.uid] = report
            for holding in new.observed.holdings:
                self.held[holding.uid] = (*self.held.get(holding.uid, ()), *holding.devices)

    def is_dead(self, node: str, now: float) -> bool:
        """Its lease ran out: by then its agent has fenced itself, so its ranks may be handed on."""
        return node in self.dead_nodes(now, only=node)

    def dead_nodes(self, now: float, only: str = "") -> frozenset[str]:
        nodes = [only] if only else [lease.name for lease in self.leases.items()]
        expiries = ((node, self.lease_expiry(node)) for node in nodes)
        return frozenset(node for node, expiry in expiries if expiry is not None and now > expiry)

    def lease_expiry(self, node: str) -> float | None:
        copies = (self.leases.get(node, NODE_LEASE_NAMESPACE), self._asked.get(node))
        ends = [
            to_seconds(lease.spec.renew_time) + lease.spec.lease_duration_seconds
            for lease in copies
            if lease is not None and lease.spec.renew_time is not None
        ]
        return max(ends, default=None)

    async def confirm_dead(self, nodes: Iterable[str], now: float) -> None:
        """Ask the API about those whose lease seems to have run out. The copy may merely be late, and to take a living node for
        a dead one would run its ranks twice."""
        for node in sorted(set(nodes)):
            if self.is_dead(node, now):
                try:
                    self._asked[node] = await self._cluster.get(Lease, node, NODE_LEASE_NAMESPACE)
                except NotFound:
                    self._asked.pop(node, None)

    def snapshot(self, now: float) -> Snapshot:
        nodes, devices, pods = self.nodes.items(), self.devices.items(), self.pods.items()
        return build_snapshot(nodes, devices, pods, self.dead_nodes(now), penalties=self.penalties)


def gang_key(pod: Pod) -> str:
    return f"{pod.namespace}/{pod.labels.get(LABEL_GANG, '')}"


def incident_gangs(incident: Incident) -> set[str]:
    """TrainingJobs that the incident is about or tells of, as namespace/name."""
    subject, status = incident.spec.subject, incident.status
    found = {f"{subject.namespace}/{subject.gang}"} if subject.gang else set()
    found |= {r.target for r in status.remedies if is_workload_key(r.key)}
    return found | {f"{a.pod.partition('/')[0]}/{a.gang}" for a in status.affected if a.gang and "/" not in a.gang}
