"""Nodes that are about to go: by which word, for whose account, and until when."""

from __future__ import annotations

import msgspec
import pytest

from remuda.api.kubernetes.core_v1 import Node, Taint
from remuda.api.meta import Condition
from remuda.api.training import Cause
from remuda.core.scheduling.gang_placement import place_gang_members
from remuda.core.state.leaving_nodes import NodeLeavingState, leaving_state_of_node
from remuda.core.state.snapshot import build_snapshot
from tests.builders.gangs import a_gang_ask, a_node

AT = "2027-01-15T08:10:00Z"
SECONDS = 1_800_000_600.0


def with_condition(kind: str, status: str = "True", message: str = "") -> Node:
    node = a_node().node()
    said = [*node.status.conditions, Condition(kind, status, message=message)]
    return msgspec.structs.replace(node, status=msgspec.structs.replace(node.status, conditions=said))


def with_taint(key: str) -> Node:
    node = a_node().node()
    return msgspec.structs.replace(node, spec=msgspec.structs.replace(node.spec, taints=[Taint(key, "NoSchedule")]))


def with_annotation(text: str) -> Node:
    node = a_node().node()
    marks = {"remuda.dev/drain-requested": text}
    return msgspec.structs.replace(node, metadata=msgspec.structs.replace(node.metadata, annotations=marks))


@pytest.mark.parametrize(
    ("node", "cause", "reason", "until"),
    [
        (with_condition("MaintenancePlanned", message=f"At {AT}."), Cause.MAINTENANCE, "MaintenancePlanned", SECONDS),
        (with_condition("MaintenanceInProgress"), Cause.MAINTENANCE, "MaintenanceInProgress", None),
        (with_condition("SpotTermination", message=AT), Cause.PREEMPTION, "SpotTermination", SECONDS),
        (with_taint("cloud.google.com/impending-node-termination"), Cause.PREEMPTION, "NodeTaken", None),
        (with_taint("ToBeDeletedByClusterAutoscaler"), Cause.MAINTENANCE, "NodeTaken", None),
        (with_annotation(f"dev-n1-gpu-0-x/{AT}"), Cause.MAINTENANCE, "DrainRequested", SECONDS),
        (with_annotation("dev-n1-gpu-0-x/2027-13-99T00:00:00Z"), Cause.MAINTENANCE, "DrainRequested", None),
    ],
)
def test_who_says_so(node: Node, cause: Cause, reason: str, until: float | None) -> None:
    found = leaving_state_of_node(node)
    assert isinstance(found, NodeLeavingState)
    assert (found.cause, found.reason, found.until) == (cause, reason, until)


@pytest.mark.parametrize(
    "node", [a_node().node(), with_condition("MaintenancePlanned", "False"), with_taint("gpu"), with_annotation("")]
)
def test_a_node_that_stays(node: Node) -> None:
    assert leaving_state_of_node(node) is None


def test_nothing_new_is_placed_there() -> None:
    leaving = with_condition("MaintenancePlanned", message=AT)
    snapshot = build_snapshot([leaving], [a_node().devices()], [])
    refusal = place_gang_members(snapshot, a_gang_ask(1, topology=""))
    assert "1 node about to go" in str(refusal)
