"""The informers that the manager's controllers share, and the joins over them that more than one controller needs."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import msgspec

from remuda.api.conditions import find_condition, is_condition_true
from remuda.api.devices import LauncherReport, NodeDevices
from remuda.api.errors import NotFound
from remuda.api.incidents import Incident
from remuda.api.kubernetes.core_v1 import NODE_LEASE_NAMESPACE, Lease, Node, Pod
from remuda.api.meta import to_time
from remuda.api.names import LABEL_GANG
from remuda.api.remedies import RemedyPolicy
from remuda.api.rollouts import NodeRollout
from remuda.api.training import TrainingJob
from remuda.core.foreign.gangs import foreign_gang_of
from remuda.core.foreign.refused_pods import is_pod_refused_by_node, owner_of_refused_pods
from remuda.core.health.agent_liveness import (
    AgentLeaseRenewals,
    liveness_lease_name,
    node_of_liveness_lease,
    nodes_with_agent,
    unreported_nodes,
)
from remuda.core.health.fence_bounds import LONGEST_LEASE_S, promised_fence_bound_s
from remuda.core.health.mass_silence import MassSilenceRule, MassSilences, NodeSilence, node_silence_of
from remuda.core.health.own_stalls import NO_STALLS, DeafTime, OwnStalls, StallHistory
from remuda.core.health.peer_holds import PeerHolds
from remuda.core.health.peer_vouching import peers_speak_for_s
from remuda.core.health.step_samples import GangSlow
from remuda.core.remedies.policies import policy_in_force
from remuda.core.remedies.remedy_keys import is_workload_remedy_key
from remuda.core.state.cluster_capacity import (
    ClusterCapacity,
    ledger_keeps_cluster_capacity,
    node_amounts,
    node_keeps_cluster_capacity,
    sum_capacity,
)
from remuda.core.state.reservations import Reservation
from remuda.core.state.snapshot import Snapshot, build_snapshot
from remuda.core.training.lent_spares import is_preemptible_pod, loan_reservations
from remuda.core.training.planning_context import GANG_TOO_LARGE
from remuda.kube.cluster import Cluster
from remuda.kube.runtime.informer import Informer
from remuda.link.progress_board import Heartbeat

HELD_LOOK_S, CONFIRM_S = 0.2, 2.0


class ClusterView:
    """What the manager sees: one informer per kind, synced before any controller starts."""

    def __init__(
        self,
        cluster: Cluster,
        *,
        jitter: Callable[[], float],
        clock: Callable[[], float] | None = None,
        stalls: OwnStalls | None = None,
        term_left: Callable[[], float] = lambda: math.inf,
        mass_silence: MassSilenceRule = MassSilenceRule(),  # noqa: B008 - an immutable value
    ) -> None:
        """`clock`: says when renewals of leases are seen; without it the holders' clocks are believed. `stalls`: our own.
        `term_left`: for how many seconds nobody else can lead."""
        self._term_left = term_left
        self.mass_silences = MassSilences(mass_silence)
        self._held_at, self._held = -math.inf, frozenset[str]()
        self._lost = frozenset[str]()  # found lost since the last look at all nodes
        self._confirmed_at = -math.inf
        self._mass_unheard = MassSilences(mass_silence)
        self._unheard_at, self._unheard = -math.inf, frozenset[str]()
        self._promised: dict[str, float] = {}  # by node: when it was last heard of beside the API, and told to run on
        self._cluster = cluster
        self._clock = clock
        self._stalls = stalls
        self._renewals = AgentLeaseRenewals()
        self._peer_holds = PeerHolds()
        self._asked: dict[str, Lease] = {}  # by node: leases as the API itself gave them
        self.jobs = Informer(cluster, TrainingJob, jitter=jitter)
        self.pods = Informer(cluster, Pod, jitter=jitter)
        self.nodes = Informer(cluster, Node, jitter=jitter)
        self.devices = Informer(cluster, NodeDevices, jitter=jitter)
        self.leases = Informer(cluster, Lease, namespace=NODE_LEASE_NAMESPACE, jitter=jitter)
        self.policies = Informer(cluster, RemedyPolicy, jitter=jitter)
        self.incidents = Informer(cluster, Incident, jitter=jitter)
        self.rollouts = Informer(cluster, NodeRollout, jitter=jitter)
        self.pods.add_index("gang", lambda p: [pod_gang_index_key(p)] if LABEL_GANG in p.labels else [])
        self.pods.add_index("node", lambda p: [p.spec.node_name] if p.spec.node_name else [])
        self.pods.add_index("foreign-gang", lambda p: [gang] if (gang := foreign_gang_of(p)) else [])
        self.pods.add_index("rejected", lambda p: [owner_of_refused_pods(p)] if is_pod_refused_by_node(p) else [])
        self.incidents.add_index("node", lambda i: [i.spec.subject.node] if i.spec.subject.node else [])
        self.incidents.add_index("gang", cluster_view_incident_gang_keys)
        self.incidents.add_index("open-node", lambda i: [i.spec.subject.node] if i.is_open else [])
        self.incidents.add_index("domain", lambda i: ["*"] if i.spec.subject.domain else [])
        self.pods.add_index("would-borrow", lambda p: ["*"] if waits_preemptible_in_cluster_view(p) else [])
        self.jobs.add_index("lender", lambda j: ["*"] if j.spec.lend_spares and not j.is_finished else [])
        self.jobs.add_index("loans", lambda j: ["*"] if j.status.loans else [])
        self.jobs.add_index("borrower", lambda j: {b.uid for loan in j.status.loans for b in loan.borrowers})
        self.jobs.add_index("seat-node", lambda j: {s.node for r in j.status.recoveries for s in r.seats})
        # Launcher reports by pod uid, kept as the agents write them: a look costs its own gang, not the cluster.
        self.reports: dict[str, LauncherReport] = {}
        self.penalties: dict[
            str, int
        ] = {}  # by node: what speaks against placing there, as the verdict controller says
        self.slow_gangs: dict[tuple[str, str], GangSlow] = {}  # by job: the straggler watch's word; none = not known
        self._amounts: dict[str, frozenset[tuple[str, int]]] = {}  # by node: what it has in all
        self._capacity: ClusterCapacity | None = None
        self.held: dict[str, tuple[str, ...]] = {}  # devices by pod uid, as its node says it
        self._in_force: dict[str, RemedyPolicy] = {}  # by name: what is acted on
        self.devices.subscribe(self._index_reports)
        self.nodes.subscribe(self._measure_node)
        self.devices.subscribe(self._measure_ledger)
        self.jobs.add_index(
            "too-large", lambda j: ["*"] if is_condition_true(j.status.conditions, GANG_TOO_LARGE) else []
        )
        self.policies.subscribe(self._judge_policy)
        self.leases.subscribe(self._see_lease)

    @property
    def informers(self) -> tuple[Informer[Any], ...]:
        return (
            self.jobs,
            self.pods,
            self.nodes,
            self.devices,
            self.leases,
            self.policies,
            self.incidents,
            self.rollouts,
        )

    def _measure_node(self, old: Node | None, new: Node | None) -> None:
        if node_keeps_cluster_capacity(old, new):
            return
        self._capacity = None
        if new is not None:
            self._amounts[new.name] = node_amounts(new, self.devices.get(new.name))
        elif old is not None:
            self._amounts.pop(old.name, None)

    def _measure_ledger(self, old: NodeDevices | None, new: NodeDevices | None) -> None:
        if new is not None and not ledger_keeps_cluster_capacity(old, new):
            self._measure_node(None, self.nodes.get(new.name))

    def capacity(self) -> ClusterCapacity:
        """What all nodes have in all."""
        if self._capacity is None:
            self._capacity = sum_capacity(self._amounts.values())
        return self._capacity

    @property
    def policies_in_force(self) -> list[RemedyPolicy]:
        return list(self._in_force.values())

    def policy_in_force(self, name: str) -> RemedyPolicy | None:
        return self._in_force.get(name)

    def _judge_policy(self, old: RemedyPolicy | None, new: RemedyPolicy | None) -> None:
        if new is not None:
            self._in_force[new.name] = policy_in_force(new)
        elif old is not None:
            self._in_force.pop(old.name, None)

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

    def has_beat(self, node: str, beat: Heartbeat) -> bool:
        """Whether the pod of a heartbeat is on that node, and of that gang."""
        gang = f"{beat.namespace}/{beat.gang}"
        return any(p.uid == beat.uid and pod_gang_index_key(p) == gang for p in self.pods.by_index("node", node))

    def unreported_nodes(self, now: float) -> frozenset[str]:
        leases = (lease.name for lease in self.leases.items())
        return unreported_nodes(self.devices.items(), leases, self.lease_as_seen, now)

    def agentless_nodes(self, now: float) -> frozenset[str]:
        leases = {lease.name for lease in self.leases.items()}
        served = nodes_with_agent(self.devices.items(), leases, self.lease_as_seen, now)
        return frozenset(node.name for node in self.nodes.items()) - served

    def is_dead(self, node: str, now: float) -> bool:
        """Its lease ran out: by then its agent has fenced itself, so its ranks may be handed on. Not when most others fell silent
        with it."""
        return node in self.dead_nodes(now, only=node)

    def dead_nodes(self, now: float, only: str = "") -> frozenset[str]:
        silent = self._silent_nodes(now, only)
        if not silent:
            return silent
        lost = silent - self.held_nodes(now)
        if not lost <= self._lost:  # silent since the last look, which then knew nothing of it
            self._held_at = -math.inf
            lost = silent - self.held_nodes(now)
            self._lost |= lost
        return lost

    def _silent_nodes(self, now: float, only: str = "") -> frozenset[str]:
        nodes = [only] if only else [lease.name for lease in self.leases.items()]
        stalls = self.own_stalls
        expiries = ((node, self.lease_expiry(node, stalls)) for node in nodes)
        return frozenset(node for node, expiry in expiries if expiry is not None and now > expiry)

    def unfit_nodes(self, now: float) -> frozenset[str]:
        """Nothing new is placed on them: silent, whatever the reason."""
        return self._silent_nodes(now)

    def is_held(self, node: str, now: float) -> bool:
        return bool(self._silent_nodes(now, only=node)) and node in self.held_nodes(now)

    def held_nodes(self, now: float) -> frozenset[str]:
        """Silent together with most of their zone, or their peers may have told them to run on: nobody is replaced for it. Looked
        at anew now and then, since it costs a look at every node."""
        if not self._held_at <= now < self._held_at + HELD_LOOK_S:
            silences = self._node_silences()
            given_up = {node.name for node in silences if node.is_given_up}
            by_peers = self._peer_holds.look(now, self._promised) - given_up
            self._held_at, self._held = now, self.mass_silences.look(silences, now) | by_peers
            self._lost = frozenset()
        return self._held

    def peers_speak_for_s(self, node: str) -> float:
        """How long after its last renewal the node may run on its peers' words."""
        lease_s = self._fencing_lease_s(node)
        return peers_speak_for_s(self.mass_silences.rule, lease_s) if lease_s else 0.0

    def labels_of_agents(self) -> dict[str, Mapping[str, str]]:
        """Labels of the nodes whose agent has a lease: only what they say to peers can be known."""
        agents = {node_of_liveness_lease(lease.name) for lease in self.leases.items()}
        return {node.name: node.labels for node in self.nodes.items() if node.name in agents}

    def _node_silences(self) -> list[NodeSilence]:
        found, stalls = list[NodeSilence](), self.own_stalls
        for node in self.nodes.items():
            ends_at, lease = self.lease_expiry(node.name, stalls), self.leases.get(node.name, NODE_LEASE_NAMESPACE)
            if ends_at is not None and lease is not None:
                found.append(node_silence_of(node, ends_at, lease))
        return found

    def unheard_times(self, node: str, now: float) -> tuple[DeafTime, ...]:
        """Times in which nothing that the node's agent reports could reach us, whether it is heard beside the API or not. One
        that is unheard for a whole lease, and not together with most others, is waited for no longer: its gang has to go on."""
        lease = self._reporting_lease(node)
        times = self._renewals.unheard_times(lease, now) if lease is not None else ()
        if lease is None or not times or times[-1].until < now:
            return times
        ends_at = self._report_expiry(lease, self.own_stalls)
        is_awaited = now <= ends_at or node in self._unheard_with_most(now, ends_at)
        return times if is_awaited else times[:-1]

    def _unheard_with_most(self, now: float, since: float) -> frozenset[str]:
        """Nodes that are unheard together with most of their zone, as of a look after `since`."""
        if not since < self._unheard_at <= now < self._unheard_at + HELD_LOOK_S:
            stalls = self.own_stalls
            found = ((node, self._reporting_lease(node.name)) for node in self.nodes.items())
            silences = [node_silence_of(n, self._report_expiry(lease, stalls), lease) for n, lease in found if lease]
            self._unheard_at, self._unheard = now, self._mass_unheard.look(silences, now)
        return self._unheard

    def _reporting_lease(self, node: str) -> Lease | None:
        """That of whoever reports for the node: its agent's; without one, the agent lives and dies with the node."""
        own = self.leases.get(liveness_lease_name(node), NODE_LEASE_NAMESPACE)
        return own or self.leases.get(node, NODE_LEASE_NAMESPACE)

    def _report_expiry(self, lease: Lease, stalls: StallHistory) -> float:
        heard, lease_s = self._renewals.renewed_at(lease), min(lease.spec.lease_duration_seconds, LONGEST_LEASE_S)
        return stalls.countdown_ends_at(heard, lease_s) if heard is not None else math.inf

    def lease_expiry(self, node: str, stalls: StallHistory | None = None) -> float | None:
        """When nobody speaks for the node any more: neither its kubelet, nor an agent that has a lease of its own and would stop
        its ranks, nor the node itself beside the API."""
        copies = (self.leases.get(node, NODE_LEASE_NAMESPACE), self._asked.get(node))
        if all(lease is None for lease in copies):
            return None
        stalls, agents = stalls or self.own_stalls, self.leases.get(liveness_lease_name(node), NODE_LEASE_NAMESPACE)
        ends = [
            stalls.countdown_ends_at(heard, min(lease.spec.lease_duration_seconds, LONGEST_LEASE_S))
            for lease in (*copies, agents)
            if lease is not None and (heard := self._renewals.renewed_at(lease)) is not None
        ]
        if ends and (promised := self._promised.get(node)) is not None:
            ends.append(stalls.countdown_ends_at(promised, self._fencing_lease_s(node)))
        return max(ends, default=None)

    def promise(self, node: str, now: float) -> float:
        """The node asks beside the API whether its ranks stay its own: for how many seconds they do, 0 = not at all. It counts as
        heard, so nothing is handed on before that is over; and it is not told so when that may have happened already."""
        lease_s = self._fencing_lease_s(node)
        if not lease_s or self.is_dead(node, now):
            return 0.0
        seconds = promised_fence_bound_s(lease_s, self._term_left())
        if seconds:
            self._promised[node] = now
        return seconds

    def _fencing_lease_s(self, node: str) -> float:
        """The length of the lease by which the node fences itself; 0 when it has none."""
        lease = self._reporting_lease(node)
        return float(min(lease.spec.lease_duration_seconds, LONGEST_LEASE_S)) if lease is not None else 0.0

    def lease_as_seen(self, name: str) -> Lease | None:
        """A lease with the time of its renewal by the manager's clock."""
        lease = self.leases.get(name, NODE_LEASE_NAMESPACE)
        heard = self._renewals.renewed_at(lease) if lease is not None else None
        if lease is None or heard is None:
            return lease
        heard = self.own_stalls.counted_from(heard, lease.spec.lease_duration_seconds)
        return msgspec.structs.replace(lease, spec=msgspec.structs.replace(lease.spec, renew_time=to_time(heard)))

    @property
    def own_stalls(self) -> StallHistory:
        """As of now."""
        return self._stalls.known(self._clock()) if self._stalls is not None and self._clock is not None else NO_STALLS

    def _see_lease(self, old: Lease | None, new: Lease | None) -> None:
        if new is not None and self._clock is not None:
            self._renewals.see(new, self._clock())
            self._peer_holds.see(new, self._clock())
        elif new is None and old is not None:
            self._renewals.forget(old.name)
            self._peer_holds.forget(old.name)
            self._promised.pop(old.name, None)

    async def confirm_dead(self, nodes: Iterable[str], now: float) -> None:
        """Ask the API about those whose lease seems to have run out. The copy may merely be late, and to take a living node for
        a dead one would run its ranks twice."""
        asked_for = sorted(set(nodes))
        if any(self.is_held(node, now) for node in asked_for):
            await self.confirm_silent(now)
        for node in asked_for:
            if self.is_dead(node, now):
                try:
                    asked = self._asked[node] = await self._cluster.get(Lease, node, NODE_LEASE_NAMESPACE)
                    if self._clock is not None:
                        self._renewals.see(asked, now)
                except NotFound:
                    self._asked.pop(node, None)

    async def confirm_silent(self, now: float) -> None:
        """Most nodes seem silent: ask the API for all leases at once, now and then. Were it only our copy that is late, those
        that are really lost would be held for the sake of the others."""
        if not self.held_nodes(now) or self._confirmed_at <= now < self._confirmed_at + CONFIRM_S:
            return
        self._confirmed_at = now
        for lease in (await self._cluster.list(Lease, NODE_LEASE_NAMESPACE)).items:
            self._asked[lease.name] = lease
            if self._clock is not None:
                self._renewals.see(lease, now)
                self._peer_holds.see(lease, now)
        self._held_at = -math.inf

    def snapshot(self, now: float, asker: str = "") -> Snapshot:
        """`asker`: the gang that looks; what is reserved for it is free to it."""
        nodes, devices, pods = self.nodes.items(), self.devices.items(), self.pods.items()
        picture = build_snapshot(
            nodes,
            devices,
            pods,
            self.unfit_nodes(now),
            penalties=self.penalties,
            reserved=self.reserved(),
            agentless=self.agentless_nodes(now),
        )
        return picture.opened_to(asker)

    def snapshot_of(self, node: str, now: float, asker: str = "") -> Snapshot:
        """One node alone: costs its own pods, not the cluster."""
        found, ledger = self.nodes.get(node), self.devices.get(node)
        mine = [r for r in self.reserved() if r.node == node]
        picture = build_snapshot(
            [found] if found is not None else [],
            [ledger] if ledger is not None else [],
            self.pods.by_index("node", node),
            self._silent_nodes(now, only=node),
            reserved=mine,
        )
        return picture.opened_to(asker)

    def reserved(self) -> list[Reservation]:
        """Places that gangs have lent."""
        return [place for job in self.jobs.by_index("loans", "*") for place in loan_reservations(job)]


def waits_preemptible_in_cluster_view(pod: Pod) -> bool:
    """A preemptible pod that the scheduler has refused."""
    if pod.spec.node_name or pod.is_terminal or pod.is_deleting or not is_preemptible_pod(pod):
        return False
    said = find_condition(pod.status.conditions, "PodScheduled")
    return said is not None and said.status == "False"


def pod_gang_index_key(pod: Pod) -> str:
    return f"{pod.namespace}/{pod.labels.get(LABEL_GANG, '')}"


def cluster_view_incident_gang_keys(incident: Incident) -> set[str]:
    """TrainingJobs that the incident is about or tells of, as namespace/name."""
    subject, status = incident.spec.subject, incident.status
    found = {f"{subject.namespace}/{subject.gang}"} if subject.gang else set()
    found |= {r.target for r in status.remedies if is_workload_remedy_key(r.key)}
    return found | {f"{a.pod.partition('/')[0]}/{a.gang}" for a in status.affected if a.gang and "/" not in a.gang}
