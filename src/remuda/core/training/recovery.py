"""Faults -> remedy -> a new attempt.

One *interruption* is what the training feels: it ran, it stood still, it ran again. Faults that come while the gang stands
still are part of the interruption under way when they have its cause (a rack that loses power takes its nodes one by one),
or explain it (ranks crash beside a device that is reported broken a moment later); they raise the attempt again but are
charged once, to the cause that explains the rest. A fault of another cause is an interruption of its own.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from remuda.api.meta import to_seconds, to_seconds_or, to_time
from remuda.api.training import Cause, Member, Placement, Recovery, Remedy
from remuda.core.foreign.refused_pods import ADMISSION_USED as REJECTIONS
from remuda.core.foreign.refused_pods import is_pod_refused_by_node
from remuda.core.gang.budgets import charge_budgets, exhausted_budget, refund_budget
from remuda.core.gang.gang_remedy import ChosenRemedy, MemberFault, causes_to_charge, root_gang_fault
from remuda.core.gang.launcher_trouble import LAUNCHER_TROUBLES
from remuda.core.gang.pod_view import CLOSED, OPEN
from remuda.core.training import segments
from remuda.core.training.backoff import training_launcher_retry_at
from remuda.core.training.elastic_size import (
    plan_job_growth,
    resize_elastic_training_job,
    role_sizes_if_stranded,
    role_sizes_without,
)
from remuda.core.training.faults import LOSS_NOT_FINITE, NOT_STOPPED
from remuda.core.training.goodput import book_recovery_loss, move_recovery_loss
from remuda.core.training.job_status import (
    fail_job_over_budget,
    mark_training_job_failed,
    training_placement_refusal,
    unplaced_rank_pods,
)
from remuda.core.training.membership import (
    fail_if_pods_rejected,
    fill_training_job_ranks,
    replacement_pause_until,
    retire_pod,
)
from remuda.core.training.missing_pods import ask_for_missing_pods
from remuda.core.training.placement_options import (
    domain_for_training_job,
    has_training_domain_room_for,
    worst_training_pod_fault,
)
from remuda.core.training.planning_context import DeviceQuarantine, PlanningContext
from remuda.core.training.remedy_decision import SAME_STEP, decide_job_remedy
from remuda.core.training.spare_lending import recall_loans

# As `failure.lookBackSeconds`, for a gang that stands still since: a node's death shows only when its lease ran out.
NODE_LOOK_BACK_S = 60.0
KEPT_RECOVERIES = 20
KEPT_SEATS = 32  # of one recovery: a gang that crashes whole is told by its first ranks

_LADDER = list(Remedy)


def recover_job(ctx: PlanningContext, found: Sequence[MemberFault]) -> None:
    chosen = decide_job_remedy(ctx, found)
    refused = {
        fault.uid for fault in chosen.faults if (v := ctx.views.get(fault.uid)) and is_pod_refused_by_node(v.pod)
    }
    causes = _causes_job_pays_for(ctx, chosen, refused)
    if not causes and chosen.charge is None:
        chosen = msgspec.structs.replace(chosen, charge=())
    root = root_gang_fault(chosen.faults)
    ends_job = chosen.remedy is Remedy.FAIL
    is_explained = not chosen.is_code and _explains_last_interruption(ctx, root)
    is_same = is_explained or _belongs_to_interruption(ctx, root)
    used = _budgets_job_paid(ctx, chosen, causes, is_explained=is_explained, is_same=is_same)
    over = exhausted_budget(ctx.spec.failure.budgets, used)
    if over is not None:
        chosen = msgspec.structs.replace(chosen, remedy=Remedy.FAIL, price_gpu_hours=0.0)
    dropped = _pods_to_drop(ctx, chosen)
    if chosen.remedy is Remedy.MOVE_SEGMENT:
        segments.forget_segment_domains(ctx, segments.hit_segments(ctx, dropped))
    if chosen.remedy is Remedy.RECALL_SPARE:
        recall_loans(ctx, ctx.spec.roles[0].name, chosen.recalled, chosen.reason, chosen.message)
    if is_explained:
        _reattribute_interruption(ctx, root)
    if is_same and ctx.under_way is not None:
        _continue_interruption(ctx, chosen)
    else:
        _begin_interruption(ctx, chosen)
    if is_explained or not is_same:
        ctx.amend_recovery(rule=chosen.rule, charged=_budget_that_paid(chosen))
    if refused:
        used[REJECTIONS] = used.get(REJECTIONS, 0) + 1
    for uid, reason in dropped.items():
        pause = replacement_pause_until(ctx, used) if uid in refused else training_launcher_retry_at(ctx, reason)
        retire_pod(ctx, uid, reason, pause)
    raise_attempt(ctx, is_move=chosen.remedy is Remedy.REPLACE_GANG)
    if chosen.remedy is Remedy.SHRINK and (sizes := role_sizes_without(ctx, dropped)) is not None:
        resize_elastic_training_job(ctx, sizes)
    ctx.update(used=used, progress=ctx.fresh)
    if ends_job:
        mark_training_job_failed(ctx, chosen.reason, chosen.message)
    elif over is not None:
        fail_job_over_budget(ctx, over, root.message)
    else:
        fail_if_pods_rejected(ctx, root.message if refused else "")


# -- whose fault ------------------------------------------------------------------------------------------------------


def _explains_last_interruption(ctx: PlanningContext, root: MemberFault) -> bool:
    """The crash or hang just before was this fault's doing: its charge moves there."""
    last = ctx.last_recovery
    if last is None or last.cause not in (Cause.CODE, Cause.HANG) or last.detected_at is None:
        return False
    if last.reason in (SAME_STEP, LOSS_NOT_FINITE):
        return False  # known to be the code's, whatever breaks besides
    if root.planned or root.cause not in (Cause.DEVICE, Cause.INFRA) or not root.lost or root.pod in last.replaced:
        return False
    if root.reason in LAUNCHER_TROUBLES:
        return False  # nothing of it ran
    if ctx.under_way is None and root.pod not in last.members:
        return False  # the gang has trained since, so another pod's device was not what stopped it then
    look_back = ctx.spec.failure.look_back_seconds
    window = look_back if ctx.under_way is None else max(look_back, NODE_LOOK_BACK_S)
    return ctx.now - to_seconds(last.detected_at) <= window


