"""The limits of a RemedyPolicy, counted a second time, from the objects alone and plainly.

Asked whenever an incident's node comes under remedy: in each group that its policy limits, the nodes at work, this one included,
are as many as may be. The groups are those of the policy's words:

    pool         the nodes the policy selects
    rack         those with the same value of the rack label
    reservation  those with the same value of the label remuda.dev/reservation
    cause        those with an incident of the same reason
    tenant       those whose failed device a pod of the same namespace held: as the node said when the incident was opened,
                 or as the incident says itself
    per hour     incidents of the policy whose first rung began within the hour, whatever became of them

A node that is at work in a group already may have a second incident there. What is under way is never asked again, so a group
that changes under it (another reason, another tenant) binds only what is begun later; and for as long as nobody need have heard
of such a change it binds nobody.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

import msgspec

from remuda.api.devices import NodeDevices
from remuda.api.incidents import Incident, RemedyOutcome, RemedyRecord
from remuda.api.kubernetes.core_v1 import Node
from remuda.api.names import LABEL_RESERVATION
from remuda.api.remedies import RemedyPolicySpec

HOUR_S = 3600.0


class Begun(msgspec.Struct, frozen=True):
    """A step of a ladder that was taken."""

    at: float
    incident: str
    node: str
    policy: str
    key: str


class Group(msgspec.Struct, frozen=True):
    """`has`: whether an incident counts there."""

    limit: str
    words: str
    size: int
    has: Callable[[Incident], bool]


class LimitRules:
    """The mappings are its owner's own and change under it."""

    def __init__(
        self,
        now: Callable[[], float],
        late_s: float,
        *,
        incidents: Mapping[str, Incident],
        nodes: Mapping[str, Node],
        ledgers: Mapping[str, NodeDevices],
        policy_of: Callable[[str], tuple[str, RemedyPolicySpec]],
    ) -> None:
        self.begun: list[Begun] = []
        self._now = now
        self._late_s = late_s
        self._incidents = incidents
        self._nodes = nodes
        self._ledgers = ledgers
        self._policy_of = policy_of
        self._held_by: dict[str, set[str]] = {}  # incident -> namespaces that held its device when it was opened
        self._changed: dict[str, float] = {}  # incident -> when it last came into another group

    # --- what is seen -------------------------------------------------------------------------------------------------

    def note(self, old: Incident | None, new: Incident) -> None:
        subject, ledger = new.spec.subject, self._ledgers.get(new.spec.subject.node)
        if old is None:
            holdings = ledger.observed.holdings if ledger is not None else []
            mine = [h for h in holdings if subject.device in h.devices]
            self._held_by[new.name] = {h.pod.partition("/")[0] for h in mine}
        elif reason_of(old) != reason_of(new) or _affected(old) != _affected(new):
            self._changed[new.name] = self._now()

    def note_begun(self, incident: Incident, record: RemedyRecord) -> None:
        node = incident.spec.subject.node
        self.begun.append(Begun(self._now(), incident.name, node, self._policy_of(node)[0], record.key))

    # --- what must be -------------------------------------------------------------------------------------------------

    def exceeded(self, incident: Incident) -> Iterator[str]:
        """Sentences about limits that this one exceeds, now that its node is under remedy."""
        mine = incident.spec.subject.node
        name, spec = self._policy_of(mine)
        others = [
            i for i in self._at_work() if i.name != incident.name and self._policy_of(i.spec.subject.node)[0] == name
        ]
        for group in self._groups(incident, name, spec):
            beside = {i.spec.subject.node for i in others if group.has(i) and not self._is_fresh(i)}
            most = bound(group.limit, group.size)
            if most is not None and mine not in beside and len(beside) + 1 > most:
                yield f"{incident.name}: {sorted(beside)} {group.words} are at work, {most} may be"
        if self._is_first(incident):
            yield from self._hour(incident, name, spec)

    def _at_work(self) -> list[Incident]:
        return [i for i in self._incidents.values() if i.spec.subject.node and is_at_work(i)]

    def _is_fresh(self, incident: Incident) -> bool:
        return self._now() - self._changed.get(incident.name, -HOUR_S) <= self._late_s

    def _groups(self, incident: Incident, name: str, spec: RemedyPolicySpec) -> Iterator[Group]:
        limits, node = spec.limits, incident.spec.subject.node
        pool = [n for n in self._nodes if n in self._ledgers and self._policy_of(n)[0] == name]
        yield Group(limits.pool, f"of policy {name}", len(pool), lambda i: True)
        for limit, label in ((limits.rack, limits.rack_label), (limits.reservation, LABEL_RESERVATION)):
            if value := self._label(node, label):
                size = sum(1 for n in pool if self._label(n, label) == value)
                yield Group(limit, f"of {value}", size, self._labelled(label, value))
        reason = reason_of(incident)
        yield Group(limits.cause, f"with {reason}", len(pool), lambda i: reason_of(i) == reason)
        for tenant in self.tenants(incident):
            size = sum(1 for d in self._ledgers.values() if any(_of(tenant, h.pod) for h in d.observed.holdings))
            yield Group(limits.tenant, f"of namespace {tenant}", size, self._of_tenant(tenant))

    def _label(self, node: str, label: str) -> str:
        found = self._nodes.get(node)
        return found.labels.get(label, "") if found is not None else ""

    def _labelled(self, label: str, value: str) -> Callable[[Incident], bool]:
        return lambda incident: self._label(incident.spec.subject.node, label) == value

    def _of_tenant(self, tenant: str) -> Callable[[Incident], bool]:
        return lambda incident: tenant in self.tenants(incident)

    def tenants(self, incident: Incident) -> set[str]:
        return _affected(incident) | self._held_by.get(incident.name, set())

    def _is_first(self, incident: Incident) -> bool:
        return len({b.at for b in self.begun if b.incident == incident.name}) == 1

    def _hour(self, incident: Incident, name: str, spec: RemedyPolicySpec) -> Iterator[str]:
        most, count = self.most_an_hour(name, spec), self.begun_within_the_hour(name)
        if most is not None and count > most:
            yield f"{incident.name}: {count} remedies of policy {name} were begun within an hour, {most} may be"

    def most_an_hour(self, name: str, spec: RemedyPolicySpec) -> int | None:
        pool = [n for n in self._nodes if n in self._ledgers and self._policy_of(n)[0] == name]
        return bound(spec.limits.per_hour, len(pool))

    def begun_within_the_hour(self, policy: str) -> int:
        """Incidents of the policy whose first step was taken since then, be it a ticket."""
        first: dict[str, Begun] = {}
        for one in self.begun:
            first.setdefault(one.incident, one)
        return sum(1 for one in first.values() if one.policy == policy and self._now() - one.at < HOUR_S)


