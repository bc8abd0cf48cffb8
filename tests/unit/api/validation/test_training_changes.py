"""What may be changed of a job that is there."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from remuda.api.codec import decode_strict
from remuda.api.errors import Refusal
from remuda.api.training import Checkpoint, TrainingJob
from remuda.api.validation.validate import validate_change

MEMBER = {"rank": 0, "role": "worker", "pod": "j-worker-0", "uid": "u"}
RUNS = {"phase": "Running", "attempt": 1, "barrier": "Open", "members": [MEMBER]}
TIME = "2026-01-01T00:00:00Z"


def job(status: dict[str, Any] = RUNS, command: str = "train", suspend: bool = False, **role: Any) -> TrainingJob:
    template = {"spec": {"containers": [{"name": "main", "command": [command]}]}}
    spec = {"roles": [{"name": "worker", "template": template, **role}], "suspend": suspend}
    return decode_strict(TrainingJob, {"metadata": {"name": "j"}, "spec": spec, "status": status})


@pytest.mark.parametrize(
    "new", [job(command="other"), job(gpus=2), job(command="other", suspend=True)], ids=["command", "gpus", "suspend"]
)
@pytest.mark.parametrize("phase", ["Running", "Recovering", "Starting"])
def test_what_shapes_the_pods_of_a_gang_with_ranks_is_refused(phase: str, new: TrainingJob) -> None:
    with pytest.raises(Refusal) as refused:
        validate_change(job({**RUNS, "phase": phase}), new)
    assert (refused.value.reason, refused.value.field) == ("TemplateInUse", "spec.roles[0].template")
    assert "remuda suspend j" in refused.value.fix
    assert "remuda resume j" in refused.value.fix


@pytest.mark.parametrize(
    "status",
    [
        {},
        {"phase": "Pending", "attempt": 1},
        {**RUNS, "phase": "Suspended", "suspendedAt": TIME},
        {**RUNS, "phase": "Succeeded"},
        {**RUNS, "phase": "Failed"},
    ],
    ids=["new", "pending", "suspended", "succeeded", "failed"],
)
def test_nobody_to_mix_with(status: dict[str, Any]) -> None:
    validate_change(job(status), job(status, command="other", gpus=2))


def test_sizes_and_everything_beside_the_pods_may_change() -> None:
    validate_change(job(), job(replicas=4, minReplicas=2, suspend=True))


def with_place(**checkpoint: Any) -> TrainingJob:
    made = job()
    place = msgspec.convert(checkpoint, Checkpoint)
    return msgspec.structs.replace(made, spec=msgspec.structs.replace(made.spec, checkpoint=place))


@pytest.mark.parametrize(
    ("old", "new", "field"),
    [
        ({}, {"volume": {"nfs": {"server": "a", "path": "/b"}}}, "volume"),
        ({"volume": {"nfs": {"path": "/a"}}}, {"volume": {"nfs": {"path": "/b"}}}, "volume"),
        ({"path": "/a"}, {"path": "/b"}, "path"),
    ],
)
def test_checkpoints_of_a_gang_with_ranks_stay_where_they_are(old: Any, new: Any, field: str) -> None:
    with pytest.raises(Refusal) as refused:
        validate_change(with_place(**old), with_place(**new))
    assert (refused.value.reason, refused.value.field) == ("TemplateInUse", f"spec.checkpoint.{field}")


def test_the_rest_of_the_checkpoint_policy_may_change() -> None:
    validate_change(with_place(path="/a"), with_place(path="/a", typicalSeconds=30, signal="SIGUSR2"))
