"""Stragglers: steps of a gang's ranks become findings against devices, and a word about the gang for its job's controller."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from remuda.api.devices import NodeDevices
from remuda.api.meta import KObject
from remuda.api.training import Member, Straggler, TrainingJob
from remuda.controllers.stragglers import StragglerController
from remuda.kube.runtime.work_queue import WorkQueue
from remuda.link.progress_board import Heartbeat, ProgressBoard
from tests.builders.api_trouble import before_next, refuse_next
from tests.builders.controller_tables import ControllerStage, Scenario, Want
from tests.builders.gangs import JobBuilder, a_job, a_node
from tests.builders.happenings import Happening, after, delete, do, patch, put, restart
from tests.builders.incidents import a_recovery

RANKS = 4
WRITE, TOLD, WOKEN = "patch NodeDevices/n1", "Warning TrainingJob/default/job SlowRank", "wake default/job NotSlow"


async def _start(stage: ControllerStage) -> None:
    view, queue = stage.view(), WorkQueue[tuple[str, str]]()
    board, before = ProgressBoard(), stage.props.get("board")
    stage.props["board"] = board

    def wake(key: tuple[str, str]) -> None:
        stage.events.note(f"wake {'/'.join(key)} {view.slow_gangs[key].reason or 'NotSlow'}")

    controller = StragglerController(stage.api, view, board, queue, wake, events=stage.events)
    await stage.sync(view.jobs, view.devices)
    stage.run(queue, controller)
    for past in before.past() if before is not None else ():  # agents tell a new manager what they remember
        board.recall(past)


def gang(attempt: int = 1, barrier: str = "Open", factor: float = 1.3) -> JobBuilder:
    """Rank r runs on gpu-r: the first two on n1, the others on n2."""
    members = [Member(r, "worker", f"job-{r}", f"uid-{r}", "n1" if r < 2 else "n2", [f"gpu-{r}"]) for r in range(RANKS)]
    job = a_job().replicas(RANKS).failure(straggler=Straggler(factor=factor))
    return job.status(attempt=attempt, barrier=barrier, members=members, phase="Running")


NODES: list[KObject] = [a_node("n1").gpus(4).devices(), a_node("n2").gpus(4).devices()]
GIVEN: list[KObject] = [gang().build(), *NODES]
SLOW = {"findings": {"gpu-1": [{"source": "straggler", "code": "straggler", "message": lambda m: "Rank 1" in m}]}}


def steps(
    count: int, slow: Mapping[int, float] | None = None, attempt: int = 1, pace: float = 1.0, name: str = "job"
) -> Happening:
    """So many steps of every rank, half a second of own time each; `slow` times as long for some, `pace` for all."""

    def act(stage: ControllerStage) -> None:
        first = stage.props["step"] = stage.props.get("step", 0) + 1
        for step in range(first, first + count):
            stage.props["step"] = step
            for rank in range(RANKS):
                own = 0.5 * pace * (slow or {}).get(rank, 1.0)
                whole = 0.5 * pace * max((slow or {}).values(), default=1.0) + 0.1
                stage.props["board"].report(
                    Heartbeat("default", name, f"{name}-{rank}", f"uid-{rank}", attempt, step, whole, own, time=step)
                )

    return do(act)


SCENARIOS = [
    Scenario(name="a job without steps is left alone", given=GIVEN, want=Want(looks=0)),
    Scenario(
        name="a gang at one pace has nothing written about it",
        given=GIVEN,
        happens=[steps(30)],
        want=Want(events=[WOKEN]),
    ),
    Scenario(
        name="a slow rank becomes a finding against its device and no other",
        given=GIVEN,
        happens=[steps(30, {1: 2.0}), steps(10, {1: 2.0})],
        want=Want(
            [WRITE],
            [TOLD, WOKEN],
            {(NodeDevices, "n1"): {**SLOW, "verdicts": ...}, (NodeDevices, "n2"): {"findings": None}},
            looks=2,
        ),
    ),
    Scenario(
        name="the same steps told again cost no look at them",
        given=GIVEN,
        happens=[
            steps(30, {1: 2.0}),
            do(lambda stage: [stage.props["board"].recall(p) for p in stage.props["board"].past()]),
        ],
        want=Want([WRITE], [TOLD, WOKEN], {(NodeDevices, "n1"): SLOW}),
    ),
    Scenario(
        name="a rank at normal speed again takes its finding away and leaves others",
        given=GIVEN,
        happens=[
            steps(30, {1: 2.0}),
            patch(NodeDevices, "n1", {"findings": {"gpu-0": [{"source": "history", "code": "repeat"}]}}),
            steps(60),
        ],
        want=Want([WRITE, WRITE], [TOLD, WOKEN], {(NodeDevices, "n1"): {"findings": {"gpu-1": None, "gpu-0": [...]}}}),
    ),
    Scenario(
        name="a probe that passed since answers the finding",
        given=[
            gang().build(),
            a_node("n1").gpus(4).signal("gpu-1", "probe-passed", "probe", at=after(9.0).timestamp()).devices(),
        ],
        happens=[
            patch(
                NodeDevices,
                "n1",
                {"findings": {"gpu-1": [{"source": "straggler", "code": "straggler", "time": after(2.0).isoformat()}]}},
            )
        ],
        want=Want([WRITE], [], {(NodeDevices, "n1"): {"findings": {}}}),
    ),
    Scenario(
        name="a gang that became slower as a whole blames no device and wakes its job",
        given=GIVEN,
        happens=[steps(30), steps(30, pace=2.0)],
        want=Want([], [WOKEN, "wake default/job UniformSlowdown"]),
    ),
    Scenario(
        name="a rank that was moved and is slow again carries more work",
        given=[
            gang().status(recoveries=[a_recovery(reason="SlowRank", replaced=["job-1"])]).build(),
            *NODES,
        ],
        happens=[steps(30, {1: 2.0})],
        want=Want([], ["wake default/job UnevenWork"]),
    ),
    Scenario(
        name="a gang whose barrier is closed is not judged",
        given=[gang(barrier="Closed").build(), *NODES],
        happens=[steps(30, {1: 2.0})],
    ),
    Scenario(
        name="steps of an earlier attempt count for nothing",
        given=[gang(attempt=2).build(), *NODES],
        happens=[steps(30, {1: 2.0}, attempt=1)],
    ),
    Scenario(
        name="a job that has it switched off is not judged",
        given=[gang(factor=0.0).build(), *NODES],
        happens=[steps(30, {1: 2.0})],
    ),
    Scenario(
        name="somebody who writes first costs a second look and loses nothing",
        given=GIVEN,
        first=[
            before_next(
                WRITE, patch(NodeDevices, "n1", {"findings": {"gpu-1": [{"source": "history", "code": "repeat"}]}})
            )
        ],
        happens=[steps(30, {1: 2.0})],
        want=Want(
            [f"{WRITE} !Conflict", WRITE],
            [TOLD, WOKEN],
            {(NodeDevices, "n1"): {"findings": {"gpu-1": [{"source": "history"}, {"source": "straggler"}]}}},
        ),
    ),
    Scenario(
        name="an API that is out of reach is asked again",
        given=GIVEN,
        first=[refuse_next(WRITE)],
        happens=[steps(30, {1: 2.0})],
        want=Want([f"{WRITE} !ServiceUnavailable", WRITE], [TOLD, WOKEN], {(NodeDevices, "n1"): SLOW}),
    ),
    Scenario(
        name="a node that goes in the middle is not written about and the other one is",
        given=GIVEN,
        first=[before_next(WRITE, delete(NodeDevices, "n1"))],
        happens=[steps(30, {1: 2.0, 2: 2.0})],
        want=Want(
            [f"{WRITE} !NotFound", "patch NodeDevices/n2"],
            [TOLD, WOKEN],
            {(NodeDevices, "n1"): None, (NodeDevices, "n2"): {"findings": {"gpu-2": [...]}}},
        ),
    ),
    Scenario(
        name="a job that goes takes its memory along",
        given=GIVEN,
        happens=[
            steps(30),
            delete(TrainingJob, "default/job"),
            do(lambda stage: stage.props["board"].forget("default", "job")),
            put(gang().build()),
            steps(30, pace=2.0),
        ],
        want=Want([], [WOKEN, WOKEN]),
    ),
    Scenario(
        name="steps of a job that is gone are nobody's",
        given=NODES,
        happens=[steps(30, {1: 2.0})],
    ),
    Scenario(
        name="a new manager finds the finding and makes none",
        given=GIVEN,
        happens=[steps(30, {1: 2.0}), restart, steps(10, {1: 2.0})],
        want=Want([WRITE], [TOLD, WOKEN, WOKEN], {(NodeDevices, "n1"): SLOW}),
    ),
    Scenario(
        name="heartbeats and jobs that make no sense spoil no other gang",
        given=[
            *GIVEN,
            a_job("odd")
            .status(
                attempt=1,
                barrier="Open",
                members=[Member(0, "", "", "uid-0"), Member(0, "", "", "uid-0", "nowhere", [""])],
            )
            .build(),
        ],
        happens=[
            steps(30, {0: -1.0, 1: float("nan"), 2: float("inf")}, name="odd"),
            steps(30, name="nobody"),
            steps(30, {1: 2.0}),
        ],
        want=Want([WRITE], [TOLD, WOKEN], {(NodeDevices, "n1"): SLOW}),
    ),
]


@pytest.mark.parametrize("scenario", SCENARIOS, ids=str)
def test_stragglers(scenario: Scenario) -> None:
    scenario.play(_start)
