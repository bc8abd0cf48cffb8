"""Which of some pods fit on some nodes: first fit, largest pods first, nodes in their order. Pure.

What a pod takes of a node is `transaction`'s. Every question here leaves `transaction` as it was, but for `spend`, and
`count_fit` when it is told to keep. Degraded devices are given only to pods that say so, and only when no others will do.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from remuda.api.names import RESOURCE_GPU
from remuda.core.scheduling.driver_version import driver_of, is_older
from remuda.core.scheduling.placement_request import Assignment, PodAsk
from remuda.core.state.snapshot import NodeView, Snapshot, tolerates
from remuda.core.state.transaction import Room, lacks


def fit_all(
    snapshot: Snapshot,
    nodes: Sequence[int],
    pods: Sequence[PodAsk],
    room: Room,
    extra: Sequence[PodAsk] = (),
) -> list[Assignment] | None:
    """First fit of all `pods` on those nodes; None when one does not fit, or `extra` would not fit beside them."""
    mark = room.mark()
    found = _first_fit(snapshot, nodes, pods, room)
    fits = len(found) == len(pods) and len(_first_fit(snapshot, nodes, extra, room)) == len(extra)
    room.rollback(mark)
    return found if fits else None


def fit_fewer(snapshot: Snapshot, nodes: Sequence[int], pods: Sequence[PodAsk], room: Room) -> list[Assignment] | None:
    """All that the gang needs and as many of the others as fit; None when not even those, or nothing, would."""
    needed, others = [p for p in pods if not p.optional], [p for p in pods if p.optional]
    if not others:
        return None
    mark = room.mark()
    found = _first_fit(snapshot, nodes, needed, room)
    if len(found) == len(needed):
        found += _first_fit(snapshot, nodes, others, room)
    else:
        found = []
    room.rollback(mark)
    return found or None


def count_fit(
    snapshot: Snapshot, nodes: Sequence[int], pods: Sequence[PodAsk], room: Room, *, keep: bool = False
) -> int:
    """How many of those pods those nodes could take. `keep`: what they take stays taken."""
    mark = room.mark()
    found = _first_fit(snapshot, nodes, pods, room)
    if not keep:
        room.rollback(mark)
    return len(found)


def free_on(nodes: Iterable[int], room: Room) -> int:
    """Whole devices that are free there."""
    return sum(room.free[ix].bit_count() for ix in nodes)


def spend(snapshot: Snapshot, room: Room, assignments: Iterable[Assignment]) -> None:
    """Take what was assigned. Until `room.settle` it can be rolled back."""
    for assignment in assignments:
        ix = snapshot.index[assignment.node]
        room.spend(snapshot.nodes[ix], ix, assignment.devices, assignment.pod.requests)


def admits(view: NodeView, pod: PodAsk) -> bool:
    """Whether the node takes such a pod, if there is room."""
    return (
        not view.closed
        and all(view.labels.get(key) == value for key, value in pod.node_selector)
        and tolerates(pod.tolerations, view.taints)
        and not lacks(view, pod.requests)
        and not (pod.min_driver and is_older(driver_of(view.labels), pod.min_driver))
    )


def _first_fit(snapshot: Snapshot, nodes: Sequence[int], pods: Sequence[PodAsk], room: Room) -> list[Assignment]:
    """Those that fit, taken from `transaction`."""
    found: list[Assignment] = []
    for pod in sorted(pods, key=lambda p: -p.gpus):  # a large pod needs a whole node, a small one the rest of any
        taken = _first_node(snapshot, nodes, pod, room)
        if taken is None and pod.tolerates_degraded:
            taken = _first_node(snapshot, nodes, pod, room, tolerant=True)
        if taken is not None:
            found.append(taken)
    return found


def _first_node(
    snapshot: Snapshot, nodes: Sequence[int], pod: PodAsk, room: Room, *, tolerant: bool = False
) -> Assignment | None:
    requests = pod.requests
    for ix in _preferred(snapshot, nodes, pod):
        view = snapshot.nodes[ix]
        free = room.free[ix] | room.worn[ix] if tolerant else room.free[ix]
        if free.bit_count() < pod.gpus and RESOURCE_GPU in view.resources:
            continue  # by far the most frequent answer, and the cheapest
        if admits(view, pod) and (devices := room.take(view, ix, requests, tolerant=tolerant)) is not None:
            return Assignment(pod, view.name, devices)
    return None


def _preferred(snapshot: Snapshot, nodes: Sequence[int], pod: PodAsk) -> Sequence[int]:
    """The nodes in their order, but for the one that the pod would rather have."""
    wish = snapshot.index.get(pod.prefer) if pod.prefer else None
    return nodes if wish is None or wish not in nodes else [wish, *(ix for ix in nodes if ix != wish)]
