"""`remuda.dev/devices` names what a pod holds, once its node knows it."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from remuda.api.devices import Holding, NodeDevices
from remuda.api.kubernetes.core_v1 import Pod
from remuda.api.meta import JsonObject, KObject
from remuda.api.names import ANNOTATION_DEVICES, LABEL_GANG, RESOURCE_GPU
from remuda.controllers.device_annotations import DeviceAnnotationController
from remuda.kube.runtime.work_queue import WorkQueue
from tests.builders.controller_tables import ControllerStage, Scenario, Want
from tests.builders.gangs import a_held_pod
from tests.builders.happenings import delete, put
from tests.builders.remedies import ledger, machine


async def _start(stage: ControllerStage) -> None:
    view, queue = stage.view(), WorkQueue[str]()
    controller = DeviceAnnotationController(stage.api, view, queue)
    await stage.sync(view.devices, view.pods)
    stage.run(queue, controller)


def holding(**held: str) -> NodeDevices:
    """The ledger of node-1, with what each pod holds there."""
    found = ledger("node-1", 4)
    rows = [
        Holding(f"default/{pod}", "main", RESOURCE_GPU, devices.split(","), f"uid-{pod}")
        for pod, devices in held.items()
    ]
    return replace(found, observed=replace(found.observed, holdings=rows))


def bound(name: str, *devices: str, gang: str = "") -> Pod:
    return a_held_pod(name, "node-1", devices, labels={LABEL_GANG: gang} if gang else None)


def names(devices: str) -> JsonObject:
    return {"metadata": {"annotations": {ANNOTATION_DEVICES: devices}}}


NODE = machine("node-1")
A, B = bound("a", "gpu-0", gang="g"), bound("b", "gpu-1", gang="g")
GANG: list[KObject] = [NODE, A, B]
NAME_A, NAME_B = "patch Pod/default/a", "patch Pod/default/b"

SCENARIOS = [
    Scenario(name="what is as it was chosen is left alone", given=[*GANG, holding(a="gpu-0", b="gpu-1")]),
    Scenario(
        name="another order of the same devices is the same",
        given=[NODE, bound("a", "gpu-0", "gpu-1"), holding(a="gpu-1,gpu-0")],
    ),
    Scenario(
        name="pods that got each other's devices are named after what they hold",
        given=[*GANG, holding(a="gpu-1", b="gpu-0")],
        want=Want([NAME_A, NAME_B], [], {(Pod, "default/a"): names("gpu-1"), (Pod, "default/b"): names("gpu-0")}),
    ),
    Scenario(
        name="not before the node has told of the whole gang",
        given=[*GANG, holding(a="gpu-1")],
        want=Want([], [], {(Pod, "default/a"): names("gpu-0")}),
    ),
    Scenario(
        name="but then",
        given=[*GANG, holding(a="gpu-1")],
        happens=[put(holding(a="gpu-1", b="gpu-0"))],
        want=Want([NAME_A, NAME_B], [], {(Pod, "default/b"): names("gpu-0")}),
    ),
    Scenario(
        name="of some of its devices nothing follows",
        given=[NODE, bound("a", "gpu-0", "gpu-1"), holding(a="gpu-2")],
    ),
    Scenario(
        name="a pod that nobody chose for has no annotation to mend", given=[NODE, bound("a"), holding(a="gpu-2")]
    ),
    Scenario(
        name="a node that told of the pod before the API showed it",
        given=[NODE, holding(a="gpu-2")],
        happens=[put(bound("a", "gpu-0"))],
        want=Want([NAME_A], [], {(Pod, "default/a"): names("gpu-2")}),
    ),
    Scenario(
        name="a pod that is gone",
        given=[NODE, bound("a", "gpu-0")],
        happens=[delete(Pod, "default/a"), put(holding(a="gpu-2"))],
    ),
]


@pytest.mark.parametrize("scenario", SCENARIOS, ids=str)
def test_device_annotations(scenario: Scenario) -> None:
    scenario.play(_start)
