"""Faults -> remedy -> a new attempt.

One *interruption* is what the training feels: it ran, it stood still, it ran again. Faults that come while the gang stands
still are part of the interruption under way when they have its cause (a rack that loses power takes its nodes one by one),
or explain it (ranks crash beside a device that is reported broken a moment later); they raise the attempt again but are
charged once, to the cause that explains the rest. A fault of another cause is an interruption of its own.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from remuda.api.meta import to_seconds, to_time
from remuda.api.training import Cause, Member, Placement, Recovery, Remedy
from remuda.core.foreign.refused_pods import ADMISSION_USED as REJECTIONS
from remuda.core.foreign.refused_pods import is_refused_by_node
from remuda.core.gang.budgets import charge, exhausted, refund
from remuda.core.gang.gang_remedy import Choice, Fault, causes_of, root_fault
from remuda.core.gang.pod_view import CLOSED, OPEN, seconds_of
from remuda.core.training import segments
from remuda.core.training.elastic_size import growth, resize, sizes_without, stranded_sizes
from remuda.core.training.faults import LOSS_NOT_FINITE, NOT_STOPPED
from remuda.core.training.goodput import moved_loss, with_loss
from remuda.core.training.job_status import fail, fail_over_budget, refused, waiting_pods
from remuda.core.training.membership import check_rejections, fill_ranks, pause_until, retire
from remuda.core.training.missing_pods import ask_for_pods
from remuda.core.training.placement_options import domain_for_gang, has_room_for, worst_fault
from remuda.core.training.planning_context import Look, Quarantine
from remuda.core.training.remedy_decision import SAME_STEP, Decision, decide
from remuda.core.training.spare_lending import call_back

# As `failure.lookBackSeconds`, for a gang that stands still since: a node's death shows only when its lease ran out.
NODE_LOOK_BACK_S = 60.0
KEPT_RECOVERIES = 20
KEPT_SEATS = 32  # of one recovery: a gang that crashes whole is told by its first ranks

_LADDER = list(Remedy)


def recover(look: Look, found: Sequence[Fault]) -> None:
    decision = decide(look, found)
    refused = {fault.uid for fault in decision.faults if (v := look.views.get(fault.uid)) and is_refused_by_node(v.pod)}
    if refused and decision.charge is None and refused == {fault.uid for fault in decision.faults}:
        decision = msgspec.structs.replace(decision, charge=())
    faults, choice = decision.faults, decision.choice
    root = root_fault(faults)
    is_explained = not decision.is_code and _explains(look, root)
    is_same = is_explained or _belongs(look, root)
    used = _charged(look, decision, is_explained=is_explained, is_same=is_same)
    over = exhausted(look.spec.failure.budgets, used)
    if over is not None:
        choice = msgspec.structs.replace(choice, remedy=Remedy.FAIL, price_gpu_hours=0.0)
    dropped = _dropped(look, choice, faults)
    if choice.remedy is Remedy.MOVE_SEGMENT:
        segments.forget_domains(look, segments.hit_segments(look, dropped))
    if choice.remedy is Remedy.RECALL_SPARE:
        call_back(look, look.spec.roles[0].name, choice.recalled, choice.reason, choice.message)
    if is_explained:
        _reattribute(look, root)
    if is_same and look.under_way is not None:
        _continue_interruption(look, choice, faults)
    else:
        _begin_interruption(look, choice, faults)
    if is_explained or not is_same:
        look.amend_recovery(rule=decision.rule, charged=_payer(decision))
    if refused:
        used[REJECTIONS] = used.get(REJECTIONS, 0) + 1
    for uid, reason in dropped.items():
        retire(look, uid, reason, pause_until(look, used) if uid in refused else None)
    raise_attempt(look, is_move=choice.remedy is Remedy.REPLACE_GANG)
    if choice.remedy is Remedy.SHRINK and (sizes := sizes_without(look, dropped)) is not None:
        resize(look, sizes)
    look.update(used=used, progress=look.fresh)
    if decision.end is not None:
        fail(look, *decision.end)
    elif over is not None:
        fail_over_budget(look, over, root.message)
    else:
        check_rejections(look, root.message if refused else "")


# -- whose fault ------------------------------------------------------------------------------------------------------


def _explains(look: Look, root: Fault) -> bool:
    """The crash or hang just before was this fault's doing: its charge moves there."""
    last = look.last_recovery
    if last is None or last.cause not in (Cause.CODE, Cause.HANG) or last.detected_at is None:
        return False
    if last.reason in (SAME_STEP, LOSS_NOT_FINITE):
        return False  # known to be the code's, whatever breaks besides
    if root.planned or root.cause not in (Cause.DEVICE, Cause.INFRA) or not root.lost or root.pod in last.replaced:
        return False
    if look.under_way is None and root.pod not in last.members:
        return False  # the gang has trained since, so another pod's device was not what stopped it then
    look_back = look.spec.failure.look_back_seconds
    window = look_back if look.under_way is None else max(look_back, NODE_LOOK_BACK_S)
    return look.now - to_seconds(last.detected_at) <= window


