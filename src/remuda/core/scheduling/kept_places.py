"""What a gang lost is kept for it: pods that never ran do not settle on what is left of its place while that is repaired.

A gang of whole nodes that loses one device of a node waits for one device; the other seven are free meanwhile. Were a small pod
to take one of them, the gang would find its device cured and its place gone, and would wait for that pod's end. So a gang that
has run and fits nowhere keeps the devices of the nodes it lost. For a while: a repair that takes longer than a reset or a
reboot and their soak is not worth idle devices. Gangs that have run themselves are not kept off.
"""

from __future__ import annotations

from collections.abc import Iterable

from remuda.api.kubernetes.core_v1 import Pod
from remuda.api.names import ANNOTATION_LOST_NODE
from remuda.core.state.pod_requests import Amounts
from remuda.core.state.snapshot import Snapshot
from remuda.core.state.transaction import Room

KEEP_S = 1800.0


def kept_nodes(pods: Iterable[tuple[Pod, float]], now: float | None) -> tuple[str, ...]:
    """Nodes that a gang's waiting pods, each with the time of its creation, keep."""
    nodes = (pod.annotations.get(ANNOTATION_LOST_NODE) for pod, at in pods if now is None or now - at < KEEP_S)
    return tuple(dict.fromkeys(node for node in nodes if node))


def keep(snapshot: Snapshot, room: Room, nodes: Iterable[str], requests: Iterable[Amounts], gang: str) -> None:
    """Whatever counts for those requests is nobody else's for the rest of the plan."""
    wanted = {resource for amounts in requests for resource in amounts}
    for ix in (snapshot.index[node] for node in nodes if node in snapshot.index):
        rows = 0
        for resource in wanted:
            rows |= snapshot.nodes[ix].resources.get(resource, 0)
        room.keep(ix, rows, gang)
