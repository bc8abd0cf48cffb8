"""Waiting pods as gangs: which pods must be placed together, where the rest of the gang sits, and who is still missing.

Pure, and apart from the solver because it reads what pods *say* (labels and annotations), while the solver sees only what
they need. A pod without a gang is a gang of one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable

import msgspec

from remuda.api.kubernetes.core_v1 import Pod
from remuda.api.names import (
    ANNOTATION_DOMAIN,
    ANNOTATION_GANG_SIZE,
    ANNOTATION_HAS_RUN,
    ANNOTATION_PREFER_NODE,
    ANNOTATION_SEGMENT,
    ANNOTATION_SEGMENT_SIZE,
    ANNOTATION_SPARE,
    ANNOTATION_TOPOLOGY_REQUIRED,
    LABEL_GANG,
)
from remuda.core.scheduling.placement_request import GangAsk, SegmentAsk, placement_ask_of_pod
from remuda.core.state.reservations import lone_pod_reservation_key, nodes_in_gang_reservation

SLACK_S = 2.0  # after a pod's grace: its node needs a moment to say that it is gone


def gather_waiting_gangs(
    pods: Iterable[Pod],
    siblings: Callable[[Pod], list[Pod]],
    domain_of: Callable[[str, str], str | None],
    now: float | None = None,
) -> list[GangAsk]:
    """Waiting pods grouped into gangs; a pod without a gang is a gang of one. Namespaces take turns, the one with the oldest gang
    first; within a namespace the oldest gang comes first. So a thousand waiting pods of one tenant are no queue before another's.

    A pod that prefers a node where a pod of its gang is on its way out is not asked for yet: its place is free in a moment, with
    image and caches, and nobody else gets it first. It does not wait longer than the other's grace."""
    groups: dict[str, list[Pod]] = {}
    for pod in pods:
        gang = pod.labels.get(LABEL_GANG)
        groups.setdefault(
            f"{pod.namespace}/{gang}" if gang else lone_pod_reservation_key(pod.namespace, pod.name), []
        ).append(pod)
    oldest = sorted(groups.items(), key=lambda item: (min(waiting_pod_created_at(p) for p in item[1]), item[0]))
    asks: list[GangAsk] = []
    for key, found in _namespaces_in_turn(oldest):
        if now is not None and any(_waits_for_preferred_node(pod, siblings, now) for pod in found):
            continue
        ask = _waiting_gang_ask(key, found, siblings, domain_of)
        kept = nodes_in_gang_reservation(((pod, waiting_pod_created_at(pod)) for pod in found), now)
        asks.append(msgspec.structs.replace(ask, keeps=kept) if kept else ask)
    return asks


def _namespaces_in_turn(gangs: Iterable[tuple[str, list[Pod]]]) -> list[tuple[str, list[Pod]]]:
    """The first of each namespace, then the second of each, and so on; the order stays as it is otherwise."""
    turns: Counter[str] = Counter()
    numbered: list[tuple[int, tuple[str, list[Pod]]]] = []
    for gang in gangs:
        namespace = gang[1][0].namespace
        numbered.append((turns[namespace], gang))
        turns[namespace] += 1
    return [gang for _, gang in sorted(numbered, key=lambda item: item[0])]


def _waiting_gang_size(pod: Pod, annotation: str = ANNOTATION_GANG_SIZE) -> int:
    """Anybody may write the annotation: what is no number counts as not given."""
    text = pod.annotations.get(annotation, "")
    return int(text) if text.isascii() and text.isdigit() and len(text) < 10 else 1


def _waits_for_preferred_node(pod: Pod, siblings: Callable[[Pod], list[Pod]], now: float) -> bool:
    wish = pod.annotations.get(ANNOTATION_PREFER_NODE)
    if not wish:
        return False
    ends = [p.metadata.deletion_timestamp for p in siblings(pod) if p.spec.node_name == wish and not p.is_terminal]
    return any(end is not None and now < end.timestamp() + SLACK_S for end in ends)


def _waiting_gang_ask(
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
    if any(ANNOTATION_SEGMENT in p.annotations for p in (*members, *placed)):
        return _segmented_gang_ask(key, waiting, members, placed, domain_of)
    pinned = next((d for p in waiting if (d := p.annotations.get(ANNOTATION_DOMAIN))), None)
    if pinned is None and placed:
        pinned = domain_of(placed[0].spec.node_name, topology) if topology else ""
    size = _waiting_gang_size(first) if LABEL_GANG in first.labels else 1
    if size > len(members) and not placed:
        size -= sum(p.status.phase == "Succeeded" for p in siblings(first))  # who is done comes no more
    return GangAsk(
        key=key,
        members=tuple(placement_ask_of_pod(p) for p in members),
        spares=tuple(placement_ask_of_pod(p) for p in waiting if p.annotations.get(ANNOTATION_SPARE) == "true"),
        topology=topology,
        pinned=pinned,
        has_run=first.annotations.get(ANNOTATION_HAS_RUN) == "true",
        waiting_for=max(0, size - len(members)) if pinned is None and members else 0,
    )


def _segmented_gang_ask(
    key: str, waiting: list[Pod], members: list[Pod], placed: list[Pod], domain_of: Callable[[str, str], str | None]
) -> GangAsk:
    """A gang whose segments may sit in different domains. A segment that has pods somewhere, or was made for a domain, stays
    there; one that sits nowhere is placed when all its pods are there, or each of them could find another domain. Spares go to
    wherever a segment is."""
    first = waiting[0]
    topology = first.annotations.get(ANNOTATION_TOPOLOGY_REQUIRED, "")
    where: dict[str, str | None] = {}
    for pod in placed:
        if (number := pod.annotations.get(ANNOTATION_SEGMENT)) is not None:
            where.setdefault(number, domain_of(pod.spec.node_name, topology))
    missing = 0
    numbers = sorted({p.annotations.get(ANNOTATION_SEGMENT, "0") for p in members}, key=lambda n: (len(n), n))
    segments = []
    for number in numbers:
        pods = [p for p in members if p.annotations.get(ANNOTATION_SEGMENT, "0") == number]
        made_for = next((d for p in pods if (d := p.annotations.get(ANNOTATION_DOMAIN))), None)
        segments.append(SegmentAsk(tuple(placement_ask_of_pod(p) for p in pods), made_for or where.get(number)))
        if not segments[-1].pinned:
            missing += max(0, _waiting_gang_size(pods[0], ANNOTATION_SEGMENT_SIZE) - len(pods))
    size = _waiting_gang_size(first)
    is_new = not placed and not any(s.pinned for s in segments)
    return GangAsk(
        key=key,
        members=tuple(pod for segment in segments for pod in segment.members),
        spares=tuple(placement_ask_of_pod(p) for p in waiting if p.annotations.get(ANNOTATION_SPARE) == "true"),
        topology=topology,
        pinned=next((d for d in where.values() if d), None),
        has_run=first.annotations.get(ANNOTATION_HAS_RUN) == "true",
        waiting_for=max(0, size - len(members)) if is_new and members else missing,
        segments=tuple(segments),
    )


def waiting_pod_created_at(pod: Pod) -> float:
    """Unix seconds; 0 for a pod the API has not stamped."""
    created = pod.metadata.creation_timestamp
    return created.timestamp() if created else 0.0
