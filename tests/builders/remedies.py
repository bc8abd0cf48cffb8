"""Incidents, policies and a bench for the device ladder: one incident, its nodes, and an agent that answers as it was told.

    bench = Bench(incident(remedy="ResetDevice"), answers={"probe-1": "Failed"})
    bench.run(until=1000)
    assert bench.outcomes() == {"probe-1": "Failed", "reset-1": "Succeeded", "probe-reset-1": "Succeeded"}

The bench applies what `climb_ladder` says should stand with the controller's own patches, so that what is written is what is
read again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from remuda.api.codec import from_wire, merge_patch, to_wire
from remuda.api.devices import DeviceState, NodeDevices, Observed, ObservedDevice, OrderAnswer, Signal
from remuda.api.incidents import (
    Incident,
    IncidentPhase,
    IncidentSpec,
    IncidentStatus,
    IncidentVerdict,
    Subject,
    SubjectKind,
)
from remuda.api.kubernetes.core_v1 import Node, NodeSpec, Pod, PodSpec, PodStatus
from remuda.api.meta import Condition, ObjectMeta, to_time
from remuda.api.remedies import Action, Ladder, Limits, RemedyPolicy, RemedyPolicySpec, Rung, Soak
from remuda.controllers.remedies import _remedy_devices_patch as devices_patch
from remuda.core.remedies.drain import RecycleDomain, domain_recycled_by_remedy, node_drain_patch_for_remedy
from remuda.core.remedies.hook_objects import HookResult
from remuda.core.remedies.ladder.climb import climb_ladder
from remuda.core.remedies.ladder.types import LadderCase, LadderStep
from remuda.core.remedies.limits import HeldBack, RemedyGate
from remuda.core.remedies.occupancy import RemedyFootprint
from remuda.core.remedies.rungs import device_remedies

T0 = 1_000_000.0
NODE, DEVICE = "n1", "gpu-3"


def remedy_policy(name: str = "default", **spec: Any) -> RemedyPolicy:
    return RemedyPolicy(metadata=ObjectMeta(name=name, uid=f"uid-{name}"), spec=RemedyPolicySpec(**spec))


def ladder(when: str, *actions: Action | Rung) -> Ladder:
    return Ladder(when, [a if isinstance(a, Rung) else Rung(a) for a in actions])


def incident(
    *,
    node: str = NODE,
    device: str = DEVICE,
    reason: str = "Xid48",
    remedy: str = "ResetDevice",
    state: DeviceState = DeviceState.UNHEALTHY,
    opened: float = T0,
    name: str = "",
    **spec: Any,
) -> Incident:
    kind = SubjectKind.DEVICE if device else SubjectKind.NODE
    return Incident(
        metadata=ObjectMeta(name=name or f"inc-{node}-{device or 'node'}"),
        spec=IncidentSpec(subject=Subject(kind, node=node, device=device), **spec),
        status=IncidentStatus(
            verdict=IncidentVerdict(state=state, reason=reason, message=f"{reason}.", remedy=remedy),
            opened_at=to_time(opened),
            first_signal_at=to_time(opened),
        ),
    )


def machine(name: str = NODE, **labels: str) -> Node:
    node = Node(metadata=ObjectMeta(name=name, labels=labels))
    return msgspec.structs.replace(
        node, status=msgspec.structs.replace(node.status, conditions=[Condition("Ready", "True")])
    )


def ledger(name: str = NODE, devices: int = 8, *, model: str = "", kind: str = "NVIDIA H100") -> NodeDevices:
    rows = [ObservedDevice(f"gpu-{i}", kind, index=i, uuid=f"GPU-{name}-{i}") for i in range(devices)]
    return NodeDevices(metadata=ObjectMeta(name=name), observed=Observed(model=model, devices=rows))


def a_pod(name: str, node: str = NODE, *, devices: str = "", namespace: str = "team", **metadata: Any) -> Pod:
    marks = {"remuda.dev/devices": devices} if devices else {}
    meta = ObjectMeta(name=name, namespace=namespace, uid=f"uid-{name}", annotations=marks, **metadata)
    return Pod(metadata=meta, spec=PodSpec(node_name=node), status=PodStatus(phase="Running"))


class Bench:
    """`answers`: by record key, what becomes of its order ("" = nobody answers). Without one everything succeeds at once."""

    def __init__(
        self,
        about: Incident,
        policy: RemedyPolicy | None = None,
        *,
        answers: Mapping[str, str] | None = None,
        nodes: Sequence[Node] = (),
        ledgers: Sequence[NodeDevices] = (),
        pods: Sequence[Pod] = (),
        keep: Sequence[str] = (),
    ) -> None:
        self.incident = about
        self.policy = policy or remedy_policy(soak=Soak(seconds=60.0))
        self.answers = dict(answers or {})
        self.nodes = {n.name: n for n in nodes} or {NODE: machine()}
        self.ledgers = {d.name: d for d in ledgers} or {n: ledger(n) for n in self.nodes}
        self.pods = list(pods)
        self.keep = set(keep)  # pods whose eviction is refused by a budget
        self.gate: RemedyGate | None = None
        self.at_work: frozenset[str] = frozenset()
        self.made: HookResult | None = None
        self.is_silent = False
        self.cause: Incident | None = None
        self.begun: list[str] = []  # orders the agent carried out, in order: node/id
        self.evicted: list[str] = []
        self.deleted: list[str] = []
        self.now = T0
        self.last: LadderStep | None = None

    def case(self) -> LadderCase:
        node = self.nodes.get(self.incident.spec.subject.node)
        assert node is not None or self.incident.spec.subject.kind is SubjectKind.DOMAIN
        return LadderCase(
            incident=self.incident,
            policy=self.policy,
            domain=domain_recycled_by_remedy(node, self.ledgers.get(node.name), self.nodes.values())
            if node
            else RecycleDomain("", ()),
            nodes=self.nodes,
            ledgers=self.ledgers,
            pods={n: [p for p in self.pods if p.spec.node_name == n] for n in self.nodes},
            gate=self.gate,
            at_work=self.at_work,
            made=self.made,
            is_silent=self.is_silent,
            cause=self.cause,
        )

    def look(self, now: float | None = None) -> LadderStep:
        """One look, applied; the agent answers."""
        self.now = self.now if now is None else now
        case = self.case()
        step = self.last = climb_ladder(case, self.now)
        name = self.incident.name
        for node in list(self.nodes.values()):
            is_empty = node.name in step.cordon
            request = step.request if is_empty else None
            patch = node_drain_patch_for_remedy(
                node, name, hold=node.name in step.hold, cordon=is_empty, request=request
            )
            self.nodes[node.name] = from_wire(Node, merge_patch(to_wire(node), patch))
        self.incident = msgspec.structs.replace(self.incident, status=step.status)
        for found in list(self.ledgers.values()):
            patch = devices_patch(found, case, step)
            self.ledgers[found.name] = from_wire(NodeDevices, merge_patch(to_wire(found), patch))
        if step.drain is not None:
            for pod in step.drain.evict:
                self.evicted.append(pod.name)
                if pod.name not in self.keep:
                    self.pods.remove(pod)
            for pod in step.drain.delete:
                self.deleted.append(pod.name)
                self.pods.remove(pod)
        for node_name in self.ledgers:
            self._agent(node_name)
        return step

    def _agent(self, name: str) -> None:
        found = self.ledgers[name]
        for id, order in found.orders.items():
            if any(a.id == id for a in found.observed.answers):
                continue
            key = id.removeprefix(f"{self.incident.name}.")
            outcome = self.answers.get(key, "Succeeded")
            if not outcome:
                continue
            self.begun.append(f"{name}/{key}")
            answer = OrderAnswer(id, order.action, outcome, order.device, time=to_time(self.now))
            observed = msgspec.structs.replace(found.observed, answers=[*found.observed.answers, answer])
            found = self.ledgers[name] = msgspec.structs.replace(found, observed=observed)

    def run(self, until: float, *, most: int = 500) -> None:
        """Look until nothing changes, then wait as long as the ladder says, until `until` seconds after T0."""
        for _ in range(most):
            before = self._picture()
            step = self.look()
            if self._picture() != before:
                continue
            ends = T0 + until
            if step.look_again_s is None or self.now + step.look_again_s > ends:
                self.now = ends
                self.look()
                return
            self.now += step.look_again_s
        raise AssertionError(f"the ladder does not come to rest: {self.outcomes()}")

    def _picture(self) -> tuple[object, ...]:
        return self.incident.status, tuple(self.nodes.values()), tuple(self.ledgers.values()), tuple(self.pods)

    # --- what there is ------------------------------------------------------------------------------------------------

    def outcomes(self) -> dict[str, str]:
        return {key: r.outcome.value for key, r in device_remedies(self.incident.status.remedies).items()}

    def reason(self, key: str) -> str:
        return device_remedies(self.incident.status.remedies)[key].reason

    @property
    def phase(self) -> IncidentPhase:
        return self.incident.status.phase

    @property
    def quarantined(self) -> list[str]:
        return sorted(self.ledgers[self.incident.spec.subject.node].quarantine)

    def hear(self, code: str, *, source: str = "kmsg", at: float | None = None, device: str = DEVICE) -> None:
        """A signal of the subject's node."""
        name = self.incident.spec.subject.node
        signal = Signal(source, code, time=to_time(self.now if at is None else at))
        found = self.ledgers[name]
        rows = [
            msgspec.structs.replace(d, signals=[*d.signals, signal]) if d.id == device else d
            for d in found.observed.devices
        ]
        observed = msgspec.structs.replace(found.observed, devices=rows)
        self.ledgers[name] = msgspec.structs.replace(found, observed=observed)

    def cordon(self, name: str = NODE) -> None:
        """By somebody else."""
        self.nodes[name] = msgspec.structs.replace(self.nodes[name], spec=NodeSpec(unschedulable=True))

    def shut(self, reason: str = "Paused") -> None:
        self.gate = RemedyGate(RemedyFootprint("", "", (), 0.0), Limits(pool=""), shut=HeldBack(reason, "Not now."))
