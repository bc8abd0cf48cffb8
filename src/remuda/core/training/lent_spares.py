"""What a gang has lent of itself: the places of spares that preemptible work has, as the status says it.

A lent spare does not run: a device has one holder. Its place stays the gang's. While it is lent no spare is made for it; called
back, it is where the next replacement goes; returned, it is where the spare is made again. Questions only: `spare_lending`
decides.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from remuda.api.kubernetes.core_v1 import Pod
from remuda.api.meta import to_seconds
from remuda.api.names import ANNOTATION_PREEMPTIBLE, LABEL_GANG
from remuda.api.training import Loan, TrainingJob
from remuda.core.foreign.gangs import foreign_gang_of
from remuda.core.gang.pod_view import STUCK_AFTER_S
from remuda.core.state.pod_requests import Amounts, requests_of_pod, resource_amounts
from remuda.core.state.reservations import Reservation, lone_pod_reservation_key
from remuda.core.state.snapshot import Snapshot, snapshot_device_mask, snapshot_devices_of_pod
from remuda.core.training.planning_context import PlanningContext


def is_preemptible_pod(pod: Pod) -> bool:
    """It has agreed to end whenever its devices are needed: it says so, or its priority is below everybody's. Pods of a gang do
    not count: a gang that loses one pod has lost all."""
    if LABEL_GANG in pod.labels or foreign_gang_of(pod):
        return False
    said = pod.annotations.get(ANNOTATION_PREEMPTIBLE, "").lower()
    return said == "true" or (said != "false" and (pod.spec.priority or 0) < 0)


def loan_reservations(job: TrainingJob) -> Iterator[Reservation]:
    """Whom the scheduler may give the gang's lent places: the gang, and while they are not called back the borrowers."""
    for loan in job.status.loans:
        is_lent = loan.recalled_at is None and loan.returned_at is None
        borrowers = tuple(lone_pod_reservation_key(b.namespace, b.pod) for b in loan.borrowers)
        askers = (f"{job.namespace}/{job.name}", *(borrowers if is_lent else ()))
        yield Reservation(loan.node, tuple(loan.devices), askers, resource_amounts(loan.requests), borrowers)


def lent_spare_count(ctx: PlanningContext, role: str) -> int:
    """Spares that are not made because their places are lent."""
    return sum(1 for loan in ctx.status.loans if loan.role == role and loan.returned_at is None)


def loan_nodes_called_back(ctx: PlanningContext, role: str) -> list[str]:
    """Nodes where the next pods of the role are to go."""
    loans = (loan for loan in ctx.status.loans if loan.recalled_at is not None and loan.returned_at is None)
    return [loan.node for loan in loans if loan.role == role]


def loan_nodes_returned(ctx: PlanningContext, role: str) -> list[str]:
    """Nodes where the next spares are to go."""
    return [loan.node for loan in ctx.status.loans if loan.role == role and loan.returned_at is not None]


def recallable_loans(ctx: PlanningContext, role: str) -> list[Loan]:
    """Loans whose places would serve a pod of the role beside the gang, those that come back soonest first."""
    picture, where = ctx.snapshot, ctx.status.placement
    found = []
    for loan in ctx.status.loans:
        if loan.role != role or loan.recalled_at is not None or loan.returned_at is not None:
            continue
        is_near = not where.topology or picture.domain_of(loan.node, where.topology) == where.domain
        if is_near and is_loan_healthy(picture, loan) and not picture.nodes[picture.index[loan.node]].closed:
            found.append(loan)
    return sorted(found, key=lambda loan: (borrower_grace_s(ctx, loan), loan.node))


def is_loan_healthy(picture: Snapshot, loan: Loan) -> bool:
    """Whether all its devices are Healthy."""
    ix = picture.index.get(loan.node)
    if ix is None:
        return False
    rows = snapshot_device_mask(picture.nodes[ix].devices, loan.devices)
    return rows.bit_count() == len(loan.devices) and not rows & ~picture.nodes[ix].usable


def borrower_grace_s(ctx: PlanningContext, loan: Loan) -> float:
    """How long its borrowers may take to go."""
    return float(max((p.spec.termination_grace_period_seconds for p in borrowers_on_node(ctx, loan)), default=0))


def borrowers_on_node(ctx: PlanningContext, loan: Loan) -> list[Pod]:
    """Its borrowers that have the place, or are about to."""
    found = (ctx.lending.pods.get(b.uid) for b in loan.borrowers) if ctx.lending is not None else ()
    return [pod for pod in found if pod is not None and not pod.is_terminal and pod.spec.node_name == loan.node]


def recalled_spare_holdings(ctx: PlanningContext) -> Iterable[tuple[str, tuple[str, ...], Amounts]]:
    """What borrowers that were called back hold, unless one has been told to go for too long."""
    for loan in ctx.status.loans:
        if loan.recalled_at is None:
            continue
        late = to_seconds(loan.recalled_at) + borrower_grace_s(ctx, loan) + STUCK_AFTER_S
        if ctx.now <= late:
            yield from borrower_holdings(ctx, loan)


def borrower_holdings(ctx: PlanningContext, loan: Loan) -> Iterator[tuple[str, tuple[str, ...], Amounts]]:
    """What its borrowers hold."""
    return ((loan.node, snapshot_devices_of_pod(pod), requests_of_pod(pod)) for pod in borrowers_on_node(ctx, loan))
