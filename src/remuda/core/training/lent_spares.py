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
from remuda.core.state.pod_requests import Amounts, amounts_of, requests_of
from remuda.core.state.reservations import Reservation, pod_key
from remuda.core.state.snapshot import Snapshot, devices_of, mask_of
from remuda.core.training.planning_context import Look


def is_preemptible(pod: Pod) -> bool:
    """It has agreed to end whenever its devices are needed: it says so, or its priority is below everybody's. Pods of a gang do
    not count: a gang that loses one pod has lost all."""
    if LABEL_GANG in pod.labels or foreign_gang_of(pod):
        return False
    said = pod.annotations.get(ANNOTATION_PREEMPTIBLE, "").lower()
    return said == "true" or (said != "false" and (pod.spec.priority or 0) < 0)


def reservations_of(job: TrainingJob) -> Iterator[Reservation]:
    """Whom the scheduler may give the gang's lent places: the gang, and while they are not called back the borrowers."""
    for loan in job.status.loans:
        is_lent = loan.recalled_at is None and loan.returned_at is None
        borrowers = tuple(pod_key(b.namespace, b.pod) for b in loan.borrowers)
        askers = (f"{job.namespace}/{job.name}", *(borrowers if is_lent else ()))
        yield Reservation(loan.node, tuple(loan.devices), askers, amounts_of(loan.requests), borrowers)


def lent_count(look: Look, role: str) -> int:
    """Spares that are not made because their places are lent."""
    return sum(1 for loan in look.status.loans if loan.role == role and loan.returned_at is None)


def places_called_back(look: Look, role: str) -> list[str]:
    """Nodes where the next pods of the role are to go."""
    loans = (loan for loan in look.status.loans if loan.recalled_at is not None and loan.returned_at is None)
    return [loan.node for loan in loans if loan.role == role]


def places_returned(look: Look, role: str) -> list[str]:
    """Nodes where the next spares are to go."""
    return [loan.node for loan in look.status.loans if loan.role == role and loan.returned_at is not None]


def recallable(look: Look, role: str) -> list[Loan]:
    """Loans whose places would serve a pod of the role beside the gang, those that come back soonest first."""
    picture, where = look.snapshot, look.status.placement
    found = []
    for loan in look.status.loans:
        if loan.role != role or loan.recalled_at is not None or loan.returned_at is not None:
            continue
        is_near = not where.topology or picture.domain_of(loan.node, where.topology) == where.domain
        if is_near and is_sound(picture, loan) and not picture.nodes[picture.index[loan.node]].closed:
            found.append(loan)
    return sorted(found, key=lambda loan: (grace_s(look, loan), loan.node))


def is_sound(picture: Snapshot, loan: Loan) -> bool:
    """Whether all its devices are Healthy."""
    ix = picture.index.get(loan.node)
    if ix is None:
        return False
    rows = mask_of(picture.nodes[ix].devices, loan.devices)
    return rows.bit_count() == len(loan.devices) and not rows & ~picture.nodes[ix].usable


def grace_s(look: Look, loan: Loan) -> float:
    """How long its borrowers may take to go."""
    return float(max((p.spec.termination_grace_period_seconds for p in sitting(look, loan)), default=0))


def sitting(look: Look, loan: Loan) -> list[Pod]:
    """Its borrowers that have the place, or are about to."""
    found = (look.lending.pods.get(b.uid) for b in loan.borrowers) if look.lending is not None else ()
    return [pod for pod in found if pod is not None and not pod.is_terminal and pod.spec.node_name == loan.node]


def coming_back(look: Look) -> Iterable[tuple[str, tuple[str, ...], Amounts]]:
    """What borrowers that were called back hold, unless one has been told to go for too long."""
    for loan in look.status.loans:
        if loan.recalled_at is None:
            continue
        late = to_seconds(loan.recalled_at) + grace_s(look, loan) + STUCK_AFTER_S
        if look.now <= late:
            yield from held_by(look, loan)


def held_by(look: Look, loan: Loan) -> Iterator[tuple[str, tuple[str, ...], Amounts]]:
    """What its borrowers hold."""
    return ((loan.node, devices_of(pod), requests_of(pod)) for pod in sitting(look, loan))
