"""Verdict controller: what agents observed and nodes offer -> verdicts, notices and quarantine orders in NodeDevices.

One key per node; writes transitions only. Looks again by itself when a debounce or a hold-down ends, or an agent's lease, or
a finding. What is found beyond the node (domains that fail as one) is kept by `domain_suspicion`; its search, which concerns
no node more than another, has the key `SEARCH`.

It also makes the object of a node whose agent shows itself by its lease: an agent may write nothing but the status of one.

Its own write tells it nothing: what the informer brings back as it was written is not looked at again.

Events about the Node say what became of its devices, and of its plugins once the hold-down is over: until then nothing is made
of it.
"""

from __future__ import annotations

import contextlib

import msgspec
import structlog

from remuda.api.codec import to_wire
from remuda.api.devices import DeviceHistory, DeviceState, NodeDevices, Notice, QuarantineOrder, Signal, Verdict
from remuda.api.errors import AlreadyExists
from remuda.api.kubernetes.core_v1 import Lease, Node, Pod
from remuda.api.meta import JsonObject, to_seconds
from remuda.api.remedies import Offender, RemedyPolicy
from remuda.controllers.cluster_view import ClusterView
from remuda.controllers.domain_suspicion import DomainSuspicion
from remuda.core.health.agent_liveness import (
    agent_lease_ends_at,
    agent_silent_since,
    liveness_lease_name,
    node_of_liveness_lease,
)
from remuda.core.health.correlation import NVSWITCH_FAILED, DomainSuspect
from remuda.core.health.findings import NodeFindings, find_findings
from remuda.core.health.ledger import judge_devices, judge_node, verdicts_summary
from remuda.core.health.node_notices import is_node_notice_held_down, judge_node_notices, notice_hold_ends_at
from remuda.core.health.signal_fusion import classify_device_signals, health_signal_debounce_ends_at
from remuda.core.health.streamed_signals import StreamedSignals
from remuda.core.health.timers import HealthTimers, health_quarantine_for_flapping, health_timers_of
from remuda.core.remedies.policies import remedy_policy_for
from remuda.kube.cluster import Cluster, Preconditions
from remuda.kube.runtime.events import SILENCE, EventSink
from remuda.kube.runtime.work_queue import WorkQueue

log = structlog.get_logger(__name__)

# Nodes judged at a time. A verdict waits for the disk: one after another, the last of a burst would wait for all of them.
WORKERS = 8
SEARCH = ""  # the key of the look for suspects


class NodeObserved(msgspec.Struct, frozen=True):
    devices: NodeDevices
    node: Node | None
    lease: Lease | None = None  # the agent's


class MissingNodeDevices(msgspec.Struct, frozen=True):
    """Of a node that is there. `lease`: its agent's."""

    name: str
    lease: Lease


class NodeJudged(msgspec.Struct, frozen=True):
    node: NodeDevices
    verdicts: list[Verdict]
    notices: list[Notice]
    orders: dict[str, QuarantineOrder]
    look_again_s: float | None = None
    about: Node | None = None  # whom Events are about
    due: tuple[Notice, ...] = ()  # notices whose hold-down is over
    found: NodeFindings = NodeFindings()
    search_s: float | None = None  # until the next search for suspects

    def is_echoed(self, old: NodeDevices | None, new: NodeDevices) -> bool:
        """Whether `new` is what was looked at with what this look has written, and nothing else."""
        if old is not self.node or self.orders or self.found.findings:
            return False  # orders and findings bear on verdicts in their turn
        return new == msgspec.structs.replace(
            old,
            metadata=new.metadata,
            verdicts=self.verdicts,
            summary=old.summary if self.verdicts == old.verdicts else verdicts_summary(self.verdicts),
            notices=self.notices,
            history={**old.history, **self.found.history},
        )


