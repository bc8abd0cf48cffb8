"""What is wrong with a gang: members that cannot go on, each with its cause.

Only the current attempt is read: a rank that dies because the gang was told to stop reports an older attempt and is not a
second fault. `lost` says that the pod cannot be used again, whatever is done inside it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Protocol

import msgspec

from remuda.api.conditions import find_condition
from remuda.api.devices import DeviceState
from remuda.api.meta import to_seconds_or
from remuda.api.training import Cause, DeviceFailedPolicy, Member, TrainingJob
from remuda.core.gang.attribution import Confidence, ExitCircumstances, ProcessExit, attribute_exit
from remuda.core.gang.gang_remedy import MemberFault
from remuda.core.gang.launcher_trouble import launcher_trouble
from remuda.core.gang.pod_view import OPEN, PodView
from remuda.core.health.own_stalls import NO_STALLS, StallHistory

NOT_STOPPED = "MemberNotStopped"
NOT_STARTED = "MemberNotStarted"
LOSS_NOT_FINITE = (
    "LossNotFinite"  # the exception of remuda_train by that name: the last word of a process that died of it
)

# Exit codes the launcher or the agent gives when the command was never run: no restart can cure them.
NEVER_RAN = {126: "CommandNotExecutable", 127: "CommandNotFound", 73: "CheckpointPathNotWritable"}


class _MakeFault(Protocol):
    def __call__(self, cause: Cause, reason: str, message: str, *, lost: bool, at: float = ...) -> MemberFault: ...


def find_member_faults(
    job: TrainingJob, views: Mapping[str, PodView], now: float, stalls: StallHistory = NO_STALLS
) -> list[MemberFault]:
    """Members that cannot go on in the current attempt. `stalls`: our own, in which nobody's deadline passes."""
    return list(_member_faults(job, views, now, stalls, carry_on=True))


def with_ignored_training_faults(
    faults: Sequence[MemberFault],
    job: TrainingJob,
    views: Mapping[str, PodView],
    now: float,
    stalls: StallHistory = NO_STALLS,
) -> list[MemberFault]:
    """The gang stops because of `faults`, so failed devices that were ignored while it ran are faults as well."""
    if job.spec.failure.device_failed is not DeviceFailedPolicy.IGNORE:
        return list(faults)
    known = {f.uid for f in faults}
    return [*faults, *(f for f in _member_faults(job, views, now, stalls, carry_on=False) if f.uid not in known)]


def _member_faults(
    job: TrainingJob, views: Mapping[str, PodView], now: float, stalls: StallHistory, *, carry_on: bool
) -> Iterator[MemberFault]:
    for member in job.status.members:
        view = views.get(member.uid)
        if carry_on and view is not None and _is_device_fault_ignored(job, member, view, now, stalls):
            continue
        fault = _member_fault(job, member, view, now, stalls)
        if fault is not None:
            yield fault


def _member_fault(
    job: TrainingJob, member: Member, view: PodView | None, now: float, stalls: StallHistory
) -> MemberFault | None:
    def fault(cause: Cause, reason: str, message: str, *, lost: bool, at: float = now) -> MemberFault:
        return MemberFault(member.pod, member.uid, cause, reason, message, lost, min(at, now))

    if view is None:
        return fault(Cause.INFRA, "PodDeleted", f"{member.pod} is gone.", lost=True)
    bad = view.bad_device
    if bad is not None:
        text = f"{bad.device} on {member.node} is {bad.state}: {bad.message or bad.reason}"
        return fault(Cause.DEVICE, bad.reason or "DeviceUnhealthy", text, lost=True, at=to_seconds_or(bad.since, now))
    if view.node_dead and view.leaving is not None:
        text = f"{member.node} is gone, as announced: {view.leaving.message}"
        return fault(view.leaving.cause, view.leaving.reason, text, lost=True)
    if view.node_dead:
        return fault(Cause.INFRA, "NodeLost", f"{member.node} has not renewed its lease.", lost=True)
    if view.pod.is_deleting:
        return _pod_deletion_fault(view, fault, now)
    if view.pod.is_terminal:
        reason, text = view.pod.status.reason or "PodEnded", view.pod.status.message or f"{member.pod} ended."
        return fault(Cause.INFRA, reason, text, lost=True)
    if view.node_held:
        return None
    if job.status.barrier == OPEN and member.role not in job.status.held_roles:
        return _running_member_fault(job, view, fault, now)
    return _waiting_member_fault(job, member, view, fault, now, stalls)


