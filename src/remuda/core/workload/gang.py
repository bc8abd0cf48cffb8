"""A gang as one look sees it, and what is wrong with it.

`PodView` joins, for one pod, everything that decides about it: the object, what its launcher last reported, how far it got,
whether a device under it is bad, whether its node is dead. `find_faults` reads only the current attempt: a rank that dies
because the gang was told to stop reports an older attempt and is not a second fault.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Protocol

import msgspec

from remuda.api.conditions import find_condition
from remuda.api.core_v1 import Pod
from remuda.api.devices import LauncherReport, Verdict
from remuda.api.meta import to_seconds
from remuda.api.names import ANNOTATION_SPARE, LABEL_INDEX, LABEL_ROLE
from remuda.api.training import Cause, Member, TrainingJob
from remuda.core.failure.remedy import Fault

OPEN, CLOSED = "Open", "Closed"


class _MakeFault(Protocol):
    def __call__(self, cause: Cause, reason: str, message: str, *, lost: bool, at: float = ...) -> Fault: ...


# Exit codes the launcher or the agent gives when the command was never run: no restart can cure them.
NEVER_RAN = {126: "CommandNotExecutable", 127: "CommandNotFound", 73: "CheckpointPathNotWritable"}


class MemberProgress(msgspec.Struct, frozen=True):
    """Newest heartbeat of one pod, in seconds of the cluster's clock."""

    attempt: int
    step: int
    time: float
    first_step_time: float
    step_seconds: float | None = None
    checkpoint: int | None = None
    checkpoint_time: float = 0.0


class PodView(msgspec.Struct, frozen=True):
    pod: Pod
    report: LauncherReport | None = None
    progress: MemberProgress | None = None
    bad_device: Verdict | None = None
    node_dead: bool = False

    @property
    def uid(self) -> str:
        return self.pod.uid

    @property
    def role(self) -> str:
        return self.pod.labels.get(LABEL_ROLE, "")

    @property
    def index(self) -> int:
        return int(self.pod.labels.get(LABEL_INDEX, "-1"))

    @property
    def is_spare(self) -> bool:
        """Made as a spare. Once promoted it is a member like any other; only its birth differs."""
        return self.pod.annotations.get(ANNOTATION_SPARE) == "true"

    @property
    def is_bound(self) -> bool:
        return bool(self.pod.spec.node_name)

    @property
    def is_parked(self) -> bool:
        return self.report is not None and self.report.state == "parked" and self.pod.status.phase == "Running"

    @property
    def is_usable(self) -> bool:
        """May be given a rank, now or when it is bound."""
        return not (self.pod.is_deleting or self.pod.is_terminal or self.bad_device or self.node_dead)

    def is_ready_for(self, attempt: int) -> bool:
        return self.report is not None and self.report.state == "ready" and self.report.attempt == attempt


def find_faults(job: TrainingJob, views: Mapping[str, PodView], now: float) -> list[Fault]:
    """Members that cannot go on in the current attempt."""
    found = (_member_fault(job, member, views.get(member.uid), now) for member in job.status.members)
    return [fault for fault in found if fault is not None]


def _member_fault(job: TrainingJob, member: Member, view: PodView | None, now: float) -> Fault | None:
    def fault(cause: Cause, reason: str, message: str, *, lost: bool, at: float = now) -> Fault:
        return Fault(member.pod, member.uid, cause, reason, message, lost, at)

    if view is None:
        return fault(Cause.INFRA, "PodDeleted", f"{member.pod} is gone.", lost=True)
    if view.bad_device is not None:
        bad = view.bad_device
        text = f"{bad.device} on {member.node} is {bad.state}: {bad.message or bad.reason}"
        return fault(Cause.DEVICE, bad.reason or "DeviceUnhealthy", text, lost=True, at=_when(bad.since, now))
    if view.node_dead:
        return fault(Cause.INFRA, "NodeLost", f"{member.node} has not renewed its lease.", lost=True)
    if view.pod.is_deleting:
        target = find_condition(view.pod.status.conditions, "DisruptionTarget")
        if target is not None and "Preempt" in target.reason:
            return fault(Cause.PREEMPTION, target.reason, target.message, lost=True)
        return fault(Cause.INFRA, "PodDeleted", f"{member.pod} is being deleted.", lost=True)
    if view.pod.is_terminal:
        reason, text = view.pod.status.reason or "PodEnded", view.pod.status.message or f"{member.pod} ended."
        return fault(Cause.INFRA, reason, text, lost=True)
    return _launcher_fault(job, view, fault, now)


def _launcher_fault(job: TrainingJob, view: PodView, fault: _MakeFault, now: float) -> Fault | None:
    status, limits, report = job.status, job.spec.failure, view.report
    waited = now - _when(status.attempt_raised_at, now)
    if status.barrier == OPEN:
        if report is None or report.state in ("gone", "parked") or report.attempt < status.attempt:
            return fault(Cause.INFRA, "LauncherDied", f"{view.pod.name}'s launcher ended.", lost=False)
        at = _when(report.time, now)
        if report.state == "exited" and report.code:
            text = report.message or f"{view.pod.name}'s process ended with code {report.code}."
            return fault(Cause.CODE, "ProcessExited", text, lost=False, at=at)
        if report.hung_since is not None:
            text = f"{view.pod.name} made no step since {report.hung_since:%H:%M:%S}."
            return fault(Cause.HANG, "NoProgress", text, lost=False, at=_when(report.hung_since, now))
        return None
    if report is not None and report.state in ("running", "stopping") and waited > limits.stop_deadline_seconds:
        text = f"{view.pod.name} did not stop within {limits.stop_deadline_seconds:g} s."
        return fault(Cause.INFRA, "MemberNotStopped", text, lost=True)
    if not view.is_ready_for(status.attempt) and waited > limits.start_deadline_seconds:
        text = f"{view.pod.name} did not reach the barrier within {limits.start_deadline_seconds:g} s."
        return fault(Cause.INFRA, "MemberNotStarted", text, lost=True)
    return None


def never_ran(job: TrainingJob, views: Mapping[str, PodView]) -> tuple[str, str] | None:
    """(reason, message) when a member's command could not be started at all."""
    for member in job.status.members:
        view = views.get(member.uid)
        report = view.report if view else None
        if report is not None and report.state == "exited" and report.attempt == job.status.attempt:
            reason = NEVER_RAN.get(report.code or 0)
            if reason and report.message:
                return reason, report.message
    return None


def common_checkpoint(ready: Sequence[LauncherReport]) -> int | None:
    """The newest step every rank can resume from.

    Ranks that keep none are left out only when a single rank (usually 0) writes for all; as soon as two ranks have
    checkpoints of their own, a rank without any means its shard is lost and nothing later than a common step can be used.
    """
    kept = [set(report.checkpoints) for report in ready if report.checkpoints]
    if not kept or (len(kept) > 1 and len(kept) < len(ready)):
        return None
    shared = set.intersection(*kept)
    return max(shared, default=None)


def _when(moment: datetime | None, default: float) -> float:
    return default if moment is None else to_seconds(moment)
