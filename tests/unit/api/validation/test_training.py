"""Every refusal of what a TrainingJob asks for beyond its pods: stable reason, the field, a fix."""

from __future__ import annotations

from typing import Any

import pytest

from remuda.api.codec import decode_strict
from remuda.api.errors import Refusal
from remuda.api.training import TrainingJob
from remuda.api.validation.validate import validate

TEMPLATE = {"spec": {"containers": [{"name": "main", "command": ["train"]}]}}


def role(name: str = "worker", **fields: Any) -> dict[str, Any]:
    return {"name": name, "template": TEMPLATE, **fields}


def job(*roles: dict[str, Any], **spec: Any) -> TrainingJob:
    return decode_strict(TrainingJob, {"metadata": {"name": "j"}, "spec": {"roles": list(roles) or [role()], **spec}})


def rules(*rules: dict[str, Any]) -> TrainingJob:
    return job(failure={"rules": list(rules)})


def after(other: str, is_: str = "Running") -> list[dict[str, str]]:
    return [{"role": other, "is": is_}]


def test_all_of_it_at_once_is_fine() -> None:
    every = job(
        role("lead"),
        role("crew", replicas=4, minReplicas=2, after=after("lead", "Succeeded")),
        suspend=True,
        activeDeadlineSeconds=60,
        ttlSecondsAfterFinished=0,
        totalSteps=100,
        success={"role": "crew", "ranks": [0, 3]},
        checkpoint={"signal": "SIGUSR2"},
        failure={
            "deviceFailed": "ReplacePod",
            "backoffMaxSeconds": 1,
            "rules": [
                {"action": "Fail", "exitCodes": [42]},
                {"action": "Ignore", "logPattern": "(?i)try again"},
                {"action": "ReplaceGang", "faults": ["Xid79", "ecc"], "charge": "infra"},
            ],
        },
    )
    validate(every)


F = "spec.failure"


@pytest.mark.parametrize(
    ("bad", "reason", "field"),
    [
        (job(role(replicas=2, minReplicas=3)), "InvalidReplicas", "spec.roles[0].minReplicas"),
        (job(role(minReplicas=-1)), "InvalidReplicas", "spec.roles[0].minReplicas"),
        (job(role(after=after("nobody"))), "UnknownRole", "spec.roles[0].after[0].role"),
        (job(role("a"), role("b", after=after("a", "Ready"))), "InvalidAfter", "spec.roles[1].after[0].is"),
        (job(role("a", after=after("a"))), "RolesInACircle", "spec.roles"),
        (job(role("a", after=after("b")), role("b", after=after("a"))), "RolesInACircle", "spec.roles"),
        (job(success={"role": "nobody"}), "UnknownRole", "spec.success.role"),
        (job(success={"ranks": [1]}), "UnknownRank", "spec.success.ranks"),
        (job(success={"ranks": [-1]}), "UnknownRank", "spec.success.ranks"),
        (job(activeDeadlineSeconds=-1), "InvalidSeconds", "spec.activeDeadlineSeconds"),
        (job(ttlSecondsAfterFinished=-0.5), "InvalidSeconds", "spec.ttlSecondsAfterFinished"),
        (job(totalSteps=-1), "InvalidSteps", "spec.totalSteps"),
        (job(checkpoint={"signal": "SIGNOPE"}), "InvalidSignal", "spec.checkpoint.signal"),
        (job(checkpoint={"signal": "SIGKILL"}), "InvalidSignal", "spec.checkpoint.signal"),
        (job(checkpoint={"path": "//"}), "InvalidCheckpointPath", "spec.checkpoint.path"),
        (job(checkpoint={"volume": {"nfs": {}, "csi": {}}}), "InvalidVolume", "spec.checkpoint.volume"),
        (job(checkpoint={"volume": {"nfs": "x"}}), "InvalidVolume", "spec.checkpoint.volume"),
        (job(checkpoint={"volume": {"emptyDir": {}}}), "InvalidVolume", "spec.checkpoint.volume.emptyDir"),
        (job(checkpoint={"volume": {"persistentVolumeclaim": {}}}), "InvalidVolume", "spec.checkpoint.volume"),
        (job(checkpoint={"volume": {"nfs": {"path": "x" * 5000}}}), "InvalidVolume", "spec.checkpoint.volume"),
        (job(checkpoint={"path": "/a:b", "volume": {"nfs": {}}}), "InvalidCheckpointPath", "spec.checkpoint.path"),
        (
            job(checkpoint={"path": "/run/remuda/launch", "volume": {"nfs": {}}}),
            "InvalidCheckpointPath",
            "spec.checkpoint.path",
        ),
        (job(checkpoint={"resumeFrom": {"step": -1}}), "InvalidSteps", "spec.checkpoint.resumeFrom.step"),
        (job(checkpoint={"resumeFrom": {"attempt": -1}}), "InvalidAttempt", "spec.checkpoint.resumeFrom.attempt"),
        (job(failure={"sameStepLimit": -1}), "InvalidLimit", f"{F}.sameStepLimit"),
        (job(failure={"backoffMaxSeconds": 301}), "InvalidSeconds", f"{F}.backoffMaxSeconds"),
        (job(failure={"hangAfterSteps": 1}), "InvalidFactor", f"{F}.hangAfterSteps"),
        (job(failure={"straggler": {"factor": 0.9}}), "InvalidFactor", f"{F}.straggler.factor"),
        (rules({"action": "Fail"}), "EmptyRule", f"{F}.rules[0]"),
        (rules({"action": "Fail", "faults": [""]}), "EmptyRule", f"{F}.rules[0].faults"),
        (rules({"action": "Ignore", "exitCodes": [0]}), "NotAFailure", f"{F}.rules[0].exitCodes"),
        (rules({"action": "Fail", "exitCodes": [256]}), "InvalidExitCode", f"{F}.rules[0].exitCodes"),
        (rules({"action": "Fail", "logPattern": "(a"}), "InvalidPattern", f"{F}.rules[0].logPattern"),
        (rules({"action": "Fail", "logPattern": "x" * 300}), "InvalidPattern", f"{F}.rules[0].logPattern"),
        (rules({"action": "Fail", "exitCodes": [1], "faults": ["Xid79"]}), "ContradictoryRule", f"{F}.rules[0]"),
        (
            rules({"action": "Ignore", "exitCodes": [1], "charge": "code"}),
            "ContradictoryRule",
            f"{F}.rules[0].charge",
        ),
        (
            rules({"action": "Fail", "name": "x", "exitCodes": [1]}, {"action": "Fail", "name": "x", "exitCodes": [2]}),
            "RuleNamedTwice",
            f"{F}.rules[1].name",
        ),
        (rules(*({"action": "Fail", "exitCodes": [n]} for n in range(1, 66))), "TooManyRules", f"{F}.rules"),
    ],
)
def test_refused(bad: TrainingJob, reason: str, field: str) -> None:
    with pytest.raises(Refusal) as refused:
        validate(bad)
    assert (refused.value.reason, refused.value.field) == (reason, field)
    assert refused.value.fix
