"""A whole cluster in virtual time tells on pods and Jobs what is not honoured."""

from __future__ import annotations

from typing import Any

from remuda.api.kubernetes.batch_v1 import Job
from remuda.api.kubernetes.core_v1 import Pod
from remuda.api.kubernetes.event_v1 import Event
from remuda.api.meta import JsonObject
from remuda.embedded.apiserver.admission import AdmissionChain
from remuda.embedded.apiserver.decisions import NewestStoredObjects
from remuda.embedded.builtin.pod_field_events import builtin_pod_field_event_message
from remuda.embedded.pod_fields.judge_pod import PodHost
from tests.builders.world import NAMESPACE, World, in_world


async def warnings_about(world: World, kind: str) -> list[Event]:
    found = (await world.cluster.api.list(Event)).items
    return [e for e in found if e.involved_object.kind == kind and e.type == "Warning"]


def spec(**container: Any) -> JsonObject:
    return {"containers": [{"name": "main", "command": ["true"], "image": "i", **container}], "restartPolicy": "Never"}


@in_world(nodes=1, racks=1)
async def test_a_pod_is_told_once_what_of_it_is_not_honoured(world: World) -> None:
    body = spec(livenessProbe={"exec": {"command": ["true"]}})
    await world.cluster.api.create(Pod, {"metadata": {"name": "p", "namespace": NAMESPACE}, "spec": body})
    await world.sleep(30.0)
    (told,) = [e for e in await warnings_about(world, "Pod") if e.reason == "FieldsNotHonoured"]
    assert told.involved_object.name == "p"
    assert "spec.containers[0].livenessProbe: nothing probes the container" in told.message
    assert "spec.containers[0].image: images are not run here" in told.message
    assert told.count == 1


@in_world(nodes=1, racks=1)
async def test_a_job_whose_pods_are_refused_says_why(world: World) -> None:
    api = world.cluster.api
    api._admission = AdmissionChain(NewestStoredObjects(world.cluster.store))
    template = {
        "spec": {
            **spec(volumeMounts=[{"name": "scratch", "mountPath": "/scratch"}]),
            "volumes": [{"name": "scratch", "emptyDir": {}}],
        }
    }
    await api.create(Job, {"metadata": {"name": "j", "namespace": NAMESPACE}, "spec": {"template": template}})
    await world.sleep(30.0)
    told = await warnings_about(world, "Job")
    assert {e.reason for e in told} == {"FailedCreate"}
    assert "VolumesNotMounted: volume `scratch` (emptyDir) is not mounted at /scratch" in told[0].message
    assert not [p for p in (await api.list(Pod)).items if p.owner("Job")]


def test_an_event_says_no_more_than_it_may() -> None:
    mounts = [{"name": f"v{n}", "mountPath": f"/{n}"} for n in range(50)]
    body = {**spec(volumeMounts=mounts), "volumes": [{"name": f"v{n}", "emptyDir": {}} for n in range(50)]}
    said = builtin_pod_field_event_message(body, PodHost(is_simulated=True))
    assert len(said) <= 1024
    assert said.endswith("... See docs/compatibility.md")
    assert builtin_pod_field_event_message({"containers": [{"name": "main", "command": ["true"]}]}, PodHost()) == ""
