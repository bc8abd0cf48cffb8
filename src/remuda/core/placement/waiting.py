"""Waiting pods as gangs: which pods must be placed together, where the rest of the gang sits, and who is still missing.

Pure, and apart from the solver because it reads what pods *say* (labels and annotations), while the solver sees only what
they need. A pod without a gang is a gang of one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from remuda.api.core_v1 import Pod
from remuda.api.names import (
    ANNOTATION_DOMAIN,
    ANNOTATION_GANG_SIZE,
    ANNOTATION_SPARE,
    ANNOTATION_TOPOLOGY_REQUIRED,
    LABEL_GANG,
)
from remuda.core.placement.gang import GangAsk, ask_of


def gather_gangs(
    pods: Iterable[Pod],
    siblings: Callable[[Pod], list[Pod]],
    domain_of: Callable[[str, str], str | None],
) -> list[GangAsk]:
    """Waiting pods grouped into gangs, oldest gang first; a pod without a gang is a gang of one."""
    groups: dict[str, list[Pod]] = {}
    for pod in pods:
        gang = pod.labels.get(LABEL_GANG)
        groups.setdefault(f"{pod.namespace}/{gang}" if gang else f"{pod.namespace}/pod/{pod.name}", []).append(pod)
    order = sorted(groups.items(), key=lambda item: (min(created_at(p) for p in item[1]), item[0]))
    return [_gang(key, found, siblings, domain_of) for key, found in order]


def _gang(
    key: str, waiting: list[Pod], siblings: Callable[[Pod], list[Pod]], domain_of: Callable[[str, str], str | None]
) -> GangAsk:
    first = waiting[0]
    topology = first.annotations.get(ANNOTATION_TOPOLOGY_REQUIRED, "")
    members = [p for p in waiting if p.annotations.get(ANNOTATION_SPARE) != "true"]
    placed = (
        [p for p in siblings(first) if p.spec.node_name and not p.is_deleting and not p.is_terminal]
        if LABEL_GANG in first.labels
        else []
    )
    pinned = next((d for p in waiting if (d := p.annotations.get(ANNOTATION_DOMAIN))), None)
    if pinned is None and placed:
        pinned = domain_of(placed[0].spec.node_name, topology) if topology else ""
    size = int(first.annotations.get(ANNOTATION_GANG_SIZE, "1")) if LABEL_GANG in first.labels else 1
    return GangAsk(
        key=key,
        members=tuple(ask_of(p) for p in members),
        spares=tuple(ask_of(p) for p in waiting if p.annotations.get(ANNOTATION_SPARE) == "true"),
        topology=topology,
        pinned=pinned,
        waiting_for=max(0, size - len(members)) if pinned is None and members else 0,
    )


def created_at(pod: Pod) -> float:
    """Unix seconds; 0 for a pod the API has not stamped."""
    created = pod.metadata.creation_timestamp
    return created.timestamp() if created else 0.0
