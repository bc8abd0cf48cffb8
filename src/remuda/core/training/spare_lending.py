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
from remuda.core.scheduling.first_fit import count_fitting_pods
from remuda.core.scheduling.placement_request import placement_ask_of_pod
from remuda.core.state.pod_requests import pod_request_quantities, requests_of_pod
from remuda.core.state.snapshot import Snapshot
from remuda.core.state.transaction import Transaction
from remuda.core.training.job_status import training_placement_refusal, unplaced_rank_pods
from remuda.core.training.lent_spares import borrowers_on_node, is_loan_healthy, recallable_loans
from remuda.core.training.membership import retire_pod
from remuda.core.training.placement_options import has_training_domain_room_for
from remuda.core.training.planning_context import BorrowerRecall, PlanningContext

LENT = "Lent"  # why a spare's pod goes
DEVICE_RECALLED = "DeviceRecalled"
LEND_EVERY_S = 60.0  # between two changes: a spare costs a start each time
SETTLED_S = 30.0  # that a gang has run since its last start: failures come in bunches
WAITED_S = 10.0  # that a pod must have been refused for: by then the scheduler has looked twice
TAKE_S = 60.0  # that a borrower has to take its place, after the spare is gone, and a new spare after the borrower is


def tend_loans(ctx: PlanningContext) -> None:
    """What has become of the loans. Asked on every look, before anything is decided."""
    kept: list[Loan] = []
    for loan in ctx.status.loans:
        after = _tended_loan(ctx, loan)
        if after is not None:
            kept.append(after)
    _write_loans(ctx, kept)


def _write_loans(ctx: PlanningContext, loans: list[Loan]) -> None:
    """A loan that is new, or over, or over its use, starts the pause before the next one."""
    if loans == ctx.status.loans:
        return
    open_before, open_after = ({x.uid for x in found if x.returned_at is None} for found in (ctx.status.loans, loans))
    ctx.update(loans=loans, lent_at=to_time(ctx.now) if open_before != open_after else ctx.status.lent_at)


def _tended_loan(ctx: PlanningContext, loan: Loan) -> Loan | None:
    """The loan as it is now; None when it is over."""
    if ctx.lending is None or _is_loan_taken_back(ctx, loan):
        return None
    if not is_loan_healthy(ctx.lending.picture(loan.node), loan):
        return None  # no place any more: a spare is made elsewhere
    if loan.returned_at is not None:
        return loan if ctx.now <= to_seconds(loan.returned_at) + TAKE_S else None
    borrowers = [b for b in loan.borrowers if _has_borrower_claim(ctx, loan, b)]
    if loan.recalled_at is not None:
        # Where the replacement went elsewhere and all is well again, the spare comes back.
        returned = to_time(ctx.now) if not borrowers and _is_job_well(ctx) else None
        return msgspec.structs.replace(loan, borrowers=borrowers, returned_at=returned)
    if not borrowers:
        return msgspec.structs.replace(loan, borrowers=[], returned_at=to_time(ctx.now))
    return loan if borrowers == loan.borrowers else msgspec.structs.replace(loan, borrowers=borrowers)


def _is_loan_taken_back(ctx: PlanningContext, loan: Loan) -> bool:
    """A pod of the gang has some of those devices, other than the spare that gave them up."""
    lost = set(loan.devices)
    views = (v for v in ctx.views.values() if v.node == loan.node and v.uid not in ctx.retired_uids)
    return any(lost.intersection(v.devices) for v in views)


def _has_borrower_claim(ctx: PlanningContext, loan: Loan, borrower: Borrower) -> bool:
    """It sits there; or it may still take the place."""
    pod = ctx.lending.pods.get(borrower.uid) if ctx.lending is not None else None
    if pod is None or pod.is_terminal:
        return False
    if pod.spec.node_name:
        return pod.spec.node_name == loan.node
    if pod.is_deleting or loan.recalled_at is not None:
        return False
    is_gone = loan.uid not in ctx.views
    since = to_seconds(borrower.since) if borrower.since is not None else ctx.now
    return not is_gone or ctx.now <= since + TAKE_S


