"""Quarantine where devices are given by claims: a DeviceTaintRule for every device under an order, and for no other."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from remuda.api.devices import NodeDevices, QuarantineOrder
from remuda.api.errors import ApiError, NotFound
from remuda.api.kubernetes.core_v1 import Node
from remuda.api.meta import KObject, ObjectMeta
from remuda.controllers.quarantine_taints import REFUSED_S, TaintController, TaintRule, TaintRules
from remuda.core.remedies.taint_rules import (
    KIND,
    NO_SCHEDULE,
    OURS,
    VERSIONS,
    TaintedDevice,
    taint_rule_body,
    taint_rule_name,
)
from remuda.kube.runtime.work_queue import WorkQueue
from tests.builders.api_trouble import before_next, lose_answer, refuse_next
from tests.builders.controller_tables import ControllerStage, Scenario, Want
from tests.builders.happenings import Happening, delete, patch, restart, wait
from tests.builders.remedies import ledger, machine


async def _start(stage: ControllerStage) -> None:
    view, queue = stage.view(), WorkQueue[str]()
    controller = TaintController(view, queue, TaintRules(stage.api), events=stage.events)
    await stage.sync(view.devices, view.nodes)
    controller.begin()
    stage.run(queue, controller)


GPU = TaintedDevice("n1", "gpu-0", "gpu.nvidia.com")
SPOILT = TaintedDevice("n2", "gpu-1", "gpu.nvidia.com")
NAME, ODD = taint_rule_name(GPU), taint_rule_name(SPOILT)
MAKE, CHANGE, REMOVE = (f"{verb} {KIND}/{NAME}" for verb in ("create", "patch", "delete"))
TAINTED, UNTAINTED = "Normal Node/n1 DeviceTainted", "Normal Node/n1 DeviceUntainted"
FORBIDDEN = ApiError("not allowed", reason="Forbidden", code=403)


def ordered(reason: str | None = "Xid79", node: str = "n1", resource: str = "nvidia.com/gpu") -> NodeDevices:
    """A ledger of two devices; None: without an order for the first."""
    found = ledger(node, 2)
    rows = [replace(row, resource=resource) for row in found.observed.devices]
    order = {"gpu-0": QuarantineOrder(reason)} if reason is not None else {}
    return replace(found, observed=replace(found.observed, devices=rows), quarantine=order)


def order(reason: str | None) -> Happening:
    return patch(NodeDevices, "n1", {"quarantine": {"gpu-0": None if reason is None else {"reason": reason}}})


def rule(reason: str = "Xid79", owner: str = "remuda", device: TaintedDevice = GPU) -> TaintRule:
    body = taint_rule_body(device, reason, NO_SCHEDULE, VERSIONS[0])
    meta = ObjectMeta(name=taint_rule_name(device), labels={OURS: owner} if owner else {})
    return TaintRule(metadata=meta, spec=body["spec"])


def stands(reason: str | None) -> dict[tuple[type[KObject], str], object]:
    return {(TaintRule, NAME): None if reason is None else {"spec": {"taint": {"value": reason}}}}


SCENARIOS = [
    Scenario(name="without an order there is no rule", given=[machine("n1"), ordered(None)]),
    Scenario(name="a rule that stands is left alone", given=[machine("n1"), ordered(), rule()]),
    Scenario(
        name="an order becomes a rule and its end takes it away",
        given=[machine("n1"), ordered(None)],
        happens=[order("Xid79"), order(None)],
        want=Want([MAKE, REMOVE], [TAINTED, UNTAINTED], stands(None)),
    ),
    Scenario(
        name="what else changes in the ledger wakes nobody",
        given=[machine("n1"), ordered()],
        happens=[patch(NodeDevices, "n1", {"status": {"boot": "b2"}})],
        want=Want([MAKE], [TAINTED], stands("Xid79"), looks=3),
    ),
    Scenario(
        name="another reason changes the rule",
        given=[machine("n1"), ordered(), rule()],
        happens=[order("ByOperator")],
        want=Want([f"{MAKE} !AlreadyExists", CHANGE], [TAINTED], stands("ByOperator")),
    ),
    Scenario(
        name="a device that no claim can have needs none",
        given=[machine("n1"), ordered(resource="example.com/gpu")],
    ),
    Scenario(
        name="a rule whose order went while nobody looked is removed",
        given=[machine("n1"), ordered(None), rule()],
        want=Want([REMOVE], [UNTAINTED], stands(None)),
    ),
    Scenario(
        name="a node that leaves takes its rules along",
        given=[machine("n1"), ordered()],
        happens=[delete(Node, "n1"), delete(NodeDevices, "n1")],
        want=Want([MAKE, REMOVE], [TAINTED], stands(None)),
    ),
    Scenario(
        name="somebody else's rule of that name stays as it is",
        given=[machine("n1"), ordered(), rule("Other", owner="")],
        happens=[order(None)],
        want=Want([f"{MAKE} !AlreadyExists"] * 2, [], stands("Other")),  # one look at the order, one at all there is
    ),
    Scenario(
        name="an API that does not let us is asked again after a while",
        given=[machine("n1"), ordered()],
        first=[refuse_next(MAKE, FORBIDDEN, times=2)],
        happens=[wait(REFUSED_S)],
        want=Want([f"{MAKE} !Forbidden"] * 2 + [MAKE], [TAINTED], stands("Xid79")),
    ),
    Scenario(
        name="one that does not show them is asked with the next order",
        given=[machine("n1"), ordered(None)],
        first=[refuse_next(f"list {KIND}", FORBIDDEN)],
        happens=[order("Xid79")],
        want=Want([MAKE], [TAINTED], stands("Xid79")),
    ),
    Scenario(
        name="a cluster that serves no version of them is left in peace",
        given=[machine("n1"), ordered()],
        first=[refuse_next(f"list {KIND}", NotFound("no such kind"), times=len(VERSIONS))],
        happens=[order("ByOperator"), order(None)],
    ),
    Scenario(
        name="an API that is out of reach is asked again",
        given=[machine("n1"), ordered()],
        first=[refuse_next(f"list {KIND}"), refuse_next(MAKE)],
        want=Want([f"{MAKE} !ServiceUnavailable", MAKE], [TAINTED], stands("Xid79")),
    ),
    Scenario(
        name="a lost answer makes and removes nothing twice",
        given=[machine("n1"), ordered()],
        first=[lose_answer(MAKE), lose_answer(REMOVE)],
        happens=[order(None)],
        want=Want([MAKE, f"{MAKE} !AlreadyExists", REMOVE], [TAINTED, UNTAINTED], stands(None)),
    ),
    Scenario(
        name="somebody who changes the rule first costs a second look",
        given=[machine("n1"), ordered(), rule()],
        first=[before_next(CHANGE, patch(TaintRule, NAME, {"metadata": {"annotations": {"note": "x"}}}))],
        happens=[order("ByOperator")],
        want=Want(
            [f"{MAKE} !AlreadyExists", f"{CHANGE} !Conflict", f"{MAKE} !AlreadyExists", CHANGE],
            [TAINTED],
            stands("ByOperator"),
        ),
    ),
    Scenario(
        name="a rule that is gone when its time comes is no matter",
        given=[machine("n1"), ordered()],
        happens=[delete(TaintRule, NAME), order(None), order("Xid48")],
        want=Want([MAKE, MAKE], [TAINTED, UNTAINTED, TAINTED], stands("Xid48")),
    ),
    Scenario(
        name="a new manager finds what stands and makes nothing",
        given=[machine("n1"), ordered()],
        happens=[restart, restart, order(None), restart],
        want=Want([MAKE, REMOVE], [TAINTED, UNTAINTED], stands(None)),
    ),
    Scenario(
        name="orders and rules that make no sense spoil no other",
        given=[
            machine("n1"),
            ordered(),
            replace(
                ordered(node="n2"),
                quarantine={"": QuarantineOrder(""), "gpu-9": QuarantineOrder("?"), "gpu-1": QuarantineOrder("!!!")},
            ),
            replace(rule(device=SPOILT), spec={"deviceSelector": "all", "taint": 1}),
        ],
        want=Want([MAKE, f"create {KIND}/{ODD} !AlreadyExists", f"patch {KIND}/{ODD}"], [TAINTED], stands("Xid79")),
    ),
]


@pytest.mark.parametrize("scenario", SCENARIOS, ids=str)
def test_quarantine_taints(scenario: Scenario) -> None:
    scenario.play(_start)
