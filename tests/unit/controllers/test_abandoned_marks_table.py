"""What an incident or a roll-out left on a node goes with it; what others put there stays."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from remuda.api.devices import DeviceOrder, NodeDevices, QuarantineOrder
from remuda.api.incidents import Incident
from remuda.api.kubernetes.core_v1 import Node
from remuda.api.meta import KObject, ObjectMeta
from remuda.api.names import ANNOTATION_CORDONED_BY, ANNOTATION_DRAIN_REQUESTED, ANNOTATION_REMEDY_BY
from remuda.api.remedies import Hook
from remuda.api.rollouts import NodeRollout, NodeRolloutSpec
from remuda.controllers.abandoned_marks import AbandonedMarksController
from remuda.kube.runtime.work_queue import WorkQueue
from tests.builders.api_trouble import before_next
from tests.builders.controller_tables import ControllerStage, Scenario, Want
from tests.builders.happenings import delete, patch, restart
from tests.builders.remedies import incident, ledger, machine


async def _start(stage: ControllerStage) -> None:
    view, queue = stage.view(), WorkQueue[str]()
    controller = AbandonedMarksController(stage.api, view, queue, events=stage.events)
    await stage.sync(view.incidents, view.rollouts, view.devices, view.nodes)
    stage.run(queue, controller)


INCIDENT, ROLLOUT = "dev-n1-gpu-0-abc", "rollout-driver"
MARK, ORDER, TOLD = "patch Node/n1", "patch NodeDevices/n1", "Normal Node/n1 MarksGivenBack"


def marked(owner: str, *, cordoned_by: str | None = None, cordoned: bool = True) -> Node:
    found = machine("n1")
    by = owner if cordoned_by is None else cordoned_by
    marks = {
        "example.com/theirs": "kept",
        ANNOTATION_REMEDY_BY: owner,
        ANNOTATION_DRAIN_REQUESTED: f"{owner}/2026-01-01T00:00:00+00:00",
        **({ANNOTATION_CORDONED_BY: by} if by else {}),
    }
    meta = replace(found.metadata, annotations=marks)
    return replace(found, metadata=meta, spec=replace(found.spec, unschedulable=cordoned))


def kept_out(owner: str) -> NodeDevices:
    orders = {
        f"{owner}.reset-1": DeviceOrder("reset", "gpu-0", by=owner),
        "probe-1234": DeviceOrder("probe", "gpu-1", by="eva"),
    }
    out = {"gpu-0": QuarantineOrder("Xid79", incident=owner), "gpu-1": QuarantineOrder("Hot", by="eva")}
    return replace(ledger("n1", 2), orders=orders, quarantine=out)


def driver() -> NodeRollout:
    return NodeRollout(metadata=ObjectMeta(name="driver"), spec=NodeRolloutSpec(hook=Hook(command=["/bin/install"])))


def an_incident() -> Incident:
    return incident(node="n1", device="gpu-0", name=INCIDENT)


FREE = {
    "metadata": {
        "annotations": {"example.com/theirs": "kept", ANNOTATION_REMEDY_BY: None, ANNOTATION_CORDONED_BY: None}
    },
    "spec": lambda spec: not (spec or {}).get("unschedulable"),
}
LEFT = {"orders": lambda orders: list(orders) == ["probe-1234"], "quarantine": lambda out: list(out) == ["gpu-1"]}
GIVEN_BACK = {(Node, "n1"): FREE, (NodeDevices, "n1"): LEFT}
STAYS: dict[tuple[type[KObject], str], object] = {
    (Node, "n1"): {"metadata": {"annotations": {ANNOTATION_REMEDY_BY: ...}}, "spec": {"unschedulable": True}}
}

SCENARIOS = [
    Scenario(
        name="a manager that begins gives back what is nobodys any more",
        given=[marked(INCIDENT), kept_out(INCIDENT)],
        want=Want([ORDER, MARK], [TOLD], GIVEN_BACK),
    ),
    Scenario(
        name="marks of an incident that is there are its own",
        given=[marked(INCIDENT), kept_out(INCIDENT), an_incident()],
        happens=[restart],
        want=Want([], [], STAYS),
    ),
    Scenario(
        name="an incident that is deleted gives its marks back",
        given=[marked(INCIDENT), kept_out(INCIDENT), an_incident()],
        happens=[delete(Incident, INCIDENT)],
        want=Want([ORDER, MARK], [TOLD], GIVEN_BACK),
    ),
    Scenario(
        name="a roll-out that is deleted gives its marks back, and its orders",
        given=[marked(ROLLOUT), kept_out(ROLLOUT), driver()],
        happens=[delete(NodeRollout, "driver")],
        want=Want([ORDER, MARK], [TOLD], GIVEN_BACK),
    ),
    Scenario(
        name="a roll-out that was deleted while no manager ran gives its marks back",
        given=[marked(ROLLOUT)],
        want=Want([MARK], [TOLD], {(Node, "n1"): FREE}),
    ),
    Scenario(
        name="somebody elses cordon stays",
        given=[marked(INCIDENT, cordoned_by="")],
        want=Want([MARK], [TOLD], {(Node, "n1"): {"spec": {"unschedulable": True}}}),
    ),
    Scenario(
        name="a cordon of an owner that is there stays when another one is gone",
        given=[marked(INCIDENT, cordoned_by=ROLLOUT), driver()],
        want=Want(
            [MARK],
            [TOLD],
            {
                (Node, "n1"): {
                    "metadata": {"annotations": {ANNOTATION_REMEDY_BY: None, ANNOTATION_CORDONED_BY: ROLLOUT}},
                    "spec": {"unschedulable": True},
                }
            },
        ),
    ),
    Scenario(
        name="a node without marks is left alone",
        given=[machine("n1"), ledger("n1", 1)],
        happens=[patch(Node, "n1", {"spec": {"unschedulable": True}})],
        want=Want([], [], {(Node, "n1"): {"spec": {"unschedulable": True}}}, looks=0),
    ),
    Scenario(
        name="a node that somebody writes meanwhile is looked at again",
        given=[marked(INCIDENT)],
        first=[before_next(MARK, patch(Node, "n1", {"metadata": {"labels": {"a": "b"}}}))],
        want=Want([f"{MARK} !Conflict", MARK], [TOLD], {(Node, "n1"): FREE}),
    ),
]


@pytest.mark.parametrize("scenario", SCENARIOS, ids=str)
def test_abandoned_marks(scenario: Scenario) -> None:
    scenario.play(_start)
