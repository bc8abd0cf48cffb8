"""TrainingJobs: a gang's pods are made once, its status says where it stands, and what fails costs an attempt and no more."""

from __future__ import annotations

from typing import Any

import pytest

from remuda.api.devices import NodeDevices
from remuda.api.errors import ApiError
from remuda.api.kubernetes.core_v1 import Pod
from remuda.api.meta import JsonObject, KObject
from remuda.api.names import ANNOTATION_DEVICES
from remuda.api.training import TrainingJob
from remuda.controllers.training import TrainingController
from remuda.kube.runtime.work_queue import WorkQueue
from remuda.link.progress_board import ProgressBoard
from tests.builders.api_trouble import before_next, late, lose_answer, refuse_next
from tests.builders.controller_tables import ControllerStage, Scenario, Want
from tests.builders.gangs import a_held_pod, a_job, a_node
from tests.builders.happenings import Happening, after, delete, patch, restart, wait


async def _start(stage: ControllerStage) -> None:
    view, queue = stage.view(), WorkQueue[tuple[str, str]]()
    controller = TrainingController(stage.api, view, ProgressBoard(), queue, stage.clock, events=stage.events)
    await stage.sync(view.jobs, view.pods, view.devices, view.leases, view.nodes)
    stage.run(queue, controller)


JOB = a_job().gpus(1).anywhere()
NODE = a_node("n1").gpus(4)
GIVEN: list[KObject] = [NODE.node(), NODE.devices(), JOB.build()]
UIDS = ("made-1", "made-2")  # of the first two pods that are made


def sits(rank: int, node: str = "n1", phase: str = "Running") -> Happening:
    """The scheduler and the node have done their part."""
    meta = {"annotations": {ANNOTATION_DEVICES: f"gpu-{rank}"}}
    return patch(
        Pod,
        f"default/job-worker-{rank}",
        {"metadata": meta, "spec": {"nodeName": node}, "status": {"phase": phase, "podIP": f"10.0.0.{rank + 1}"}},
    )


def reports(*states: str, attempt: int = 1, code: int = 1) -> Happening:
    """What the agent of n1 knows of the launchers."""
    rows: list[JsonObject] = [
        {
            "pod": f"job-worker-{n}",
            "uid": UIDS[n],
            "state": state,
            "attempt": attempt,
            "time": after(8.0).isoformat(),
            **({"code": code} if state == "exited" else {}),
        }
        for n, state in enumerate(states)
    ]
    return patch(NodeDevices, "n1", {"status": {"launchers": rows}})


STARTED = [sits(0), sits(1), reports("ready", "ready"), reports("running", "running")]
FAILED_DEVICE: JsonObject = {
    "device": "gpu-1",
    "state": "Unhealthy",
    "reason": "Xid79",
    "source": "kmsg/xid-79",
    "since": after(10.0).isoformat(),
}
STATUS = "replace TrainingJob/default/job/status"
MAKE_0, MAKE_1, MAKE_2 = (f"create Pod/default/job-worker-{n}" for n in range(3))
NOT_MADE = [f"{MAKE_0} !Forbidden", f"{MAKE_1} !Forbidden"]
BEGIN = [STATUS, MAKE_0, MAKE_1, STATUS]  # the attempt stands before its pods are made
RUN, UP = [*BEGIN, STATUS, STATUS], [f"Normal TrainingJob/default/job {word}" for word in ("Placed", "Started")]
RAISED = "Warning TrainingJob/default/job AttemptRaised"
THE_JOB = (TrainingJob, "default/job")


def stands(phase: str, attempt: int = 1, **more: object) -> dict[Any, Any]:
    return {THE_JOB: {"status": {"phase": phase, "attempt": attempt, **more}}}


