"""What must hold of incidents, remedies and orders at every single committed change: the second half of the invariants.

`RemedyInvariants.see` is told of each change in the order of its commit, as `Invariants` is, and keeps a picture of its own made
from the history alone. The rules are those of the policy's words, written a second time and plainly:

- one open incident per subject; a closed one stays as it was closed
- a rung is begun once: its record runs once, its order is carried out once
- a policy's mode, pause and limits (`tests.builders.limit_rules`) bind every rung that is begun; what is under way goes on, and
  giving back is free
- a node that somebody else cordoned stays cordoned; a node is asked to go only for a drain that is written down
- nothing of a withheld resource is placed; no node gives out a device that has been out of use for long

`theirs` names nodes that the test itself has cordoned, as somebody else; it takes the name out before it uncordons one.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from datetime import datetime
from fnmatch import fnmatchcase

from remuda.api.devices import DeviceState, NodeDevices, OrderAnswer
from remuda.api.incidents import Incident, RemedyOutcome, RemedyRecord
from remuda.api.kubernetes.core_v1 import Node, Pod
from remuda.api.meta import to_seconds
from remuda.api.names import ANNOTATION_CORDONED_BY, ANNOTATION_DRAIN_REQUESTED
from remuda.api.remedies import Mode, RemedyPolicy, RemedyPolicySpec
from remuda.core.state.pod_requests import requests_of_pod
from remuda.embedded.apiserver.store import DELETED
from remuda.embedded.apiserver.store.record import StoreEvent
from remuda.sim.virtual_time_loop import EPOCH
from tests.builders.limit_rules import LimitRules, device_rungs, is_at_work

MAX_KEPT = 20
CLOCK_BACK_S = 60.0
REACTION_S = 1.0  # within this nobody need have heard of a change
GIVEN_S = 5.0  # a node may give out what it had promised for so long
Subject = tuple[str, ...]


class RemedyInvariants:
    def __init__(self, now: Callable[[], float], *, staleness_s: float = 0.0) -> None:
        self.violations: list[str] = []
        self.incidents: dict[str, Incident] = {}
        self.policies: dict[str, RemedyPolicy] = {}
        self.nodes: dict[str, Node] = {}
        self.ledgers: dict[str, NodeDevices] = {}
        self.theirs: set[str] = set()
        self.carried_out: dict[str, OrderAnswer] = {}  # by node and order id
        self._now = now
        self._late_s = REACTION_S + staleness_s
        self._revision = 0
        self._bound: dict[str, str] = {}  # pod uid -> node
        self._policy_since: dict[str, float] = {}
        self._withheld_since: dict[tuple[str, str], float] = {}
        self._out_since: dict[tuple[str, str], float] = {}
        self._given: set[tuple[str, str, str]] = set()  # node, device, pod uid
        self.limits = LimitRules(
            now,
            self._late_s,
            incidents=self.incidents,
            nodes=self.nodes,
            ledgers=self.ledgers,
            policy_of=self.policy_of,
        )

    def see(self, event: StoreEvent) -> None:
        record, gone = event.record, event.type == DELETED
        self._revision = record.rv
        key = record.key
        if key.startswith(Incident.resource.prefix):
            self._see_incident(record.decode(Incident), gone)
        elif key.startswith(Node.resource.prefix):
            self._see_node(record.decode(Node), gone)
        elif key.startswith(NodeDevices.resource.prefix):
            self._see_devices(record.decode(NodeDevices), gone)
        elif key.startswith(RemedyPolicy.resource.prefix):
            self._see_policy(record.decode(RemedyPolicy), gone)
        elif key.startswith(Pod.resource.prefix):
            self._see_pod(record.decode(Pod), gone)

    def _broken(self, rule: str, what: str) -> None:
        if len(self.violations) < MAX_KEPT:
            self.violations.append(f"[t={self._now():.3f} rv={self._revision}] {rule}: {what}")

    def out_since(self, node: str, device: str) -> float | None:
        """Since when the device is not to be used; None when it may be."""
        return self._out_since.get((node, device))

    # --- incidents ----------------------------------------------------------------------------------------------------

    def _see_incident(self, new: Incident, gone: bool) -> None:
        old = self.incidents.get(new.name)
        if gone:
            self.incidents.pop(new.name, None)
            if new.is_open:
                self._broken("an open incident is not thrown away", new.name)
            return
        self.incidents[new.name] = new
        self.limits.note(old, new)
        if old is not None and not old.is_open:
            if new.is_open:
                self._broken("closed stays closed", f"{new.name}: {old.status.outcome} -> {new.status.phase}")
            elif old.status.outcome != new.status.outcome and not new.status.part_of:  # the explanation may come late
                self._broken("an outcome is final", f"{new.name}: {old.status.outcome} -> {new.status.outcome}")
        if new.is_open:
            self._only_one_of_its_subject(new)
        elif new.status.outcome is None or not new.status.message:
            self._broken("a closed incident says how it ended", new.name)
        self._rungs_are_begun_once(old, new)

    def _only_one_of_its_subject(self, incident: Incident) -> None:
        mine = subject_of(incident)
        for other in self.incidents.values():
            if other.name != incident.name and other.is_open and subject_of(other) == mine:
                self._broken("one open incident per subject", f"{other.name} and {incident.name} are about {mine}")

    def _rungs_are_begun_once(self, old: Incident | None, new: Incident) -> None:
        records = device_rungs(new)
        keys = [r.key for r in new.status.remedies]
        if len(set(keys)) < len(keys):
            self._broken("a rung has one record", f"{new.name}: {keys}")
        before = device_rungs(old) if old is not None else {}
        for key in before.keys() - records.keys():
            if before[key].started_at is None:
                continue  # it only waited, and no ladder leads to it any more
            self._broken("a rung's record stays", f"{new.name} lost {key}")
        begun = []
        for key, record in records.items():
            known = before.get(key)
            if known is None or known.started_at is None:
                if record.started_at is not None:
                    begun.append(record)
                continue
            if record.started_at != known.started_at and not _is_dated_anew(known.started_at, record.started_at):
                self._broken("a rung is begun once", f"{new.name} {key}: {known.started_at} -> {record.started_at}")
            if record.outcome is RemedyOutcome.RUNNING and known.outcome is not RemedyOutcome.RUNNING:
                self._broken("a rung that has ended does not run again", f"{new.name} {key}: {known.outcome} before")
        for record in begun:
            self._may_begin(new, record, before)
            self.limits.note_begun(new, record)
        if new.spec.subject.node and is_at_work(new) and (old is None or not is_at_work(old)):
            name, _ = self.policy_of(new.spec.subject.node)
            for words in self.limits.exceeded(new) if not self._is_fresh(name) else ():
                self._broken("limits hold", words)

    def _may_begin(self, incident: Incident, record: RemedyRecord, before: dict[str, RemedyRecord]) -> None:
        """Asked of a stage once, at its first step: a drain, the rung, or the probe after it."""
        stage = stage_of(record.key)
        if record.key.startswith("recheck-") or any(stage_of(k) == stage and r.started_at for k, r in before.items()):
            return
        name, spec = self.policy_of(incident.spec.subject.node)
        if self._is_fresh(name):
            return
        what = f"{incident.name} began {record.key}"
        said = [a for a in incident.spec.approvals if a.remedy == stage]
        if spec.mode is Mode.OBSERVE:
            self._broken("a policy that only observes begins nothing", what)
        if spec.mode is Mode.APPROVE and not (said and said[-1].granted):
            self._broken("a policy that asks waits for the answer", what)
        if said and not said[-1].granted:
            self._broken("what is denied is not done", what)
        pause, now = spec.pause, EPOCH + self._now()
        if pause is not None and not stage.startswith("ticket"):
            since = to_seconds(pause.since) if pause.since is not None else -math.inf
            until = to_seconds(pause.until) if pause.until is not None else math.inf
            if since + self._late_s < now < until:
                self._broken("nothing is begun while the policy is paused", what)

    # --- policies -----------------------------------------------------------------------------------------------------

    def _see_policy(self, policy: RemedyPolicy, gone: bool) -> None:
        old = self.policies.get(policy.name)
        if gone:
            self.policies.pop(policy.name, None)
        else:
            self.policies[policy.name] = policy
        if gone or old is None or old.spec != policy.spec:
            self._policy_since[policy.name] = self._now()

    def policy_of(self, node: str) -> tuple[str, RemedyPolicySpec]:
        """By the node's labels alone, and the type of its first device: all of a node are of one."""
        found, ledger = self.nodes.get(node), self.ledgers.get(node)
        labels = found.labels if found is not None else {}
        kind = ledger.observed.devices[0].type if ledger is not None and ledger.observed.devices else ""
        fits = [
            p
            for p in self.policies.values()
            if p.name != "default"
            and p.spec.selector.nodes.items() <= labels.items()
            and (not p.spec.selector.device_types or any(fnmatchcase(kind, t) for t in p.spec.selector.device_types))
        ]
        chosen = min(
            fits,
            key=lambda p: (-p.spec.priority, -len(p.spec.selector.nodes), p.name),
            default=self.policies.get("default"),
        )
        return (chosen.name, chosen.spec) if chosen is not None else ("default", RemedyPolicySpec())

    def _is_fresh(self, policy: str) -> bool:
        """Nobody need have heard of it as it is now."""
        return self._now() - max(self._policy_since.values(), default=-math.inf) <= self._late_s

    # --- nodes, devices, pods -----------------------------------------------------------------------------------------

    def _see_node(self, node: Node, gone: bool) -> None:
        old = self.nodes.get(node.name)
        if gone:
            self.nodes.pop(node.name, None)
            return
        self.nodes[node.name] = node
        self._is_drain_on_record(old, node)
        if node.name not in self.theirs or old is None or old.uid != node.uid:
            return
        if old.spec.unschedulable and not node.spec.unschedulable:
            self._broken("somebody else's cordon is left alone", f"{node.name} was uncordoned")
        if node.annotations.get(ANNOTATION_CORDONED_BY):
            self._broken("somebody else's cordon is not called ours", f"{node.name}: {node.annotations}")

    def _is_drain_on_record(self, old: Node | None, node: Node) -> None:
        """Whoever moves because of it has to find why, and the decision may still be taken back until it is written."""
        asked = node.annotations.get(ANNOTATION_DRAIN_REQUESTED, "")
        if not asked or (old is not None and old.annotations.get(ANNOTATION_DRAIN_REQUESTED) == asked):
            return
        incident = self.incidents.get(asked.rpartition("/")[0])
        if incident is not None and not any(key.startswith("drain-") for key in device_rungs(incident)):
            self._broken("a drain is written down before it is asked for", f"{node.name}: {asked}")

    def _see_devices(self, node: NodeDevices, gone: bool) -> None:
        if gone:
            self.ledgers.pop(node.name, None)
            return
        self.ledgers[node.name] = node
        for answer in node.observed.answers:
            self._is_carried_out_once(node.name, answer)
        withheld = {(node.name, resource) for resource in node.withheld}
        for place in [p for p in self._withheld_since if p[0] == node.name and p not in withheld]:
            del self._withheld_since[place]
        for place in withheld:
            self._withheld_since.setdefault(place, self._now())
        fit = (DeviceState.HEALTHY, DeviceState.DEGRADED)
        bad = {v.device for v in node.verdicts if v.state not in fit} | set(node.quarantine)
        for holding in node.observed.holdings:
            for device in holding.devices:
                self._is_given(node.name, device, holding.uid)
        held = {(node.name, d, h.uid) for h in node.observed.holdings for d in h.devices}
        self._given = {g for g in self._given if g[0] != node.name} | held
        for place in [p for p in self._out_since if p[0] == node.name and p[1] not in bad]:
            del self._out_since[place]
        for device in bad:
            self._out_since.setdefault((node.name, device), self._now())

    def _is_carried_out_once(self, node: str, answer: OrderAnswer) -> None:
        key = f"{node}/{answer.id}"
        known = self.carried_out.get(key)
        self.carried_out[key] = answer
        if known is None:
            return
        if answer.action == "probe" and known.outcome == "Running":
            return  # an agent that finds one of its predecessor's asks again: a probe changes nothing
        if known.started_at is not None and answer.started_at != known.started_at:
            self._broken("an order is carried out once", f"{key} was begun {known.started_at} and {answer.started_at}")
        if known.outcome != RemedyOutcome.RUNNING and answer.outcome != known.outcome:
            self._broken("an order is answered once", f"{key}: {known.outcome} -> {answer.outcome}")

    def _is_given(self, node: str, device: str, uid: str) -> None:
        if (node, device, uid) in self._given:
            return
        since = self._out_since.get((node, device), math.inf)
        # A pod that was bound before may still have been on its way.
        if since < self._now() - self._late_s - GIVEN_S:
            self._broken("no node gives out a device that is out of use", f"{node} {device} to {uid}")

    def _see_pod(self, pod: Pod, gone: bool) -> None:
        if gone:
            self._bound.pop(pod.uid, None)
            return
        node = pod.spec.node_name
        if not node or pod.uid in self._bound:
            return
        self._bound[pod.uid] = node
        for resource in requests_of_pod(pod):
            if self._withheld_since.get((node, resource), math.inf) < self._now() - self._late_s:
                self._broken("nothing of a withheld resource is placed", f"{pod.name} on {node} asks for {resource}")


def subject_of(incident: Incident) -> Subject:
    s = incident.spec.subject
    return s.kind.value, s.node, s.device, s.namespace, s.gang, s.domain


def stage_of(key: str) -> str:
    """drain-reboot-1 and probe-reboot-1 belong to reboot-1."""
    words = key.split("-")
    return "-".join(words[1:]) if len(words) == 3 else key


def _is_dated_anew(before: datetime, after: datetime | None) -> bool:
    """Our clock was set back by more than a minute: records ahead of it count again from now (docs/trust.md, Clocks)."""
    return after is not None and (before - after).total_seconds() > CLOCK_BACK_S
