"""Which of some pods fit on some nodes: first fit, largest pods first, nodes in their order. Pure.

What a pod takes of a node is the `Transaction`'s to say. Every question here leaves it as it was; `spend_placement_assignments`
changes it, and so does `count_fitting_pods` when it is told to keep. Degraded devices are given only to pods that say so, and
only when no others will do.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from remuda.api.names import RESOURCE_GPU
from remuda.core.scheduling.driver_version import is_node_driver_too_old, node_driver_version
from remuda.core.scheduling.node_affinity import is_node_in_terms
from remuda.core.scheduling.placement_request import Assignment, PodAsk
from remuda.core.state.snapshot import NodeView, Snapshot, tolerates_taints
from remuda.core.state.transaction import Transaction, resource_snapshot_node_lacks


def fit_all_pods(
    snapshot: Snapshot,
    nodes: Sequence[int],
    pods: Sequence[PodAsk],
    transaction: Transaction,
    extra: Sequence[PodAsk] = (),
) -> list[Assignment] | None:
    """First fit of all `pods` on those nodes; None when one does not fit, or `extra` would not fit beside them."""
    mark = transaction.mark()
    found = _first_fit_pods(snapshot, nodes, pods, transaction)
    fits = len(found) == len(pods) and len(_first_fit_pods(snapshot, nodes, extra, transaction)) == len(extra)
    transaction.rollback(mark)
    return found if fits else None


def first_fit_without_optional_pods(
    snapshot: Snapshot, nodes: Sequence[int], pods: Sequence[PodAsk], transaction: Transaction
) -> list[Assignment] | None:
    """All that the gang needs and as many of the others as fit; None when not even those, or nothing, would."""
    needed, others = [p for p in pods if not p.optional], [p for p in pods if p.optional]
    if not others:
        return None
    mark = transaction.mark()
    found = _first_fit_pods(snapshot, nodes, needed, transaction)
    if len(found) == len(needed):
        found += _first_fit_pods(snapshot, nodes, others, transaction)
    else:
        found = []
    transaction.rollback(mark)
    return found or None


def count_fitting_pods(
    snapshot: Snapshot, nodes: Sequence[int], pods: Sequence[PodAsk], transaction: Transaction, *, keep: bool = False
) -> int:
    """How many of those pods those nodes could take. `keep`: what they take stays taken."""
    mark = transaction.mark()
    found = _first_fit_pods(snapshot, nodes, pods, transaction)
    if not keep:
        transaction.rollback(mark)
    return len(found)


def free_devices_for_placement(nodes: Iterable[int], transaction: Transaction) -> int:
    """Whole devices that are free there."""
    return sum(transaction.free[ix].bit_count() for ix in nodes)


def spend_placement_assignments(
    snapshot: Snapshot, transaction: Transaction, assignments: Iterable[Assignment]
) -> None:
    """Take what was assigned. Until `room.settle` it can be rolled back."""
    for assignment in assignments:
        ix = snapshot.index[assignment.node]
        transaction.spend(snapshot.nodes[ix], ix, assignment.devices, assignment.pod.requests)


def may_schedule_on_node(view: NodeView, pod: PodAsk) -> bool:
    """Whether the node takes such a pod, if there is room."""
    return (
        not view.closed
        and (view.has_agent or not pod.needs_agent)
        and all(view.labels.get(key) == value for key, value in pod.node_selector)
        and is_node_in_terms(pod.node_terms, view.name, view.labels)
        and tolerates_taints(pod.tolerations, view.taints)
        and not resource_snapshot_node_lacks(view, pod.requests)
        and not (pod.min_driver and is_node_driver_too_old(node_driver_version(view.labels), pod.min_driver))
    )


def _first_fit_pods(
    snapshot: Snapshot, nodes: Sequence[int], pods: Sequence[PodAsk], transaction: Transaction
) -> list[Assignment]:
    """Those that fit, taken from `transaction`."""
    found: list[Assignment] = []
    for pod in sorted(pods, key=lambda p: -p.gpus):  # a large pod needs a whole node, a small one the rest of any
        taken = _first_fitting_node(snapshot, nodes, pod, transaction)
        if taken is None and pod.tolerates_degraded:
            taken = _first_fitting_node(snapshot, nodes, pod, transaction, tolerant=True)
        if taken is not None:
            found.append(taken)
    return found


def _first_fitting_node(
    snapshot: Snapshot, nodes: Sequence[int], pod: PodAsk, transaction: Transaction, *, tolerant: bool = False
) -> Assignment | None:
    requests = pod.requests
    for ix in _preferred_node_first(snapshot, nodes, pod):
        view = snapshot.nodes[ix]
        free = transaction.free[ix] | transaction.worn[ix] if tolerant else transaction.free[ix]
        if free.bit_count() < pod.gpus and RESOURCE_GPU in view.resources:
            continue  # by far the most frequent answer, and the cheapest
        if (
            may_schedule_on_node(view, pod)
            and (devices := transaction.take(view, ix, requests, tolerant=tolerant)) is not None
        ):
            return Assignment(pod, view.name, devices)
    return None


def _preferred_node_first(snapshot: Snapshot, nodes: Sequence[int], pod: PodAsk) -> Sequence[int]:
    """The nodes in their order, but for the one that the pod would rather have."""
    wish = snapshot.index.get(pod.prefer) if pod.prefer else None
    return nodes if wish is None or wish not in nodes else [wish, *(ix for ix in nodes if ix != wish)]
