"""Pods that their nodes refuse, on a whole embedded cluster in virtual time. Rows 7 to 11 are in tests/drills."""

from __future__ import annotations

import pytest

from remuda.api.kubernetes.batch_v1 import Job
from remuda.api.kubernetes.core_v1 import Namespace, Pod
from remuda.api.kubernetes.event_v1 import Event
from remuda.api.meta import JsonObject
from remuda.api.names import ANNOTATION_RETRY_ADMISSION
from remuda.controllers.refused_pods import RefusedPods
from remuda.core.foreign import refused_pods
from remuda.core.foreign.refused_pods import ADMISSION_REJECTED, PLACED
from remuda.embedded.apiserver.local_cluster import LocalCluster
from remuda.embedded.apiserver.store import MemoryJournal, ObjectStore
from remuda.kube.runtime.events import SILENCE
from tests.builders.foreign import (
    bare,
    break_plugin,
    condition,
    deploy,
    one_running,
    only,
    pods_of,
    refused,
    submit_job,
    tell,
)
from tests.builders.world import World


def test_a_refused_pod_says_so() -> None:
    async def story(world: World) -> None:
        await break_plugin(world, "node-01")
        await only(world, "node-01")
        await bare(world)
        await world.until(lambda: condition(world.pod("solo"), ADMISSION_REJECTED) is not None)
        await world.sleep(60.0)
        assert [p.name for p in pods_of(world, "solo")] == ["solo"]

    tell(story)


@pytest.mark.parametrize("kind", ["bare", "job", "deployment"])
def test_pods_refused_before_the_plugin_is_back_run_in_the_end(kind: str) -> None:
    async def story(world: World) -> None:
        await break_plugin(world, "node-01", seconds=8.0)
        await only(world, "node-01")
        match kind:
            case "bare":
                await bare(world, "work", annotations={ANNOTATION_RETRY_ADMISSION: "true", "note": "kept"})
            case "job":
                await submit_job(world, "work", backoffLimit=0)
            case _:
                await deploy(world, "work")
        await world.until(lambda: refused(world), what="a refused pod")
        pod = await one_running(world, "work", 120.0)
        if kind == "bare":
            assert pod.annotations["note"] == "kept"
            assert len(pods_of(world, "work")) == 1
        assert not world.devices("node-01").withheld

    tell(story)


def test_a_bare_pod_is_not_made_again_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(refused_pods, "ADMISSION_BUDGET", 2)

    async def story(world: World) -> None:
        await break_plugin(world, "node-01")
        await only(world, "node-01")
        await bare(world, annotations={ANNOTATION_RETRY_ADMISSION: "true"})
        await world.until(lambda: any(p.name == "solo-retry2" for p in refused(world)), 60.0, "the last try is refused")
        await world.sleep(600.0)
        assert [p.name for p in pods_of(world, "solo")] == ["solo-retry2"], "it stays as the evidence"
        told = [
            e.reason for e in (await world.cluster.api.list(Event)).items if e.involved_object.name == "solo-retry2"
        ]
        assert refused_pods.BUDGET_EXHAUSTED in told

    tell(story)


@pytest.mark.parametrize("asks", [True, False])
def test_a_pod_that_asks_for_it_says_who_placed_it_before_its_node_can_refuse_it(asks: bool) -> None:
    async def story(world: World) -> None:
        await break_plugin(world, "node-01")
        await only(world, "node-01")
        await submit_job(world, "work", annotations={ANNOTATION_RETRY_ADMISSION: "true"} if asks else {})
        await world.until(lambda: refused(world), what="a refused pod")
        assert [condition(p, PLACED) is not None for p in refused(world)] == [asks]

    tell(story)


def is_placed(status: str = "True") -> JsonObject:
    return {"type": PLACED, "status": status}


BY_CODE = {"action": "Count", "onExitCodes": {"operator": "NotIn", "values": [0]}}
BY_MARK = {"action": "Ignore", "onPodConditions": [is_placed()]}


@pytest.mark.parametrize(
    ("rules", "conditions", "limit"),
    [
        ([BY_CODE, BY_MARK], [is_placed()], 0),  # its controller did not count it
        ([BY_CODE, BY_MARK], [], 1),
        ([BY_CODE], [is_placed()], 1),
    ],
)
async def test_a_job_gets_no_try_back_that_it_did_not_lose(
    rules: list[JsonObject], conditions: list[JsonObject], limit: int
) -> None:
    api = LocalCluster(ObjectStore(MemoryJournal()), clock=lambda: 1.0, new_uid=iter("abcdef").__next__)
    await api.create(Namespace, {"metadata": {"name": "default"}})
    pods = {"spec": {"containers": [{"name": "main", "image": "x"}], "restartPolicy": "Never"}}
    spec = {"backoffLimit": 0, "podFailurePolicy": {"rules": rules}, "template": pods}
    job = await api.create(Job, {"metadata": {"name": "job", "namespace": "default"}, "spec": spec})
    owner = {"apiVersion": "batch/v1", "kind": "Job", "name": "job", "uid": job.uid, "controller": True}
    meta = {"name": "pod", "namespace": "default", "ownerReferences": [owner]}
    await api.create(Pod, {"metadata": meta, "spec": pods["spec"]})
    no = {"phase": "Failed", "reason": "UnexpectedAdmissionError", "conditions": conditions}
    pod = await api.patch(Pod, "pod", {"status": no}, "default", subresource="status")
    await RefusedPods(api, SILENCE, forgives=True).record(pod, 1, 1.0)
    assert (await api.get(Job, "job", "default")).spec.backoff_limit == limit
    told = (await api.get(Pod, "pod", "default")).status.conditions
    assert ADMISSION_REJECTED in {c.type for c in told}