def _is_device_fault_ignored(job: TrainingJob, member: Member, view: PodView, now: float, stalls: StallHistory) -> bool:
    """The job says that a failed device is to be ignored, and its rank runs. Once anything stops the rank it leaves the device:
    nothing is ever started on one that is not well. What is quarantined was taken away on purpose; nobody ignores that."""
    if job.spec.failure.device_failed is not DeviceFailedPolicy.IGNORE or job.status.barrier != OPEN:
        return False
    is_failed = view.bad_device is not None and view.bad_device.state is DeviceState.UNHEALTHY
    if not is_failed:
        return False
    return _member_fault(job, member, msgspec.structs.replace(view, bad_device=None), now, stalls) is None


def _pod_deletion_fault(view: PodView, fault: _MakeFault, now: float) -> MemberFault:
    """Who took the pod away is in its DisruptionTarget condition, when Kubernetes did it on somebody's behalf."""
    target = find_condition(view.pod.status.conditions, "DisruptionTarget")
    if target is not None and "Preempt" in target.reason:
        return fault(Cause.PREEMPTION, target.reason, target.message, lost=True)
    if target is not None and "Eviction" in target.reason:
        return fault(Cause.MAINTENANCE, target.reason, target.message, lost=True)
    if view.leaving is not None and view.leaving.is_due(now):
        text = f"{view.pod.name} is being deleted, as announced: {view.leaving.message}"
        return fault(view.leaving.cause, view.leaving.reason, text, lost=True)
    return fault(Cause.INFRA, "PodDeleted", f"{view.pod.name} is being deleted.", lost=True)


def _running_member_fault(job: TrainingJob, view: PodView, fault: _MakeFault, now: float) -> MemberFault | None:
    """The barrier is open: everyone is at work on this attempt."""
    report = view.report
    if report is not None and report.planned and report.state in ("gone", "parked"):
        text = f"{view.pod.spec.node_name} was stopped on purpose, so {view.pod.name}'s launcher ended."
        return fault(Cause.MAINTENANCE, "NodeStopped", text, lost=False)
    if report is None or report.state in ("gone", "parked") or report.attempt < job.status.attempt:
        if view.leaving is not None and view.leaving.is_due(now):
            text = (
                f"{view.pod.name}'s launcher ended with {view.pod.spec.node_name}, as announced: {view.leaving.message}"
            )
            return fault(view.leaving.cause, view.leaving.reason, text, lost=False)
        return fault(Cause.INFRA, "LauncherDied", f"{view.pod.name}'s launcher ended.", lost=False)
    if report.state == "exited" and report.code:
        text = report.message or f"{view.pod.name}'s process ended with code {report.code}."
        reason = LOSS_NOT_FINITE if LOSS_NOT_FINITE in report.message else "ProcessExited"
        found = fault(Cause.CODE, reason, text, lost=False, at=to_seconds_or(report.time, now))
        return _with_exit_attributed(job, view, msgspec.structs.replace(found, code=report.code, tail=report.tail))
    if report.hung_since is not None:
        text = f"{view.pod.name} made no step since {report.hung_since:%H:%M:%S}."
        return fault(Cause.HANG, "NoProgress", text, lost=False, at=to_seconds_or(report.hung_since, now))
    return None


def _with_exit_attributed(job: TrainingJob, view: PodView, found: MemberFault) -> MemberFault:
    """An exit is the code's unless what stood around it says otherwise. A guess says nothing; who failed often enough at one step
    is looked at elsewhere."""
    if found.reason == LOSS_NOT_FINITE or not (view.signals or view.memory_pressure):
        return found
    exit = ProcessExit(found.code or 0, found.signal_at, tail=found.tail)
    limits = job.spec.failure
    scene = ExitCircumstances(view.signals, memory_pressure=view.memory_pressure, look_back_s=limits.look_back_seconds)
    whose = attribute_exit(exit, scene)
    if whose.confidence is Confidence.GUESS or whose.reason == found.reason:
        return found
    words = f"{found.message} {whose.message}"
    return msgspec.structs.replace(found, cause=whose.cause, reason=whose.reason, message=words)


