"""Workload remedies in an incident: one record per interruption of a gang, known by the gang and by when it was detected.

The record's key is `attempt-N`, and N moves while the same interruption goes on (faults that come while the gang stands still
raise the attempt again). Its outcome is what came of it: steps, another interruption before any step, or the end of the job.
"""

from __future__ import annotations

import msgspec

from remuda.api.incidents import IncidentStatus, RemedyOutcome, RemedyRecord
from remuda.api.meta import to_time
from remuda.api.training import Recovery, Remedy, TrainingJob
from remuda.core.remedies.remedy_keys import is_workload_remedy_key, remedy_key_of_gang, workload_remedy_key

MAX_REMEDIES = 64
OVERTAKEN = "AnotherInterruption"  # before the gang made a step; no word about the remedy itself


def workload_record(recovery: Recovery, target: str, job: TrainingJob | None, counted_in: str = "") -> RemedyRecord:
    """`counted_in`: the incident that has its GPU-hours, when it is not this one."""
    outcome, reason = _recovery_outcome(recovery, job)
    return RemedyRecord(
        key=workload_remedy_key(recovery.attempt),
        action=recovery.remedy.value,
        target=target,
        outcome=outcome,
        reason=reason,
        message=recovery.message,
        price_gpu_hours=recovery.price_gpu_hours,
        lost_gpu_hours=0.0 if counted_in else round(recovery.lost_gpu_seconds / 3600, 4),
        why_not=list(recovery.why_not),
        started_at=recovery.detected_at,
        ended_at=recovery.first_step_at,
        via=f"counted in {counted_in}" if counted_in else "",
    )


def _recovery_outcome(recovery: Recovery, job: TrainingJob | None) -> tuple[RemedyOutcome, str]:
    if recovery.first_step_at is not None:
        return RemedyOutcome.SUCCEEDED, recovery.reason
    if job is None or recovery.remedy is Remedy.FAIL or job.status.phase == "Failed":
        return RemedyOutcome.FAILED, (job.status.reason if job is not None else "JobDeleted") or recovery.reason
    if job.status.phase == "Succeeded":
        return RemedyOutcome.SUCCEEDED, recovery.reason
    if not is_incident_recovery_under_way(recovery, job):
        return RemedyOutcome.FAILED, OVERTAKEN
    return RemedyOutcome.RUNNING, recovery.reason


def is_incident_recovery_under_way(recovery: Recovery, job: TrainingJob | None) -> bool:
    """The gang has not made a step since, and nothing has overtaken it."""
    if job is None or job.is_finished or recovery.first_step_at is not None:
        return False
    return bool(job.status.recoveries) and job.status.recoveries[-1].detected_at == recovery.detected_at


def incident_with_workload_remedy(status: IncidentStatus, record: RemedyRecord) -> IncidentStatus:
    """The record in its place, and the GPU-hours of all of them. Of too many the oldest workload remedies that are over go."""
    remedies = list(status.remedies)
    place = next((n for n, r in enumerate(remedies) if _is_same_interruption(r, record)), None)
    taken = {r.key for n, r in enumerate(remedies) if n != place}
    if record.key in taken:  # two gangs on one device
        record = msgspec.structs.replace(record, key=remedy_key_of_gang(record.key, record.target))
    if place is None:
        remedies.append(record)
    elif remedies[place] == record:
        return status
    else:
        remedies[place] = record
    lost = round(status.lost_gpu_hours + record.lost_gpu_hours - _gpu_hours_before(status, place), 4)
    over = [r for r in remedies if is_workload_remedy_key(r.key) and r.outcome is not RemedyOutcome.RUNNING]
    for old in over[: max(0, len(remedies) - MAX_REMEDIES)]:
        remedies.remove(old)
    return msgspec.structs.replace(status, remedies=remedies, lost_gpu_hours=lost)


def conclude_incident_workload_remedies(
    status: IncidentStatus, target: str, job: TrainingJob | None, now: float
) -> IncidentStatus:
    """Records whose interruption is in no record of the gang any more: the job was deleted, or it was long ago."""
    known = {r.detected_at for r in job.status.recoveries} if job is not None else set()
    remedies = [
        msgspec.structs.replace(
            r,
            outcome=RemedyOutcome.FAILED,
            reason="JobDeleted" if job is None else OVERTAKEN,
            ended_at=to_time(now),
        )
        if r.target == target
        and is_workload_remedy_key(r.key)
        and r.outcome is RemedyOutcome.RUNNING
        and r.started_at not in known
        else r
        for r in status.remedies
    ]
    return status if remedies == status.remedies else msgspec.structs.replace(status, remedies=remedies)


def _is_same_interruption(one: RemedyRecord, other: RemedyRecord) -> bool:
    return is_workload_remedy_key(one.key) and one.target == other.target and one.started_at == other.started_at


def _gpu_hours_before(status: IncidentStatus, place: int | None) -> float:
    return status.remedies[place].lost_gpu_hours if place is not None else 0.0
