"""Nodes that are about to go, by whoever's word: a planned maintenance, a drain, a spot node that its owner wants back.

Pure: a Node in, a `NodeLeavingState` or None out. Placement puts nothing new on such a node; gangs that have members there move
them while there is time. `until` is when the node goes, None = nobody said, so at any moment.

Read are the node conditions of Kubernetes' node life cycle, the one the spot drill writes, the taints that clouds and autoscalers
set before they take a node away, and the annotation by which a remedy asks for the node. A condition's message may name the
moment (RFC 3339).
"""

from __future__ import annotations

import re
from datetime import datetime

import msgspec

from remuda.api.kubernetes.core_v1 import Node
from remuda.api.meta import to_seconds
from remuda.api.names import ANNOTATION_DRAIN_REQUESTED
from remuda.api.training import Cause

DRAIN_REQUESTED = "DrainRequested"

CONDITIONS = {
    "SpotTermination": Cause.PREEMPTION,
    "MaintenancePlanned": Cause.MAINTENANCE,
    "MaintenanceInProgress": Cause.MAINTENANCE,
    "DrainInProgress": Cause.MAINTENANCE,
    "GracefulNodeShutdownInProgress": Cause.MAINTENANCE,
}
TAINTS = {
    "aws-node-termination-handler/spot-itn": Cause.PREEMPTION,
    "aws-node-termination-handler/rebalance-recommendation": Cause.PREEMPTION,
    "aws-node-termination-handler/scheduled-maintenance": Cause.MAINTENANCE,
    "cloud.google.com/impending-node-termination": Cause.PREEMPTION,
    "ToBeDeletedByClusterAutoscaler": Cause.MAINTENANCE,
    "karpenter.sh/disrupted": Cause.MAINTENANCE,
}

CLOCKS_DIFFER_S = 5.0

_MOMENT = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d+)?(?:Z|[+-]\d\d:\d\d)")


class NodeLeavingState(msgspec.Struct, frozen=True):
    cause: Cause
    reason: str
    message: str
    until: float | None = None

    def is_due(self, now: float) -> bool:
        """What stops there now stops because the node goes, as far as clocks agree on the moment."""
        return self.until is None or now >= self.until - CLOCKS_DIFFER_S


def leaving_state_of_node(node: Node) -> NodeLeavingState | None:
    """The most urgent word on the node's going, if there is any."""
    if not (
        ANNOTATION_DRAIN_REQUESTED in node.annotations
        or any(t.key in TAINTS for t in node.spec.taints)
        or any(c.status == "True" and c.type in CONDITIONS for c in node.status.conditions)
    ):
        return None  # nearly always, and asked of every node for every picture
    found = [*_leaving_states_by_condition(node), *_leaving_states_by_taint(node), *_leaving_states_by_drain(node)]
    return min(found, key=lambda f: (f.until is not None, f.until or 0.0, f.reason), default=None)


def _leaving_states_by_condition(node: Node) -> list[NodeLeavingState]:
    return [
        NodeLeavingState(
            CONDITIONS[c.type], c.type, c.message or f"{node.name} reports {c.type}.", leaving_moment_in_text(c.message)
        )
        for c in node.status.conditions
        if c.type in CONDITIONS and c.status == "True"
    ]


def _leaving_states_by_taint(node: Node) -> list[NodeLeavingState]:
    return [
        NodeLeavingState(
            TAINTS[t.key], "NodeTaken", f"{node.name} has the taint {t.key}.", leaving_moment_in_text(t.value or "")
        )
        for t in node.spec.taints
        if t.key in TAINTS
    ]


def _leaving_states_by_drain(node: Node) -> list[NodeLeavingState]:
    asked = node.annotations.get(ANNOTATION_DRAIN_REQUESTED, "")
    if not asked:
        return []
    by, _, moment = asked.rpartition("/")
    words = f"{node.name} is being drained{f' for {by}' if by else ''}."
    return [NodeLeavingState(Cause.MAINTENANCE, DRAIN_REQUESTED, words, leaving_moment_in_text(moment))]


def leaving_moment_in_text(text: str) -> float | None:
    """The first RFC 3339 moment in a text, in unix seconds."""
    found = _MOMENT.search(text)
    if found is None:
        return None
    try:
        return to_seconds(datetime.fromisoformat(found.group()))
    except ValueError:
        return None
