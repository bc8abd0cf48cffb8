"""Roll-outs: one node after another is emptied, acted on and verified; a failure stops it."""

from __future__ import annotations

from typing import Any

import pytest

from remuda.api.devices import NodeDevices
from remuda.api.kubernetes.core_v1 import Node, Pod
from remuda.api.meta import JsonObject, KObject, ObjectMeta
from remuda.api.names import ANNOTATION_REMEDY_BY
from remuda.api.remedies import Drain, Hook
from remuda.api.rollouts import NodeRollout, NodeRolloutSpec
from remuda.controllers.rollouts import RolloutController
from remuda.core.remedies.hook_kinds import parse_hook_kinds
from remuda.kube.runtime.work_queue import WorkQueue
from tests.builders.api_trouble import before_next, lose_answer, refuse_next
from tests.builders.controller_tables import ControllerStage, Scenario, Want
from tests.builders.happenings import Happening, after, delete, patch, restart, wait
from tests.builders.remedies import a_pod, ledger, machine


async def _start(stage: ControllerStage) -> None:
    view, queue = stage.view(), WorkQueue[str]()
    controller = RolloutController(
        stage.api, view, queue, events=stage.events, hook_kinds=parse_hook_kinds(["v1/ConfigMap@default"])
    )
    await stage.sync(view.rollouts, view.devices, view.nodes, view.pods)
    stage.run(queue, controller)


def rollout(name: str = "driver", **spec: object) -> NodeRollout:
    fields = {
        "hook": Hook(command=["/bin/install"]),
        "drain": Drain(patience_seconds=0.0, checkpoint_seconds=0.0),
        **spec,
    }
    return NodeRollout(metadata=ObjectMeta(name=name), spec=NodeRolloutSpec(**fields))  # type: ignore[arg-type]


def answer(what: str, outcome: str = "Succeeded", node: str = "n1") -> Happening:
    """The agent says what became of that order, and of no other."""
    said = {
        "id": f"rollout-driver.{node}.{what}",
        "action": "command",
        "outcome": outcome,
        "time": after(2.0).isoformat(),
    }
    return patch(NodeDevices, node, {"status": {"answers": [said]}})


def marks(owner: str | None, cordoned: bool) -> JsonObject:
    """Who has the node, and whether it is closed."""
    annotations: object = {ANNOTATION_REMEDY_BY: owner} if owner else (lambda found: not found)
    return {
        "metadata": {"annotations": annotations},
        "spec": lambda spec: bool((spec or {}).get("unschedulable")) is cordoned,
    }


