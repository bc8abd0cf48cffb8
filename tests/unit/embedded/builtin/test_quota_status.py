"""`status.used` of quotas: counted once for all quotas of a namespace."""

from __future__ import annotations

import pytest

from remuda.api.errors import Conflict
from remuda.api.kubernetes.policy_v1 import ResourceQuota
from remuda.api.meta import ObjectMeta
from remuda.embedded.builtin import BUILTIN_KINDS
from remuda.embedded.builtin.informers import BuiltinView
from remuda.embedded.builtin.namespaces import structless_kind_for_builtin
from remuda.embedded.builtin.pod_summaries import QuotaController
from remuda.kube.runtime.work_queue import WorkQueue
from tests.builders.api_trouble import refuse_next
from tests.builders.controller_tables import ControllerStage, Scenario, Want
from tests.builders.happenings import put
from tests.builders.pods import a_pod


async def _start(stage: ControllerStage) -> None:
    view, queue = BuiltinView(stage.api, jitter=lambda: 0.0), WorkQueue[str](jitter=lambda: 0.0)
    kinds = {(k.resource.group, k.resource.plural): structless_kind_for_builtin(k.resource) for k in BUILTIN_KINDS}
    controller = QuotaController(stage.api, view, queue, kinds)
    await stage.sync(view.pods, view.quotas)
    stage.run(queue, controller)


def a_quota(number: int) -> ResourceQuota:
    scopes = ["Terminating"] if number % 2 else []
    meta = ObjectMeta(name=f"q{number:02}", namespace="default")
    return ResourceQuota(metadata=meta, spec={"hard": {"pods": "100"}, "scopes": scopes})


PODS = [a_pod(f"p{n}") for n in range(5)]
QUOTAS = [a_quota(n) for n in range(30)]
WRITES = [f"patch ResourceQuota/default/q{n:02}/status" for n in range(30)]
USED = {(ResourceQuota, f"default/q{n:02}"): {"status": {"used": {"pods": "0" if n % 2 else "5"}}} for n in range(30)}

SCENARIOS = [
    Scenario(name="many quotas are one look", given=[*PODS, *QUOTAS], want=Want(WRITES, objects=USED, looks=4)),
    Scenario(
        name="a pod that comes is one more look, and one write for each quota that counts it",
        given=[*PODS[:4], *QUOTAS],
        happens=[put(PODS[4])],
        want=Want([*WRITES, *WRITES[::2]], objects=USED, looks=6),
    ),
    Scenario(
        name="a quota that somebody changes meanwhile holds up none of the others",
        given=[*PODS, *QUOTAS],
        first=[refuse_next(WRITES[0], Conflict("somebody was faster"))],
        want=Want([f"{WRITES[0]} !Conflict", *WRITES[1:], WRITES[0]], objects=USED),
    ),
]


@pytest.mark.parametrize("scenario", SCENARIOS, ids=str)
def test_quota_status(scenario: Scenario) -> None:
    scenario.play(_start)
