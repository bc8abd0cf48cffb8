"""Incident: the record of one failure from its first signal to its verified cure. It outlives the pods, and the node.

One incident has one *subject*: a device, a node, a gang (a fault that no device explains), or a domain (devices that failed
together). `spec` is what it is about and what operators say to it; `status` is written by the incident controller (what was
seen, whom it hit, what it cost) and by the remedy controller (`status.remedies`, which is also its memory: a rung that stands
there is never taken twice).

Evidence is copied into the incident when it is seen, so that it can be read after its pods, their logs and the device's signals
are gone.
"""

from __future__ import annotations

from datetime import datetime
from enum import StrEnum
from typing import ClassVar

import msgspec

from remuda.api.devices import DeviceState
from remuda.api.meta import Condition, KObject, Resource
from remuda.api.names import GROUP, VERSION


class SubjectKind(StrEnum):
    DEVICE = "Device"
    NODE = "Node"
    GANG = "Gang"
    DOMAIN = "Domain"


class IncidentPhase(StrEnum):
    OPEN = "Open"  # seen; nothing is being done to the subject
    REMEDYING = "Remedying"  # a remedy of the device ladder is under way, or waits for approval
    VERIFYING = "Verifying"  # a probe has passed or the gang runs again; soaking before the cure is believed
    CLOSED = "Closed"


class IncidentOutcome(StrEnum):
    """How it ended. NotCured also stands on an open one: its ladder has ended, its cure is still owed."""

    CURED = "Cured"  # verified: probe and soak, or steps after a restart
    REPLACED = "Replaced"  # the device, node or pod is another one now
    WORKED_AROUND = "WorkedAround"  # the workload goes on elsewhere; the subject is out of use
    NOT_CURED = "NotCured"  # the ladder ended without a cure; somebody was told
    FALSE_ALARM = "FalseAlarm"  # it went away before anything was done
    MERGED = "Merged"  # part of another incident, named in status.partOf
    DISMISSED = "Dismissed"  # by an operator


class RemedyOutcome(StrEnum):
    WAITING = "AwaitingApproval"
    OBSERVED = "ObserveOnly"  # would have been taken; the policy only observes
    HELD_BACK = "HeldBack"  # by a limit, the breaker or a pause; tried again when that ends
    RUNNING = "Running"
    SUCCEEDED = "Succeeded"
    FAILED = "Failed"
    TIMED_OUT = "TimedOut"
    REFUSED = "Refused"  # cannot be done here, or another actor has the node
    SKIPPED = "Skipped"  # a rung that cannot cure this fault


class Subject(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True, forbid_unknown_fields=True):
    kind: SubjectKind
    node: str = ""
    device: str = ""
    namespace: str = ""
    gang: str = ""  # a TrainingJob, or the owner of the pods: "Job/train"
    domain: str = ""  # "label=value", say topology.remuda.dev/rack=rack-1, or "nvlink/<clique>"


class Approval(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True, forbid_unknown_fields=True):
    """An operator's yes to one remedy (`key` of its record), or no."""

    remedy: str
    by: str = ""
    granted: bool = True
    time: datetime | None = None


class IncidentSpec(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True, forbid_unknown_fields=True):
    subject: Subject
    approvals: list[Approval] = []
    dismiss: str = ""  # an operator's sentence: close it, whatever the signals say


class Evidence(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """One thing that was seen. `kind`: signal | verdict | exit | pod | node | probe | correlation | operator."""

    kind: str
    message: str
    time: datetime | None = None
    source: str = ""
    code: str = ""
    node: str = ""
    device: str = ""
    pod: str = ""  # namespace/name
    container: str = ""
    exit_code: int | None = None
    rank: int | None = None


class Affected(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """A pod that the failure hit, as it was then."""

    pod: str  # namespace/name
    uid: str = ""
    node: str = ""
    devices: list[str] = []
    container: str = ""
    gang: str = ""  # as in Subject
    rank: int | None = None
    exit_code: int | None = None
    restarts: int = 0  # of its containers, when last seen
    ended_at: datetime | None = None  # when it was seen ended or gone
    ended: str = ""  # Succeeded | Failed | Deleted
    state: DeviceState | None = None  # of the device when the pod ended


class RemedyRecord(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """One remedy, on the workload or on the device. `key` is unique in the incident: the idempotency key of its execution."""

    key: str  # "<rung>-<attempt>", say "reset-1"; of a workload "attempt-7"
    action: str  # a rung: RestartInPlace, PromoteSpare, ... or probe, reset, reboot, replace, ticket, drain, ...
    target: str = ""  # device, node, or namespace/gang
    outcome: RemedyOutcome = RemedyOutcome.RUNNING
    reason: str = ""
    message: str = ""
    price_gpu_hours: float = 0.0
    lost_gpu_hours: float = 0.0  # what the interruption has cost, when it is a workload's
    why_not: list[str] = []  # cheaper rungs and why they were not taken
    started_at: datetime | None = None
    ended_at: datetime | None = None
    deadline: datetime | None = None
    via: str = ""  # which path it took: agent order, command hook, object hook, DeviceTaintRule, cordon, ...


class IncidentVerdict(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """What the signals were taken to mean when the incident was last looked at."""

    state: DeviceState = DeviceState.UNKNOWN
    reason: str = ""
    message: str = ""
    source: str = ""
    cause: str = ""  # as in budgets: code | device | infra | hang | preemption | maintenance
    remedy: str = ""  # the rung that the fault table asks for


class IncidentStatus(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    phase: IncidentPhase = IncidentPhase.OPEN
    outcome: IncidentOutcome | None = None
    message: str = ""  # one sentence: what happened, or how it ended
    verdict: IncidentVerdict = IncidentVerdict()
    first_signal_at: datetime | None = None
    opened_at: datetime | None = None
    closed_at: datetime | None = None
    soak_until: datetime | None = None
    evidence: list[Evidence] = []  # oldest first, bounded: the first ones and the newest are kept
    evidence_dropped: int = 0
    affected: list[Affected] = []
    remedies: list[RemedyRecord] = []
    lost_gpu_hours: float = 0.0  # by the interruptions it caused
    devices: int = 0  # how many it keeps out of use while it is open
    device_uuid: str = ""  # who it was: another one in its place has replaced it
    node_uid: str = ""
    part_of: str = ""  # the incident of the domain that explains this one
    parts: list[str] = []  # incidents this one explains
    ticket: str = ""  # of the vendor or the operator's tracker
    conditions: list[Condition] = []


class Incident(KObject, frozen=True, rename="camel", omit_defaults=True, kw_only=True):
    """One failure from first signal to verified cure: evidence, whom it hit, remedies and their outcome, GPU-hours lost."""

    resource: ClassVar[Resource] = Resource(
        GROUP, VERSION, "Incident", "incidents", namespaced=False, subresources=("status",), short=("inc",)
    )

    spec: IncidentSpec
    status: IncidentStatus = IncidentStatus()

    @property
    def is_open(self) -> bool:
        return self.status.phase is not IncidentPhase.CLOSED
