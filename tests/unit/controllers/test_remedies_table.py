"""Remedies: an incident's device ladder as orders and quarantine in NodeDevices, marks on nodes, and records in the incident."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from remuda.api.devices import DeviceState, NodeDevices, QuarantineOrder
from remuda.api.incidents import Incident, IncidentOutcome, IncidentPhase
from remuda.api.kubernetes.core_v1 import ConfigMap, Node, Pod
from remuda.api.meta import JsonObject, KObject
from remuda.api.names import ANNOTATION_CORDONED_BY, ANNOTATION_REMEDY_BY
from remuda.api.remedies import Action, Drain, Hook, Limits, Mode, Pause, PolicySelector, Rung, Soak
from remuda.controllers.remedies import WORKERS, RemedyController
from remuda.controllers.remedy_table import RemedyTable
from remuda.core.remedies.hook_kinds import parse_hook_kinds
from remuda.kube.runtime.work_queue import WorkQueue
from remuda.sim.virtual_time_loop import EPOCH
from tests.builders.api_trouble import before_next, lose_answer, refuse_next
from tests.builders.controller_tables import ControllerStage, Scenario, Want
from tests.builders.happenings import Happening, after, delete, patch, put, restart, wait
from tests.builders.remedies import a_pod, incident, ladder, ledger, machine, remedy_policy


async def _start(stage: ControllerStage) -> None:
    view, queue = stage.view(), WorkQueue[str]()
    table = RemedyTable(view)
    controller = RemedyController(
        stage.api, view, table, queue, events=stage.events, hook_kinds=parse_hook_kinds(["v1/ConfigMap@default"])
    )
    await stage.sync(view.incidents, view.devices, view.nodes, view.pods, view.policies, view.leases)
    stage.run(queue, controller, WORKERS)


NAME, DEVICE = "inc-n1-gpu-3", "gpu-3"
FAULT = incident(opened=EPOCH)
POLICY = remedy_policy(soak=Soak(seconds=60.0), limits=Limits(pool="1"))
GIVEN: list[KObject] = [machine(), ledger(), POLICY, FAULT]
STATUS, ORDER, MARK = f"patch Incident/{NAME}/status", "patch NodeDevices/n1", "patch Node/n1"


def answer(key: str, outcome: str = "Succeeded", at: float = 2.0, name: str = NAME) -> Happening:
    """The agent of n1 says what became of the order, and of no other."""
    said = {
        "id": f"{name}.{key}",
        "action": key.partition("-")[0],
        "outcome": outcome,
        "device": DEVICE,
        "time": after(at).isoformat(),
    }
    return patch(NodeDevices, "n1", {"status": {"answers": [said]}})


def record(key: str, outcome: str, **more: Any) -> JsonObject:
    return {"key": key, "outcome": None if outcome == "Running" else outcome, **more}


def held_by(incident: str | None) -> JsonObject:
    """By which incident the node is taken; None: by none."""
    return {"metadata": {"annotations": {ANNOTATION_REMEDY_BY: incident} if incident else lambda marks: not marks}}


def over(outcome: IncidentOutcome, **more: Any) -> Incident:
    return replace(FAULT, status=replace(FAULT.status, phase=IncidentPhase.CLOSED, outcome=outcome, **more))


BEGIN = [MARK, STATUS, ORDER]  # taken, recorded, ordered: in this order a crash costs nothing
TOLD = f"Normal Incident/{NAME} Remedy"
PROBING: dict[Any, Any] = {
    (Incident, NAME): {"status": {"remedies": [record("probe-1", "Running")], "phase": "Remedying"}},
    (NodeDevices, "n1"): {
        "orders": {f"{NAME}.probe-1": {"action": "probe", "device": DEVICE, "by": NAME}},
        "quarantine": {DEVICE: {"incident": NAME}},
    },
    (Node, "n1"): held_by(NAME),
}
OTHER = incident(node="n2", opened=EPOCH)
ASKED_ONLY = remedy_policy(limits=Limits(pool="1"), ladders=[ladder("*", Action.PROBE)])
BOOT = remedy_policy(
    soak=Soak(seconds=60.0),
    drain=Drain(patience_seconds=0.0, checkpoint_seconds=0.0, deadline_seconds=60.0),
    ladders=[ladder("*", Action.REBOOT)],
)
HOOKED = remedy_policy(
    ladders=[
        ladder(
            "*",
            Rung(
                Action.RESET,
                hook=Hook(
                    object={
                        "apiVersion": "v1",
                        "kind": "ConfigMap",
                        "metadata": {"name": "fix-{node}", "namespace": "default"},
                    }
                ),
            ),
        )
    ]
)

SCENARIOS = [
    Scenario(name="without an incident nothing is done", given=[machine(), ledger(), POLICY], want=Want(looks=0)),
    Scenario(
        name="a closed incident asks for nothing",
        given=[machine(), ledger(), POLICY, over(IncidentOutcome.CURED)],
        want=Want(looks=0),
    ),
    Scenario(
        name="a failure takes the node and is recorded before it is ordered",
        given=GIVEN,
        want=Want(BEGIN, [TOLD + "Running"], PROBING, looks=4),
    ),
    Scenario(
        name="a probe that passes gives the node back at once and the device after the soak",
        given=GIVEN,
        happens=[answer("probe-1"), wait(70.0)],
        want=Want(
            [*BEGIN, STATUS, ORDER, MARK, ORDER],
            [TOLD + "Running", TOLD + "Succeeded"],
            {
                (Incident, NAME): {"status": {"remedies": [record("probe-1", "Succeeded")], "phase": "Verifying"}},
                (NodeDevices, "n1"): {"orders": {}, "quarantine": {}},
                (Node, "n1"): held_by(None),
            },
        ),
    ),
    Scenario(
        name="a probe that fails leads to the next rung",
        given=GIVEN,
        happens=[answer("probe-1", "Failed")],
        want=Want(
            [*BEGIN, STATUS, ORDER],
            [TOLD + "Running", f"Warning Incident/{NAME} RemedyFailed", TOLD + "Running"],
            {
                (Incident, NAME): {"status": {"remedies": [record("probe-1", "Failed"), record("reset-1", "Running")]}},
                (NodeDevices, "n1"): {
                    "orders": {f"{NAME}.probe-1": None, f"{NAME}.reset-1": ...},
                    "quarantine": {DEVICE: ...},
                },
            },
        ),
    ),
    Scenario(
        name="nobody answers within the deadline",
        given=GIVEN,
        happens=[wait(130.0)],
        want=Want(
            [*BEGIN, STATUS, ORDER],
            [TOLD + "Running", f"Warning Incident/{NAME} RemedyTimedOut", TOLD + "Running"],
            {(Incident, NAME): {"status": {"remedies": [record("probe-1", "TimedOut"), record("reset-1", "Running")]}}},
        ),
    ),
    Scenario(
        name="a policy that only observes writes down what it would do",
        given=[machine(), ledger(), remedy_policy(mode=Mode.OBSERVE), FAULT],
        want=Want(
            [STATUS],
            [TOLD + "ObserveOnly"],
            {
                (Incident, NAME): {"status": {"remedies": [record("probe-1", "ObserveOnly")]}},
                (NodeDevices, "n1"): {"orders": None, "quarantine": None},
            },
        ),
    ),
    Scenario(
        name="a paused policy holds it back and the end of the pause lets it go",
        given=[machine(), ledger(), remedy_policy(pause=Pause(by="alice")), FAULT],
        happens=[put(POLICY)],
        want=Want(
            [STATUS, MARK, STATUS, ORDER],
            [TOLD + "HeldBack", TOLD + "Running"],
            PROBING,
        ),
    ),
    Scenario(
        name="of two that fail together one waits for the limit and follows when there is room",
        given=[*GIVEN, machine("n2"), ledger("n2"), OTHER],
        happens=[patch(Incident, NAME, {"status": {"phase": "Closed", "outcome": "Cured"}})],
        want=Want(
            [
                *BEGIN,
                f"patch Incident/{OTHER.name}/status",
                "patch Node/n2",
                f"patch Incident/{OTHER.name}/status",
                "patch NodeDevices/n2",
                ORDER,
                MARK,
            ],
            [
                TOLD + "Running",
                f"Normal Incident/{OTHER.name} RemedyHeldBack",
                f"Normal Incident/{OTHER.name} RemedyRunning",
            ],
            {(Incident, OTHER.name): {"status": {"remedies": [record("probe-1", "Running")]}}},
        ),
    ),
    Scenario(
        name="what is about to begin counts against the limit before its first write is through",
        given=[*GIVEN, machine("n2"), ledger("n2"), OTHER],
        first=[before_next(MARK, wait(0.5))],
        want=Want(
            [f"patch Incident/{OTHER.name}/status", *BEGIN],
            [f"Normal Incident/{OTHER.name} RemedyHeldBack", TOLD + "Running"],
            {(Incident, OTHER.name): {"status": {"remedies": [record("probe-1", "HeldBack")]}}, **PROBING},
        ),
    ),
    Scenario(
        name="what is about to end counts against the limit until that is written",
        given=[machine(), ledger(), ASKED_ONLY, FAULT, machine("n2"), ledger("n2"), OTHER],
        happens=[
            before_next(STATUS, patch(Incident, OTHER.name, {"status": {"ticket": "T-1"}}), wait(0.5)),
            answer("probe-1", "Failed"),
        ],
        want=Want(
            [
                *BEGIN,
                f"patch Incident/{OTHER.name}/status",
                STATUS,
                ORDER,
                "patch Node/n2",
                f"patch Incident/{OTHER.name}/status",
                "patch NodeDevices/n2",
                MARK,
            ],
            [
                TOLD + "Running",
                f"Normal Incident/{OTHER.name} RemedyHeldBack",
                f"Warning Incident/{NAME} RemedyFailed",
                f"Normal Incident/{OTHER.name} RemedyRunning",
            ],
        ),
    ),
    Scenario(
        name="a reboot empties the node first",
        given=[machine(), ledger(), BOOT, FAULT, a_pod("p"), a_pod("away", "n2")],
        happens=[delete(Pod, "team/p")],
        want=Want(
            [
                MARK,
                STATUS,
                MARK,
                ORDER,
                "evict Pod/team/p",
                STATUS,
                MARK,
                ORDER,
            ],  # taken, recorded, then cordoned and emptied
            [TOLD + "Running", TOLD + "Succeeded", TOLD + "Running"],
            {
                (Node, "n1"): {
                    "spec": {"unschedulable": True},
                    "metadata": {"annotations": {ANNOTATION_CORDONED_BY: NAME}},
                },
                (NodeDevices, "n1"): {"orders": {f"{NAME}.reboot-1": {"action": "reboot"}}},
                (Pod, "team/away"): {"metadata": {"deletionTimestamp": None}},
            },
        ),
    ),
    Scenario(
        name="an object hook is made once and its condition is the outcome",
        given=[machine(), ledger(), HOOKED, FAULT],
        happens=[
            restart,
            patch(ConfigMap, "default/fix-n1", {"status": {"conditions": [{"type": "Failed", "status": "True"}]}}),
            wait(30.0),
        ],
        want=Want(
            [*BEGIN, "create ConfigMap/default/fix-n1", STATUS, MARK],
            [TOLD + "Running", f"Warning Incident/{NAME} RemedyFailed"],
            {(Incident, NAME): {"status": {"remedies": [record("reset-1", "Failed")]}}, (Node, "n1"): held_by(None)},
        ),
    ),
    Scenario(
        name="what an operator ordered himself is left to him",
        given=[
            machine(),
            replace(ledger(), quarantine={DEVICE: QuarantineOrder("ByOperator", "It smells.", "alice")}),
            POLICY,
            FAULT,
        ],
        want=Want(
            BEGIN,
            [TOLD + "Running"],
            {(NodeDevices, "n1"): {"quarantine": {DEVICE: {"by": "alice", "incident": None}}}},
        ),
    ),
    Scenario(
        name="closed as cured by others it gives everything back",
        given=GIVEN,
        happens=[patch(Incident, NAME, {"status": {"phase": "Closed", "outcome": "Cured"}})],
        want=Want(
            [*BEGIN, ORDER, MARK],
            [TOLD + "Running"],
            {(NodeDevices, "n1"): {"orders": {}, "quarantine": {}}, (Node, "n1"): held_by(None)},
        ),
    ),
    Scenario(
        name="closed as not cured it keeps the device out",
        given=GIVEN,
        happens=[patch(Incident, NAME, {"status": {"phase": "Closed", "outcome": "NotCured"}})],
        want=Want(
            [*BEGIN, ORDER, MARK],
            [TOLD + "Running"],
            {(NodeDevices, "n1"): {"orders": {}, "quarantine": {DEVICE: ...}}, (Node, "n1"): held_by(None)},
        ),
    ),
    Scenario(
        name="somebody who takes the node first is asked about again",
        given=GIVEN,
        first=[before_next(MARK, patch(Node, "n1", {"metadata": {"annotations": {"note": "x"}}}))],
        want=Want([f"{MARK} !Conflict", *BEGIN], [TOLD + "Running"], PROBING),
    ),
    Scenario(
        name="somebody who writes the incident first costs a second look",
        given=GIVEN,
        first=[before_next(STATUS, patch(Incident, NAME, {"status": {"message": "theirs"}}))],
        want=Want(
            [MARK, f"{STATUS} !Conflict", STATUS, ORDER],
            [TOLD + "Running"],
            {
                **PROBING,
                (Incident, NAME): {"status": {"message": "theirs", "remedies": [record("probe-1", "Running")]}},
            },
        ),
    ),
    Scenario(
        name="an API that is out of reach between any two writes is asked again",
        given=GIVEN,
        first=[refuse_next(MARK), refuse_next(STATUS), refuse_next(ORDER)],
        want=Want(
            [
                f"{MARK} !ServiceUnavailable",
                MARK,
                f"{STATUS} !ServiceUnavailable",
                STATUS,
                f"{ORDER} !ServiceUnavailable",
                ORDER,
            ],
            [TOLD + "Running"],
            PROBING,
        ),
    ),
    Scenario(
        name="a lost answer begins nothing twice",
        given=GIVEN,
        first=[lose_answer(MARK), lose_answer(STATUS), lose_answer(ORDER)],
        want=Want(BEGIN, [], PROBING),
    ),
    Scenario(
        name="an incident that is deleted in the middle leaves no order",
        given=GIVEN,
        first=[before_next(STATUS, delete(Incident, NAME))],
        want=Want([MARK, f"{STATUS} !NotFound"], [], {(NodeDevices, "n1"): {"orders": None, "quarantine": None}}),
    ),
    Scenario(
        name="a node that goes in the middle is not waited for",
        given=GIVEN,
        first=[before_next(MARK, delete(Node, "n1"))],
        want=Want([f"{MARK} !NotFound", STATUS, ORDER], [TOLD + "Running"]),
    ),
    Scenario(
        name="a new manager goes on where the last one was and orders nothing twice",
        given=GIVEN,
        happens=[restart, answer("probe-1", at=4.0), restart, wait(70.0), restart],
        want=Want(
            [*BEGIN, STATUS, ORDER, MARK, ORDER],
            [TOLD + "Running", TOLD + "Succeeded"],
            {(NodeDevices, "n1"): {"orders": {}, "quarantine": {}}, (Node, "n1"): held_by(None)},
        ),
    ),
    Scenario(
        name="incidents and policies that make no sense spoil no other ladder",
        given=[
            *GIVEN,
            incident(node="", device="gpu-0", name="nowhere"),
            incident(node="gone", device="", reason="", remedy="?", state=DeviceState.UNKNOWN, name="of-nothing"),
            remedy_policy(
                "odd",
                selector=PolicySelector(nodes={"pool": "odd"}),
                limits=Limits(pool="plenty"),
                ladders=[ladder("*", Rung(Action.PROBE, timeout_seconds=-1.0))],
            ),
        ],
        want=Want(
            [*BEGIN, "patch Incident/nowhere/status"],
            [
                TOLD + "Running",
                *["Normal Incident/nowhere RemedySkipped"] * 5,
                "Normal Incident/nowhere RemedySucceeded",  # of its ladder there is left the ticket
            ],
            PROBING,
        ),
    ),
]


@pytest.mark.parametrize("scenario", SCENARIOS, ids=str)
def test_remedies(scenario: Scenario) -> None:
    scenario.play(_start)