SCENARIOS = [
    Scenario(
        name="a suspended job makes no pod",
        given=[JOB.spec(suspend=True).build()],
        want=Want([STATUS], ["Normal TrainingJob/default/job Suspended"]),
    ),
    Scenario(
        name="pods of a new job are made once and its own writes make no more",
        given=GIVEN,
        happens=[wait(30.0)],
        want=Want(BEGIN, [], {(Pod, "default/job-worker-2"): None}),
    ),
    Scenario(
        name="a gang that stands at the barrier is started",
        given=GIVEN,
        happens=STARTED,
        want=Want(
            RUN,
            UP,
            stands("Running", barrier="Open", members=[{"rank": 0, "node": "n1"}, {"rank": 1, "node": "n1"}]),
        ),
    ),
    Scenario(
        name="a crash raises the attempt and keeps the pods",
        given=GIVEN,
        happens=[*STARTED, reports("running", "exited")],
        want=Want(
            [*RUN, STATUS],
            [*UP, RAISED],
            stands("Recovering", 2, recoveries=[{"cause": "code", "remedy": "RestartInPlace"}]),
        ),
    ),
    Scenario(
        name="a failed device costs its pod and no other after the attempt was raised",
        given=GIVEN,
        happens=[*STARTED, patch(NodeDevices, "n1", {"verdicts": [FAILED_DEVICE]})],
        want=Want(
            [*RUN, STATUS, "delete Pod/default/job-worker-1", MAKE_2, STATUS],
            [*UP, RAISED],
            {
                **stands("Recovering", 2, recoveries=[{"cause": "device", "remedy": "ReplacePod"}]),
                (Pod, "default/job-worker-0"): {"metadata": {"deletionTimestamp": None}},
            },
        ),
    ),
    Scenario(
        name="a pod that somebody deletes is replaced",
        given=GIVEN,
        happens=[*STARTED, delete(Pod, "default/job-worker-1")],
        want=Want(
            [*RUN, STATUS, MAKE_2, STATUS], [*UP, RAISED], stands("Recovering", 2, recoveries=[{"cause": "infra"}])
        ),
    ),
    Scenario(
        name="when every rank has ended well the pods go and the job stays",
        given=GIVEN,
        happens=[*STARTED, reports("exited", "exited", code=0), restart],
        want=Want(
            [*RUN, STATUS, "delete Pod/default/job-worker-0", "delete Pod/default/job-worker-1"],
            [*UP, "Normal TrainingJob/default/job Completed"],
            stands("Succeeded"),
        ),
    ),
    Scenario(
        name="a job that is deleted is left to the garbage collector",
        given=GIVEN,
        happens=[*STARTED, delete(TrainingJob, "default/job"), wait(30.0)],
        want=Want(RUN, UP, {(Pod, "default/job-worker-0"): {"metadata": {"deletionTimestamp": None}}}),
    ),
    Scenario(
        name="a job that goes in the middle is not written about",
        given=GIVEN,
        first=[before_next(STATUS, delete(TrainingJob, "default/job"))],
        want=Want([f"{STATUS} !NotFound"], [], {THE_JOB: None, (Pod, "default/job-worker-0"): None}),
    ),
    Scenario(
        name="pods that a quota refuses are told once and made later",
        given=GIVEN,
        first=[refuse_next("create Pod", ApiError("exceeded quota", reason="Forbidden", code=403), times=4)],
        happens=[wait(30.0)],
        want=Want(
            [STATUS, *NOT_MADE, STATUS, *NOT_MADE, MAKE_0, MAKE_1, STATUS],
            ["Warning TrainingJob/default/job FailedCreate"],
        ),
    ),
    Scenario(
        name="an API that is out of reach is asked again for what is missing",
        given=GIVEN,
        first=[refuse_next(STATUS), refuse_next(MAKE_1)],
        want=Want(
            [f"{STATUS} !ServiceUnavailable", STATUS, MAKE_0, f"{MAKE_1} !ServiceUnavailable", STATUS, MAKE_1, STATUS]
        ),
    ),
    Scenario(
        name="a lost answer makes nothing twice",
        given=GIVEN,
        first=[lose_answer(STATUS), lose_answer(MAKE_0)],
        want=Want(BEGIN),
    ),
    Scenario(
        name="pods that the informer has yet to show are not made again",
        given=GIVEN,
        first=[late(Pod, 3.0)],
        happens=[wait(8.0)],
        want=Want(BEGIN, [], {(Pod, "default/job-worker-2"): None}),
    ),
    Scenario(
        name="own writes that the informer has yet to show are not fought against",
        given=GIVEN,
        first=[late(TrainingJob, 3.0)],
        happens=[wait(8.0)],
        want=Want(BEGIN),
    ),
    Scenario(
        name="somebody who writes first costs a second look and keeps what he wrote",
        given=GIVEN,
        first=[before_next(STATUS, patch(TrainingJob, "default/job", {"metadata": {"labels": {"a": "b"}}}))],
        want=Want([f"{STATUS} !Conflict", *BEGIN], [], {THE_JOB: {"metadata": {"labels": {"a": "b"}}}}),
    ),
    Scenario(
        name="a pod of that name that is somebody else's stays his",
        given=[*GIVEN, a_held_pod("job-worker-1")],
        want=Want(
            [STATUS, MAKE_0, f"{MAKE_1} !AlreadyExists", STATUS, *[f"{MAKE_1} !AlreadyExists"] * 5],
            [],
            {(Pod, "default/job-worker-1"): {"metadata": {"uid": "uid-job-worker-1", "ownerReferences": None}}},
        ),
    ),
    Scenario(
        name="a new manager goes on with the same attempt and the same pods",
        given=GIVEN,
        happens=[restart, *STARTED, restart, reports("running", "exited"), restart],
        want=Want([*RUN, STATUS], [*UP, RAISED], stands("Recovering", 2)),
    ),
    Scenario(
        name="a job that makes no sense says so and spoils no other",
        given=[*GIVEN, a_job("odd").replicas(-1).build()],
        want=Want(
            [STATUS, MAKE_0, MAKE_1, "replace TrainingJob/default/odd/status", STATUS],
            ["Warning TrainingJob/default/odd Invalid"],
            {(TrainingJob, "default/odd"): {"status": {"conditions": ...}}},
        ),
    ),
]


def test_a_job_that_makes_no_sense_is_not_said_to_wait_for_room() -> None:
    job = JOB.template(containers=[{"name": "main", "image": "x"}]).build()
    said = {"status": {"conditions": [{"type": "Invalid", "status": "True", "reason": "NoCommand"}]}}
    Scenario(
        name="no command",
        given=[NODE.node(), NODE.devices(), job],
        want=Want([STATUS], ["Warning TrainingJob/default/job Invalid"], {(TrainingJob, "default/job"): said}),
    ).play(_start)


@pytest.mark.parametrize("scenario", SCENARIOS, ids=str)
def test_training(scenario: Scenario) -> None:
    scenario.play(_start)