def _belongs_to_interruption(ctx: PlanningContext, root: MemberFault) -> bool:
    """One more of the same, while the gang stands still because of the first. A launcher that cannot start in the pod that was
    made for another such one is one more try."""
    last = ctx.under_way
    if last is not None and root.reason in LAUNCHER_TROUBLES and root.pod in last.replaced:
        return False
    return (
        last is not None
        and last.cause is root.cause
        and last.detected_at is not None
        and ctx.now - to_seconds(last.detected_at) <= ctx.spec.failure.look_back_seconds
    )


def _causes_job_pays_for(ctx: PlanningContext, chosen: ChosenRemedy, refused: set[str]) -> set[Cause]:
    """A pod that its node refused is nobody's failure: its tries are counted by themselves, whatever else broke meanwhile. Where
    its own device broke, that is the fault, and the refusal follows from it."""
    if chosen.charge is not None:
        return set(chosen.charge)
    is_alone = refused == {fault.uid for fault in chosen.faults}
    free = {uid for uid in refused if is_alone or ctx.views[uid].bad_device is None}
    paid = {fault.cause for fault in chosen.faults if fault.uid not in free}
    return paid.intersection(causes_to_charge(chosen.faults))


def _budgets_job_paid(
    ctx: PlanningContext, chosen: ChosenRemedy, causes: set[Cause], *, is_explained: bool, is_same: bool
) -> dict[str, int]:
    """The budgets after this: each cause once, and of one interruption the root's cause only once."""
    used, last = dict(ctx.status.used), ctx.last_recovery
    own = chosen.charge is None
    if is_explained and last is not None:
        return charge_budgets(refund_budget(used, last.cause.value if last.charged is None else last.charged), causes)
    if is_same:
        causes = causes - {root_gang_fault(chosen.faults).cause} if own else set()
    return charge_budgets(used, causes)


def _budget_that_paid(chosen: ChosenRemedy) -> str | None:
    """What the record says of the budget; None = the cause's own."""
    return None if chosen.charge is None else next((cause.value for cause in chosen.charge), "")


def _reattribute_interruption(ctx: PlanningContext, root: MemberFault) -> None:
    last = ctx.status.recoveries[-1]
    ctx.update(goodput=move_recovery_loss(ctx.status.goodput, last, root.cause))
    ctx.amend_recovery(cause=root.cause, message=f"{last.message} The cause was {root.reason} of {root.pod}.".strip())


# -- the record -------------------------------------------------------------------------------------------------------


