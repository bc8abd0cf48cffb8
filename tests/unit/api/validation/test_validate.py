"""Every refusal of a TrainingJob or Drill: the reason is stable, the field is named, and a fix is given."""

from typing import Any

import pytest

from remuda.api.codec import decode_strict
from remuda.api.drills import Drill
from remuda.api.errors import Refusal
from remuda.api.training import TrainingJob, gpus_in_role_spec
from remuda.api.validation.validate import validate

RESERVED = {"annotations": {"remuda.dev/spare": "true"}}
CONTAINER = {"name": "main", "command": ["python", "train.py"]}


def a_role(container: dict[str, Any] | None = None, pod: dict[str, Any] | None = None, **role: Any) -> dict[str, Any]:
    return {"template": {"spec": {"containers": [container or CONTAINER], **(pod or {})}}, **role}


def a_job(*roles: dict[str, Any], name: str = "j", **spec: Any) -> TrainingJob:
    body = {"metadata": {"name": name}, "spec": {"roles": list(roles) if roles else [a_role()], **spec}}
    return decode_strict(TrainingJob, body)


def gpus(number: Any) -> dict[str, Any]:
    return {**CONTAINER, "resources": {"limits": {"nvidia.com/gpu": number}}}


def test_a_plain_job_is_fine() -> None:
    validate(a_job(a_role(replicas=8, gpus=8), spares=1, topology={"required": "rack"}))


@pytest.mark.parametrize(
    ("job", "reason", "field"),
    [
        (lambda: a_job(name="Bad_Name"), "InvalidName", "metadata.name"),
        (lambda: a_job(name="x" * 53), "InvalidName", "metadata.name"),
        (lambda: a_job(a_role(replicas=0)), "InvalidReplicas", "spec.roles[0].replicas"),
        (lambda: a_job(a_role(replicas=-1)), "InvalidReplicas", "spec.roles[0].replicas"),
        (lambda: a_job(a_role(replicas=2, minReplicas=3)), "InvalidReplicas", "spec.roles[0].minReplicas"),
        (lambda: a_job(topology={"segmentSize": 2}), "InvalidTopology", "spec.topology.segmentSize"),
        (
            lambda: a_job(
                a_role(replicas=4, minReplicas=2), topology={"required": "topology.remuda.dev/rack", "segmentSize": 2}
            ),
            "ElasticSegments",
            "spec.topology.segmentSize",
        ),
        (lambda: a_job(a_role(gpus=-1)), "InvalidGpus", "spec.roles[0].gpus"),
        (lambda: a_job(a_role(), a_role()), "InvalidRoleName", "spec.roles[1].name"),
        (lambda: a_job(spares=-1), "InvalidSpares", "spec.spares"),
        (lambda: a_job(lendSpares=True), "NothingToLend", "spec.lendSpares"),
        (
            lambda: a_job(
                spares=1, lendSpares=True, topology={"required": "topology.remuda.dev/rack", "segmentSize": 2}
            ),
            "NothingToLend",
            "spec.lendSpares",
        ),
        (lambda: a_job(failure={"budgets": {"code": -2}}), "InvalidBudget", "spec.failure.budgets.code"),
        (lambda: a_job(failure={"hangAfterSeconds": -1}), "InvalidSeconds", "spec.failure.hangAfterSeconds"),
        (
            lambda: a_job(failure={"stopGraceSeconds": 20, "stopDeadlineSeconds": 10}),
            "InvalidSeconds",
            "spec.failure.stopDeadlineSeconds",
        ),
        (lambda: a_job(checkpoint={"path": "here"}), "RelativeCheckpointPath", "spec.checkpoint.path"),
        (
            lambda: a_job(a_role(pod={"volume": []})),
            "UnknownField",
            "spec.roles[0].template.spec.volume",
        ),
        (
            lambda: a_job(a_role({**CONTAINER, "comand": ["x"]})),
            "UnknownField",
            "spec.roles[0].template.spec.containers[0].comand",
        ),
        (lambda: a_job(a_role({"name": "main"})), "NoCommand", "spec.roles[0].template.spec.containers[0].command"),
        (lambda: a_job({"template": {"spec": {}}}), "NoContainers", "spec.roles[0].template.spec.containers"),
        (
            lambda: a_job({"template": {"spec": {"containers": [CONTAINER, CONTAINER]}}}),
            "OneContainerOnly",
            "spec.roles[0].template.spec.containers",
        ),
        (lambda: a_job(a_role(name="r" * 30), name="j" * 30), "InvalidRoleName", "spec.roles[0].name"),
        (lambda: a_job(a_role(name="")), "InvalidRoleName", "spec.roles[0].name"),
        (lambda: a_job(topology={"required": "the rack"}), "InvalidTopology", "spec.topology.required"),
        (lambda: a_job(checkpoint={"typicalSeconds": -1}), "InvalidSeconds", "spec.checkpoint.typicalSeconds"),
        (
            lambda: a_job(failure={"budgets": {"refillAfterSteps": -1}}),
            "InvalidBudget",
            "spec.failure.budgets.refillAfterSteps",
        ),
        (lambda: a_job(failure={"startDeadlineSeconds": 0}), "InvalidSeconds", "spec.failure.startDeadlineSeconds"),
        (lambda: a_job(a_role(pod={"nodeName": "node-01"})), "NodeNameSet", "spec.roles[0].template.spec.nodeName"),
        (
            lambda: a_job({**a_role(), "template": {**a_role()["template"], "metadata": RESERVED}}),
            "ReservedName",
            "spec.roles[0].template.metadata.annotations",
        ),
        (
            lambda: a_job(a_role(pod={"initContainers": [CONTAINER]})),
            "OneContainerOnly",
            "spec.roles[0].template.spec.containers",
        ),
        (
            lambda: a_job({"template": {"spec": {"containers": ["python"]}}}),
            "InvalidField",
            "spec.roles[0].template.spec",
        ),
        (
            lambda: a_job(a_role({**CONTAINER, "command": "python train.py"})),
            "InvalidField",
            "spec.roles[0].template.spec",
        ),
        (lambda: a_job(a_role(gpus(2000))), "InvalidGpus", "spec.roles[0].template.spec.containers[0].resources"),
        (lambda: a_job(a_role(gpus(4), gpus=8)), "GpusSaidTwice", "spec.roles[0].gpus"),
        (lambda: a_job(a_role(gpus("1.5"))), "InvalidQuantity", "spec.roles[0].template.spec.containers[0].resources"),
    ],
)
def test_refused(job: Any, reason: str, field: str) -> None:
    with pytest.raises(Refusal) as caught:
        validate(job())
    assert (caught.value.reason, caught.value.field) == (reason, field)
    assert caught.value.message
    assert caught.value.fix


