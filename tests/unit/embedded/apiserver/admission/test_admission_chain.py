"""Admission in front of a store: what clients see of it."""

from __future__ import annotations

import asyncio
import itertools
from typing import Any

import pytest

from remuda.api.errors import ApiError
from remuda.api.kubernetes.apps_v1 import Deployment
from remuda.api.kubernetes.core_v1 import Namespace, Pod
from remuda.api.kubernetes.policy_v1 import ResourceQuota
from remuda.api.meta import JsonObject
from remuda.embedded.apiserver.admission import AdmissionChain
from remuda.embedded.apiserver.local_cluster import LocalCluster
from remuda.embedded.apiserver.store import ObjectStore
from remuda.embedded.apiserver.store.journal import MemoryJournal
from tests.unit.embedded.apiserver.admission.cases import pod_spec

DEPLOYMENT: JsonObject = {
    "metadata": {"name": "web", "namespace": "n"},
    "spec": {
        "selector": {"matchLabels": {"a": "b"}},
        "template": {"metadata": {"labels": {"a": "b"}}, "spec": pod_spec()},
    },
}


async def a_cluster() -> LocalCluster:
    numbers = itertools.count(1)
    api = LocalCluster(
        ObjectStore(MemoryJournal()),
        clock=lambda: 1.8e9,
        new_uid=lambda: f"uid-{next(numbers)}",
        admission=AdmissionChain,
    )
    await api.create(Namespace, {"metadata": {"name": "n"}})
    return api


async def test_the_same_manifest_again_changes_nothing() -> None:
    api = await a_cluster()
    first = await api.create(Deployment, DEPLOYMENT)
    again = await api.replace(Deployment, DEPLOYMENT)
    assert (again.metadata.generation, again.metadata.resource_version) == (1, first.metadata.resource_version)
    labelled: JsonObject = {**DEPLOYMENT, "metadata": {**DEPLOYMENT["metadata"], "labels": {"x": "y"}}}
    assert (await api.replace(Deployment, labelled)).metadata.generation == 1
    changed: JsonObject = {**labelled, "spec": {**DEPLOYMENT["spec"], "replicas": 2}}
    assert (await api.replace(Deployment, changed)).metadata.generation == 2


async def test_creates_at_once_do_not_exceed_a_quota_together() -> None:
    api = await a_cluster()
    await api.create(ResourceQuota, {"metadata": {"name": "q", "namespace": "n"}, "spec": {"hard": {"pods": "3"}}})

    async def create(number: int) -> Any:
        return await api.create(Pod, {"metadata": {"name": f"p{number}", "namespace": "n"}, "spec": pod_spec()})

    answers = await asyncio.gather(*(create(n) for n in range(10)), return_exceptions=True)
    assert len([a for a in answers if isinstance(a, Pod)]) == 3
    assert {a.code for a in answers if isinstance(a, ApiError)} == {403}


async def test_an_object_stored_before_a_default_existed_can_still_be_labelled() -> None:
    api = await a_cluster()
    old: JsonObject = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "old", "namespace": "n", "uid": "u", "generation": 1},
        "spec": {"containers": [{"name": "a", "image": "x"}]},
    }
    await api.store.put(Pod.resource.key("old", "n"), old)
    patched = await api.patch(Pod, "old", {"metadata": {"labels": {"a": "b"}}}, "n")
    assert patched.labels == {"a": "b"}
    with pytest.raises(ApiError) as refused:
        await api.patch(Pod, "old", {"spec": {"restartPolicy": "Never"}}, "n")
    assert (refused.value.code, refused.value.reason) == (422, "Invalid")