def _waiting_member_fault(
    job: TrainingJob, member: Member, view: PodView, fault: _MakeFault, now: float, stalls: StallHistory
) -> MemberFault | None:
    """The barrier is closed: everyone stops, gets ready and waits for the others. The time to get ready is counted from when
    the pod got its rank: one that waited for room, or was parked for long, has not wasted it."""
    status, limits, report = job.status, job.spec.failure, view.report
    if view.may_run and now > training_pod_stop_deadline(job, view, now, stalls):
        text = f"{view.pod.name} did not stop within {limits.stop_deadline_seconds:g} s."
        return fault(Cause.INFRA, NOT_STOPPED, text, lost=True)
    if report is not None and report.state == "parked" and report.attempt >= status.attempt:
        # Its node fenced it in this very attempt; it obeys the next one only.
        return fault(
            Cause.INFRA, "LauncherFenced", f"{view.pod.name}'s launcher was stopped by its node's agent.", lost=False
        )
    trouble = launcher_trouble(view)
    if trouble is not None and trouble.is_ended:
        return fault(trouble.cause, trouble.reason, trouble.message, lost=True)
    if not view.is_ready_for(status.attempt) and now > member_start_deadline(job, member, view, now, stalls):
        text = f"{view.pod.name} did not reach the barrier within {limits.start_deadline_seconds:g} s."
        if trouble is not None:
            return fault(trouble.cause, trouble.reason, f"{text} {trouble.message}", lost=True)
        return fault(Cause.INFRA, NOT_STARTED, text, lost=True)
    return None


def training_pod_stop_deadline(job: TrainingJob, view: PodView, now: float, stalls: StallHistory = NO_STALLS) -> float:
    """By when the pod must have stopped for the attempt. Not while its node cannot be heard: it may have, and cannot say so."""
    raised = to_seconds_or(job.status.attempt_raised_at, now)
    return stalls.with_unheard(view.unheard).countdown_ends_at(raised, job.spec.failure.stop_deadline_seconds)


def member_start_deadline(
    job: TrainingJob, member: Member, view: PodView, now: float, stalls: StallHistory = NO_STALLS
) -> float:
    """By when the member must be ready for the attempt. One that was, and whose launcher ended while it waited for others, has
    that time again, and so has the launcher that comes back in its pod. One that ends before it was ready has not."""
    allowed_s = job.spec.failure.start_deadline_seconds
    raised = to_seconds_or(job.status.attempt_raised_at, now)
    since = max(raised, to_seconds_or(member.since, raised))
    report = view.report
    was_ready = report is not None and report.state == "gone" and report.attempt == job.status.attempt
    if report is not None and (was_ready or report.state == "parked"):
        at = to_seconds_or(report.time, since)
        since = max(since, at) if at <= now + allowed_s else since  # the node's clock may say anything
    return stalls.with_unheard(view.unheard).countdown_ends_at(since, allowed_s)


def spare_start_deadline(job: TrainingJob, view: PodView, bound_at: float, stalls: StallHistory = NO_STALLS) -> float:
    """By when the launcher of a pod without a rank must have spoken."""
    return stalls.with_unheard(view.unheard).countdown_ends_at(bound_at, job.spec.failure.start_deadline_seconds)


def training_command_never_ran(job: TrainingJob, views: Mapping[str, PodView]) -> tuple[str, str] | None:
    """(reason, message) when a member's command could not be started at all.

    A program may end with one of those codes by itself: one that has reported a step did run, and the code for the
    checkpoint path counts only with the agent's own words.
    """
    for member in job.status.members:
        view = views.get(member.uid)
        report = view.report if view else None
        if view is None or report is None or report.state != "exited" or report.attempt != job.status.attempt:
            continue
        reason = NEVER_RAN.get(report.code or 0)
        has_run = view.progress is not None and view.progress.attempt == job.status.attempt
        if reason is None or not report.message or has_run:
            continue
        if report.code != 73 or report.message.startswith(reason):
            return reason, report.message
    return None