def test_a_command_that_is_no_list_is_told_in_words_of_kubernetes() -> None:
    with pytest.raises(Refusal) as caught:
        validate(a_job(a_role({**CONTAINER, "command": "python train.py"})))
    place = "`spec.roles[0].template.spec.containers[0].command`"
    assert caught.value.message == f"{place}: expected list, got string."
    assert caught.value.fix == "Write a list."


def test_no_roles() -> None:
    with pytest.raises(Refusal, match="NoRoles"):
        validate(decode_strict(TrainingJob, {"metadata": {"name": "j"}, "spec": {}}))


@pytest.mark.parametrize(("role", "count"), [(a_role(gpus=4), 4), (a_role(gpus("2")), 2), (a_role(), 0)])
def test_devices_asked_for_either_way(role: dict[str, Any], count: int) -> None:
    assert gpus_in_role_spec(a_job(role).spec.roles[0]) == count


@pytest.mark.parametrize(
    "spec",
    [
        {"type": "device-fail", "node": "n", "device": "gpu-0"},
        {"type": "node-lost"},
        {"type": "process-kill", "namespace": "default"},
        {"type": "pod-delete", "pod": "p"},
    ],
)
def test_an_incomplete_drill_says_what_is_missing(spec: dict[str, str]) -> None:
    drill = decode_strict(Drill, {"metadata": {"name": "d"}, "spec": spec})
    with pytest.raises(Refusal, match="IncompleteDrill"):
        validate(drill)
