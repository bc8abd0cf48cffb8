"""Idle devices: who holds them is told once, told again when he uses them, and taken off them where the policy says so."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from remuda.api.devices import NodeDevices
from remuda.api.errors import TooManyRequests
from remuda.api.kubernetes.core_v1 import Pod
from remuda.api.meta import JsonObject, KObject
from remuda.api.names import ANNOTATION_SPARE
from remuda.api.remedies import Idle, Mode, Pause, RemedyPolicy
from remuda.api.training import Member, TrainingJob
from remuda.controllers.idle_devices import IdleController
from remuda.core.remedies.idle_devices import DEVICE_IDLE, GRACE_S
from remuda.kube.runtime.work_queue import WorkQueue
from tests.builders.api_trouble import before_next, lose_answer, refuse_next
from tests.builders.controller_tables import ControllerStage, Scenario, Want
from tests.builders.gangs import a_job
from tests.builders.happenings import after, delete, patch, put, restart, wait
from tests.builders.incidents import a_device_pod
from tests.builders.remedies import ledger, machine, remedy_policy

AFTER_S = 400.0


async def _start(stage: ControllerStage) -> None:
    view, queue = stage.view(), WorkQueue[str]()
    controller = IdleController(stage.api, view, queue, events=stage.events)
    await stage.sync(view.devices, view.pods, view.policies, view.nodes, view.jobs)
    stage.run(queue, controller)


def idle(*devices: str, since: float = -AFTER_S) -> NodeDevices:
    """The ledger of node-1 with two devices, of which these are idle."""
    found = ledger("node-1", 2)
    rows = [replace(row, idle_since=after(since) if row.id in devices else None) for row in found.observed.devices]
    return replace(found, observed=replace(found.observed, devices=rows))


def rule(action: str = "Warn", **spec: Any) -> RemedyPolicy:
    return remedy_policy(idle=Idle(after_seconds=AFTER_S, action=action), **spec)


def says(status: str) -> JsonObject:
    return {
        "status": {"conditions": [{"type": DEVICE_IDLE, "status": status}]},
        "metadata": {"deletionTimestamp": None},
    }


NODE, POD = machine("node-1"), a_device_pod("p")
MEMBER = a_device_pod("m", owner=("TrainingJob", "job"))
JOB = a_job().status(phase="Running", members=[Member(0, "worker", "m", "uid-m", "node-1", ["gpu-0"])]).build()
GANG = replace(JOB, metadata=replace(JOB.metadata, uid="o"))  # as the pod's owner reference says
TELL, EVICT, TOLD = "patch Pod/default/p/status", "evict Pod/default/p", f"Warning Pod/default/p {DEVICE_IDLE}"
RECLAIMED = "Warning Pod/default/p DeviceReclaimed"
GIVEN: list[KObject] = [NODE, idle("gpu-0"), POD]
GONE = {(Pod, "default/p"): {"metadata": {"deletionTimestamp": ...}}}
STAYS = {(Pod, "default/p"): says("True")}


SCENARIOS = [
    Scenario(
        name="devices in use are nobody's business", given=[NODE, idle(), POD, rule("Reclaim")], happens=[wait(900.0)]
    ),
    Scenario(name="without a rule idle devices are only shown", given=[*GIVEN, remedy_policy()], happens=[wait(900.0)]),
    Scenario(
        name="the holder is told once", given=[*GIVEN, rule()], happens=[wait(900.0)], want=Want([TELL], [TOLD], STAYS)
    ),
    Scenario(
        name="not before his time is over",
        given=[NODE, idle("gpu-0", since=-AFTER_S + 60.0), POD, rule()],
        happens=[wait(30.0)],
        want=Want([], [], {(Pod, "default/p"): {"status": {"conditions": None}}}),
    ),
    Scenario(
        name="and then without anybody's word",
        given=[NODE, idle("gpu-0", since=-AFTER_S + 60.0), POD, rule()],
        happens=[wait(60.0)],
        want=Want([TELL], [TOLD], STAYS),
    ),
    Scenario(
        name="a rule that comes later counts at once",
        given=GIVEN,
        happens=[put(rule())],
        want=Want([TELL], [TOLD], STAYS),
    ),
    Scenario(
        name="who uses them again is told that",
        given=[*GIVEN, rule("Reclaim")],
        happens=[put(idle()), wait(900.0)],
        want=Want([TELL, TELL], [TOLD, "Normal Pod/default/p DeviceUsed"], {(Pod, "default/p"): says("False")}),
    ),
    Scenario(
        name="with Reclaim he goes after the grace and not before",
        given=[*GIVEN, rule("Reclaim")],
        happens=[wait(GRACE_S - 10.0)],
        want=Want([TELL], [TOLD], STAYS),
    ),
    Scenario(
        name="with Reclaim he goes once",
        given=[*GIVEN, rule("Reclaim")],
        happens=[wait(GRACE_S + 120.0)],
        want=Want([TELL, EVICT], [TOLD, RECLAIMED], GONE),
    ),
    Scenario(
        name="a budget that refuses is asked again",
        given=[*GIVEN, rule("Reclaim")],
        first=[refuse_next(EVICT, TooManyRequests("the budget allows none"))],
        happens=[wait(GRACE_S + 20.0)],
        want=Want(
            [TELL, f"{EVICT} !TooManyRequests", EVICT], [TOLD, "Normal Pod/default/p EvictionHeldUp", RECLAIMED], GONE
        ),
    ),
    Scenario(
        name="a policy that observes or is paused takes nobody off",
        given=[*GIVEN, rule("Reclaim", mode=Mode.OBSERVE)],
        happens=[wait(GRACE_S + 20.0), put(rule("Reclaim", pause=Pause(by="alice"))), wait(GRACE_S)],
        want=Want([TELL], [TOLD], STAYS),
    ),
    Scenario(
        name="who uses one of two devices and a spare are left alone",
        given=[
            NODE,
            idle("gpu-0"),
            a_device_pod("p", ["gpu-0", "gpu-1"]),
            rule("Reclaim"),
            ledger("node-2"),
        ],
        happens=[
            put(
                idle("gpu-0", "gpu-1"),
                replace(
                    POD,
                    metadata=replace(
                        POD.metadata, annotations={"remuda.dev/devices": "gpu-0", ANNOTATION_SPARE: "true"}
                    ),
                ),
            ),
            wait(900.0),
        ],
    ),
    Scenario(
        name="a gang is suspended and its pods are left to it",
        given=[NODE, idle("gpu-0"), MEMBER, GANG, rule("Reclaim")],
        happens=[wait(GRACE_S + 60.0)],
        want=Want(
            ["patch Pod/default/m/status", "patch TrainingJob/default/job"],
            [f"Warning Pod/default/m {DEVICE_IDLE}", "Warning TrainingJob/default/job DeviceReclaimed"],
            {(TrainingJob, "default/job"): {"spec": {"suspend": True}}, (Pod, "default/m"): says("True")},
        ),
    ),
    Scenario(
        name="another job of that name is not suspended",
        given=[NODE, idle("gpu-0"), MEMBER, GANG, rule("Reclaim")],
        first=[
            before_next(
                "patch TrainingJob/default/job", patch(TrainingJob, "default/job", {"metadata": {"uid": "new"}})
            )
        ],
        happens=[wait(GRACE_S + 5.0)],
        want=Want(
            ["patch Pod/default/m/status", "patch TrainingJob/default/job !Conflict"],
            [f"Warning Pod/default/m {DEVICE_IDLE}"],
            {(TrainingJob, "default/job"): {"spec": {"suspend": None}}},
        ),
    ),
    Scenario(
        name="somebody who writes first costs a second look and keeps what he wrote",
        given=[*GIVEN, rule()],
        first=[
            before_next(
                TELL, patch(Pod, "default/p", {"status": {"conditions": [{"type": "Ready", "status": "True"}]}})
            )
        ],
        want=Want(
            [f"{TELL} !Conflict", TELL],
            [TOLD],
            {(Pod, "default/p"): {"status": {"conditions": [{"type": "Ready"}, {"type": DEVICE_IDLE}]}}},
        ),
    ),
    Scenario(
        name="an API that is out of reach is asked again and a lost answer repeats nothing",
        given=[*GIVEN, rule("Reclaim")],
        first=[refuse_next(TELL), refuse_next(EVICT), lose_answer(EVICT)],
        happens=[wait(GRACE_S + 20.0)],
        want=Want([f"{TELL} !ServiceUnavailable", TELL, f"{EVICT} !ServiceUnavailable", EVICT], [TOLD], GONE),
    ),
    Scenario(
        name="a pod that goes in the middle is no matter to the other one",
        given=[NODE, idle("gpu-0", "gpu-1"), POD, a_device_pod("q", ["gpu-1"]), rule()],
        first=[before_next(TELL, delete(Pod, "default/p"))],
        want=Want(["patch Pod/default/q/status", f"{TELL} !NotFound"], [f"Warning Pod/default/q {DEVICE_IDLE}"]),
    ),
    Scenario(
        name="a new manager tells nobody again and keeps the grace",
        given=[*GIVEN, rule("Reclaim")],
        happens=[restart, wait(GRACE_S - 60.0), restart, wait(60.0), restart],
        want=Want([TELL, EVICT], [TOLD, RECLAIMED], GONE),
    ),
    Scenario(
        name="ledgers that make no sense spoil no other node",
        given=[
            *GIVEN,
            rule(),
            replace(
                ledger("odd", 1),
                observed=replace(
                    ledger("odd", 1).observed,
                    devices=[
                        replace(r, id="", idle_since=after(-1e9), idle_utilisation=-5.0)
                        for r in ledger("odd", 1).observed.devices
                    ],
                ),
            ),
            a_device_pod("x", [""], node="odd"),
        ],
        want=Want([TELL], [TOLD], STAYS),
    ),
]


@pytest.mark.parametrize("scenario", SCENARIOS, ids=str)
def test_idle_devices(scenario: Scenario) -> None:
    scenario.play(_start)
