"""What the manager does about a drill: a table."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from remuda.api.drills import Drill
from remuda.api.kubernetes.core_v1 import Pod
from remuda.core.health.untaken_drills import UNANSWERED_S, UNTAKEN_S, DrillFacts, plan_untaken_drill

DEVICE = {"type": "device-drop", "node": "n", "device": "gpu-0"}
DELETION = {"type": "pod-delete", "pod": "p", "namespace": "d"}


def a_drill(spec: dict[str, Any], phase: str = "Pending") -> Drill:
    return msgspec.convert({"metadata": {"name": "d"}, "spec": spec, "status": {"phase": phase}}, Drill)


def a_pod(kind: str = "TrainingJob", controller: bool = True) -> Pod:
    owner = {"apiVersion": "remuda.dev/v1alpha1", "kind": kind, "name": "j", "uid": "u", "controller": controller}
    meta = {"name": "p", "namespace": "d", "ownerReferences": [owner]}
    return msgspec.convert({"metadata": meta, "spec": {"nodeName": "n", "containers": []}}, Pod)


def decided(drill: Drill, waited_s: float, *, has_node: bool = True, pod: Pod | None = None) -> tuple[str, bool, float]:
    plan = plan_untaken_drill(DrillFacts(drill, waited_s, has_node, pod))
    return plan.refusal.reason if plan.refusal else "", plan.delete is not None, plan.again_s or 0.0


@pytest.mark.parametrize(
    ("spec", "waited_s", "has_node", "expected"),
    [
        (DEVICE, 0.0, True, ("", False, UNTAKEN_S)),
        (DEVICE, UNTAKEN_S - 1, True, ("", False, 1.0)),
        (DEVICE, UNTAKEN_S, True, ("NoAgent", False, 0.0)),
        (DEVICE, UNTAKEN_S, False, ("NoSuchNode", False, 0.0)),
        ({"type": "process-kill", "pod": "p", "namespace": "d"}, 0.0, False, ("NodeNotNamed", False, 0.0)),
    ],
)
def test_a_drill_waits_for_its_agent_and_not_for_ever(
    spec: dict[str, Any], waited_s: float, has_node: bool, expected: tuple[str, bool, float]
) -> None:
    assert decided(a_drill(spec), waited_s, has_node=has_node) == expected


def test_one_that_was_begun_has_its_time() -> None:
    running = a_drill(DEVICE, "Running")
    assert decided(running, UNTAKEN_S) == ("", False, UNANSWERED_S - UNTAKEN_S)
    assert decided(running, UNANSWERED_S) == ("Interrupted", False, 0.0)


@pytest.mark.parametrize("phase", ["Done", "Refused", "Undone"])
def test_one_that_was_answered_is_left_alone(phase: str) -> None:
    assert decided(a_drill(DEVICE, phase), 1e9) == ("", False, 0.0)


def test_pods_of_jobs_are_deleted_and_no_others() -> None:
    assert decided(a_drill(DELETION), 0.0, pod=a_pod()) == ("", True, 0.0)
    assert decided(a_drill(DELETION), 0.0) == ("", False, UNTAKEN_S)
    assert decided(a_drill(DELETION), UNTAKEN_S) == ("NoSuchPod", False, 0.0)
    assert decided(a_drill({**DELETION, "node": "another"}), UNTAKEN_S, pod=a_pod()) == ("NoSuchPod", False, 0.0)
    assert decided(a_drill(DELETION), 0.0, pod=a_pod("Job")) == ("NotOurPod", False, 0.0)
    assert decided(a_drill(DELETION), 0.0, pod=a_pod(controller=False)) == ("NotOurPod", False, 0.0)
