"""The bounds that the CRDs of deploy/ hold on a real kube-apiserver, where nobody else checks a TrainingJob before it is kept."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.kube.control_plane import ROOT, ControlPlane
from tests.kube.planes import own_plane

JOBS = "/apis/remuda.dev/v1alpha1/namespaces/default/trainingjobs"
MAIN = {"spec": {"containers": [{"name": "main", "command": ["train"]}]}}
ROLE = {"name": "worker", "replicas": 1, "template": MAIN}

WILD: dict[str, dict[str, Any]] = {
    "spec.totalSteps": {"totalSteps": 9_000_000_000_000_000},
    "spec.spares": {"spares": 10**9},
    "spec.roles[0].replicas": {"roles": [{**ROLE, "replicas": 100_001}]},
    "spec.roles": {"roles": [{**ROLE, "name": f"r{n}"} for n in range(65)]},
    "spec.failure.budgets.refillAfterSteps": {"failure": {"budgets": {"refillAfterSteps": 2**53}}},
    "spec.activeDeadlineSeconds": {"activeDeadlineSeconds": 1e300},
}


@pytest.fixture(scope="module")
def plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    with own_plane(tmp_path_factory.mktemp("bounds")) as plane:
        plane.kubectl("apply", "-f", str(ROOT / "deploy" / "crds"))
        plane.kubectl("wait", "--for=condition=Established", "crd", "--all", "--timeout=20s")
        yield plane


def job(name: str, **spec: Any) -> dict[str, Any]:
    return {
        "apiVersion": "remuda.dev/v1alpha1",
        "kind": "TrainingJob",
        "metadata": {"name": name},
        "spec": {"roles": [ROLE], **spec},
    }


@pytest.mark.parametrize("field", WILD)
def test_a_number_that_no_training_has_is_refused_by_the_kind_itself(plane: ControlPlane, field: str) -> None:
    answer = plane.request("POST", JOBS, job("wild", **WILD[field]))
    assert answer.status == 422, answer
    assert field in {cause["field"] for cause in answer.body["details"]["causes"]}


def test_what_is_within_the_bounds_is_taken(plane: ControlPlane) -> None:
    spec: dict[str, Any] = {"totalSteps": 10**15, "roles": [{**ROLE, "replicas": 100_000}]}
    answer = plane.request("POST", JOBS, job("large", **spec))
    assert answer.status == 201, answer