class VerdictController:
    """A `Reconciler` keyed by node name."""

    def __init__(
        self,
        cluster: Cluster,
        view: ClusterView,
        queue: WorkQueue[str],
        *,
        events: EventSink = SILENCE,
    ) -> None:
        self._cluster = cluster
        self._view = view
        self._queue = queue
        self._overlay = StreamedSignals()
        self._events = events
        self._told: dict[str, dict[tuple[str, str], Notice]] = {}  # by node: notices that Events were made of
        self._rules: dict[str, tuple[HealthTimers, Offender]] = {}  # by node, as far as they were asked for
        self._writing: dict[str, NodeJudged] = {}  # by node: what the informer has yet to bring back
        self._suspected: set[str] = set()  # nodes with a suspect switch
        self.suspicion = DomainSuspicion(view.penalties)
        self.suspicion.subscribe(self._on_suspects)
        view.devices.subscribe(self._on_devices)
        view.pods.subscribe(self._on_pod)
        view.nodes.subscribe(self._on_node)
        view.leases.subscribe(self._on_lease)
        view.policies.subscribe(self._on_policy)

    def hear(self, node: str, device: str, signal: Signal, now: float) -> None:
        """A signal from the node's stream, ahead of the agent's own write."""
        if self._overlay.hear(node, device, signal, now):
            self._queue.add(node)

    def _on_devices(self, old: NodeDevices | None, new: NodeDevices | None) -> None:
        self.suspicion.see_devices(old, new)
        name = (new or old).name  # type: ignore[union-attr]
        written = self._writing.pop(name, None)
        if new is not None:
            if written is None or not written.is_echoed(old, new):
                self._queue.add(name)
        elif old is not None:
            self._queue.add(old.name)  # its agent goes on
            self._overlay.forget(old.name)
            self._told.pop(old.name, None)
            self._rules.pop(old.name, None)

    def _on_pod(self, old: Pod | None, new: Pod | None) -> None:
        """Holders change when a pod is bound, ends or goes; its other changes do not matter here."""
        before, after = _node_woken_by_pod(old), _node_woken_by_pod(new)
        if before != after:
            for node in filter(None, (before, after)):
                self._queue.add(node)

    def _on_node(self, old: Node | None, new: Node | None) -> None:
        """Of the node itself only what it offers matters here, and for its policy its labels."""
        if self.suspicion.see_node(old, new):
            self._queue.add(SEARCH)
        if old is not None and (new is None or old.labels != new.labels):
            self._rules.pop(old.name, None)
        if new is not None and (old is None or _node_offer(old) != _node_offer(new)):
            self._queue.add(new.name)

    def _on_lease(self, old: Lease | None, new: Lease | None) -> None:
        """A renewal wakes nobody, except one that ends a silence: the look that is due finds the newest."""
        lease = new or old
        node = node_of_liveness_lease(lease.name) if lease is not None else ""
        if node and (old is None or new is None or agent_silent_since(old, _lease_renewed_at(new)) is not None):
            self._queue.add(node)

    def _on_policy(self, old: RemedyPolicy | None, new: RemedyPolicy | None) -> None:
        """New times count from the next look: nothing is judged anew because somebody changed them."""
        if old is None or new is None or old.spec != new.spec:
            self._rules.clear()

    def _on_suspects(self, suspects: list[DomainSuspect]) -> None:
        """What is found of a switch concerns the other devices on it."""
        before, self._suspected = self._suspected, {n for s in suspects if s.reason == NVSWITCH_FAILED for n in s.nodes}
        for node in sorted(before | self._suspected):
            self._queue.add(node)

    def _rules_of(self, devices: NodeDevices, node: Node | None) -> tuple[HealthTimers, Offender]:
        rules = self._rules.get(devices.name)
        if rules is None:
            type_ = devices.observed.devices[0].type if devices.observed.devices else ""
            policy = remedy_policy_for(
                type_, node.labels if node is not None else {}, self._view.policies_in_force
            ).spec
            rules = health_timers_of(policy.timers), policy.offender
            self._rules[devices.name] = rules
        return rules

    async def observe(self, key: str) -> NodeObserved | MissingNodeDevices | None:
        devices, node = self._view.devices.get(key), self._view.nodes.get(key)
        if devices is None and node is None:
            return None
        lease = self._view.lease_as_seen(liveness_lease_name(key))
        if devices is not None:
            return NodeObserved(devices, node, lease)
        return MissingNodeDevices(key, lease) if lease is not None else None

    def plan(
        self, observed: NodeObserved | MissingNodeDevices | None, now: float
    ) -> NodeJudged | MissingNodeDevices | float | None:
        """A float: seconds until the next search for suspects; all that is planned when there is no node to judge."""
        if isinstance(observed, MissingNodeDevices) and agent_silent_since(observed.lease, now) is None:
            return observed
        if not isinstance(observed, NodeObserved):
            return self._search(now)
        devices, pods = observed.devices, self._view.pods.by_index("node", observed.devices.name)
        timers, offender = self._rules_of(devices, observed.node)
        newest = self._overlay.merged(devices, now)
        silent = agent_silent_since(observed.lease, now)
        classified = classify_device_signals(newest)
        judged = judge_devices(newest, now, timers, classified)
        suspected = self.suspicion.neighbours(devices.name)
        found = find_findings(newest, classified, judged, now, offender, suspected)
        newest = found.on(newest)
        if found.findings:
            judged = judge_devices(newest, now, timers, classified)
        verdicts = judge_node(newest, pods, now, timers, silent_since=silent, judged=judged)
        newest = msgspec.structs.replace(newest, verdicts=verdicts)
        notices = judge_node_notices(newest, observed.node, pods, now, timers, silent_since=silent)
        newest = msgspec.structs.replace(newest, notices=notices)
        if found.history:
            self.suspicion.see_failures(newest)
        self.suspicion.see_held_back(newest)
        if newest.history:
            self.suspicion.score(newest, now)
        looks = (
            health_signal_debounce_ends_at(newest, classified, now, timers),
            notice_hold_ends_at(newest, now),
            agent_lease_ends_at(observed.lease, now),
            found.ends_at,
        )
        ends = [end for end in looks if end is not None]
        again = max(0.0, min(ends) - now) + 0.001 if ends else None
        due = tuple(n for n in notices if not is_node_notice_held_down(n, now))
        orders = health_quarantine_for_flapping(devices, now, timers)
        return NodeJudged(devices, verdicts, notices, orders, again, observed.node, due, found, self._search(now))

    def _search(self, now: float) -> float | None:
        at = self.suspicion.search(now)
        return None if at is None else max(0.0, at - now) + 0.001

    async def apply(self, planned: NodeJudged | MissingNodeDevices | float | None) -> float | None:
        if isinstance(planned, MissingNodeDevices):
            with contextlib.suppress(AlreadyExists):
                await self._cluster.create(NodeDevices, {"metadata": {"name": planned.name}})
            return None
        search_s = planned.search_s if isinstance(planned, NodeJudged) else planned
        if search_s is not None:
            self._queue.add_after(SEARCH, search_s)
        if not isinstance(planned, NodeJudged):
            return None
        node, patch = planned.node, _node_devices_patch(planned)
        if not patch:
            self._tell_notices(planned)
            return planned.look_again_s
        when = Preconditions(resource_version=node.metadata.resource_version)
        self._writing[node.name] = planned
        await self._cluster.patch(NodeDevices, node.name, patch, when=when)
        self._tell_verdicts(planned)
        self._tell_notices(planned)
        return planned.look_again_s

    def _tell_verdicts(self, planned: NodeJudged) -> None:
        before = {v.device: v.state for v in planned.node.verdicts}
        for verdict in planned.verdicts:
            was = before.get(verdict.device, DeviceState.HEALTHY)
            if was is verdict.state:
                continue
            if verdict.state is not DeviceState.HEALTHY:
                log.warning(
                    "verdict",
                    node=planned.node.name,
                    device=verdict.device,
                    state=verdict.state,
                    reason=verdict.reason,
                )
            if planned.about is None:
                continue
            holder = f"held by {verdict.holder}" if verdict.holder else "held by no pod"
            if verdict.state in (DeviceState.UNHEALTHY, DeviceState.QUARANTINED):
                words = f"{verdict.device} failed ({verdict.reason}), {holder}. {verdict.message}"
                self._events.warning(planned.about, f"Device{verdict.state.value}", words)
            elif verdict.state is DeviceState.HEALTHY:
                self._events.normal(planned.about, "DeviceHealthy", f"{verdict.device} is healthy again, {holder}.")

    def _tell_notices(self, planned: NodeJudged) -> None:
        """Each once when it is due, and once when it is over. Kept in memory only: a new manager tells again, which counts up the
        Event that is there."""
        if planned.about is None:
            return
        due = {(n.reason, n.resource): n for n in planned.due}
        told = self._told.setdefault(planned.node.name, {})
        there = {(n.reason, n.resource) for n in planned.notices}
        for key, notice in due.items():
            if key not in told:
                told[key] = notice
                self._events.warning(planned.about, notice.reason, notice.message)
        for key in [key for key in told if key not in there]:
            gone = told.pop(key)
            what = f" for {gone.resource}" if gone.resource else ""
            self._events.normal(planned.about, f"{gone.reason}Over", f"{gone.reason}{what} is over.")


