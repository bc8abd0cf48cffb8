"""Incidents without a cluster: a book that carries out plans as the controller does, and short ways to say what is seen.

Every look is made twice: the second must find nothing to do. A closed incident that comes back, or a name that is made twice,
fails the test at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any

import msgspec

from remuda.api.codec import from_wire
from remuda.api.devices import (
    DeviceState,
    NodeDevices,
    Notice,
    Observed,
    ObservedDevice,
    QuarantineOrder,
    Signal,
    Verdict,
)
from remuda.api.incidents import Incident, IncidentOutcome, IncidentPhase, IncidentStatus
from remuda.api.kubernetes.core_v1 import Pod
from remuda.api.meta import ObjectMeta, to_time
from remuda.api.training import Cause, Member, Progress, Recovery, Remedy, TrainingJob, TrainingJobStatus
from remuda.core.devices.fault_codes import classify_device_fault_code
from remuda.core.health.correlation import DomainSuspect
from remuda.core.incidents.device_incidents import plan_device_incidents
from remuda.core.incidents.domain_incidents import plan_domain_incidents
from remuda.core.incidents.gang_incidents import GangIncidentView, plan_gang_incidents
from remuda.core.incidents.names import IncidentPlan, IncidentTimes
from remuda.core.incidents.node_incidents import plan_node_incidents
from remuda.core.incidents.pods import NodeIncidentView

T0 = 1_800_000_000.0  # when stories begin
TIMES = IncidentTimes()


def at(seconds: float) -> datetime:
    return to_time(T0 + seconds)


class Book:
    """`now` counts from T0."""

    def __init__(self, times: IncidentTimes = TIMES) -> None:
        self.incidents: dict[str, Incident] = {}
        self.times = times
        self.writes = 0

    def see_node(self, sight: NodeIncidentView, now: float, watching_since: float = -1e9) -> IncidentPlan:
        def plan() -> IncidentPlan:
            mine = [i for i in self.incidents.values() if i.spec.subject.node == sight.name]
            first = plan_device_incidents(sight, mine, T0 + now, self.times)
            other = plan_node_incidents(sight, mine, T0 + now, self.times, T0 + watching_since)
            waits = [s for s in (first.look_again_s, other.look_again_s) if s is not None]
            opened, amended = (*first.opened, *other.opened), (*first.amended, *other.amended)
            return IncidentPlan(opened, amended, look_again_s=min(waits, default=None))

        return self._carry_out(plan, now)

    def see_gang(self, sight: GangIncidentView, now: float) -> IncidentPlan:
        return self._carry_out(
            lambda: plan_gang_incidents(sight, list(self.incidents.values()), T0 + now, self.times), now
        )

    def see_domains(self, suspects: Sequence[DomainSuspect], now: float) -> IncidentPlan:
        def plan() -> IncidentPlan:
            parts: dict[str, list[Incident]] = {}
            for incident in self.incidents.values():
                subject = incident.spec.subject
                member = f"{subject.node}/{subject.device}" if subject.device else subject.node
                parts.setdefault(member, []).append(incident)
            domains = [i for i in self.incidents.values() if i.spec.subject.domain]
            return plan_domain_incidents(suspects, domains, parts, self.incidents.get, T0 + now)

        return self._carry_out(plan, now)

    def _carry_out(self, plan: Any, now: float) -> IncidentPlan:
        first: IncidentPlan = plan()
        self._apply(first, now)
        again: IncidentPlan = plan()
        assert (again.opened, again.amended) == ((), ()), f"not idempotent: {again}"
        return first

    def _apply(self, plan: IncidentPlan, now: float) -> None:
        for incident in plan.opened:
            assert incident.name not in self.incidents, f"{incident.name} is made twice"
            meta = msgspec.structs.replace(incident.metadata, creation_timestamp=at(now), uid=f"uid-{incident.name}")
            self.incidents[incident.name] = msgspec.structs.replace(incident, metadata=meta)
        for incident, status in plan.amended:
            before = self.incidents[incident.name].status
            if before.phase is IncidentPhase.CLOSED:
                assert status.phase is IncidentPhase.CLOSED, f"{incident.name} is open again"
            self.put(incident.name, status)
            self.writes += 1

    def put(self, name: str, status: IncidentStatus) -> None:
        self.incidents[name] = msgspec.structs.replace(self.incidents[name], status=status)

    def amend(self, name: str, **changes: Any) -> None:
        """Somebody else writes the status."""
        self.put(name, msgspec.structs.replace(self.incidents[name].status, **changes))

    def dismiss(self, name: str, why: str = "known") -> None:
        found = self.incidents[name]
        self.incidents[name] = msgspec.structs.replace(found, spec=msgspec.structs.replace(found.spec, dismiss=why))

    @property
    def all(self) -> list[Incident]:
        return list(self.incidents.values())

    @property
    def open(self) -> list[Incident]:
        return [i for i in self.incidents.values() if i.is_open]

    def only(self) -> Incident:
        assert len(self.incidents) == 1, sorted(self.incidents)
        return self.all[0]

    def outcomes(self) -> dict[str, IncidentOutcome | None]:
        return {i.name: i.status.outcome for i in self.all}


def a_verdict(
    device: str = "gpu-0",
    state: DeviceState = DeviceState.UNHEALTHY,
    reason: str = "Xid79",
    since: float = 0.0,
    source: str = "kmsg/xid-79",
    **more: Any,
) -> Verdict:
    if state is DeviceState.HEALTHY:
        reason = source = ""
    message = f"{reason} happened." if reason else ""
    who, _, code = source.partition("/")
    remedy = classify_device_fault_code(who, code).remedy.value if code else ""
    return Verdict(device, state, reason, message, source, at(since), remedy=remedy, **more)


def a_sight(
    *verdicts: Verdict,
    name: str = "node-1",
    pods: Sequence[Pod] = (),
    gone: Sequence[Pod] = (),
    signals: dict[str, list[Signal]] | None = None,
    quarantine: dict[str, QuarantineOrder] | None = None,
    notices: Sequence[Notice] = (),
    node_uid: str = "node-uid",
    uuids: dict[str, str] | None = None,
    ranks: dict[str, int] | None = None,
    dead_since: float | None = None,
    **observed: Any,
) -> NodeIncidentView:
    """`gone`: pods that were there a moment ago."""
    ids = [v.device for v in verdicts] or ["gpu-0"]
    rows = [
        ObservedDevice(d, "H100", n, signals=(signals or {}).get(d, []), uuid=(uuids or {}).get(d, f"GPU-{d}"))
        for n, d in enumerate(ids)
    ]
    return NodeIncidentView(
        name=name,
        devices=NodeDevices(
            metadata=ObjectMeta(name=name),
            observed=Observed(devices=rows, **observed),
            verdicts=list(verdicts),
            notices=list(notices),
            quarantine=quarantine or {},
        ),
        node_uid=node_uid,
        pods=(*pods, *gone),
        present=frozenset(p.uid for p in pods),
        ranks=ranks or {},
        dead_since=None if dead_since is None else T0 + dead_since,
    )


def a_device_pod(
    name: str = "p",
    devices: Sequence[str] = ("gpu-0",),
    *,
    owner: tuple[str, str] | None = None,
    exit_code: int | None = None,
    ended: float = 0.0,
    restarts: int = 0,
    phase: str = "Running",
    node: str = "node-1",
    labels: dict[str, str] | None = None,
) -> Pod:
    """`exit_code`: how its container ended the last time."""
    container: dict[str, Any] = {"name": "main", "restartCount": restarts}
    if exit_code is not None:
        past = {"terminated": {"exitCode": exit_code, "reason": "Error", "finishedAt": at(ended).isoformat()}}
        container["state" if phase == "Failed" else "lastState"] = past
    meta: dict[str, Any] = {
        "name": name,
        "namespace": "default",
        "uid": f"uid-{name}",
        "labels": labels or {},
        "annotations": {"remuda.dev/devices": ",".join(devices)},
    }
    if owner is not None:
        meta["ownerReferences"] = [
            {"apiVersion": "v1", "kind": owner[0], "name": owner[1], "uid": "o", "controller": True}
        ]
    return from_wire(
        Pod,
        {"metadata": meta, "spec": {"nodeName": node}, "status": {"phase": phase, "containerStatuses": [container]}},
    )


def a_recovery(
    attempt: int = 2,
    detected: float = 0.0,
    cause: Cause = Cause.CODE,
    reason: str = "ProcessExited",
    *,
    rank: int = 1,
    node: str = "node-1",
    devices: Sequence[str] = ("gpu-0",),
    first_step: float | None = None,
    lost_gpu_hours: float = 0.0,
    exit_code: int | None = None,
    step: int = 25,
    **more: Any,
) -> Recovery:
    pod = f"job-worker-{rank}"
    seat = Member(rank, "worker", pod, f"uid-{pod}", node, list(devices))
    return Recovery(
        attempt=attempt,
        cause=cause,
        remedy=more.pop("remedy", Remedy.RESTART_IN_PLACE),
        reason=reason,
        message=f"{pod}: {reason}",
        price_gpu_hours=0.1,
        members=[pod],
        seats=[seat],
        exit_codes={pod: exit_code} if exit_code is not None else {},
        why_not=["PromoteSpare: costs 0.14 GPU-hours"],
        signal_at=at(detected),
        detected_at=at(detected),
        first_step_at=None if first_step is None else at(first_step),
        step_at_fault=step,
        lost_gpu_seconds=lost_gpu_hours * 3600,
        **more,
    )


def a_gang(*recoveries: Recovery, phase: str = "Running", step: int = 20, **status: Any) -> GangIncidentView:
    told = TrainingJobStatus(phase=phase, recoveries=list(recoveries), progress=Progress(step=step), **status)
    job = TrainingJob(metadata=ObjectMeta(name="job", namespace="default"), status=told)
    return GangIncidentView("default", "job", job)
