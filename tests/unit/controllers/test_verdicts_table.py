"""Verdicts: signals of devices, what nodes offer and leases of agents become verdicts, notices and history in NodeDevices."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from remuda.api.devices import NodeDevices
from remuda.api.kubernetes.core_v1 import NODE_LEASE_NAMESPACE, Lease, LeaseSpec, Node, Pod
from remuda.api.meta import JsonObject, KObject, ObjectMeta
from remuda.api.names import RESOURCE_GPU
from remuda.controllers.verdicts import WORKERS, VerdictController
from remuda.core.health.agent_liveness import liveness_lease_name
from remuda.kube.runtime.work_queue import WorkQueue
from remuda.sim.virtual_time_loop import EPOCH
from tests.builders.api_trouble import before_next, lose_answer, refuse_next
from tests.builders.controller_tables import ControllerStage, Scenario, Want
from tests.builders.gangs import NodeBuilder, a_held_pod, a_node
from tests.builders.happenings import Happening, after, delete, patch, put, restart, wait

N1, N2 = a_node("n1").gpus(2), a_node("n2").gpus(2)
FAILED = N1.signal("gpu-0", "xid-79", at=EPOCH)
WRITE, TOLD = "patch NodeDevices/n1", "Warning Node/n1 DeviceUnhealthy"


async def _start(stage: ControllerStage) -> None:
    view, queue = stage.view(), WorkQueue[str]()
    controller = VerdictController(stage.api, view, queue, events=stage.events)
    await stage.sync(view.devices, view.nodes, view.pods, view.leases, view.policies)
    stage.run(queue, controller, WORKERS)


def both(*nodes: NodeBuilder) -> list[KObject]:
    """Node and ledger; the verdicts stand since before the story."""
    found: list[KObject] = []
    for node in nodes:
        ledger = node.devices()
        verdicts = [replace(v, since=after(-100.0)) for v in ledger.verdicts]
        found += [node.node(), replace(ledger, verdicts=verdicts)]
    return found


def says(*signals: tuple[str, float]) -> Happening:
    """The agent of n1 has these of gpu-0, each with its time, and nothing of gpu-1."""
    told = [{"source": "kmsg", "code": code, "time": after(at).isoformat()} for code, at in signals]
    rows: list[JsonObject] = [{"id": f"gpu-{n}", "type": "H100", "signals": told if n == 0 else []} for n in (0, 1)]
    return patch(NodeDevices, "n1", {"status": {"devices": rows}})


def lease(renewed: float, seconds: int = 30) -> Lease:
    meta = ObjectMeta(name=liveness_lease_name("n1"), namespace=NODE_LEASE_NAMESPACE)
    return Lease(metadata=meta, spec=LeaseSpec("n1", seconds, renew_time=after(renewed)))


def states(*want: str) -> JsonObject:
    return {"verdicts": [{"state": None if state == "Healthy" else state} for state in want]}


NONSENSE: list[JsonObject] = [
    {"id": "", "type": ""},
    {
        "id": "gpu-1",
        "type": "H100",
        "signals": [{"source": "", "code": "probe-passed", "time": "0001-01-01T00:00:00Z"}],
    },
    {"id": "gpu-1", "type": "", "flaps": ["9999-12-31T23:59:59Z"], "parent": "gpu-1"},
]

SCENARIOS = [
    Scenario(name="healthy devices that are judged already are left alone", given=both(N1, N2), want=Want(looks=2)),
    Scenario(
        name="a device that was never judged gets a verdict and no Event",
        given=both(N1.never_judged()),
        want=Want([WRITE], objects={(NodeDevices, "n1"): states("Healthy", "Healthy")}),
    ),
    Scenario(
        name="a failure is judged once and its own write is not looked at again",
        given=both(FAILED, N2),
        want=Want(
            [WRITE],
            [TOLD],
            {
                (NodeDevices, "n1"): {
                    **states("Unhealthy", "Healthy"),
                    "history": {"gpu-0": {"failures": [...]}, "gpu-1": None},
                    "quarantine": None,
                },
                (NodeDevices, "n2"): {"history": None},
            },
            looks=2,
        ),
    ),
    Scenario(
        name="the verdict names the holder and the holder's end takes it away",
        given=[*both(FAILED), a_held_pod("p", "n1", ["gpu-0"])],
        happens=[delete(Pod, "default/p")],
        want=Want([WRITE, WRITE], [TOLD], {(NodeDevices, "n1"): {"verdicts": [{"holder": None}, {"holder": None}]}}),
    ),
    Scenario(
        name="a fault that comes and goes is Unknown until its debounce is over",
        given=both(N1),
        happens=[says(("health-lost", 2.0)), wait(10.0)],
        want=Want([WRITE, WRITE], [TOLD], {(NodeDevices, "n1"): states("Unhealthy", "Healthy")}),
    ),
    Scenario(
        name="one that passes within its debounce fails nobody",
        given=both(N1),
        happens=[says(("health-lost", 2.0)), says(), wait(10.0)],
        want=Want(
            [WRITE, WRITE], ["Normal Node/n1 DeviceHealthy"], {(NodeDevices, "n1"): states("Healthy", "Healthy")}
        ),
    ),
    Scenario(
        name="a probe that passes makes it healthy again and is told",
        given=both(FAILED),
        happens=[says(("xid-79", 0.0), ("probe-passed", 2.0))],
        want=Want(
            [WRITE, WRITE],
            [TOLD, "Normal Node/n1 DeviceHealthy"],
            {(NodeDevices, "n1"): {**states("Healthy", "Healthy"), "history": {"gpu-0": {"failures": [...]}}}},
        ),
    ),
    Scenario(
        name="a lost plugin is told when its hold-down is over and when it is back",
        given=both(N1),
        happens=[
            patch(Node, "n1", {"status": {"allocatable": {RESOURCE_GPU: "0"}}}),
            wait(70.0),
            patch(Node, "n1", {"status": {"allocatable": {RESOURCE_GPU: "2"}}}),
        ],
        want=Want(
            [WRITE, WRITE],
            ["Warning Node/n1 PluginLost", "Normal Node/n1 PluginLostOver"],
            {(NodeDevices, "n1"): {"notices": []}},
        ),
    ),
    Scenario(
        name="a plugin that is back within the hold-down is not told",
        given=both(N1),
        happens=[
            patch(Node, "n1", {"status": {"allocatable": {RESOURCE_GPU: "0"}}}),
            wait(20.0),
            patch(Node, "n1", {"status": {"allocatable": {RESOURCE_GPU: "2"}}}),
            wait(70.0),
        ],
        want=Want([WRITE, WRITE], [], {(NodeDevices, "n1"): {"notices": []}}),
    ),
    Scenario(
        name="an agent that falls silent leaves its devices Unknown until it is heard again",
        given=[*both(N1), lease(0.0)],
        happens=[wait(35.0), put(lease(40.0))],
        want=Want(
            [WRITE, WRITE],
            [
                "Warning Node/n1 AgentSilent",
                "Normal Node/n1 DeviceHealthy",
                "Normal Node/n1 DeviceHealthy",
                "Normal Node/n1 AgentSilentOver",
            ],
            {(NodeDevices, "n1"): {**states("Healthy", "Healthy"), "notices": []}},
        ),
    ),
    Scenario(
        name="somebody who writes first costs a second look and nothing else",
        given=both(FAILED),
        first=[before_next(WRITE, patch(NodeDevices, "n1", {"quarantine": {"gpu-1": {"reason": "ByOperator"}}}))],
        want=Want(
            [f"{WRITE} !Conflict", WRITE],
            [TOLD, "Warning Node/n1 DeviceQuarantined"],
            {(NodeDevices, "n1"): {**states("Unhealthy", "Quarantined"), "quarantine": {"gpu-1": ...}}},
        ),
    ),
    Scenario(
        name="an API that is out of reach is asked again",
        given=both(FAILED),
        first=[refuse_next(WRITE, times=2)],
        want=Want([f"{WRITE} !ServiceUnavailable"] * 2 + [WRITE], [TOLD]),
    ),
    Scenario(
        name="a write whose answer was lost is not made twice",
        given=both(FAILED),
        first=[lose_answer(WRITE)],
        want=Want([WRITE], [], {(NodeDevices, "n1"): states("Unhealthy", "Healthy")}),
    ),
    Scenario(
        name="a node that goes while it is judged is forgotten",
        given=both(FAILED, N2.signal("gpu-1", "xid-79", at=EPOCH)),
        first=[before_next(WRITE, delete(NodeDevices, "n1"))],
        want=Want(
            ["patch NodeDevices/n2", f"{WRITE} !NotFound"],
            ["Warning Node/n2 DeviceUnhealthy"],
            {(NodeDevices, "n1"): None},
        ),
    ),
    Scenario(
        name="a node whose agent shows itself gets its object",
        given=[N1.node(), N2.node(), lease(0.0)],
        want=Want(["create NodeDevices/n1"], objects={(NodeDevices, "n1"): {"status": None}}),
    ),
    Scenario(
        name="no object is made without a node or while its agent is silent",
        given=[N2.node(), lease(0.0)],
        happens=[wait(40.0), put(N1.node())],
    ),
    Scenario(
        name="an object is made when a silent agent is heard again",
        given=[N2.node(), lease(0.0)],
        happens=[wait(40.0), put(N1.node()), put(lease(46.0))],
        want=Want(["create NodeDevices/n1"]),
    ),
    Scenario(
        name="an object that somebody removes is made again while its agent is there",
        given=[*both(N1), lease(0.0)],
        happens=[delete(NodeDevices, "n1")],
        want=Want(["create NodeDevices/n1"]),
    ),
    Scenario(
        name="a report from before the status is judged and goes when there is a status",
        given=[N1.node(), NodeDevices(metadata=ObjectMeta(name="n1"))],
        first=[patch(NodeDevices, "n1", {"observed": {"devices": [{"id": "gpu-0", "type": "H100"}]}})],
        happens=[wait(5.0), patch(NodeDevices, "n1", {"status": {"devices": [{"id": "gpu-1", "type": "H100"}]}})],
        want=Want([WRITE, WRITE], objects={(NodeDevices, "n1"): {"observed": None, **states("Healthy")}}),
    ),
    Scenario(
        name="a new manager makes nothing of what is judged",
        given=both(FAILED),
        happens=[restart, restart],
        want=Want([WRITE], [TOLD]),
    ),
    Scenario(
        name="rows that make no sense spoil nobody else's verdict",
        given=both(N1, N2.signal("gpu-0", "xid-79", at=EPOCH)),
        happens=[patch(NodeDevices, "n1", {"status": {"devices": NONSENSE}}), says(("xid-79", 4.0))],
        want=Want(
            ["patch NodeDevices/n2", WRITE, WRITE],
            ["Warning Node/n2 DeviceUnhealthy", TOLD],
            {(NodeDevices, "n1"): states("Unhealthy", "Healthy"), (NodeDevices, "n2"): states("Unhealthy", "Healthy")},
        ),
    ),
]


@pytest.mark.parametrize("scenario", SCENARIOS, ids=str)
def test_verdicts(scenario: Scenario) -> None:
    scenario.play(_start)