def _begin_interruption(ctx: PlanningContext, chosen: ChosenRemedy) -> None:
    signal = _close_last_interruption(ctx, min((f.signal_at for f in chosen.faults), default=ctx.now))
    record = Recovery(
        attempt=ctx.status.attempt + 1,
        cause=chosen.cause,
        remedy=chosen.remedy,
        reason=chosen.reason,
        message=chosen.message,
        price_gpu_hours=round(chosen.price_gpu_hours, 4),
        members=[f.pod for f in chosen.faults],
        seats=_failed_seats(ctx, chosen.faults),
        exit_codes=_failed_exit_codes(ctx, chosen.faults),
        why_not=list(chosen.why_not),
        signal_at=to_time(signal),
        detected_at=to_time(ctx.now),
        step_at_fault=ctx.fresh.step,
        resume_step=ctx.fresh.checkpoint_step,
    )
    ctx.update(
        recoveries=[*ctx.status.recoveries, record][-KEPT_RECOVERIES:],
        interruptions=ctx.status.interruptions + 1,
    )


def _failed_seats(ctx: PlanningContext, faults: Sequence[MemberFault]) -> list[Member]:
    """Where the failed ones sat; the lost ones first, because a device or node explains those."""
    lost = {f.uid: f.lost for f in faults}
    found = [m for m in ctx.status.members if m.uid in lost]
    return sorted(found, key=lambda m: (not lost[m.uid], m.rank))[:KEPT_SEATS]


def _failed_exit_codes(ctx: PlanningContext, faults: Sequence[MemberFault]) -> dict[str, int]:
    """Also of a process that ended beside a device that broke: the device explains it, and it says how the rank felt it."""
    found: dict[str, int] = {}
    for fault in faults[:KEPT_SEATS]:
        view = ctx.views.get(fault.uid)
        report = view.report if view is not None else None
        is_now = report is not None and report.state == "exited" and report.attempt == ctx.status.attempt
        if code := fault.code or (report.code if report is not None and is_now else None):
            found[fault.pod] = code
    return found


def _close_last_interruption(ctx: PlanningContext, signal: float) -> float:
    """Ends the interruption before, and says from when the new one counts: no second is lost to both."""
    last = ctx.last_recovery
    if last is None:
        return signal
    if last.first_step_at is not None:
        return min(ctx.now, max(signal, to_seconds(last.first_step_at)))
    until = min(ctx.now, max(signal, to_seconds_or(last.signal_at or last.detected_at, signal)))
    goodput, booked = book_recovery_loss(ctx.status, last, until, ctx.fresh.step_seconds, ctx.gang_gpus)
    ctx.update(recoveries=[*ctx.status.recoveries[:-1], booked], goodput=goodput)
    return until


def _continue_interruption(ctx: PlanningContext, chosen: ChosenRemedy) -> None:
    last = ctx.status.recoveries[-1]
    ctx.amend_recovery(
        attempt=ctx.status.attempt + 1,
        cause=chosen.cause,
        remedy=max(last.remedy, chosen.remedy, key=_LADDER.index),
        reason=chosen.reason,
        message=chosen.message,
        price_gpu_hours=max(last.price_gpu_hours, round(chosen.price_gpu_hours, 4)),
        members=[*last.members, *(f.pod for f in chosen.faults if f.pod not in last.members)],
        seats=[*last.seats, *(s for s in _failed_seats(ctx, chosen.faults) if s not in last.seats)][:KEPT_SEATS],
        exit_codes={**last.exit_codes, **_failed_exit_codes(ctx, chosen.faults)},
        why_not=list(chosen.why_not),
    )


# -- the new attempt --------------------------------------------------------------------------------------------------


def _pods_to_drop(ctx: PlanningContext, chosen: ChosenRemedy) -> dict[str, str]:
    """Pods that leave the gang, by uid, and why."""
    lost = {f.uid: f.reason for f in chosen.faults if f.lost}
    if chosen.remedy is Remedy.MOVE_SEGMENT:
        moving = segments.segment_pods(ctx, segments.hit_segments(ctx, lost))
        return {**dict.fromkeys(moving, Remedy.MOVE_SEGMENT.value), **lost}
    if chosen.remedy is Remedy.REPLACE_GANG:
        return {**dict.fromkeys(ctx.views, Remedy.REPLACE_GANG.value), **lost}
    if lost or chosen.remedy in (Remedy.RESTART_IN_PLACE, Remedy.FAIL):
        return lost
    return {worst_training_pod_fault(ctx, chosen.faults).uid: "NotCuredInPlace"}


def raise_attempt(ctx: PlanningContext, *, is_move: bool) -> None:
    """Fences everyone: whoever runs an older attempt stops. Retired pods lose their rank with it."""
    status = ctx.status
    gone = ctx.retired_uids
    ctx.update(
        attempt=status.attempt + 1,
        barrier=CLOSED,
        held_roles=[],
        resume_step=None,
        attempt_raised_at=to_time(ctx.now),
        members=[m for m in status.members if m.uid in ctx.views and m.uid not in gone],
        placement=Placement(topology=status.placement.topology) if is_move else status.placement,
        loans=[] if is_move else status.loans,  # what it lent there is not its any more
    )