def _node_devices_patch(planned: NodeJudged) -> JsonObject:
    """Only the parts that changed."""
    patch: JsonObject = {}
    if planned.node.observed_before is not None and not planned.node.is_observed_before:
        patch["observed"] = None
    if planned.verdicts != planned.node.verdicts:
        patch["verdicts"] = [to_wire(v) for v in planned.verdicts]
        patch["summary"] = verdicts_summary(planned.verdicts)
    if planned.notices != planned.node.notices:
        patch["notices"] = [to_wire(n) for n in planned.notices]
    if planned.orders:
        patch["quarantine"] = {device: to_wire(order) for device, order in planned.orders.items()}
    if planned.found.history:
        # Named in full: what a device that was replaced has no more must not stay behind in a merge.
        none = dict.fromkeys(DeviceHistory.__struct_fields__)
        patch["history"] = {device: none | to_wire(history) for device, history in planned.found.history.items()}
    if planned.found.findings:
        # An empty list is a device without findings; null takes its key away.
        patch["findings"] = {
            device: [to_wire(s) for s in signals] or None for device, signals in planned.found.findings.items()
        }
    return patch


def _node_offer(node: Node) -> tuple[object, ...]:
    return node.status.allocatable, node.status.capacity


def _lease_renewed_at(lease: Lease) -> float:
    return to_seconds(lease.spec.renew_time) if lease.spec.renew_time is not None else 0.0


def _node_woken_by_pod(pod: Pod | None) -> str:
    return pod.spec.node_name if pod is not None and pod.is_live else ""
