"""Policy controller: how each RemedyPolicy is used, in its status. Decides nothing: remedies never read it.

One key per policy. A policy without an object (the built-in default) has no status; `remuda policy default` works it out.
"""

from __future__ import annotations

import msgspec
import structlog

from remuda.api.codec import to_wire
from remuda.api.conditions import with_condition
from remuda.api.devices import NodeDevices
from remuda.api.errors import Refusal
from remuda.api.incidents import Incident
from remuda.api.kubernetes.core_v1 import Node
from remuda.api.meta import Condition, JsonObject, to_seconds, to_time
from remuda.api.remedies import RemedyPolicy, RemedyPolicyStatus
from remuda.controllers.cluster_view import ClusterView
from remuda.controllers.remedy_table import RemedyTable
from remuda.core.remedies.breaker import with_last_breaker_opening
from remuda.core.remedies.policies import (
    INVALID,
    OVERLAPS,
    device_type_for_remedy_policy,
    is_policy_paused,
    policy_in_force,
    policy_overlaps,
    remedy_policy_refusal,
    remedy_reasons_matching_no_fault,
)
from remuda.core.remedies.rungs import is_remedy_held_back, is_under_remedy
from remuda.kube.cluster import Cluster, Preconditions
from remuda.kube.runtime.events import SILENCE, EventSink
from remuda.kube.runtime.work_queue import WorkQueue

log = structlog.get_logger(__name__)

SETTLE_S = 1.0  # incidents of one failure come together
MANY = 1_000_000


class PolicyStatusPlan(msgspec.Struct, frozen=True):
    policy: RemedyPolicy
    status: RemedyPolicyStatus
    look_again_s: float | None = None


class PolicyController:
    """A `Reconciler` keyed by policy name."""

    def __init__(
        self,
        cluster: Cluster,
        view: ClusterView,
        table: RemedyTable,
        queue: WorkQueue[str],
        *,
        events: EventSink = SILENCE,
    ) -> None:
        self._cluster = cluster
        self._view = view
        self._table = table
        self._queue = queue
        self._events = events
        view.policies.subscribe(self._on_policy)
        view.incidents.subscribe(self._on_incident)
        view.nodes.subscribe(self._on_node)
        view.devices.subscribe(self._on_devices)

    def _on_policy(self, old: RemedyPolicy | None, new: RemedyPolicy | None) -> None:
        """Every policy may be overlapped by every other, and takes nodes from it."""
        if old is None or new is None or old.spec != new.spec:
            for policy in self._view.policies.items():
                self._queue.add(policy.name)

    def _on_incident(self, old: Incident | None, new: Incident | None) -> None:
        incident = new or old
        assert incident is not None
        if old is None or new is None or _what_policies_read_of_incident(old) != _what_policies_read_of_incident(new):
            self._queue.add_after(self._table.policy_of(incident.spec.subject.node).name, SETTLE_S)

    def _on_node(self, old: Node | None, new: Node | None) -> None:
        if old is None or new is None or old.labels != new.labels:
            self._look_at_all_soon()

    def _on_devices(self, old: NodeDevices | None, new: NodeDevices | None) -> None:
        """A node is a policy's once its devices are known."""
        if old is None or new is None or device_type_for_remedy_policy(old) != device_type_for_remedy_policy(new):
            self._look_at_all_soon()

    def _look_at_all_soon(self) -> None:
        for policy in self._view.policies.items():
            self._queue.add_after(policy.name, SETTLE_S)

    async def observe(self, key: str) -> RemedyPolicy | None:
        return self._view.policies.get(key)

    def plan(self, observed: RemedyPolicy | None, now: float) -> PolicyStatusPlan | None:
        if observed is None or observed.is_deleting:
            return None
        name = observed.name
        active = (f for f in self._table.occupancy(now) if f.policy == name and f.is_active)
        found = self._table.breaker(self._view.policy_in_force(name) or policy_in_force(observed), now)
        breaker = with_last_breaker_opening(found, observed.status.breaker, now)
        status = RemedyPolicyStatus(
            nodes=len(self._table.nodes_of(name)),
            under_remedy=sorted({node for f in active for node in f.nodes}),
            held_back=len(self._table.held(name, MANY)),
            breaker=breaker,
            conditions=reconciled_policy_conditions(observed, self._view.policies.items(), now),
        )
        pause = observed.spec.pause
        ends = [to_seconds(end) for end in (breaker.closes_at, pause.until if pause is not None else None) if end]
        ahead = [end for end in ends if end > now]
        return PolicyStatusPlan(observed, status, min(ahead) - now + 0.001 if ahead else None)

    async def apply(self, planned: PolicyStatusPlan | None) -> float | None:
        if planned is None:
            return None
        policy, status = planned.policy, planned.status
        if status != policy.status:
            before = policy.status.breaker
            patch: JsonObject = {**dict.fromkeys(to_wire(policy.status)), **to_wire(status)}
            patch["breaker"] = {**dict.fromkeys(to_wire(before)), **to_wire(status.breaker)} or None
            when = Preconditions(resource_version=policy.metadata.resource_version)
            await self._cluster.patch(RemedyPolicy, policy.name, {"status": patch}, subresource="status", when=when)
            if status.breaker.open and not before.open:
                log.warning("remedy.breaker", policy=policy.name, message=status.breaker.message)
                words = f"No new remedy starts: {status.breaker.message}"
                self._events.warning(policy, "BreakerOpen", words)
            elif before.open and not status.breaker.open:
                self._events.normal(policy, "BreakerClosed", "Remedies start again.")
        return planned.look_again_s


def reconciled_policy_conditions(policy: RemedyPolicy, others: list[RemedyPolicy], now: float) -> list[Condition]:
    """What is odd about the policy. A condition that was never true is not there."""
    moment, conditions = to_time(now), policy.status.conditions

    def say(type_: str, is_so: bool, reason: str, message: str, calm: str) -> None:
        nonlocal conditions
        if is_so:
            conditions = with_condition(conditions, type_, True, reason, message, moment)
        elif any(c.type == type_ for c in conditions):
            conditions = with_condition(conditions, type_, False, calm, "", moment)

    refused = remedy_policy_refusal(policy)
    say(INVALID, refused is not None, refused.reason if refused else "", _invalid_policy_message(refused), "Valid")
    found = policy_overlaps(policy, others)
    words = " ".join(
        f"{o.winner} and {o.loser} match the same devices equally well; {o.winner} is used because its name comes first."
        for o in found
    )
    say(OVERLAPS, bool(found), "SamePriorityAndSelectivity", f"{words} Give one a higher priority.", "Distinct")
    unknown = remedy_reasons_matching_no_fault(policy)
    named = ", ".join(unknown)
    say("UnknownReasons", bool(unknown), "NoSuchFault", f"No fault of this build has the reason {named}.", "Known")
    pause = policy.spec.pause
    until = f" until {pause.until:%Y-%m-%d %H:%M:%S}" if pause is not None and pause.until is not None else ""
    why = f": {pause.message}" if pause is not None and pause.message else ""
    say("Paused", is_policy_paused(pause, now), "PausedByOperator", f"No new remedy starts{until}{why}.", "NotPaused")
    return conditions


def _invalid_policy_message(refused: Refusal | None) -> str:
    return f"{refused.message} {refused.fix} Until then it only observes." if refused is not None else ""


def _what_policies_read_of_incident(incident: Incident) -> tuple[object, ...]:
    return (
        is_under_remedy(incident),
        is_remedy_held_back(incident),
        incident.status.opened_at,
        incident.status.verdict.state,
    )