def _belongs(look: Look, root: Fault) -> bool:
    """One more of the same, while the gang stands still because of the first."""
    last = look.under_way
    return (
        last is not None
        and last.cause is root.cause
        and last.detected_at is not None
        and look.now - to_seconds(last.detected_at) <= look.spec.failure.look_back_seconds
    )


def _charged(look: Look, decision: Decision, *, is_explained: bool, is_same: bool) -> dict[str, int]:
    """The budgets after this: each cause once, and of one interruption the root's cause only once."""
    used, last = dict(look.status.used), look.last_recovery
    own = decision.charge is None
    causes = set(causes_of(decision.faults) if decision.charge is None else decision.charge)
    if is_explained and last is not None:
        return charge(refund(used, last.cause.value if last.charged is None else last.charged), causes)
    if is_same:
        causes = causes - {root_fault(decision.faults).cause} if own else set()
    return charge(used, causes)


def _payer(decision: Decision) -> str | None:
    """What the record says of the budget; None = the cause's own."""
    return None if decision.charge is None else next((cause.value for cause in decision.charge), "")


def _reattribute(look: Look, root: Fault) -> None:
    last = look.status.recoveries[-1]
    look.update(goodput=moved_loss(look.status.goodput, last, root.cause))
    look.amend_recovery(cause=root.cause, message=f"{last.message} Explained by {root.reason} of {root.pod}.".strip())


# -- the record -------------------------------------------------------------------------------------------------------


def _begin_interruption(look: Look, choice: Choice, faults: Sequence[Fault]) -> None:
    signal = _close_books(look, min((f.signal_at for f in faults), default=look.now))
    record = Recovery(
        attempt=look.status.attempt + 1,
        cause=choice.cause,
        remedy=choice.remedy,
        reason=choice.reason,
        message=choice.message,
        price_gpu_hours=round(choice.price_gpu_hours, 4),
        members=[f.pod for f in faults],
        seats=_seats(look, faults),
        exit_codes=_exit_codes(look, faults),
        why_not=list(choice.why_not),
        signal_at=to_time(signal),
        detected_at=to_time(look.now),
        step_at_fault=look.fresh.step,
        resume_step=look.fresh.checkpoint_step,
    )
    look.update(
        recoveries=[*look.status.recoveries, record][-KEPT_RECOVERIES:],
        interruptions=look.status.interruptions + 1,
    )


def _seats(look: Look, faults: Sequence[Fault]) -> list[Member]:
    """Where the failed ones sat; the lost ones first, because a device or node explains those."""
    lost = {f.uid: f.lost for f in faults}
    found = [m for m in look.status.members if m.uid in lost]
    return sorted(found, key=lambda m: (not lost[m.uid], m.rank))[:KEPT_SEATS]


def _exit_codes(look: Look, faults: Sequence[Fault]) -> dict[str, int]:
    """Also of a process that ended beside a device that broke: the device explains it, and it says how the rank felt it."""
    found: dict[str, int] = {}
    for fault in faults[:KEPT_SEATS]:
        view = look.views.get(fault.uid)
        report = view.report if view is not None else None
        is_now = report is not None and report.state == "exited" and report.attempt == look.status.attempt
        if code := fault.code or (report.code if report is not None and is_now else None):
            found[fault.pod] = code
    return found


def _close_books(look: Look, signal: float) -> float:
    """Ends the interruption before, and says from when the new one counts: no second is lost to both."""
    last = look.last_recovery
    if last is None:
        return signal
    if last.first_step_at is not None:
        return min(look.now, max(signal, to_seconds(last.first_step_at)))
    until = min(look.now, max(signal, seconds_of(last.signal_at or last.detected_at, signal)))
    goodput, booked = with_loss(look.status, last, until, look.fresh.step_seconds, look.gang_gpus)
    look.update(recoveries=[*look.status.recoveries[:-1], booked], goodput=goodput)
    return until


def _continue_interruption(look: Look, choice: Choice, faults: Sequence[Fault]) -> None:
    last = look.status.recoveries[-1]
    look.amend_recovery(
        attempt=look.status.attempt + 1,
        cause=choice.cause,
        remedy=max(last.remedy, choice.remedy, key=_LADDER.index),
        reason=choice.reason,
        message=choice.message,
        price_gpu_hours=max(last.price_gpu_hours, round(choice.price_gpu_hours, 4)),
        members=[*last.members, *(f.pod for f in faults if f.pod not in last.members)],
        seats=[*last.seats, *(s for s in _seats(look, faults) if s not in last.seats)][:KEPT_SEATS],
        exit_codes={**last.exit_codes, **_exit_codes(look, faults)},
        why_not=list(choice.why_not),
    )


# -- the new attempt --------------------------------------------------------------------------------------------------


