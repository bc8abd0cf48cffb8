"""What the manager knows about remedies as a whole: which policy each node is under, what is under remedy, when nodes failed.

All of it follows from the informers and is kept up as they tell, so that a look costs its own incident, however many there are.
Nothing here is a record: a new manager arrives at the same table.

Between a decision of ours and the informer's word of it, two incidents could pass the same limit. So what is about to be begun
counts from the decision on (`intend`), until the next look at that incident decides anew; and `wrote` keeps our own copy until
the informer has it.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial

import msgspec

from remuda.api.devices import NodeDevices
from remuda.api.incidents import Incident
from remuda.api.kubernetes.core_v1 import Node
from remuda.api.meta import to_seconds
from remuda.api.names import LABEL_CLIQUE, LABEL_RESERVATION
from remuda.api.remedies import Breaker, BreakerStatus, RemedyPolicy
from remuda.controllers.cluster_view import ClusterView
from remuda.core.remedies.breaker import NodeFailure, RemedyBreakerWatch, breaker_status, watch_breaker
from remuda.core.remedies.drain import RecycleDomain, domain_recycled_by_remedy, remedy_marks
from remuda.core.remedies.limits import HOUR_S, HeldBack, RemedyGate, RemedyPool
from remuda.core.remedies.occupancy import RemedyFootprint, RemedyOccupancy
from remuda.core.remedies.policies import device_type_for_remedy_policy, is_policy_paused, remedy_policy_for
from remuda.core.remedies.policy_status import REMEMBERED_S, breaker_failure
from remuda.core.remedies.remedy_keys import parse_rung_key
from remuda.core.remedies.rungs import (
    RECYCLES,
    device_remedies,
    first_remedy_began_at,
    is_remedy_held_back,
    is_under_remedy,
)

TIDY_S = 60.0  # between two looks for what no longer counts
# Incidents are opened side by side and told in another order; so little does not change what a breaker says, and to count
# all of them anew for each would cost the square of a storm.
LATE_S = 1.0


class RemedyTable:
    def __init__(self, view: ClusterView) -> None:
        self._view = view
        self._policy_of: dict[str, RemedyPolicy] = {}  # by node
        self._nodes_of: dict[str, set[str]] = {}  # by policy
        self._is_stale = True
        self._begun: dict[str, Incident] = {}  # whose remedy is under way, or began within the hour
        self._failed: dict[str, NodeFailure] = {}  # by incident
        self._held: dict[str, None] = {}  # incidents that are held back, the longest waiting first
        self._mine: dict[str, Incident] = {}
        self._occupancy: RemedyOccupancy | None = None  # of what has begun; None = to be counted anew
        self._failures: list[NodeFailure] = []  # in the order in which they came
        # By policy: with how many of them it was told.
        self._watches: dict[str, tuple[Breaker, RemedyBreakerWatch, int]] = {}
        self._sizes: dict[tuple[str, str, str], int] = {}  # nodes of a policy by label and value
        self._tidied_at = float("-inf")
        self.released = 0  # how often something that was under way no longer is: what had to wait may go on
        view.nodes.add_index("clique", lambda n: [n.labels[LABEL_CLIQUE]] if LABEL_CLIQUE in n.labels else [])
        view.nodes.add_index("marked", remedy_marks)
        view.devices.add_index("tenant", lambda d: {h.pod.partition("/")[0] for h in d.observed.holdings})
        view.devices.add_index("ordered", lambda d: {order.by for order in d.orders.values() if order.by})
        view.policies.subscribe(self._on_policy)
        view.nodes.subscribe(self._on_node)
        view.devices.subscribe(self._on_devices)
        view.incidents.subscribe(self._on_incident)

    # --- which policy -------------------------------------------------------------------------------------------------

    def policy_of(self, node: str) -> RemedyPolicy:
        self._refresh()
        found = self._policy_of.get(node)
        return found if found is not None else remedy_policy_for("", {}, self._view.policies_in_force)

    def nodes_of(self, policy: str) -> set[str]:
        self._refresh()
        return self._nodes_of.get(policy, set())

    def domain_of(self, node: Node) -> RecycleDomain:
        clique = node.labels.get(LABEL_CLIQUE, "")
        peers = self._view.nodes.by_index("clique", clique) if clique else []
        return domain_recycled_by_remedy(node, self._view.devices.get(node.name), peers)

    def _refresh(self) -> None:
        if self._is_stale:
            self._is_stale = False
            self._policy_of.clear()
            self._nodes_of.clear()
            for devices in self._view.devices.items():
                self._assign_policy(devices.name)

    def _recount(self) -> None:
        """Which node is under which policy, or in which rack, has changed: what was counted by that no longer counts."""
        self._occupancy = None
        self._watches.clear()
        self._sizes.clear()

    def _assign_policy(self, name: str) -> None:
        self._recount()
        node, devices = self._view.nodes.get(name), self._view.devices.get(name)
        before = self._policy_of.pop(name, None)
        if before is not None:
            self._nodes_of.get(before.name, set()).discard(name)
        if node is None or devices is None:
            return
        policy = remedy_policy_for(device_type_for_remedy_policy(devices), node.labels, self._view.policies_in_force)
        self._policy_of[name] = policy
        self._nodes_of.setdefault(policy.name, set()).add(name)

    def _on_policy(self, old: RemedyPolicy | None, new: RemedyPolicy | None) -> None:
        if old is None or new is None or old.spec != new.spec or new.is_deleting:
            self._is_stale = True
            self._recount()

    def _on_node(self, old: Node | None, new: Node | None) -> None:
        if not self._is_stale and (old is None or new is None or old.labels != new.labels):
            self._assign_policy((new or old).name)  # type: ignore[union-attr]

    def _on_devices(self, old: NodeDevices | None, new: NodeDevices | None) -> None:
        if not self._is_stale and (
            old is None or new is None or device_type_for_remedy_policy(old) != device_type_for_remedy_policy(new)
        ):
            self._assign_policy((new or old).name)  # type: ignore[union-attr]

    # --- what is under remedy -----------------------------------------------------------------------------------------

    def intend(self, incident: Incident) -> None:
        """As it will be when our writes are through. When they are not, the next look at it says what it is then. What it gives
        back counts when that is written: until then the place is taken, and another that began now would be one too many."""
        known = self.newest(incident.name)
        if known is not None and is_under_remedy(known) and not is_under_remedy(incident):
            return
        if first_remedy_began_at(incident) is not None:
            self._count_incident(incident)
        else:
            self._forget_incident(incident.name)

    def wrote(self, incident: Incident, based_on: str, told_before: Incident | None) -> None:
        """Our own write, ahead of the informer. `based_on`: the version it replaced; `told_before`: the informer's copy when the
        write was sent. An answer may come after the informer's word of it, and of what others wrote on top: then it is no news,
        and kept it would hide theirs for ever."""
        told = self._view.incidents.get(incident.name)
        if told is told_before or (told is not None and told.metadata.resource_version == based_on):
            self._mine[incident.name] = incident
            self._note_incident(incident)

    def distrust(self, incident: str) -> None:
        """Our copy is not the newest: the informer's is, or will be."""
        self._mine.pop(incident, None)

    def newest(self, name: str) -> Incident | None:
        return self._mine.get(name) or self._view.incidents.get(name)

    def _on_incident(self, old: Incident | None, new: Incident | None) -> None:
        # Our write stood because the copy here was the newest, so whatever the informer tells next is at least as new as it.
        incident = new or old
        assert incident is not None
        self._mine.pop(incident.name, None)
        if new is None:
            self._forget_incident(incident.name)
            self._held.pop(incident.name, None)
            if self._failed.pop(incident.name, None) is not None:
                self._relist_failures()
        else:
            self._note_incident(new)

    def _forget_incident(self, incident: str) -> None:
        before = self._begun.pop(incident, None)
        if before is not None:
            self.released += 1
        if self._occupancy is not None:
            self._occupancy.drop(incident)

    def _count_incident(self, incident: Incident) -> None:
        before = self._begun.get(incident.name)
        if before is not None and is_under_remedy(before) and not is_under_remedy(incident):
            self.released += 1
        self._begun[incident.name] = incident
        if self._occupancy is not None:
            self._occupancy.put(self._footprint(incident))

    def _relist_failures(self) -> None:
        self._failures = list(self._failed.values())
        self._watches.clear()

    def _note_incident(self, incident: Incident) -> None:
        if first_remedy_began_at(incident) is not None:
            self._count_incident(incident)
        if is_remedy_held_back(incident):
            self._held.setdefault(incident.name)
        else:
            self._held.pop(incident.name, None)
        failed = breaker_failure(incident)
        if failed is not None and incident.name not in self._failed:
            self._failed[incident.name] = failed
            self._failures.append(failed)

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

    def _footprint(self, incident: Incident) -> RemedyFootprint:
        subject, policy = incident.spec.subject, self.policy_of(incident.spec.subject.node)
        node = self._view.nodes.get(subject.node)
        labels = node.labels if node is not None else {}
        nodes: tuple[str, ...] = (subject.node,) if subject.node else ()
        records = device_remedies(incident.status.remedies).values()
        if node is not None and any(r.started_at and _is_recycling(r.key) for r in records):
            nodes = self.domain_of(node).nodes
        namespaces = {a.pod.partition("/")[0] for a in incident.status.affected} | {subject.namespace} - {""}
        return RemedyFootprint(
            incident=incident.name,
            policy=policy.name,
            nodes=nodes,
            began=first_remedy_began_at(incident) or 0.0,
            rack=labels.get(policy.spec.limits.rack_label, ""),
            tenants=tuple(sorted(namespaces - {""})),
            reservation=labels.get(LABEL_RESERVATION, ""),
            cause=incident.status.verdict.reason,
            is_active=is_under_remedy(incident),
        )

    def occupancy(self, now: float) -> RemedyOccupancy:
        """All that is under remedy, or was begun within the hour."""
        self._refresh()
        self._tidy(now)
        if self._occupancy is None:
            self._occupancy = RemedyOccupancy(map(self._footprint, self._begun.values()))
        return self._occupancy

    def _tidy(self, now: float) -> None:
        if now - self._tidied_at < TIDY_S:
            return
        self._tidied_at = now
        for name, incident in list(self._begun.items()):
            if not incident.is_open and now - (first_remedy_began_at(incident) or 0.0) >= HOUR_S:
                self._forget_incident(name)
        old = [name for name, failed in self._failed.items() if failed.at < now - REMEMBERED_S]
        for name in old:
            del self._failed[name]
        if old:
            self._relist_failures()

    # --- what stands in the way ---------------------------------------------------------------------------------------

    def gate(self, incident: Incident, now: float) -> RemedyGate:
        new, policy = self._footprint(incident), self.policy_of(incident.spec.subject.node)
        has_begun = first_remedy_began_at(incident) is not None
        return RemedyGate(
            new=msgspec.structs.replace(new, is_active=has_begun),
            limits=policy.spec.limits,
            pool=self._pool(new, policy),
            others=self.occupancy(now),
            shut=self._why_shut(policy, now),
        )

    def breaker(self, policy: RemedyPolicy, now: float) -> BreakerStatus:
        self._tidy(now)
        nodes, breaker = self.nodes_of(policy.name), policy.spec.breaker
        before, watch, told = self._watches.get(policy.name, (None, None, 0))
        if watch is not None:
            news = sorted(f for f in self._failures[told:] if f.node in nodes)
            oldest = watch.newest - LATE_S
            if before == breaker and watch.newest <= now and all(oldest <= f.at <= now for f in news):
                for failed in news:
                    watch.add(msgspec.structs.replace(failed, at=max(failed.at, watch.newest)))
            else:
                watch = None
        if watch is None:
            every = [f for f in self._failures if f.node in nodes]
            if any(
                f.at > now for f in every
            ):  # a clock that was set back: until it has caught up, time changes the answer
                self._watches.pop(policy.name, None)
                return breaker_status(breaker, every, len(nodes), now)
            watch = watch_breaker(breaker, every, len(nodes), now)
        self._watches[policy.name] = breaker, watch, len(self._failures)
        return watch.status(now)

    def shut_until(self, node: str, now: float) -> float | None:
        """Until when the breaker of the node's policy is open, as far as is known now; None when it is not."""
        closes = self.breaker(self.policy_of(node), now).closes_at
        return to_seconds(closes) if closes is not None and to_seconds(closes) > now else None

    def _why_shut(self, policy: RemedyPolicy, now: float) -> HeldBack | None:
        pause = policy.spec.pause
        if pause is not None and is_policy_paused(pause, now):
            by = f" by {pause.by}" if pause.by else ""
            why = f": {pause.message}" if pause.message else ""
            return HeldBack("Paused", f"Policy {policy.name} is paused{by}{why}.")
        breaker = self.breaker(policy, now)
        if breaker.open:
            return HeldBack("BreakerOpen", f"The breaker of policy {policy.name} is open: {breaker.message}")
        return None

    def _pool(self, new: RemedyFootprint, policy: RemedyPolicy) -> RemedyPool:
        nodes, limits = self.nodes_of(policy.name), policy.spec.limits
        count = partial(self._nodes_with_label, policy.name)
        return RemedyPool(
            nodes=len(nodes),
            racks={new.rack: count(limits.rack_label, new.rack)} if limits.rack.endswith("%") else {},
            reservations={new.reservation: count(LABEL_RESERVATION, new.reservation)}
            if limits.reservation.endswith("%")
            else {},
            tenants=self._nodes_of_tenants(new.tenants) if limits.tenant.endswith("%") else {},
        )

    def _nodes_with_label(self, policy: str, label: str, value: str) -> int:
        key = policy, label, value
        if key not in self._sizes:
            found = (self._view.nodes.get(name) for name in self.nodes_of(policy))
            self._sizes[key] = sum(1 for node in found if node is not None and node.labels.get(label) == value)
        return self._sizes[key]

    def _nodes_of_tenants(self, tenants: Iterable[str]) -> dict[str, int]:
        """Nodes that each namespace has devices on."""
        return {tenant: len(self._view.devices.by_index("tenant", tenant)) for tenant in tenants}


def _is_recycling(key: str) -> bool:
    """Whether a record of that key says that a node goes down, or is emptied for it."""
    parsed = parse_rung_key(key)
    return parsed is not None and (parsed.step == "drain" or (not parsed.step and parsed.action in RECYCLES))