# -- lending ----------------------------------------------------------------------------------------------------------


def lend_spares(ctx: PlanningContext) -> None:
    """Lets waiting preemptible pods into places that are lent already, or gives up one more spare."""
    if ctx.lending is None or not ctx.spec.lend_spares or not _is_job_well(ctx):
        return
    waiting = [pod for pod in ctx.lending.waiting if _has_borrower_waited(pod, ctx.now) and not _is_borrower(ctx, pod)]
    if waiting and not _lend_more_of_loans(ctx, waiting) and ctx.now >= may_lend_spare_at(ctx):
        _lend_spare(ctx, waiting)


def may_lend_spare_at(ctx: PlanningContext) -> float:
    """From when on another spare may be lent."""
    last = ctx.last_recovery
    began = (ctx.status.started_at, ctx.status.attempt_raised_at, last.first_step_at if last is not None else None)
    settled = max((to_seconds(at) for at in began if at is not None), default=ctx.now) + SETTLED_S
    return max(settled, to_seconds(ctx.status.lent_at) + LEND_EVERY_S if ctx.status.lent_at else settled)


def next_lending_at(ctx: PlanningContext) -> float | None:
    """When time alone may change what is lent."""
    if ctx.lending is None:
        return None
    found = [to_seconds(loan.returned_at) + TAKE_S for loan in ctx.status.loans if loan.returned_at is not None]
    for loan in ctx.status.loans:
        claims = [b for b in loan.borrowers if (p := ctx.lending.pods.get(b.uid)) is not None and not p.spec.node_name]
        found += [to_seconds(b.since) + TAKE_S for b in claims if b.since is not None]
    if ctx.spec.lend_spares and ctx.lending.waiting and _is_job_well(ctx) and _lendable_spares(ctx):
        found += [_placement_refused_since(pod) + WAITED_S for pod in ctx.lending.waiting]
        found.append(may_lend_spare_at(ctx))
    return min((at for at in found if at >= ctx.now), default=None)


def _is_job_well(ctx: PlanningContext) -> bool:
    """Every rank runs, and nothing speaks against any of them."""
    last, status = ctx.last_recovery, ctx.status
    if status.barrier != OPEN or status.held_roles or status.sizes or len(status.members) < len(ctx.ranks):
        return False
    if status.started_at is None or (last is not None and last.first_step_at is None):
        return False
    views = [ctx.views.get(m.uid) for m in status.members]
    return all(v is not None and v.is_usable and v.slow_device is None and v.leaving is None for v in views)


def _placement_refused_since(pod: Pod) -> float:
    said = find_condition(pod.status.conditions, "PodScheduled")
    if said is None or said.status != "False" or said.last_transition_time is None:
        return float("inf")
    return to_seconds(said.last_transition_time)


def _has_borrower_waited(pod: Pod, now: float) -> bool:
    return not pod.is_deleting and now - _placement_refused_since(pod) >= WAITED_S


def _is_borrower(ctx: PlanningContext, pod: Pod) -> bool:
    return any(b.uid == pod.uid for loan in ctx.status.loans for b in loan.borrowers)


def _lend_more_of_loans(ctx: PlanningContext, waiting: Sequence[Pod]) -> bool:
    """Into what is left of a place that is lent. Whether anybody was."""
    for number, loan in enumerate(ctx.status.loans):
        if loan.recalled_at is not None or loan.returned_at is not None or ctx.lending is None:
            continue
        if new := _borrowers_that_fit(ctx, ctx.lending.picture(loan.node), loan, waiting):
            loans = list(ctx.status.loans)
            loans[number] = msgspec.structs.replace(loan, borrowers=[*loan.borrowers, *new])
            ctx.update(loans=loans)
            return True
    return False


