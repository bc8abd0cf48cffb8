"""Our admission answers as the real server does: same code, same reason, same fields, same defaults."""

import copy
import json
from collections.abc import Iterable
from typing import Any

import pytest

from remuda.api.errors import ApiError
from remuda.api.meta import JsonObject
from remuda.embedded.apiserver import write_rules
from remuda.embedded.apiserver.admission import CREATE, UPDATE, AdmissionChain, AdmissionRequest
from tests.unit.embedded.apiserver.admission.cases import ANSWERS, CASES, NAMESPACE, RESOURCES, told, updated

RECORDED = json.loads(ANSWERS.read_text(encoding="utf-8"))
# Deliberate: the plug-in exists in the real server, too, but is off unless it is asked for.
MORE_TOLERATIONS = {"pod-extended": [{"key": "nvidia.com/gpu", "operator": "Exists"}]}


class Empty:
    """A cluster with nothing in it but the namespace."""

    def get(self, group: str, plural: str, name: str, namespace: str = "") -> JsonObject | None:
        return {"metadata": {"name": name}} if (plural, name) == ("namespaces", NAMESPACE) else None

    def list(self, group: str, plural: str, namespace: str = "") -> Iterable[JsonObject]:
        return []


def write(name: str) -> Any:
    plural, body, update = CASES[name]
    resource = RESOURCES[plural]
    admission = AdmissionChain(Empty())
    new = write_rules.created_object_body(resource, body, now=0.0, uid="0123-uid")
    new = admission.admit(AdmissionRequest(CREATE, resource, NAMESPACE, name, new))
    if update is None:
        return new
    change = write_rules.write_rule_for_replacement(resource, new, updated(new, update), "")
    assert change is not None
    return admission.admit(AdmissionRequest(UPDATE, resource, NAMESPACE, name, change.body, new))


@pytest.mark.parametrize("name", sorted(CASES))
def test_the_answer_is_the_real_servers(name: str) -> None:
    try:
        answer = told(200, write(name))
    except ApiError as error:
        status = error.as_status()
        causes = [{"field": c.field, "reason": c.reason} for c in (status.details.causes if status.details else ())]
        answer = told(status.code, {"reason": status.reason, "details": {"causes": causes}})
    recorded = copy.deepcopy(RECORDED[name])
    if name in MORE_TOLERATIONS:
        recorded["body"]["spec"]["tolerations"] += MORE_TOLERATIONS[name]
    assert answer == recorded
