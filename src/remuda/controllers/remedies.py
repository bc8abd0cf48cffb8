"""Remedy controller: climbs the device ladder of every incident, one key per incident.

`remedies.ladder.climb_ladder` says what should stand; this makes it so, in an order in which a crash between any two writes costs
nothing: first the nodes are taken (guarded by their versions, so that two incidents never have one), then the record is written,
then what it stands for is done under the record's own key, and nodes are given back last. What is done already is found done.
"""

from __future__ import annotations

import msgspec
import structlog

from remuda.api.codec import to_wire
from remuda.api.devices import NodeDevices
from remuda.api.errors import Conflict, NotFound
from remuda.api.incidents import Incident, IncidentStatus, RemedyOutcome, SubjectKind
from remuda.api.kubernetes.core_v1 import Node, Pod
from remuda.api.meta import JsonObject
from remuda.api.remedies import RemedyPolicy
from remuda.controllers.cluster_view import ClusterView
from remuda.controllers.pod_removal import carry_out_drain_pod_removal
from remuda.controllers.remedy_hooks import ObjectHooks
from remuda.controllers.remedy_table import RemedyTable
from remuda.core.health.agent_liveness import agent_silent_since, liveness_lease_name
from remuda.core.remedies.drain import (
    RecycleDomain,
    node_drain_patch_for_remedy,
    node_hold_patch_for_remedy,
    remedy_holder,
    remedy_marks,
)
from remuda.core.remedies.hook_kinds import HookKinds
from remuda.core.remedies.ladder.climb import climb_ladder, may_take_over_quarantine
from remuda.core.remedies.ladder.types import LadderCase, LadderStep
from remuda.core.remedies.policies import SHARED_REASONS
from remuda.core.remedies.rollout import rollout_owner
from remuda.core.remedies.rungs import device_remedies, first_remedy_began_at, is_remedy_held_back, is_under_remedy
from remuda.kube.cluster import Cluster, Preconditions
from remuda.kube.runtime.events import SILENCE, EventSink
from remuda.kube.runtime.work_queue import WorkQueue

log = structlog.get_logger(__name__)

# A rung waits for several writes: one after another, the last of a storm would wait for all of them. What a look is about to
# begin counts against the limits before its first write, so that looks side by side never pass the same limit.
WORKERS = 8
WOKEN = 16  # held-back incidents looked at when one makes room


class RemedyPlan(msgspec.Struct, frozen=True):
    case: LadderCase
    step: LadderStep
    nodes: tuple[Node, ...]  # that carry our marks, or are to
    ledgers: tuple[NodeDevices, ...]  # that have orders of ours, or are to


