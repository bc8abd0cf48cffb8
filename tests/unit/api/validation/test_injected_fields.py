"""A template cannot set what Remuda puts into its pods: refused by name, with the field and the fix."""

from __future__ import annotations

from typing import Any

import pytest

from remuda.api.codec import decode_strict
from remuda.api.errors import Refusal
from remuda.api.training import TrainingJob
from remuda.api.validation.validate import validate

AT = "spec.roles[0].template.spec"


def job(spec: dict[str, Any], **container: Any) -> TrainingJob:
    template = {"spec": {"containers": [{"name": "main", "command": ["train"], **container}], **spec}}
    return decode_strict(TrainingJob, {"metadata": {"name": "j"}, "spec": {"roles": [{"template": template}]}})


@pytest.mark.parametrize(
    ("spec", "container", "word", "field"),
    [
        (
            {},
            {"env": [{"name": "A", "value": "b"}, {"name": "REMUDA_POD_UID", "value": "x"}]},
            "REMUDA_POD_UID",
            ".containers[0].env[1]",
        ),
        ({}, {"env": [{"name": "REMUDA_STOP_GRACE", "value": "9"}]}, "REMUDA_STOP_GRACE", ".containers[0].env[0]"),
        ({"volumes": [{"name": "remuda-alloc", "hostPath": {"path": "/"}}]}, {}, "remuda-alloc", ".volumes[0]"),
        ({"volumes": [{"name": "remuda-bin", "emptyDir": {}}]}, {}, "remuda-bin", ".volumes[0]"),
        (
            {},
            {"volumeMounts": [{"name": "remuda-alloc", "mountPath": "/all"}]},
            "/all",
            ".containers[0].volumeMounts[0]",
        ),
        (
            {"volumes": [{"name": "d", "emptyDir": {}}]},
            {"volumeMounts": [{"name": "d", "mountPath": "/run//remuda/x/../alloc/"}]},
            "/run//remuda/x/../alloc/",
            ".containers[0].volumeMounts[0]",
        ),
    ],
)
def test_what_remuda_sets_is_refused(spec: dict[str, Any], container: dict[str, Any], word: str, field: str) -> None:
    with pytest.raises(Refusal) as caught:
        validate(job(spec, **container))
    assert (caught.value.reason, caught.value.field) == ("InjectedField", AT + field)
    assert word in caught.value.message
    assert caught.value.fix


def test_names_that_only_look_like_ours_are_fine() -> None:
    validate(
        job(
            {"volumes": [{"name": "remuda-data", "emptyDir": {}}]},
            env=[{"name": "MY_REMUDA_POD_UID", "value": "x"}, {"name": "B", "value": "$(REMUDA_POD_UID)"}],
            volumeMounts=[{"name": "remuda-data", "mountPath": "/run/remuda-data"}],
        )
    )
