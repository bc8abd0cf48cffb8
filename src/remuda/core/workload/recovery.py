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
from remuda.api.training import Cause, Placement, Recovery, Remedy
from remuda.core.failure.budgets import charge, exhausted, recharge
from remuda.core.failure.remedy import Choice, Fault, causes_of, choose_remedy, root_fault
from remuda.core.workload.faults import NOT_STOPPED
from remuda.core.workload.gang import CLOSED, OPEN, seconds_of
from remuda.core.workload.goodput import moved_loss, with_loss
from remuda.core.workload.look import Look, Quarantine
from remuda.core.workload.membership import ask_for_pods, retire
from remuda.core.workload.offer import costs_of, domain_for_gang, has_room_for, offer_for, worst_fault
from remuda.core.workload.outcome import fail_over_budget, refused, waiting_pods

LOOK_BACK_S = (
    10.0  # faults this close together are one: a crash shortly before its device is reported bad was the device's
)
NODE_LOOK_BACK_S = 60.0  # the same for a gang that stands still since: a node's death shows only when its lease ran out
KEPT_RECOVERIES = 20

_LADDER = list(Remedy)


def recover(look: Look, faults: Sequence[Fault]) -> None:
    root = root_fault(faults)
    is_explained = _explains(look, root)
    is_same = is_explained or _belongs(look, root)
    used = _charged(look, faults, is_explained=is_explained, is_same=is_same)
    choice = choose_remedy(faults, offer_for(look, faults), costs_of(look, faults))
    over = exhausted(look.spec.failure.budgets, used)
    if over is not None:
        choice = msgspec.structs.replace(choice, remedy=Remedy.FAIL, price_gpu_hours=0.0)
    dropped = _dropped(look, choice, faults)
    if is_explained:
        _reattribute(look, root)
    if is_same and look.under_way is not None:
        _continue_interruption(look, choice, faults)
    else:
        _begin_interruption(look, choice, faults)
    for uid, reason in dropped.items():
        retire(look, uid, reason)
    _raise_attempt(look, is_move=choice.remedy is Remedy.REPLACE_GANG)
    look.update(used=used, progress=look.fresh)
    if over is not None:
        fail_over_budget(look, over, root.message)


# -- whose fault ------------------------------------------------------------------------------------------------------


def _explains(look: Look, root: Fault) -> bool:
    """The crash or hang just before was this fault's doing: its charge moves there."""
    last = look.last_recovery
    if last is None or last.cause not in (Cause.CODE, Cause.HANG) or last.detected_at is None:
        return False
    if root.cause not in (Cause.DEVICE, Cause.INFRA) or not root.lost or root.pod in last.replaced:
        return False
    if look.under_way is None and root.pod not in last.members:
        return False  # the gang has trained since, so another pod's device was not what stopped it then
    window = LOOK_BACK_S if look.under_way is None else NODE_LOOK_BACK_S
    return look.now - to_seconds(last.detected_at) <= window


def _belongs(look: Look, root: Fault) -> bool:
    """One more of the same, while the gang stands still because of the first."""
    last = look.under_way
    return (
        last is not None
        and last.cause is root.cause
        and last.detected_at is not None
        and look.now - to_seconds(last.detected_at) <= LOOK_BACK_S
    )


def _charged(look: Look, faults: Sequence[Fault], *, is_explained: bool, is_same: bool) -> dict[str, int]:
    used, causes, last = dict(look.status.used), set(causes_of(faults)), look.last_recovery
    if is_explained and last is not None:
        used = recharge(used, last.cause, root_fault(faults).cause)
    if is_same:
        causes.discard(root_fault(faults).cause)
    return charge(used, causes)


def _reattribute(look: Look, root: Fault) -> None:
    last = look.status.recoveries[-1]
    look.update(goodput=moved_loss(look.status.goodput, last, root.cause))
    look.amend_recovery(cause=root.cause, message=f"{last.message} Explained by {root.reason} of {root.pod}.".strip())


# -- the record -------------------------------------------------------------------------------------------------------


def _begin_interruption(look: Look, choice: Choice, faults: Sequence[Fault]) -> None:
    signal = min(f.signal_at for f in faults)
    signal = _close_books(look, signal)
    record = Recovery(
        attempt=look.status.attempt + 1,
        cause=choice.cause,
        remedy=choice.remedy,
        reason=choice.reason,
        message=choice.message,
        price_gpu_hours=round(choice.price_gpu_hours, 4),
        members=[f.pod for f in faults],
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
        why_not=list(choice.why_not),
    )


# -- the new attempt --------------------------------------------------------------------------------------------------


def _dropped(look: Look, choice: Choice, faults: Sequence[Fault]) -> dict[str, str]:
    """Pods that leave the gang, by uid, and why."""
    lost = {f.uid: f.reason for f in faults if f.lost}
    if choice.remedy is Remedy.REPLACE_GANG:
        return {**dict.fromkeys(look.views, Remedy.REPLACE_GANG.value), **lost}
    if lost or choice.remedy in (Remedy.RESTART_IN_PLACE, Remedy.FAIL):
        return lost
    return {worst_fault(look, faults).uid: "NotCuredInPlace"}


def _raise_attempt(look: Look, *, is_move: bool) -> None:
    """Fences everyone: whoever runs an older attempt stops. Retired pods lose their rank with it."""
    status = look.status
    gone = look.retired_uids
    look.update(
        attempt=status.attempt + 1,
        barrier=CLOSED,
        resume_step=None,
        attempt_raised_at=to_time(look.now),
        members=[m for m in status.members if m.uid in look.views and m.uid not in gone],
        placement=Placement(topology=status.placement.topology) if is_move else status.placement,
    )


def move_if_stranded(look: Look) -> None:
    """A gang that waits for room its domain does not have moves whole, once another domain would take it."""
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
    _raise_attempt(look, is_move=True)
    look.create.clear()
    ask_for_pods(look)


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
