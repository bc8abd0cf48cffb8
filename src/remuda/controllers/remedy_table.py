"""What the manager knows about remedies as a whole: which policy each node is under, what is under remedy, when nodes failed.

All of it follows from the informers and is kept up as they tell, so that a look costs its own incident. Nothing here is a
record: a new manager arrives at the same table.

Between a write of ours and the informer's word of it, two incidents could pass the same limit. `wrote` keeps our own copy until
then: it counts as soon as it is written.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial

import msgspec

from remuda.api.core_v1 import Node
from remuda.api.devices import DeviceState, NodeDevices
from remuda.api.incidents import Incident, SubjectKind
from remuda.api.meta import to_seconds
from remuda.api.names import LABEL_CLIQUE, LABEL_RESERVATION
from remuda.api.remedies import BreakerStatus, RemedyPolicy
from remuda.controllers.view import ClusterView
from remuda.core.failure.breaker import Failed, breaker_of
from remuda.core.failure.drain import Domain, domain_of, owners_of
from remuda.core.failure.ladder import BY
from remuda.core.failure.limits import HOUR_S, Footprint, Gate, Held, Pool
from remuda.core.failure.policy import is_paused, policy_for
from remuda.core.failure.rungs import RECYCLES, began_at, device_records, is_held_back, is_under_remedy

REMEMBERED_S = 86_400.0  # how far back failures matter to a breaker
_FAILED = (DeviceState.UNHEALTHY, DeviceState.UNKNOWN)
_RECYCLED = (*(f"{action}-" for action in RECYCLES), "drain-")


class RemedyTable:
    def __init__(self, view: ClusterView) -> None:
        self._view = view
        self._policy_of: dict[str, RemedyPolicy] = {}  # by node
        self._nodes_of: dict[str, set[str]] = {}  # by policy
        self._is_stale = True
        self._begun: dict[str, Incident] = {}  # whose remedy is under way, or began within the hour
        self._failed: dict[str, Failed] = {}  # by incident
        self._held: dict[str, None] = {}  # incidents that are held back, the longest waiting first
        self._mine: dict[str, Incident] = {}
        # In a storm thousands ask the same again and again.
        self._prints: dict[str, tuple[Incident, Footprint]] = {}
        self._breakers: dict[str, tuple[object, BreakerStatus]] = {}
        view.nodes.add_index("clique", lambda n: [n.labels[LABEL_CLIQUE]] if LABEL_CLIQUE in n.labels else [])
        view.nodes.add_index("marked", owners_of)
        view.devices.add_index("ordered", lambda d: {order.by for order in d.orders.values() if order.by})
        view.policies.subscribe(self._on_policy)
        view.nodes.subscribe(self._on_node)
        view.devices.subscribe(self._on_devices)
        view.incidents.subscribe(self._on_incident)

    # --- which policy -------------------------------------------------------------------------------------------------

    def policy_of(self, node: str) -> RemedyPolicy:
        self._refresh()
        found = self._policy_of.get(node)
        return found if found is not None else policy_for("", {}, self._view.policies.items())

    def nodes_of(self, policy: str) -> set[str]:
        self._refresh()
        return self._nodes_of.get(policy, set())

    def domain_of(self, node: Node) -> Domain:
        clique = node.labels.get(LABEL_CLIQUE, "")
        peers = self._view.nodes.by_index("clique", clique) if clique else []
        return domain_of(node, self._view.devices.get(node.name), peers)

    def _refresh(self) -> None:
        if self._is_stale:
            self._is_stale = False
            self._policy_of.clear()
            self._nodes_of.clear()
            for devices in self._view.devices.items():
                self._place(devices.name)

    def _place(self, name: str) -> None:
        self._prints.clear()
        node, devices = self._view.nodes.get(name), self._view.devices.get(name)
        before = self._policy_of.pop(name, None)
        if before is not None:
            self._nodes_of.get(before.name, set()).discard(name)
        if node is None or devices is None:
            return
        kind = next((d.type for d in devices.observed.devices if not d.parent), "")
        policy = policy_for(kind, node.labels, self._view.policies.items())
        self._policy_of[name] = policy
        self._nodes_of.setdefault(policy.name, set()).add(name)

    def _on_policy(self, old: RemedyPolicy | None, new: RemedyPolicy | None) -> None:
        if old is None or new is None or old.spec != new.spec or new.is_deleting:
            self._is_stale = True
            self._prints.clear()

    def _on_node(self, old: Node | None, new: Node | None) -> None:
        if not self._is_stale and (old is None or new is None or old.labels != new.labels):
            self._place((new or old).name)  # type: ignore[union-attr]

    def _on_devices(self, old: NodeDevices | None, new: NodeDevices | None) -> None:
        if not self._is_stale and (old is None or new is None or _kind(old) != _kind(new)):
            self._place((new or old).name)  # type: ignore[union-attr]

    # --- what is under remedy -----------------------------------------------------------------------------------------

    def wrote(self, incident: Incident) -> None:
        """Our own write, ahead of the informer."""
        self._mine[incident.name] = incident
        self._note(incident)

    def newest(self, name: str) -> Incident | None:
        return self._mine.get(name) or self._view.incidents.get(name)

    def _on_incident(self, old: Incident | None, new: Incident | None) -> None:
        # Our write stood because the copy here was the newest, so whatever the informer tells next is at least as new as it.
        incident = new or old
        assert incident is not None
        self._mine.pop(incident.name, None)
        if new is None:
            self._begun.pop(incident.name, None)
            self._held.pop(incident.name, None)
            self._failed.pop(incident.name, None)
            self._prints.pop(incident.name, None)
        else:
            self._note(new)

    def _note(self, incident: Incident) -> None:
        if began_at(incident) is not None:
            self._begun[incident.name] = incident
        if is_held_back(incident):
            self._held.setdefault(incident.name)
        else:
            self._held.pop(incident.name, None)
        subject, opened = incident.spec.subject, incident.status.opened_at
        verdict = incident.status.verdict
        # What an operator takes out is no failure.
        is_bad = verdict.state in _FAILED or (verdict.state is DeviceState.QUARANTINED and verdict.source == BY)
        is_counted = subject.kind in (SubjectKind.DEVICE, SubjectKind.NODE) and is_bad
        if is_counted and opened is not None and incident.name not in self._failed:
            self._failed[incident.name] = Failed(to_seconds(opened), subject.node)

    def held(self, policy: str, most: int) -> list[str]:
        """Incidents that wait for room, the longest waiting first."""
        found = []
        for name in self._held:
            incident = self.newest(name)
            if incident is not None and self.policy_of(incident.spec.subject.node).name == policy:
                found.append(name)
                if len(found) == most:
                    break
        return found

    def footprint(self, incident: Incident) -> Footprint:
        known = self._prints.get(incident.name)
        if known is None or known[0] is not incident or self._is_stale:
            known = self._prints[incident.name] = incident, self._footprint(incident)
        return known[1]

    def _footprint(self, incident: Incident) -> Footprint:
        subject, policy = incident.spec.subject, self.policy_of(incident.spec.subject.node)
        node = self._view.nodes.get(subject.node)
        labels = node.labels if node is not None else {}
        nodes: tuple[str, ...] = (subject.node,) if subject.node else ()
        records = device_records(incident.status.remedies).values()
        if node is not None and any(r.started_at and r.key.startswith(_RECYCLED) for r in records):
            nodes = self.domain_of(node).nodes
        namespaces = {a.pod.partition("/")[0] for a in incident.status.affected} | {subject.namespace} - {""}
        return Footprint(
            incident=incident.name,
            policy=policy.name,
            nodes=nodes,
            began=began_at(incident) or 0.0,
            rack=labels.get(policy.spec.limits.rack_label, ""),
            tenants=tuple(sorted(namespaces - {""})),
            reservation=labels.get(LABEL_RESERVATION, ""),
            cause=incident.status.verdict.reason,
            is_active=is_under_remedy(incident),
        )

    def footprints(self, now: float) -> list[Footprint]:
        """Of all that is under remedy, or was begun within the hour."""
        found = []
        for name, incident in list(self._begun.items()):
            footprint = self.footprint(incident)
            if footprint.is_active or now - footprint.began < HOUR_S:
                found.append(footprint)
            elif not incident.is_open:
                del self._begun[name]
                self._prints.pop(name, None)
        return found

    # --- what stands in the way ---------------------------------------------------------------------------------------

    def gate(self, incident: Incident, now: float) -> Gate:
        new, policy = self.footprint(incident), self.policy_of(incident.spec.subject.node)
        has_begun = began_at(incident) is not None
        return Gate(
            new=msgspec.structs.replace(new, is_active=has_begun),
            limits=policy.spec.limits,
            pool=self._pool(new, policy),
            others=tuple(self.footprints(now)),
            shut=self._shut(policy, now),
        )

    def breaker(self, policy: RemedyPolicy, now: float) -> BreakerStatus:
        nodes = self.nodes_of(policy.name)
        for name in [n for n, f in self._failed.items() if f.at < now - REMEMBERED_S]:
            del self._failed[name]
        key = (policy.spec.breaker, len(self._failed), len(nodes), int(now))
        known = self._breakers.get(policy.name)
        closes = known[1].closes_at if known is not None and known[0] == key else None
        if known is None or closes is None or now >= to_seconds(closes):
            failed = [f for f in self._failed.values() if f.node in nodes]
            known = self._breakers[policy.name] = key, breaker_of(policy.spec.breaker, failed, len(nodes), now)
        return known[1]

    def _shut(self, policy: RemedyPolicy, now: float) -> Held | None:
        pause = policy.spec.pause
        if pause is not None and is_paused(pause, now):
            by = f" by {pause.by}" if pause.by else ""
            why = f": {pause.message}" if pause.message else ""
            return Held("Paused", f"Policy {policy.name} is paused{by}{why}.")
        breaker = self.breaker(policy, now)
        if breaker.open:
            return Held("BreakerOpen", f"The breaker of policy {policy.name} is open: {breaker.message}")
        return None

    def _pool(self, new: Footprint, policy: RemedyPolicy) -> Pool:
        nodes, limits = self.nodes_of(policy.name), policy.spec.limits
        count = partial(self._with_label, nodes)
        return Pool(
            nodes=len(nodes),
            racks={new.rack: count(limits.rack_label, new.rack)} if limits.rack.endswith("%") else {},
            reservations={new.reservation: count(LABEL_RESERVATION, new.reservation)}
            if limits.reservation.endswith("%")
            else {},
            tenants=self._tenants(new.tenants) if limits.tenant.endswith("%") else {},
        )

    def _with_label(self, nodes: Iterable[str], label: str, value: str) -> int:
        found = (self._view.nodes.get(name) for name in nodes)
        return sum(1 for node in found if node is not None and node.labels.get(label) == value)

    def _tenants(self, tenants: Iterable[str]) -> dict[str, int]:
        """Nodes that each namespace has devices on."""
        wanted = set(tenants)
        nodes: dict[str, set[str]] = {tenant: set() for tenant in wanted}
        for devices in self._view.devices.items():
            for holding in devices.observed.holdings:
                if (namespace := holding.pod.partition("/")[0]) in wanted:
                    nodes[namespace].add(devices.name)
        return {tenant: len(found) for tenant, found in nodes.items()}


def _kind(devices: NodeDevices) -> str:
    return next((d.type for d in devices.observed.devices if not d.parent), "")
