"""The answers our admission is held against are those of the real server: ask it again.

`REMUDA_WRITE_ANSWERS=1` writes them anew, for a new Kubernetes version.
"""

import json
import os
from typing import Any

from tests.kube.control_plane import ControlPlane
from tests.unit.embedded.apiserver.admission.cases import (
    ANSWERS,
    CASES,
    NAMESPACE,
    RESOURCES,
    collection,
    told,
    updated,
)


def ask(plane: ControlPlane, name: str) -> Any:
    plural, body, update = CASES[name]
    path = collection(RESOURCES[plural])
    answer = plane.request("POST", path, body)
    if update is None or answer.status >= 400:
        return told(answer.status, answer.body)
    answer = plane.request("PUT", f"{path}/{name}", updated(answer.body, update))
    return told(answer.status, answer.body)


def test_the_real_server_answers_as_recorded(control_plane: ControlPlane) -> None:
    control_plane.request("POST", "/api/v1/namespaces", {"metadata": {"name": NAMESPACE}})
    control_plane.request("POST", f"/api/v1/namespaces/{NAMESPACE}/serviceaccounts", {"metadata": {"name": "default"}})
    answers = {name: ask(control_plane, name) for name in CASES}
    if os.environ.get("REMUDA_WRITE_ANSWERS"):
        ANSWERS.write_text(json.dumps(answers, indent=1, sort_keys=True) + "\n", encoding="utf-8")
    recorded = json.loads(ANSWERS.read_text(encoding="utf-8"))
    assert answers == recorded
