"""Spares lent to preemptible work until they are needed.

A parked spare holds its devices and does nothing with them. With `spec.lendSpares` it is given up for a *preemptible* pod that
waits for room which nothing else gives: the spare's pod goes, its place is written down as a loan, the scheduler keeps that
place for the borrower and for the gang (`state.reservations`), and for nobody else. From there a loan goes one way:

  lent         more preemptible pods may be let in while there is room. No spare is made.
  called back  a member has to be replaced and this is the cheapest cure (remedy RecallSpare, see `gang.gang_remedy`), or the gang
               waits for room and this with what became free since is enough: borrowers get
               the condition DeviceRecalled and are deleted with their own grace. Preemptible work has agreed to that: no
               PodDisruptionBudget is asked. The replacement goes there.
  returned     no borrower is left: the spare is made again, at its old place while that is kept for it.
  over         a pod of the gang sits there again; or the place is no good any more, the gang has moved, ended or is suspended.

Invariants: lent only by a gang that runs, is well and has settled; one loan at a time, and none sooner than LEND_EVERY_S after
another was made or ended; no attempt is raised for any of this; a place is promised to pods that fit it; borrowers of a
place that is not called back are never touched.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from remuda.api.conditions import find_condition
from remuda.api.kubernetes.core_v1 import Pod
from remuda.api.meta import to_seconds, to_time
from remuda.api.training import Borrower, Loan, Remedy
from remuda.core.gang.pod_view import OPEN, PodView
from remuda.core.scheduling.first_fit import count_fit
from remuda.core.scheduling.placement_request import ask_of
from remuda.core.state.pod_requests import quantities_of, requests_of
from remuda.core.state.snapshot import Snapshot
from remuda.core.state.transaction import Room
from remuda.core.training.job_status import refused, waiting_pods
from remuda.core.training.lent_spares import is_sound, recallable, sitting
from remuda.core.training.membership import retire
from remuda.core.training.placement_options import has_room_for
from remuda.core.training.planning_context import Look, Recalled

LENT = "Lent"  # why a spare's pod goes
DEVICE_RECALLED = "DeviceRecalled"
LEND_EVERY_S = 60.0  # between two changes: a spare costs a start each time
SETTLED_S = 30.0  # that a gang has run since its last start: failures come in bunches
WAITED_S = 10.0  # that a pod must have been refused for: by then the scheduler has looked twice
TAKE_S = 60.0  # that a borrower has to take its place, after the spare is gone, and a new spare after the borrower is


def tend_loans(look: Look) -> None:
    """What has become of the loans. Asked on every look, before anything is decided."""
    kept: list[Loan] = []
    for loan in look.status.loans:
        after = _tended(look, loan)
        if after is not None:
            kept.append(after)
    _write(look, kept)


def _write(look: Look, loans: list[Loan]) -> None:
    """A loan that is new, or over, or over its use, starts the pause before the next one."""
    if loans == look.status.loans:
        return
    open_before, open_after = ({x.uid for x in found if x.returned_at is None} for found in (look.status.loans, loans))
    look.update(loans=loans, lent_at=to_time(look.now) if open_before != open_after else look.status.lent_at)


def _tended(look: Look, loan: Loan) -> Loan | None:
    """The loan as it is now; None when it is over."""
    if look.lending is None or _is_taken(look, loan):
        return None
    if not is_sound(look.lending.picture(loan.node), loan):
        return None  # no place any more: a spare is made elsewhere
    if loan.returned_at is not None:
        return loan if look.now <= to_seconds(loan.returned_at) + TAKE_S else None
    borrowers = [b for b in loan.borrowers if _has_claim(look, loan, b)]
    if loan.recalled_at is not None:
        # Where the replacement went elsewhere and all is well again, the spare comes back.
        returned = to_time(look.now) if not borrowers and _is_well(look) else None
        return msgspec.structs.replace(loan, borrowers=borrowers, returned_at=returned)
    if not borrowers:
        return msgspec.structs.replace(loan, borrowers=[], returned_at=to_time(look.now))
    return loan if borrowers == loan.borrowers else msgspec.structs.replace(loan, borrowers=borrowers)


def _is_taken(look: Look, loan: Loan) -> bool:
    """A pod of the gang has some of those devices, other than the spare that gave them up."""
    lost = set(loan.devices)
    views = (v for v in look.views.values() if v.node == loan.node and v.uid not in look.retired_uids)
    return any(lost.intersection(v.devices) for v in views)


def _has_claim(look: Look, loan: Loan, borrower: Borrower) -> bool:
    """It sits there; or it may still take the place."""
    pod = look.lending.pods.get(borrower.uid) if look.lending is not None else None
    if pod is None or pod.is_terminal:
        return False
    if pod.spec.node_name:
        return pod.spec.node_name == loan.node
    if pod.is_deleting or loan.recalled_at is not None:
        return False
    is_gone = loan.uid not in look.views
    since = to_seconds(borrower.since) if borrower.since is not None else look.now
    return not is_gone or look.now <= since + TAKE_S


# -- lending ----------------------------------------------------------------------------------------------------------


def lend_spares(look: Look) -> None:
    """Lets waiting preemptible pods into places that are lent already, or gives up one more spare."""
    if look.lending is None or not look.spec.lend_spares or not _is_well(look):
        return
    waiting = [pod for pod in look.lending.waiting if _has_waited(pod, look.now) and not _is_promised(look, pod)]
    if waiting and not _let_in(look, waiting) and look.now >= may_lend_at(look):
        _give_up(look, waiting)


def may_lend_at(look: Look) -> float:
    """From when on another spare may be lent."""
    last = look.last_recovery
    began = (look.status.started_at, look.status.attempt_raised_at, last.first_step_at if last is not None else None)
    settled = max((to_seconds(at) for at in began if at is not None), default=look.now) + SETTLED_S
    return max(settled, to_seconds(look.status.lent_at) + LEND_EVERY_S if look.status.lent_at else settled)


def next_lending_look(look: Look) -> float | None:
    """When time alone may change what is lent."""
    if look.lending is None:
        return None
    found = [to_seconds(loan.returned_at) + TAKE_S for loan in look.status.loans if loan.returned_at is not None]
    for loan in look.status.loans:
        claims = [b for b in loan.borrowers if (p := look.lending.pods.get(b.uid)) is not None and not p.spec.node_name]
        found += [to_seconds(b.since) + TAKE_S for b in claims if b.since is not None]
    if look.spec.lend_spares and look.lending.waiting and _is_well(look) and _lendable(look):
        found += [_refused_since(pod) + WAITED_S for pod in look.lending.waiting]
        found.append(may_lend_at(look))
    return min((at for at in found if at >= look.now), default=None)


def _is_well(look: Look) -> bool:
    """Every rank runs, and nothing speaks against any of them."""
    last, status = look.last_recovery, look.status
    if status.barrier != OPEN or status.held_roles or status.sizes or len(status.members) < len(look.ranks):
        return False
    if status.started_at is None or (last is not None and last.first_step_at is None):
        return False
    views = [look.views.get(m.uid) for m in status.members]
    return all(v is not None and v.is_usable and v.slow_device is None and v.leaving is None for v in views)


def _refused_since(pod: Pod) -> float:
    said = find_condition(pod.status.conditions, "PodScheduled")
    if said is None or said.status != "False" or said.last_transition_time is None:
        return float("inf")
    return to_seconds(said.last_transition_time)


def _has_waited(pod: Pod, now: float) -> bool:
    return not pod.is_deleting and now - _refused_since(pod) >= WAITED_S


def _is_promised(look: Look, pod: Pod) -> bool:
    return any(b.uid == pod.uid for loan in look.status.loans for b in loan.borrowers)


def _let_in(look: Look, waiting: Sequence[Pod]) -> bool:
    """Into what is left of a place that is lent. Whether anybody was."""
    for number, loan in enumerate(look.status.loans):
        if loan.recalled_at is not None or loan.returned_at is not None or look.lending is None:
            continue
        if new := _fitting(look, look.lending.picture(loan.node), loan, waiting):
            loans = list(look.status.loans)
            loans[number] = msgspec.structs.replace(loan, borrowers=[*loan.borrowers, *new])
            look.update(loans=loans)
            return True
    return False


def _give_up(look: Look, waiting: Sequence[Pod]) -> None:
    for spare in _lendable(look):
        if look.lending is None:
            return
        before = look.lending.picture(spare.node)
        after = before.releasing([(spare.node, spare.devices, requests_of(spare.pod))])
        loan = Loan(spare.pod.name, spare.uid, spare.role, spare.node, list(spare.devices), to_time(look.now))
        loan = msgspec.structs.replace(loan, requests=quantities_of(requests_of(spare.pod)))
        helped = [pod for pod in waiting if not _fitting(look, before, loan, [pod])]  # others need only be placed
        if new := _fitting(look, after, loan, helped):
            retire(look, spare.uid, LENT)
            _write(look, [*look.status.loans, msgspec.structs.replace(loan, borrowers=new)])
            return


def _lendable(look: Look) -> list[PodView]:
    found = (v for v in look.free() if v.is_spare and v.is_parked and v.devices)
    return [v for v in found if v.slow_device is None and v.leaving is None]


def _fitting(look: Look, picture: Snapshot, loan: Loan, waiting: Sequence[Pod]) -> list[Borrower]:
    """Those of the waiting that the node has room for, beside the ones it was promised to."""
    if not picture.nodes or look.lending is None:
        return []
    room, found = Room.of(picture), []
    coming = [p for b in loan.borrowers if (p := look.lending.pods.get(b.uid)) is not None and not p.spec.node_name]
    count_fit(picture, [0], [ask_of(pod) for pod in coming], room, keep=True)
    for pod in waiting:
        if count_fit(picture, [0], [ask_of(pod)], room, keep=True):
            found.append(Borrower(pod.namespace, pod.name, pod.uid, to_time(look.now)))
    return found


# -- calling back -----------------------------------------------------------------------------------------------------


def call_back(look: Look, role: str, count: int, reason: str, message: str) -> None:
    """So many of the lent places are needed now."""
    needed = {loan.uid for loan in recallable(look, role)[:count]}
    text = f"{look.job.namespace}/{look.job.name} needs its spare's devices: {message}"
    told = {"recalled_at": to_time(look.now), "reason": reason, "message": text}
    loans: list[Loan] = []
    for loan in look.status.loans:
        there = {pod.uid for pod in sitting(look, loan)}  # who has yet to come is not let in any more
        held = [b for b in loan.borrowers if b.uid in there]
        loans.append(msgspec.structs.replace(loan, **told, borrowers=held) if loan.uid in needed else loan)
    _write(look, loans)


def recall_if_stranded(look: Look) -> None:
    """A gang that waits for room calls back what it lent as soon as that, and what has become free since, is enough."""
    refusal, waiting = refused(look), waiting_pods(look)
    if look.status.barrier == OPEN or refusal is None or not look.status.loans:
        return
    role = look.spec.roles[0].name
    loans = recallable(look, role)
    if not loans or has_room_for(look, waiting):
        return  # nothing to call back, or room without it: what leaves is waited for
    count = next((n for n in range(1, len(loans) + 1) if has_room_for(look, waiting, loans[:n])), 0)
    if not count:
        return
    under_way = look.under_way
    if under_way is not None:
        ladder = list(Remedy)
        look.amend_recovery(
            remedy=max(under_way.remedy, Remedy.RECALL_SPARE, key=ladder.index),
            why_not=[*under_way.why_not, f"{Remedy.REPLACE_POD}: {refusal.message}"],
        )
    call_back(look, role, count, refusal.reason, refusal.message)


def recalled_pods(look: Look) -> list[Recalled]:
    """Borrowers to be told and deleted; asked on every look until they are gone."""
    return [
        Recalled(pod, loan.reason, loan.message)
        for loan in look.status.loans
        if loan.recalled_at is not None
        for pod in sitting(look, loan)
        if not pod.is_deleting
    ]