def _lend_spare(ctx: PlanningContext, waiting: Sequence[Pod]) -> None:
    for spare in _lendable_spares(ctx):
        if ctx.lending is None:
            return
        before = ctx.lending.picture(spare.node)
        after = before.releasing([(spare.node, spare.devices, requests_of_pod(spare.pod))])
        loan = Loan(spare.pod.name, spare.uid, spare.role, spare.node, list(spare.devices), to_time(ctx.now))
        loan = msgspec.structs.replace(loan, requests=pod_request_quantities(requests_of_pod(spare.pod)))
        helped = [
            pod for pod in waiting if not _borrowers_that_fit(ctx, before, loan, [pod])
        ]  # others need only be placed
        if new := _borrowers_that_fit(ctx, after, loan, helped):
            retire_pod(ctx, spare.uid, LENT)
            _write_loans(ctx, [*ctx.status.loans, msgspec.structs.replace(loan, borrowers=new)])
            return


def _lendable_spares(ctx: PlanningContext) -> list[PodView]:
    found = (v for v in ctx.free() if v.is_spare and v.is_parked and v.devices)
    return [v for v in found if v.slow_device is None and v.leaving is None]


def _borrowers_that_fit(ctx: PlanningContext, picture: Snapshot, loan: Loan, waiting: Sequence[Pod]) -> list[Borrower]:
    """Those of the waiting that the node has room for, beside the ones it was promised to."""
    if not picture.nodes or ctx.lending is None:
        return []
    transaction, found = Transaction.of(picture), []
    coming = [p for b in loan.borrowers if (p := ctx.lending.pods.get(b.uid)) is not None and not p.spec.node_name]
    count_fitting_pods(picture, [0], [placement_ask_of_pod(pod) for pod in coming], transaction, keep=True)
    for pod in waiting:
        if count_fitting_pods(picture, [0], [placement_ask_of_pod(pod)], transaction, keep=True):
            found.append(Borrower(pod.namespace, pod.name, pod.uid, to_time(ctx.now)))
    return found


# -- calling back -----------------------------------------------------------------------------------------------------


def recall_loans(ctx: PlanningContext, role: str, count: int, reason: str, message: str) -> None:
    """So many of the lent places are needed now."""
    needed = {loan.uid for loan in recallable_loans(ctx, role)[:count]}
    text = f"{ctx.job.namespace}/{ctx.job.name} needs the devices of its spare back: {message}"
    told = {"recalled_at": to_time(ctx.now), "reason": reason, "message": text}
    loans: list[Loan] = []
    for loan in ctx.status.loans:
        there = {pod.uid for pod in borrowers_on_node(ctx, loan)}  # who has yet to come is not let in any more
        held = [b for b in loan.borrowers if b.uid in there]
        loans.append(msgspec.structs.replace(loan, **told, borrowers=held) if loan.uid in needed else loan)
    _write_loans(ctx, loans)


def recall_loans_if_stranded(ctx: PlanningContext) -> None:
    """A gang that waits for room calls back what it lent as soon as that, and what has become free since, is enough."""
    refusal, waiting = training_placement_refusal(ctx), unplaced_rank_pods(ctx)
    if ctx.status.barrier == OPEN or refusal is None or not ctx.status.loans:
        return
    role = ctx.spec.roles[0].name
    loans = recallable_loans(ctx, role)
    if not loans or has_training_domain_room_for(ctx, waiting):
        return  # nothing to call back, or room without it: what leaves is waited for
    count = next((n for n in range(1, len(loans) + 1) if has_training_domain_room_for(ctx, waiting, loans[:n])), 0)
    if not count:
        return
    under_way = ctx.under_way
    if under_way is not None:
        ladder = list(Remedy)
        ctx.amend_recovery(
            remedy=max(under_way.remedy, Remedy.RECALL_SPARE, key=ladder.index),
            why_not=[*under_way.why_not, f"{Remedy.REPLACE_POD}: {refusal.message}"],
        )
    recall_loans(ctx, role, count, refusal.reason, refusal.message)


def recalled_borrowers(ctx: PlanningContext) -> list[BorrowerRecall]:
    """Borrowers to be told and deleted; asked on every look until they are gone."""
    return [
        BorrowerRecall(pod, loan.reason, loan.message)
        for loan in ctx.status.loans
        if loan.recalled_at is not None
        for pod in borrowers_on_node(ctx, loan)
        if not pod.is_deleting
    ]
