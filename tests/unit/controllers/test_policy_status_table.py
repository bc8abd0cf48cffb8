"""Status of remedy policies: how many nodes each has, what it holds back, whether its breaker is open, what is odd about it."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from remuda.api.devices import NodeDevices
from remuda.api.incidents import Incident
from remuda.api.kubernetes.core_v1 import Node
from remuda.api.meta import JsonObject, KObject
from remuda.api.remedies import BreakerStatus, Limits, Pause, PolicySelector, RemedyPolicy, RemedyPolicyStatus
from remuda.controllers.policy_status import PolicyController
from remuda.controllers.remedy_table import RemedyTable
from remuda.kube.runtime.work_queue import WorkQueue
from remuda.sim.virtual_time_loop import EPOCH
from tests.builders.api_trouble import before_next, lose_answer, refuse_next
from tests.builders.controller_tables import ControllerStage, Scenario, Want
from tests.builders.happenings import after, delete, patch, put, restart, wait
from tests.builders.remedies import incident, ledger, machine, remedy_policy


async def _start(stage: ControllerStage) -> None:
    view, queue = stage.view(), WorkQueue[str]()
    controller = PolicyController(stage.api, view, RemedyTable(view), queue, events=stage.events)
    await stage.sync(view.policies, view.incidents, view.nodes, view.devices)
    stage.run(queue, controller)


WRITE = "patch RemedyPolicy/default/status"
POLICY = remedy_policy()
DONE = replace(POLICY, status=RemedyPolicyStatus(nodes=1))
GIVEN: list[KObject] = [machine("n1"), ledger("n1")]
POOL: list[KObject] = [obj for n in range(1, 9) for obj in (machine(f"n{n}"), ledger(f"n{n}"))]
STORM = [incident(node=f"n{n}", opened=EPOCH - 5.0 + n / 10) for n in range(1, 5)]
PROBING: JsonObject = {
    "status": {
        "remedies": [{"key": "probe-1", "action": "probe", "target": "n1/gpu-3", "startedAt": after(0.0).isoformat()}],
        "phase": "Remedying",
    }
}


def told(policy: str = "default", **status: object) -> dict[tuple[type[KObject], str], object]:
    return {(RemedyPolicy, policy): {"status": status}}


def says(type_: str, status: str = "True", reason: object = ...) -> JsonObject:
    return {"type": type_, "status": status, "reason": reason}


SCENARIOS = [
    Scenario(name="without a policy object there is nothing to say", given=[*GIVEN, incident(node="n1", opened=EPOCH)]),
    Scenario(name="a status that is right is left alone", given=[*GIVEN, DONE], want=Want(looks=2)),
    Scenario(
        name="a new policy counts its nodes once",
        given=[*GIVEN, POLICY],
        want=Want([WRITE], [], told(nodes=1), looks=2),
    ),
    Scenario(
        name="a node whose devices are told later counts",
        given=[machine("n1"), POLICY],
        happens=[put(ledger("n1")), delete(NodeDevices, "n1")],
        want=Want([WRITE, WRITE], [], told(nodes=None)),
    ),
    Scenario(
        name="a label that moves a node to another policy changes both",
        given=[*GIVEN, DONE, remedy_policy("gold", selector=PolicySelector(nodes={"pool": "gold"}))],
        happens=[patch(Node, "n1", {"metadata": {"labels": {"pool": "gold"}}})],
        want=Want([WRITE, "patch RemedyPolicy/gold/status"], [], {**told(nodes=None), **told("gold", nodes=1)}),
    ),
    Scenario(
        name="what is under remedy and what is held back",
        given=[*POOL, POLICY, STORM[0], STORM[1]],
        happens=[patch(Incident, STORM[0].name, PROBING)],
        want=Want([WRITE, WRITE], [], told(nodes=8, underRemedy=["n1"])),
    ),
    Scenario(
        name="too many failures open the breaker which closes by itself",
        given=[*POOL, POLICY, *STORM],
        happens=[put(incident(node="n5", opened=EPOCH + 1.0)), wait(620.0)],
        want=Want(
            [WRITE, WRITE, WRITE],
            ["Warning RemedyPolicy/default BreakerOpen", "Normal RemedyPolicy/default BreakerClosed"],
            told(breaker={"open": None, "since": ..., "message": None}),
        ),
    ),
    Scenario(
        name="a breaker that a new manager finds open is not told again",
        given=[*POOL, POLICY, *STORM],
        happens=[restart, wait(620.0), restart],
        want=Want(
            [WRITE, WRITE], ["Warning RemedyPolicy/default BreakerOpen", "Normal RemedyPolicy/default BreakerClosed"]
        ),
    ),
    Scenario(
        name="a pause is a condition until it ends",
        given=[*GIVEN, remedy_policy(pause=Pause(by="alice", until=after(30.0)))],
        happens=[wait(40.0)],
        want=Want([WRITE, WRITE], [], told(conditions=[says("Paused", "False", "NotPaused")])),
    ),
    Scenario(
        name="two that are equally right say so and one that goes takes it back",
        given=[
            *GIVEN,
            remedy_policy("a", selector=PolicySelector(nodes={"x": "1"})),
            remedy_policy("b", selector=PolicySelector(nodes={"y": "1"})),
        ],
        happens=[delete(RemedyPolicy, "b")],
        want=Want(
            ["patch RemedyPolicy/a/status", "patch RemedyPolicy/b/status", "patch RemedyPolicy/a/status"],
            [],
            told("a", conditions=[says("Overlaps", "False", "Distinct")]),
        ),
    ),
    Scenario(
        name="one that makes no sense says so and spoils no other",
        given=[
            *GIVEN,
            POLICY,
            remedy_policy("odd", selector=PolicySelector(nodes={"pool": "odd"}), limits=Limits(pool="plenty")),
        ],
        want=Want(
            [WRITE, "patch RemedyPolicy/odd/status"], [], {**told(nodes=1), **told("odd", conditions=[says("Invalid")])}
        ),
    ),
    Scenario(
        name="somebody who writes first costs a second look",
        given=[*GIVEN, POLICY],
        first=[before_next(WRITE, patch(RemedyPolicy, "default", {"spec": {"pause": {"by": "alice"}}}))],
        want=Want([f"{WRITE} !Conflict", WRITE], [], told(nodes=1, conditions=[says("Paused")])),
    ),
    Scenario(
        name="an API that is out of reach is asked again and its lost answer repeats nothing",
        given=[*POOL, POLICY, *STORM],
        first=[refuse_next(WRITE), lose_answer(WRITE)],
        want=Want([f"{WRITE} !ServiceUnavailable", WRITE], [], told(breaker={"open": True})),
    ),
    Scenario(
        name="a policy that goes in the middle is forgotten",
        given=[*GIVEN, POLICY],
        first=[before_next(WRITE, delete(RemedyPolicy, "default"))],
        want=Want([f"{WRITE} !NotFound"], [], {(RemedyPolicy, "default"): None}),
    ),
    Scenario(
        name="what somebody else wrote into the status is put right",
        given=[
            *GIVEN,
            replace(POLICY, status=RemedyPolicyStatus(nodes=7, under_remedy=["x"], breaker=BreakerStatus(message="?"))),
        ],
        want=Want([WRITE], [], told(nodes=1, underRemedy=None, breaker=lambda b: not b)),
    ),
]


@pytest.mark.parametrize("scenario", SCENARIOS, ids=str)
def test_policy_status(scenario: Scenario) -> None:
    scenario.play(_start)
