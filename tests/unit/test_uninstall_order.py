"""What an uninstall decides on is what is there once nobody changes it any more."""

from __future__ import annotations

from typing import Any, cast

import pytest

from remuda.api.kubernetes.core_v1 import Pod
from remuda.api.meta import ObjectMeta, OwnerReference
from remuda.core.uninstall.uninstall_plan import UninstallObserved
from remuda.kube.cluster import Cluster
from remuda.runtime.uninstall import Uninstall, UninstallOptions


async def test_a_job_that_begins_while_the_manager_is_being_stopped_keeps_its_launcher(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    owner = OwnerReference(api_version="remuda.dev/v1alpha1", kind="TrainingJob", name="job", uid="u")
    late = Pod(metadata=ObjectMeta(name="job-0", namespace="team", owner_references=[owner]))
    seen = [UninstallObserved()]
    stays: list[bool] = []

    async def observe(_: Uninstall) -> UninstallObserved:
        return seen[-1]

    async def spec(*_: Any) -> dict[str, Any]:
        return {"template": {}}

    async def stopped(*_: Any) -> None:
        seen.append(UninstallObserved(pods=[late]))

    async def nothing(*_: Any) -> bool:
        return True

    async def clean(_: Uninstall, agents: Any, *, jobs_stay: bool) -> None:
        stays.append(jobs_stay)

    replaced = {"observe": observe, "_agents_spec": spec, "_until_stopped": stopped, "_clean_nodes": clean}
    for name, call in {**replaced, "_apply": nothing, "_until_lease_is_free": nothing}.items():
        monkeypatch.setattr(Uninstall, name, call)
    made = Uninstall(cast(Cluster, None), UninstallOptions(), say=print, clock=lambda: 0.0)
    await made.run()
    assert stays == [True]