GIVEN: list[KObject] = [machine("n1"), ledger("n1", 1), machine("n2"), ledger("n2", 1)]
STATUS, MARK, ORDER = "patch NodeRollout/driver/status", "patch Node/n1", "patch NodeDevices/n1"
CANARY = "Normal NodeRollout/driver RolloutCanary"
BEGIN = [STATUS, MARK, STATUS, MARK, ORDER]  # recorded, taken, emptied, ordered
HOOK = Hook(
    object={"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "fix-{node}", "namespace": "default"}}
)
ACTING: dict[Any, Any] = {
    (NodeDevices, "n1"): {"orders": {"rollout-driver.n1.act": {"action": "command", "by": "rollout-driver"}}},
    (Node, "n1"): marks("rollout-driver", True),
    (Node, "n2"): marks(None, False),
    (NodeRollout, "driver"): {
        "status": {"phase": "Canary", "steps": [{"node": "n1", "phase": "Acting", "isCanary": True}]}
    },
}

SCENARIOS = [
    Scenario(name="without a roll-out nodes are left alone", given=[*GIVEN, a_pod("p", "n1")]),
    Scenario(
        name="a paused one begins nothing",
        given=[*GIVEN, rollout(paused=True)],
        happens=[wait(30.0)],
        want=Want([STATUS], [CANARY], {(Node, "n1"): marks(None, False)}),
    ),
    Scenario(
        name="the canary goes first and alone",
        given=[*GIVEN, rollout()],
        happens=[wait(30.0)],
        want=Want(BEGIN, [CANARY], ACTING),
    ),
    Scenario(
        name="a node is emptied before anything is done to it",
        given=[*GIVEN, rollout(), a_pod("p", "n1"), a_pod("q", "n2")],
        happens=[delete(Pod, "team/p")],
        want=Want([STATUS, MARK, "evict Pod/team/p", STATUS, STATUS, MARK, ORDER], [CANARY], ACTING),
    ),
    Scenario(
        name="what was done is verified and the node given back",
        given=[*GIVEN[:2], rollout()],
        happens=[answer("act"), answer("probe-gpu-0"), wait(10.0)],
        want=Want(
            [*BEGIN, STATUS, ORDER, STATUS, STATUS, MARK, ORDER],
            [CANARY, "Normal NodeRollout/driver RolloutSucceeded"],
            {(Node, "n1"): marks(None, False), (NodeDevices, "n1"): {"orders": {}}},
        ),
    ),
    Scenario(
        name="when the canary is done the rest follows",
        given=[*GIVEN, rollout()],
        happens=[answer("act"), answer("probe-gpu-0"), wait(10.0)],
        want=Want(
            None,
            [CANARY, "Normal NodeRollout/driver RolloutRolling"],
            {(Node, "n1"): marks(None, False), (Node, "n2"): marks("rollout-driver", True)},
        ),
    ),
    Scenario(
        name="the first failure stops it and the node stays out",
        given=[*GIVEN, rollout()],
        happens=[answer("act", "Failed"), wait(30.0)],
        want=Want(
            [*BEGIN, STATUS, MARK, ORDER],
            [CANARY, "Warning NodeRollout/driver RolloutStopped"],
            {
                (Node, "n1"): {"spec": {"unschedulable": True}},
                (Node, "n2"): marks(None, False),
                (NodeDevices, "n1"): {"orders": {}},
            },
        ),
    ),
    Scenario(
        name="an object hook is made once over restarts",
        given=[*GIVEN, rollout(hook=HOOK)],
        happens=[restart, wait(30.0)],
        want=Want([STATUS, MARK, STATUS, MARK, "create ConfigMap/default/fix-n1"], [CANARY]),
    ),
    Scenario(
        name="an object of a kind that nobody allowed is not made",
        given=[*GIVEN, rollout(hook=Hook(object={**HOOK.object, "kind": "Secret"}))],
        happens=[wait(30.0)],
        want=Want(
            [STATUS, MARK, STATUS, MARK, STATUS, MARK],
            [CANARY, "Warning NodeRollout/driver RolloutStopped"],
            {(NodeRollout, "driver"): {"status": {"steps": lambda steps: steps[0]["reason"] == "HookKindNotAllowed"}}},
        ),
    ),
    Scenario(
        name="a roll-out that is deleted does nothing more",
        given=[*GIVEN, rollout()],
        happens=[delete(NodeRollout, "driver"), wait(30.0)],
        want=Want(BEGIN, [CANARY]),
    ),
    Scenario(
        name="one that goes in the middle takes no node",
        given=[*GIVEN, rollout()],
        first=[before_next(STATUS, delete(NodeRollout, "driver"))],
        want=Want([f"{STATUS} !NotFound"], [], {(Node, "n1"): marks(None, False)}),
    ),
    Scenario(
        name="somebody who writes first costs a second look",
        given=[*GIVEN, rollout()],
        first=[
            before_next(STATUS, patch(NodeRollout, "driver", {"metadata": {"labels": {"a": "b"}}})),
            before_next(MARK, patch(Node, "n1", {"metadata": {"labels": {"a": "b"}}})),
        ],
        want=Want([f"{STATUS} !Conflict", STATUS, f"{MARK} !Conflict", STATUS, MARK, ORDER], [CANARY], ACTING),
    ),
    Scenario(
        name="an API that is out of reach is asked again",
        given=[*GIVEN, rollout()],
        first=[refuse_next(STATUS), refuse_next(MARK), refuse_next(ORDER)],
        want=Want(
            [
                f"{STATUS} !ServiceUnavailable",
                STATUS,
                f"{MARK} !ServiceUnavailable",
                STATUS,
                MARK,
                f"{ORDER} !ServiceUnavailable",
                ORDER,
            ],
            [CANARY],
            ACTING,
        ),
    ),
    Scenario(
        name="a lost answer orders nothing twice",
        given=[*GIVEN, rollout()],
        first=[lose_answer(STATUS), lose_answer(MARK), lose_answer(ORDER)],
        want=Want([STATUS, STATUS, MARK, ORDER], [], ACTING),
    ),
    Scenario(
        name="a new manager makes the same plan and orders nothing again",
        given=[*GIVEN, rollout()],
        happens=[restart, restart],
        want=Want(BEGIN, [CANARY], ACTING),
    ),
    Scenario(
        name="one that makes no sense stops and spoils no other",
        given=[*GIVEN, rollout("odd", hook=Hook(command=["install"]), canary=-1), rollout()],
        want=Want(
            [STATUS, MARK, "patch NodeRollout/odd/status", STATUS, MARK, ORDER],
            [CANARY, "Warning NodeRollout/odd RolloutStopped"],
            ACTING,
        ),
    ),
]


@pytest.mark.parametrize("scenario", SCENARIOS, ids=str)
def test_rollouts(scenario: Scenario) -> None:
    scenario.play(_start)