def reason_of(incident: Incident) -> str:
    return incident.status.verdict.reason


def _affected(incident: Incident) -> set[str]:
    return {a.pod.partition("/")[0] for a in incident.status.affected}


def _of(tenant: str, pod: str) -> bool:
    return pod.partition("/")[0] == tenant


def device_rungs(incident: Incident) -> dict[str, RemedyRecord]:
    """Those of the device ladder; a workload's are called attempt-N."""
    return {r.key: r for r in incident.status.remedies if not r.key.startswith("attempt-")}


def is_at_work(incident: Incident) -> bool:
    """Something is being done to its node, or it soaks after that. A ticket does nothing to a node."""
    if not incident.is_open:
        return False
    rungs = [r for r in device_rungs(incident).values() if r.started_at is not None and r.action != "ticket"]
    soaks = incident.status.phase == "Verifying" and bool(rungs)
    return soaks or any(r.outcome is RemedyOutcome.RUNNING for r in rungs)


def bound(text: str, of: int) -> int | None:
    """How many that is; None = no limit. A share is rounded down and at least 1, unless it is nothing. Written here again and not
    taken from the product: a rule that counts with the product's own numbers finds none of its mistakes."""
    if not text:
        return None
    if text.endswith("%"):
        share = int(text[:-1])
        return max(1, of * share // 100) if share else 0
    return int(text)