class RemedyController:
    """A `Reconciler` keyed by incident name."""

    def __init__(
        self,
        cluster: Cluster,
        view: ClusterView,
        table: RemedyTable,
        queue: WorkQueue[str],
        *,
        events: EventSink = SILENCE,
        hook_kinds: HookKinds = (),
    ) -> None:
        """`hook_kinds`: that objects of hooks may have."""
        self._cluster = cluster
        self._view = view
        self._table = table
        self._queue = queue
        self._events = events
        self._hooks = ObjectHooks(cluster, hook_kinds)
        self._waiting: dict[str, tuple[IncidentStatus, int]] = {}  # held back by a write that has yet to come back
        view.incidents.subscribe(self._on_incident)
        view.devices.subscribe(self._on_devices)
        view.nodes.subscribe(self._on_node)
        view.pods.subscribe(self._on_pod)
        view.policies.subscribe(self._on_policy)

    # --- what wakes a look --------------------------------------------------------------------------------------------

    def _on_incident(self, old: Incident | None, new: Incident | None) -> None:
        incident = new or old
        assert incident is not None
        if incident.spec.subject.kind is SubjectKind.GANG:
            return
        was_open = old is not None and old.is_open
        if incident.spec.subject.kind is SubjectKind.DOMAIN and was_open and (new is None or not new.is_open):
            for part in incident.status.parts:  # they may have waited for it
                self._wake_one(part)
        was, is_now = old is not None and is_under_remedy(old), new is not None and is_under_remedy(new)
        if was and not is_now:
            for name in self._table.held(self._table.policy_of(incident.spec.subject.node).name, WOKEN):
                self._queue.add(name)
        if self._is_echo(old, new):
            return
        is_over = new is not None and not new.is_open and (old is None or not old.is_open)
        if new is not None and (not is_over or (old is None and first_remedy_began_at(new) is not None)):
            self._queue.add(new.name)

    def _is_echo(self, old: Incident | None, new: Incident | None) -> bool:
        """Whether there is nothing in it for a ladder: a blank one, whose beginning is written next; other words for the same; or
        what our own look said of one that has to wait, unless room was made since."""
        if new is None or not new.is_open:
            self._waiting.pop((new or old).name, None)  # type: ignore[union-attr]
            return False
        if old is None:
            return new.status == IncidentStatus()
        if _what_ladder_reads(old) == _what_ladder_reads(new):
            return True
        written = self._waiting.pop(new.name, None)
        return written is not None and written == (new.status, self._table.released) and old.spec == new.spec

    def _on_devices(self, old: NodeDevices | None, new: NodeDevices | None) -> None:
        devices = new or old
        assert devices is not None
        self._wake(devices.name)
        self._wake_keepers(devices)
        for name in {order.by for order in devices.orders.values()}:
            self._wake_one(name)

    def _on_node(self, old: Node | None, new: Node | None) -> None:
        node = new or old
        assert node is not None
        if old is None or new is None or _what_remedies_read_of_node(old) != _what_remedies_read_of_node(new):
            self._wake(node.name)
            self._wake_one(remedy_holder(node))
        ledger = self._view.devices.get(node.name)
        if ledger is not None and new is not None and (old is None or old.uid != new.uid):
            self._wake_keepers(ledger)

    def _wake_keepers(self, devices: NodeDevices) -> None:
        """Also those that are closed and keep a device out: another one may be in its place."""
        for order in devices.quarantine.values():
            self._wake_one(order.incident)

    def _on_pod(self, old: Pod | None, new: Pod | None) -> None:
        pod = new or old
        assert pod is not None
        name = pod.spec.node_name
        if name and (old is None or new is None or _pod_facts_waking_remedies(old) != _pod_facts_waking_remedies(new)):
            self._wake(name)
            if (node := self._view.nodes.get(name)) is not None:
                self._wake_one(remedy_holder(node))

    def _on_policy(self, old: RemedyPolicy | None, new: RemedyPolicy | None) -> None:
        if old is None or new is None or old.spec != new.spec:
            for incident in self._view.incidents.items():
                if incident.is_open and incident.spec.subject.kind is not SubjectKind.GANG:
                    self._queue.add(incident.name)

    def _wake(self, node: str) -> None:
        for incident in self._view.incidents.by_index("open-node", node):
            self._queue.add(incident.name)

    def _wake_one(self, incident: str) -> None:
        if incident and self._view.incidents.get(incident) is not None:
            self._queue.add(incident)

    # --- observe, plan, apply -----------------------------------------------------------------------------------------

    async def observe(self, key: str) -> Incident | None:
        return self._table.newest(key)

    def plan(self, observed: Incident | None, now: float) -> RemedyPlan | None:
        if observed is None or observed.spec.subject.kind is SubjectKind.GANG:
            return None
        case = self._case(observed, now)
        step = climb_ladder(case, now)
        ours = {n.name: n for n in self._view.nodes.by_index("marked", observed.name)}
        ours |= {n: case.nodes[n] for n in step.hold | step.cordon if n in case.nodes}
        ledgers = {d.name: d for d in self._view.devices.by_index("ordered", observed.name)}
        ledgers |= {n: case.ledgers[n] for n in step.orders if n in case.ledgers}
        if case.devices is not None:
            ledgers[case.devices.name] = case.devices
        return RemedyPlan(case, step, tuple(ours.values()), tuple(ledgers.values()))

    def _case(self, incident: Incident, now: float) -> LadderCase:
        view, name = self._view, incident.spec.subject.node
        node = view.nodes.get(name)
        domain = self._table.domain_of(node) if node is not None else RecycleDomain("", (name,) if name else ())
        nodes = {n: found for n in domain.nodes if (found := view.nodes.get(n)) is not None}
        owners = {owner for n in nodes.values() for owner in remedy_marks(n)} - {incident.name}
        lease = view.lease_as_seen(liveness_lease_name(name))
        return LadderCase(
            incident=incident,
            policy=self._table.policy_of(name),
            domain=domain,
            nodes=nodes,
            ledgers={n: ledger for n in domain.nodes if (ledger := view.devices.get(n)) is not None},
            pods={n: view.pods.by_index("node", n) for n in domain.nodes},
            gate=self._table.gate(incident, now) if incident.is_open else None,
            at_work=frozenset(filter(self._is_at_work, owners)),
            made=self._hooks.made(incident.name),
            is_silent=agent_silent_since(lease, now) is not None,
            cause=self._cause(incident),
        )

    def _cause(self, incident: Incident) -> Incident | None:
        """The open incident of what several nodes share that explains this one."""
        whole = self._table.newest(incident.status.part_of) if incident.status.part_of else None
        is_shared = whole is not None and whole.status.verdict.reason in SHARED_REASONS
        return whole if whole is not None and whole.is_open and is_shared else None

    def _is_at_work(self, owner: str) -> bool:
        """Marks of incidents that are closed, and of roll-outs that are gone, bind nobody."""
        other = self._table.newest(owner)
        if other is not None:
            return other.is_open
        return any(rollout_owner(rollout.name) == owner for rollout in self._view.rollouts.items())

    async def apply(self, planned: RemedyPlan | None) -> float | None:
        if planned is None:
            return None
        case, step = planned.case, planned.step
        decided = msgspec.structs.replace(case.incident, status=step.status)
        if is_remedy_held_back(decided) and first_remedy_began_at(decided) is None:
            self._waiting[decided.name] = step.status, self._table.released
        else:
            self._waiting.pop(decided.name, None)
        self._table.intend(decided)
        # The hold comes before the record: one incident has a node at a time. What it is held for comes after it: whoever moves
        # off a node finds why, and a look that was too old has asked for nothing.
        held = [await self._take(n, case.incident.name) for n in planned.nodes if n.name in step.hold]
        await self._write_status(case.incident, step.status)
        for node in filter(None, held):
            await self._mark(node, case.incident.name, step)
        for ledger in planned.ledgers:
            await self._write_orders(ledger, case, step)
        if step.drain is not None:
            await carry_out_drain_pod_removal(self._cluster, step.drain)
        again = step.look_again_s
        if step.call is not None and await self._hooks.call(case.incident.name, step.call):
            again = 0.0
        for node in planned.nodes:
            if node.name not in step.hold:
                await self._mark(node, case.incident.name, step)
        if not case.incident.is_open:
            self._hooks.forget(case.incident.name)
        return again

    async def _take(self, node: Node, incident: str) -> Node | None:
        """The node as it is once it is ours; None: it is gone."""
        return await self._patch_node(node, incident, node_hold_patch_for_remedy(node, incident))

    async def _mark(self, node: Node, incident: str, step: LadderStep) -> None:
        is_empty = node.name in step.cordon
        request = step.request if is_empty else None
        patch = node_drain_patch_for_remedy(
            node, incident, hold=node.name in step.hold, cordon=is_empty, request=request
        )
        await self._patch_node(node, incident, patch)

    async def _patch_node(self, node: Node, incident: str, patch: JsonObject) -> Node | None:
        if not patch:
            return node
        try:
            when = Preconditions(resource_version=node.metadata.resource_version)
            return await self._cluster.patch(Node, node.name, patch, when=when)
        except NotFound:
            log.info("remedy.node_gone", node=node.name, incident=incident)
            return None

    async def _write_status(self, incident: Incident, status: IncidentStatus) -> None:
        patch = _remedy_status_patch(incident.status, status)
        if not patch:
            return
        version, told = incident.metadata.resource_version, self._view.incidents.get(incident.name)
        when = Preconditions(resource_version=version)
        try:
            written = await self._cluster.patch(
                Incident, incident.name, {"status": patch}, subresource="status", when=when
            )
        except Conflict:
            self._table.distrust(incident.name)
            raise
        self._table.wrote(written, version, told)
        self._tell(incident, status)

    async def _write_orders(self, ledger: NodeDevices, case: LadderCase, step: LadderStep) -> None:
        patch = _remedy_devices_patch(ledger, case, step)
        if patch:
            when = Preconditions(resource_version=ledger.metadata.resource_version)
            await self._cluster.patch(NodeDevices, ledger.name, patch, when=when)

    def _tell(self, incident: Incident, status: IncidentStatus) -> None:
        before = device_remedies(incident.status.remedies)
        for key, record in device_remedies(status.remedies).items():
            if key in before and before[key].outcome is record.outcome:
                continue
            words = f"{key} of {record.target}: {record.outcome}. {record.message}".strip()
            is_bad = record.outcome in (RemedyOutcome.FAILED, RemedyOutcome.TIMED_OUT)
            tell = self._events.warning if is_bad else self._events.normal
            tell(incident, f"Remedy{record.outcome}", words)
            log.info("remedy", incident=incident.name, key=key, outcome=record.outcome, reason=record.reason)


