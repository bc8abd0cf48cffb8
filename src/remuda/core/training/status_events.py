"""What a user is told about a gang: the difference between two statuses, as events.

One status write gives a handful of sentences at most, whatever the size of the gang: pods are counted, and named where they are
few. Pure, and made of what was decided: planning knows nothing of it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec

from remuda.api.conditions import find_condition, is_condition_true
from remuda.api.training import Member, Remedy, TrainingJobStatus
from remuda.api.validation.training_changes import TEMPLATE_IN_USE
from remuda.core.gang.pod_view import OPEN
from remuda.core.training.job_status import INVALID, PODS_REFUSED
from remuda.core.training.kept_checkpoints import MISSING, UNREADABLE

NAMED = 4  # so many pods are named in a sentence; more are counted

# Said by the steps of a start or of a recovery; whatever else stands in a waiting job's status is why it waits. That pods are
# refused is told by who tried to make them.
_USUAL = ("", "WaitingAtBarrier", "WaitingForPlacement", "BarrierOpen", PODS_REFUSED)


class JobEvent(msgspec.Struct, frozen=True):
    reason: str
    message: str
    is_warning: bool = False


def training_job_status_events(before: TrainingJobStatus, after: TrainingJobStatus) -> list[JobEvent]:
    """In the order in which it happened."""
    return list(_job_events(before, after))


def _job_events(before: TrainingJobStatus, after: TrainingJobStatus) -> Iterator[JobEvent]:
    yield from _planned_stop_events(before, after)
    if after.attempt != before.attempt and before.attempt and not _is_attempt_planned(before, after):
        yield _attempt_raised_event(after)
    yield from _spare_lending_events(before, after)
    if after.members != before.members:
        yield from _rank_events(before, after)
    if after.barrier == OPEN and (before.barrier != OPEN or after.attempt != before.attempt):
        yield _barrier_opened_event(after)
    if after.phase != before.phase and after.phase == "Succeeded":
        yield JobEvent("Completed", after.message)
    if after.phase != before.phase and after.phase == "Failed":
        yield JobEvent("Failed", f"{after.reason}: {after.message}", is_warning=True)
    said = find_condition(after.conditions, TEMPLATE_IN_USE)
    if said is not None and said.status == "True" and not is_condition_true(before.conditions, TEMPLATE_IN_USE):
        yield JobEvent(TEMPLATE_IN_USE, said.message, is_warning=True)
    if after.reason in (UNREADABLE, MISSING) and after.reason != before.reason:
        yield JobEvent(after.reason, after.message, is_warning=True)
    elif after.phase in ("Pending", "Recovering") and (after.reason, after.message) != (before.reason, before.message):
        last = after.recoveries[-1].reason if after.recoveries else ""
        if is_condition_true(after.conditions, INVALID):
            yield JobEvent(INVALID, f"{after.reason}: {after.message}", is_warning=True)
        elif after.reason not in (*_USUAL, UNREADABLE, MISSING, TEMPLATE_IN_USE, last):
            yield JobEvent("WaitingForRoom", f"{after.reason}: {after.message}", is_warning=True)


def _is_attempt_planned(before: TrainingJobStatus, after: TrainingJobStatus) -> bool:
    """The attempt was raised because somebody wanted the gang to stop, not because something failed."""
    is_new = len(after.recoveries) > len(before.recoveries) or after.interruptions > before.interruptions
    return not is_new and (after.suspended_at is not None or after.done_roles != before.done_roles)


def _planned_stop_events(before: TrainingJobStatus, after: TrainingJobStatus) -> Iterator[JobEvent]:
    if after.suspended_at is not None and before.suspended_at is None:
        yield JobEvent("Suspended", after.message)
    if after.suspended_at is None and before.suspended_at is not None:
        yield JobEvent("ResumeAsked", f"The job resumes with attempt {after.attempt} when there is room.")
    if ended := [role for role in after.done_roles if role not in before.done_roles]:
        yield JobEvent("RoleSucceeded", f"Every rank of {', '.join(ended)} ended with code 0. The next roles start.")
    if joined := [role for role in after.joined_roles if role not in before.joined_roles]:
        yield JobEvent("RoleJoins", f"Role {', '.join(joined)} joins the gang.")


def _spare_lending_events(before: TrainingJobStatus, after: TrainingJobStatus) -> Iterator[JobEvent]:
    """Spares that were lent, called back or returned."""
    had = {loan.uid: loan for loan in before.loans}
    for loan in after.loans:
        old = had.get(loan.uid)
        place = f"{len(loan.devices)} device{'' if len(loan.devices) == 1 else 's'} of {loan.node}"
        to = ", ".join(f"{b.namespace}/{b.pod}" for b in loan.borrowers)
        if old is None or (to and {b.uid for b in loan.borrowers} - {b.uid for b in old.borrowers}):
            yield JobEvent("SpareLent", f"{loan.spare} gives {place} to {to} until the gang needs them.")
        elif loan.returned_at is not None and old.returned_at is None:
            yield JobEvent("SpareReturned", f"{place} are free again; a new spare is made there.")
        elif loan.recalled_at is not None and old.recalled_at is None:
            yield JobEvent(
                "SpareRecalled", f"{place} are called back{f' from {to}' if to else ''}: {loan.reason}.", True
            )


def _attempt_raised_event(after: TrainingJobStatus) -> JobEvent:
    last = after.recoveries[-1] if after.recoveries else None
    if last is None:
        return JobEvent(
            "GangReplaced", f"Attempt {after.attempt}: the gang moves to a place with enough room.", is_warning=True
        )
    why = f"{last.cause}: {last.reason}: {last.message}" if last.message else f"{last.cause}: {last.reason}"
    who = f" Failed: {_job_pods_text(last.members)}." if last.members else ""
    text = f"Attempt {after.attempt} by {last.remedy} ({why.rstrip('.')}).{who}"
    return JobEvent("GangReplaced" if last.remedy is Remedy.REPLACE_GANG else "AttemptRaised", text, is_warning=True)


def _rank_events(before: TrainingJobStatus, after: TrainingJobStatus) -> Iterator[JobEvent]:
    had = {m.uid: m.rank for m in before.members}
    new = [m for m in after.members if had.get(m.uid) != m.rank]
    if not new:
        return
    if not after.recoveries or after.recoveries[-1].remedy is Remedy.REPLACE_GANG:
        domain = f" in {after.placement.domain}" if after.placement.domain else ""
        yield JobEvent("Placed", f"{_member_count_text(new, 'pod has', 'pods have')} a rank{domain}.")
        return
    spares = {s.uid for s in before.spares}
    promoted = [m for m in new if m.uid in spares]
    if promoted:
        yield JobEvent("SparePromoted", _ranks_taken_text(promoted))
    if others := [m for m in new if m.uid not in spares]:
        yield JobEvent("PodReplaced", _ranks_taken_text(others))


def _barrier_opened_event(after: TrainingJobStatus) -> JobEvent:
    where = f"step {after.resume_step}" if after.resume_step else "the beginning"
    text = f"All {len(after.members)} ranks run attempt {after.attempt} from {where}."
    return JobEvent("Resumed" if after.recoveries else "Started", text)


def _ranks_taken_text(members: Sequence[Member]) -> str:
    if len(members) > NAMED:
        return f"{len(members)} pods take ranks {', '.join(str(m.rank) for m in members[:NAMED])} and others."
    return " ".join(f"{m.pod} on {m.node} takes rank {m.rank}." for m in members)


def _job_pods_text(pods: Sequence[str]) -> str:
    if len(pods) > NAMED:
        return f"{', '.join(pods[:NAMED])} and {len(pods) - NAMED} others"
    return ", ".join(pods)


def _member_count_text(members: Sequence[Member], one: str, many: str) -> str:
    return f"{len(members)} {one if len(members) == 1 else many}"
