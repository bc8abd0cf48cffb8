"""Incidents: one record per failure, made once, amended while it lasts, closed when it is over, removed when it is old."""

from __future__ import annotations

from typing import Any

import pytest

from remuda.api.devices import DeviceState, NodeDevices
from remuda.api.incidents import Incident, IncidentOutcome, IncidentPhase, IncidentSpec, IncidentStatus
from remuda.api.kubernetes.core_v1 import NODE_LEASE_NAMESPACE, Lease, LeaseSpec, Node, Pod
from remuda.api.meta import JsonObject, KObject, ObjectMeta
from remuda.api.training import TrainingJob
from remuda.controllers.domain_suspicion import DomainSuspicion
from remuda.controllers.incidents import WORKERS, IncidentController
from remuda.core.health.correlation import DomainSuspect
from remuda.core.incidents.names import device_subject, domain_subject, gang_subject, incident_name, node_subject
from remuda.kube.runtime.work_queue import WorkQueue
from remuda.sim.virtual_time_loop import EPOCH
from tests.builders.api_trouble import before_next, lose_answer, refuse_next
from tests.builders.controller_tables import ControllerStage, Scenario, Want
from tests.builders.gangs import a_node
from tests.builders.happenings import Happening, after, delete, do, patch, put, restart, wait
from tests.builders.incidents import a_device_pod, a_gang, a_recovery, a_sight, a_verdict


async def _start(stage: ControllerStage) -> None:
    view, queue = stage.view(), WorkQueue[tuple[str, ...]]()
    suspicion = stage.props["suspicion"] = DomainSuspicion()
    controller = IncidentController(stage.api, view, queue, stage.clock, suspicion, events=stage.events)
    await stage.sync(view.devices, view.nodes, view.pods, view.leases, view.jobs, view.incidents)
    controller.begin()
    stage.run(queue, controller, WORKERS)


def ledger(*verdicts: Any, name: str = "node-1", **more: Any) -> NodeDevices:
    found = a_sight(*verdicts, name=name, **more).devices
    assert found is not None
    return found


def lease(renewed: float, node: str = "node-1") -> Lease:
    meta = ObjectMeta(name=node, namespace=NODE_LEASE_NAMESPACE)
    return Lease(metadata=meta, spec=LeaseSpec(node, 8, renew_time=after(renewed)))


def suspects(*found: DomainSuspect) -> Happening:
    def act(stage: ControllerStage) -> None:
        suspicion: DomainSuspicion = stage.props["suspicion"]
        suspicion.suspects = list(found)
        for listener in suspicion._listeners:
            listener(suspicion.suspects)

    return do(act)


def job_of(*recoveries: Any, **more: Any) -> TrainingJob:
    found = a_gang(*recoveries, **more).job
    assert found is not None
    return found


def closed(name: str, days: float) -> Incident:
    status = IncidentStatus(
        phase=IncidentPhase.CLOSED,
        outcome=IncidentOutcome.CURED,
        opened_at=after(-days * 86_400 - 60),
        closed_at=after(-days * 86_400),
    )
    return Incident(
        metadata=ObjectMeta(name=name), spec=IncidentSpec(subject=device_subject("node-1", "gpu-7")), status=status
    )


NODE = a_node("node-1").node()
WELL = ledger(a_verdict(state=DeviceState.HEALTHY), a_verdict("gpu-1", DeviceState.HEALTHY))
BAD = ledger(a_verdict(), a_verdict("gpu-1", DeviceState.HEALTHY))
GPU_0 = incident_name(device_subject("node-1", "gpu-0"), after(0.0))
GANG = incident_name(gang_subject("default", "job"), after(0.0))
DOMAIN = incident_name(domain_subject("rack=r1"), after(0.0))
MAKE, WRITE = f"create Incident/{GPU_0}", f"patch Incident/{GPU_0}/status"
OPENED, CLOSED = f"Warning Incident/{GPU_0} IncidentOpened", f"Normal Incident/{GPU_0} IncidentClosed"
OPEN: JsonObject = {"status": {"openedAt": ..., "verdict": {"reason": "Xid79", "state": "Unhealthy"}, "closedAt": None}}
RACK = DomainSuspect(
    "rack=r1",
    "RackSuspect",
    "Two of rack r1 failed.",
    EPOCH,
    EPOCH + 1,
    ("node-1/gpu-0", "node-2/gpu-0"),
    ("node-1", "node-2"),
)
GIVEN: list[KObject] = [NODE, BAD]

CRASHED = job_of(a_recovery(detected=1.0, first_step=1.5))


def of_node_2(line: str) -> str:
    return line.replace("node-1", "node-2")