def _remedy_status_patch(old: IncidentStatus, new: IncidentStatus) -> JsonObject:
    """Our own fields, those that changed."""
    patch: JsonObject = {}
    if new.phase is not old.phase:
        patch["phase"] = new.phase.value
    if new.outcome is not old.outcome:
        patch["outcome"] = new.outcome.value if new.outcome is not None else None
    if new.remedies != old.remedies:
        patch["remedies"] = [to_wire(r) for r in new.remedies]
    if new.soak_until != old.soak_until:
        patch["soakUntil"] = new.soak_until.isoformat() if new.soak_until is not None else None
    if new.ticket != old.ticket:
        patch["ticket"] = new.ticket
    if new.conditions != old.conditions:
        patch["conditions"] = [to_wire(c) for c in new.conditions]
    return patch


def _remedy_devices_patch(ledger: NodeDevices, case: LadderCase, step: LadderStep) -> JsonObject:
    """Our own quarantine and orders, those that changed. A person's order for the device is left as it is."""
    patch: JsonObject = {}
    name, device = case.incident.name, case.subject.device
    if ledger.name == case.subject.node and device:
        there = ledger.quarantine.get(device)
        is_ours = there is not None and there.incident == name
        may_be = there is None or is_ours or may_take_over_quarantine(there)
        if step.quarantine is not None and may_be and not is_ours:
            patch["quarantine"] = {device: to_wire(step.quarantine)}
        elif step.quarantine is None and is_ours:
            patch["quarantine"] = {device: None}
    wanted = step.orders.get(ledger.name, {})
    orders: JsonObject = {id: None for id, order in ledger.orders.items() if order.by == name and id not in wanted}
    orders |= {id: to_wire(order) for id, order in wanted.items() if id not in ledger.orders}
    if orders:
        patch["orders"] = orders
    return patch


def _what_ladder_reads(incident: Incident) -> tuple[object, ...]:
    """What of an incident a ladder goes by: all but the sentence that people read, and what was lost."""
    return incident.spec, msgspec.structs.replace(incident.status, message="", lost_gpu_hours=0.0)


def _what_remedies_read_of_node(node: Node) -> tuple[object, ...]:
    """What of a node a ladder may wait for."""
    ready = next((c.status for c in node.status.conditions if c.type == "Ready"), "")
    return node.spec, node.annotations, node.labels, ready, node.is_deleting


def _pod_facts_waking_remedies(pod: Pod) -> tuple[bool, bool, str]:
    return pod.is_deleting, pod.is_live, pod.spec.node_name