def move_job_if_stranded(ctx: PlanningContext) -> None:
    """A gang that waits for room its domain does not have moves whole, once another domain would take it."""
    if segments.is_job_segmented(ctx):
        _move_stranded_segments(ctx)
        return
    status = ctx.status
    if status.barrier == OPEN or not status.placement.domain or len(status.members) >= len(ctx.ranks):
        return
    refusal, waiting = training_placement_refusal(ctx), unplaced_rank_pods(ctx)
    if (
        refusal is None
        or has_training_domain_room_for(ctx, waiting)
        or domain_for_training_job(ctx, elsewhere=True) is None
    ):
        return
    under_way = ctx.under_way
    if under_way is not None:
        ctx.amend_recovery(
            attempt=status.attempt + 1,
            remedy=Remedy.REPLACE_GANG,
            why_not=[*under_way.why_not, f"{Remedy.REPLACE_POD}: {refusal.message}"],
        )
    for uid in ctx.views:
        retire_pod(ctx, uid, Remedy.REPLACE_GANG.value)
    raise_attempt(ctx, is_move=True)
    ctx.create.clear()
    ask_for_missing_pods(ctx)


def _move_stranded_segments(ctx: PlanningContext) -> None:
    """The same for a gang in segments: only those move that wait."""
    refusal = training_placement_refusal(ctx)
    if ctx.status.barrier == OPEN or refusal is None:
        return
    numbers = segments.stranded_segments(ctx, unplaced_rank_pods(ctx))
    if not numbers:
        return
    under_way = ctx.under_way
    if under_way is not None:
        ctx.amend_recovery(
            attempt=ctx.status.attempt + 1,
            remedy=max(under_way.remedy, Remedy.MOVE_SEGMENT, key=_LADDER.index),
            why_not=[*under_way.why_not, f"{Remedy.REPLACE_POD}: {refusal.message}"],
        )
    for uid in segments.segment_pods(ctx, numbers):
        retire_pod(ctx, uid, Remedy.MOVE_SEGMENT.value)
    segments.forget_segment_domains(ctx, numbers)
    raise_attempt(ctx, is_move=False)
    ctx.create.clear()
    ask_for_missing_pods(ctx)


def shrink_job_if_stranded(ctx: PlanningContext) -> None:
    """A gang that may go on with fewer does not wait for room for ever."""
    sizes = role_sizes_if_stranded(ctx)
    if sizes is None:
        return
    under_way, refusal = ctx.under_way, training_placement_refusal(ctx)
    if under_way is not None:
        words = [f"{Remedy.REPLACE_POD}: {refusal.message}"] if refusal is not None else []
        ctx.amend_recovery(attempt=ctx.status.attempt + 1, remedy=Remedy.SHRINK, why_not=[*under_way.why_not, *words])
    for view in unplaced_rank_pods(ctx):
        retire_pod(ctx, view.uid, Remedy.SHRINK.value)
    if ctx.status.members:
        raise_attempt(ctx, is_move=False)
    resize_elastic_training_job(ctx, sizes)
    fill_training_job_ranks(ctx)
    ctx.create.clear()
    ask_for_missing_pods(ctx)


def grow_job_if_possible(ctx: PlanningContext) -> None:
    """A gang that went on with fewer takes the others in again."""
    found = plan_job_growth(ctx)
    if found is None:
        return
    sizes, chosen = found
    _begin_interruption(ctx, chosen)
    raise_attempt(ctx, is_move=False)
    resize_elastic_training_job(ctx, sizes)
    ctx.update(used=charge_budgets(ctx.status.used, [chosen.cause]), progress=ctx.fresh)


def quarantine_unstoppable_members(ctx: PlanningContext) -> list[DeviceQuarantine]:
    """Devices under members that could not be stopped stay out of use. Ordered until the order is seen."""
    orders: list[DeviceQuarantine] = []
    for pod in ctx.status.retired:
        view = ctx.views.get(pod.uid)
        if pod.reason == NOT_STOPPED and view is not None:
            text = f"{pod.pod} could not be stopped. Its process may still run on this device."
            orders += [
                DeviceQuarantine(view.node, device, NOT_STOPPED, text)
                for device in view.devices
                if ctx.snapshot.is_usable(view.node, device)
            ]
    return orders