def _dropped(look: Look, choice: Choice, faults: Sequence[Fault]) -> dict[str, str]:
    """Pods that leave the gang, by uid, and why."""
    lost = {f.uid: f.reason for f in faults if f.lost}
    if choice.remedy is Remedy.MOVE_SEGMENT:
        moving = segments.pods_of(look, segments.hit_segments(look, lost))
        return {**dict.fromkeys(moving, Remedy.MOVE_SEGMENT.value), **lost}
    if choice.remedy is Remedy.REPLACE_GANG:
        return {**dict.fromkeys(look.views, Remedy.REPLACE_GANG.value), **lost}
    if lost or choice.remedy in (Remedy.RESTART_IN_PLACE, Remedy.FAIL):
        return lost
    return {worst_fault(look, faults).uid: "NotCuredInPlace"}


def raise_attempt(look: Look, *, is_move: bool) -> None:
    """Fences everyone: whoever runs an older attempt stops. Retired pods lose their rank with it."""
    status = look.status
    gone = look.retired_uids
    look.update(
        attempt=status.attempt + 1,
        barrier=CLOSED,
        held_roles=[],
        resume_step=None,
        attempt_raised_at=to_time(look.now),
        members=[m for m in status.members if m.uid in look.views and m.uid not in gone],
        placement=Placement(topology=status.placement.topology) if is_move else status.placement,
        loans=[] if is_move else status.loans,  # what it lent there is not its any more
    )


def move_if_stranded(look: Look) -> None:
    """A gang that waits for room its domain does not have moves whole, once another domain would take it."""
    if segments.is_segmented(look):
        _move_stranded_segments(look)
        return
    status = look.status
    if status.barrier == OPEN or not status.placement.domain or len(status.members) >= len(look.ranks):
        return
    refusal, waiting = refused(look), waiting_pods(look)
    if refusal is None or has_room_for(look, waiting) or domain_for_gang(look, elsewhere=True) is None:
        return
    under_way = look.under_way
    if under_way is not None:
        look.amend_recovery(
            attempt=status.attempt + 1,
            remedy=Remedy.REPLACE_GANG,
            why_not=[*under_way.why_not, f"{Remedy.REPLACE_POD}: {refusal.message}"],
        )
    for uid in look.views:
        retire(look, uid, Remedy.REPLACE_GANG.value)
    raise_attempt(look, is_move=True)
    look.create.clear()
    ask_for_pods(look)


def _move_stranded_segments(look: Look) -> None:
    """The same for a gang in segments: only those move that wait."""
    refusal = refused(look)
    if look.status.barrier == OPEN or refusal is None:
        return
    numbers = segments.stranded(look, waiting_pods(look))
    if not numbers:
        return
    under_way = look.under_way
    if under_way is not None:
        look.amend_recovery(
            attempt=look.status.attempt + 1,
            remedy=max(under_way.remedy, Remedy.MOVE_SEGMENT, key=_LADDER.index),
            why_not=[*under_way.why_not, f"{Remedy.REPLACE_POD}: {refusal.message}"],
        )
    for uid in segments.pods_of(look, numbers):
        retire(look, uid, Remedy.MOVE_SEGMENT.value)
    segments.forget_domains(look, numbers)
    raise_attempt(look, is_move=False)
    look.create.clear()
    ask_for_pods(look)


def shrink_if_stranded(look: Look) -> None:
    """A gang that may go on with fewer does not wait for room for ever."""
    sizes = stranded_sizes(look)
    if sizes is None:
        return
    under_way, refusal = look.under_way, refused(look)
    if under_way is not None:
        words = [f"{Remedy.REPLACE_POD}: {refusal.message}"] if refusal is not None else []
        look.amend_recovery(attempt=look.status.attempt + 1, remedy=Remedy.SHRINK, why_not=[*under_way.why_not, *words])
    for view in waiting_pods(look):
        retire(look, view.uid, Remedy.SHRINK.value)
    if look.status.members:
        raise_attempt(look, is_move=False)
    resize(look, sizes)
    fill_ranks(look)
    look.create.clear()
    ask_for_pods(look)


def grow_if_possible(look: Look) -> None:
    """A gang that went on with fewer takes the others in again."""
    found = growth(look)
    if found is None:
        return
    sizes, choice = found
    _begin_interruption(look, choice, [])
    raise_attempt(look, is_move=False)
    resize(look, sizes)
    look.update(used=charge(look.status.used, [choice.cause]), progress=look.fresh)


def quarantine_unstoppable(look: Look) -> list[Quarantine]:
    """Devices under members that could not be stopped stay out of use. Ordered until the order is seen."""
    orders: list[Quarantine] = []
    for pod in look.status.retired:
        view = look.views.get(pod.uid)
        if pod.reason == NOT_STOPPED and view is not None:
            text = f"{pod.pod} could not be stopped; something may still run on it."
            orders += [
                Quarantine(view.node, device, NOT_STOPPED, text)
                for device in view.devices
                if look.snapshot.is_usable(view.node, device)
            ]
    return orders
