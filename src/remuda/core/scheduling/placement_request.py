"""What is asked of placement, and what it answers: values only, and a pod's ask from its spec. Pure.

A `PodAsk` is all that placement knows of a pod; names apart, equal asks get equal answers (`GangAsk.shape`).
"""

from __future__ import annotations

import msgspec

from remuda.api.kubernetes.core_v1 import Pod, Toleration
from remuda.api.names import (
    ANNOTATION_LAUNCH,
    ANNOTATION_MIN_DRIVER,
    ANNOTATION_OPTIONAL,
    ANNOTATION_PREFER_NODE,
    ANNOTATION_TOLERATE_DEGRADED,
    IN_CONTAINER,
    RESOURCE_GPU,
)
from remuda.core.scheduling.node_affinity import NodeTerms, required_node_terms
from remuda.core.state.pod_requests import Amounts, requests_of_pod


class PodAsk(msgspec.Struct, frozen=True):
    """One pod that needs a node, `gpus` whole devices, and of every other resource what `others` says."""

    namespace: str
    name: str
    uid: str
    gpus: int
    node_selector: tuple[tuple[str, str], ...] = ()
    tolerations: tuple[Toleration, ...] = ()
    others: tuple[tuple[str, int], ...] = ()
    prefer: str = ""  # the node to try first
    optional: bool = False  # its gang may be placed without it, when there is no room for all
    tolerates_degraded: bool = False
    min_driver: str = ""
    node_terms: NodeTerms = None  # required node affinity
    needs_agent: bool = False  # its launcher is a file of the node's agent, and waits for it

    @property
    def requests(self) -> Amounts:
        return {RESOURCE_GPU: self.gpus, **dict(self.others)} if self.gpus else dict(self.others)


class SegmentAsk(msgspec.Struct, frozen=True):
    """Pods of one segment that need a node, in one domain; `pinned`: where the rest of it sits, or None."""

    members: tuple[PodAsk, ...]
    pinned: str | None = None


class GangAsk(msgspec.Struct, frozen=True):
    """Pods to be placed together. `pinned` is the domain the rest of the gang already sits in, or None."""

    key: str
    members: tuple[PodAsk, ...] = ()
    spares: tuple[PodAsk, ...] = ()
    topology: str = ""
    pinned: str | None = None
    waiting_for: int = 0  # members not created yet: a gang is placed only when it is whole
    segments: tuple[SegmentAsk, ...] = ()  # the members once more, when not all of them must share a domain
    has_run: bool = False  # it trained already, and lost its place or some of it
    keeps: tuple[str, ...] = ()  # nodes it lost: what is left there is kept for it while it fits nowhere

    @property
    def is_recovering(self) -> bool:
        return self.pinned is not None or self.has_run

    @property
    def shape(self) -> object:
        """What decides about members, names apart."""
        members = tuple(
            (
                p.gpus,
                p.others,
                p.node_selector,
                p.node_terms,
                p.tolerations,
                p.tolerates_degraded,
                p.min_driver,
                p.prefer,
                p.optional,
                p.needs_agent,
            )
            for p in self.members
        )
        blocks = tuple((len(segment.members), segment.pinned) for segment in self.segments)
        return members, self.topology, self.pinned, self.waiting_for, blocks


class Assignment(msgspec.Struct, frozen=True):
    pod: PodAsk
    node: str
    devices: tuple[str, ...]


def placement_ask_of_pod(pod: Pod) -> PodAsk:
    """What a pod needs, from its spec."""
    requests = requests_of_pod(pod)
    gpus = requests.pop(RESOURCE_GPU, 0)
    return PodAsk(
        namespace=pod.namespace,
        name=pod.name,
        uid=pod.uid,
        gpus=gpus,
        node_selector=tuple(sorted(pod.spec.node_selector.items())),
        tolerations=tuple(pod.spec.tolerations),
        others=tuple(sorted(requests.items())),
        prefer=pod.annotations.get(ANNOTATION_PREFER_NODE, ""),
        optional=pod.annotations.get(ANNOTATION_OPTIONAL) == "true",
        tolerates_degraded=pod.annotations.get(ANNOTATION_TOLERATE_DEGRADED) == "true",
        min_driver=pod.annotations.get(ANNOTATION_MIN_DRIVER, ""),
        node_terms=required_node_terms(pod.spec),
        needs_agent=pod.annotations.get(ANNOTATION_LAUNCH) == IN_CONTAINER,
    )