SCENARIOS = [
    Scenario(name="a healthy node has no incident", given=[NODE, WELL, lease(0.0)]),
    Scenario(
        name="an Unknown device has none either",
        given=[NODE, ledger(a_verdict(state=DeviceState.UNKNOWN))],
        happens=[wait(120.0)],
    ),
    Scenario(
        name="a failed device gets one incident which is not looked at for our own write",
        given=GIVEN,
        want=Want(
            [MAKE, WRITE], [OPENED], {(Incident, GPU_0): OPEN}, looks=4
        ),  # the node; leases, retention and domains
    ),
    Scenario(
        name="whom it hit is told and how they ended",
        given=[*GIVEN, a_device_pod("p")],
        happens=[delete(Pod, "default/p")],
        want=Want(
            [MAKE, WRITE, WRITE],
            [OPENED],
            {(Incident, GPU_0): {"status": {"affected": [{"pod": "default/p", "ended": "Deleted"}]}}},
        ),
    ),
    Scenario(
        name="a pod that crashed and went just before its device's report is told, too",
        given=[NODE, WELL, a_device_pod("p", exit_code=1, phase="Failed")],
        happens=[delete(Pod, "default/p"), put(BAD)],
        want=Want(
            [MAKE, WRITE],
            [OPENED],
            {(Incident, GPU_0): {"status": {"affected": [{"pod": "default/p", "exitCode": 1}]}}},
        ),
    ),
    Scenario(
        name="a device that is well for long enough closes it",
        given=GIVEN,
        happens=[put(WELL), wait(70.0), restart],
        want=Want(
            [MAKE, WRITE, WRITE, WRITE],
            [OPENED, CLOSED],
            {(Incident, GPU_0): {"status": {"phase": "Closed", "outcome": "FalseAlarm"}}},
        ),
    ),
    Scenario(
        name="a closed incident is not opened again by the same failure",
        given=GIVEN,
        happens=[patch(Incident, GPU_0, {"spec": {"dismiss": "known"}}), put(WELL), put(BAD)],
        want=Want([MAKE, WRITE, WRITE], [OPENED, CLOSED], {(Incident, GPU_0): {"status": {"outcome": "Dismissed"}}}),
    ),
    Scenario(
        name="a lease that ran out is a lost node once its hold-down is over",
        given=[NODE, WELL, lease(0.0)],
        happens=[wait(30.0)],
        want=Want(
            [
                f"create Incident/{incident_name(node_subject('node-1'), after(8.0))}",
                f"patch Incident/{incident_name(node_subject('node-1'), after(8.0))}/status",
            ],
            [f"Warning Incident/{incident_name(node_subject('node-1'), after(8.0))} IncidentOpened"],
            {
                (Incident, incident_name(node_subject("node-1"), after(8.0))): {
                    "status": {"verdict": {"reason": "NodeLost"}}
                }
            },
        ),
    ),
    Scenario(
        name="a lease that is renewed within the hold-down is nothing",
        given=[NODE, WELL, lease(0.0)],
        happens=[wait(10.0), put(lease(14.0)), wait(4.0), put(lease(20.0))],
    ),
    Scenario(
        name="a crash that no device explains is the gang's own",
        given=[NODE, WELL, job_of(a_recovery())],
        want=Want(
            [f"create Incident/{GANG}", f"patch Incident/{GANG}/status"],
            [f"Warning Incident/{GANG} IncidentOpened"],
            {(Incident, GANG): {"status": {"remedies": [{"key": "attempt-2"}]}}},
        ),
    ),
    Scenario(
        name="an interruption that a device explains is told in the device's incident",
        given=GIVEN,
        happens=[put(CRASHED)],
        want=Want(
            [MAKE, WRITE, WRITE, WRITE],  # the remedy, and then the sentence about it
            [OPENED],
            {(Incident, GPU_0): {"status": {"remedies": [{"key": "attempt-2"}]}}, (Incident, GANG): None},
        ),
    ),
    Scenario(
        name="a crash whose device reports later is merged into the device's incident",
        given=[NODE, WELL, job_of(a_recovery())],
        happens=[put(BAD)],
        want=Want(
            [
                f"create Incident/{GANG}",
                f"patch Incident/{GANG}/status",
                MAKE,
                WRITE,
                WRITE,
                f"patch Incident/{GANG}/status",
                WRITE,
            ],
            [f"Warning Incident/{GANG} IncidentOpened", OPENED, f"Normal Incident/{GANG} IncidentClosed"],
            {
                (Incident, GPU_0): {"status": {"remedies": [{"key": "attempt-2"}]}},
                (Incident, GANG): {"status": {"outcome": "Merged", "partOf": GPU_0}},
            },
        ),
    ),
    Scenario(
        name="what failed together gets an incident of the domain",
        given=[NODE, BAD, a_node("node-2").node(), ledger(a_verdict(), name="node-2")],
        happens=[suspects(RACK)],
        want=Want(
            [
                MAKE,
                WRITE,
                of_node_2(MAKE),
                of_node_2(WRITE),
                f"create Incident/{DOMAIN}",
                f"patch Incident/{DOMAIN}/status",
                WRITE,
                of_node_2(WRITE),
            ],
            [OPENED, of_node_2(OPENED), f"Warning Incident/{DOMAIN} IncidentOpened"],
            {(Incident, GPU_0): {"status": {"partOf": DOMAIN}}},
        ),
    ),
    Scenario(
        name="what is old goes and what an order still names stays",
        given=[
            NODE,
            ledger(a_verdict(state=DeviceState.HEALTHY), quarantine=None),
            closed("old", 31.0),
            closed("young", 1.0),
            closed("named", 31.0),
        ],
        first=[patch(NodeDevices, "node-1", {"quarantine": {"gpu-1": {"reason": "Xid79", "incident": "named"}}})],
        want=Want(
            ["delete Incident/old"], [], {(Incident, "old"): None, (Incident, "named"): ..., (Incident, "young"): ...}
        ),
    ),
    Scenario(
        name="an incident that an earlier life made and left blank is filled",
        given=[
            *GIVEN,
            Incident(metadata=ObjectMeta(name=GPU_0), spec=IncidentSpec(subject=device_subject("node-1", "gpu-0"))),
        ],
        want=Want([WRITE], [OPENED], {(Incident, GPU_0): OPEN}),
    ),
    Scenario(
        name="one that is made a moment before us is taken over",
        given=GIVEN,
        first=[
            before_next(
                MAKE,
                put(
                    Incident(
                        metadata=ObjectMeta(name=GPU_0), spec=IncidentSpec(subject=device_subject("node-1", "gpu-0"))
                    )
                ),
            )
        ],
        want=Want([f"{MAKE} !AlreadyExists", WRITE], [OPENED], {(Incident, GPU_0): OPEN}),
    ),
    Scenario(
        name="somebody who writes first costs a second look and keeps what he wrote",
        given=GIVEN,
        first=[before_next(WRITE, patch(Incident, GPU_0, {"status": {"ticket": "RMA-1"}}))],
        want=Want(
            [MAKE, f"{WRITE} !Conflict", WRITE],
            [OPENED],
            {(Incident, GPU_0): {"status": {"ticket": "RMA-1", "openedAt": ...}}},
        ),
    ),
    Scenario(
        name="an incident that is deleted in the middle is made again",
        given=GIVEN,
        first=[before_next(WRITE, delete(Incident, GPU_0))],
        want=Want([MAKE, f"{WRITE} !NotFound", MAKE, WRITE], [OPENED], {(Incident, GPU_0): OPEN}),
    ),
    Scenario(
        name="a node that leaves the cluster closes its incident",
        given=GIVEN,
        happens=[delete(Node, "node-1")],
        want=Want([MAKE, WRITE, WRITE], [OPENED, CLOSED], {(Incident, GPU_0): {"status": {"outcome": "WorkedAround"}}}),
    ),
    Scenario(
        name="an API that is out of reach is asked again",
        given=GIVEN,
        first=[refuse_next(MAKE), refuse_next(WRITE)],
        want=Want(
            [f"{MAKE} !ServiceUnavailable", MAKE, f"{WRITE} !ServiceUnavailable", WRITE],
            [OPENED],
            {(Incident, GPU_0): OPEN},
        ),
    ),
    Scenario(
        name="a lost answer makes nothing twice",
        given=GIVEN,
        first=[lose_answer(MAKE), lose_answer(WRITE)],
        want=Want([MAKE, WRITE], [], {(Incident, GPU_0): OPEN}),
    ),
    Scenario(
        name="a new manager has nothing to add",
        given=[*GIVEN, a_device_pod("p")],
        happens=[put(CRASHED), restart, restart],
        want=Want([MAKE, WRITE, WRITE, WRITE], [OPENED]),
    ),
    Scenario(
        name="ledgers and jobs that make no sense spoil no other incident",
        given=[
            *GIVEN,
            ledger(a_verdict(""), a_verdict("", DeviceState.DEGRADED), name="odd"),
            a_node("odd").node(),
            job_of(a_recovery(attempt=-1, node="", devices=[""]), phase="?"),
        ],
        want=Want(
            [MAKE, WRITE, f"create Incident/{GANG}", f"patch Incident/{GANG}/status"],
            [OPENED, f"Warning Incident/{GANG} IncidentOpened"],
            {(Incident, GPU_0): OPEN},
        ),
    ),
]


@pytest.mark.parametrize("scenario", SCENARIOS, ids=str)
def test_incidents(scenario: Scenario) -> None:
    scenario.play(_start)
