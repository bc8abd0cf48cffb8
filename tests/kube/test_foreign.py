"""Workloads that are not ours on a real API server, with the real Job and disruption controllers beside our manager.

There is no kubelet: the test reports what one would, and ends a pod that was deleted as one does.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest
import pytest_asyncio

from remuda.api.codec import to_wire
from remuda.api.conditions import find_condition, is_condition_true
from remuda.api.devices import Holding, NodeDevices, Observed, ObservedDevice, Signal
from remuda.api.errors import TooManyRequests
from remuda.api.kubernetes.batch_v1 import Job
from remuda.api.kubernetes.core_v1 import Binding, Namespace, Node, Pod
from remuda.api.kubernetes.policy_v1 import PodDisruptionBudget
from remuda.api.meta import JsonObject, ObjectMeta, to_time
from remuda.api.names import ANNOTATION_DEVICES, ANNOTATION_RETRY_ADMISSION, RESOURCE_GPU
from remuda.core.foreign.device_failures import DEVICE_FAILED
from remuda.core.foreign.refused_pods import ADMISSION_REJECTED, PLACED
from remuda.core.gang.kubelet_pods import KubeletGangPodForm
from remuda.embedded.builtin.planners.pod_state import is_active_pod
from remuda.kube.client.http_cluster import HttpCluster
from remuda.kube.client.kubeconfig import load_kubeconfig
from remuda.kube.cluster import Preconditions
from remuda.link.progress_board import ProgressBoard
from remuda.runtime.control_plane import ControlPlane as Manager
from tests.builders.waiting import PATIENCE_S, until
from tests.kube.control_plane import ControlPlane
from tests.kube.planes import own_plane, running_controllers
from tests.kube.test_heart import install_kinds

NODE = "node-01"


@pytest.fixture(scope="module")
def plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    controllers, place = "job-controller,disruption-controller", tmp_path_factory.mktemp("manager")
    with own_plane(tmp_path_factory.mktemp("foreign")) as plane, running_controllers(plane, controllers, place):
        yield plane


@pytest_asyncio.fixture
async def api(plane: ControlPlane) -> AsyncIterator[HttpCluster]:
    async with asyncio.timeout(PATIENCE_S), HttpCluster(access=load_kubeconfig(plane.kubeconfig)) as cluster:
        await install_kinds(plane)
        yield cluster


class Stage:
    """One namespace, one node, and the hand that plays its kubelet and its agent."""

    def __init__(self, api: HttpCluster, plane: ControlPlane, namespace: str) -> None:
        # Of its own in every try: what an earlier one has left behind is still there.
        self.api, self.plane, self.namespace = api, plane, f"{namespace}-{time.time_ns()}"

    async def open(self) -> None:
        await self.api.create(Namespace, {"metadata": {"name": self.namespace}})
        path = f"/api/v1/namespaces/{self.namespace}/serviceaccounts"
        account = {"metadata": {"name": "default"}}
        assert (await asyncio.to_thread(self.plane.request, "POST", path, account)).status == 201
        self.node = f"{NODE}-{self.namespace}"
        await self.api.create(Node, {"metadata": {"name": self.node}})

    async def run_job(self, **spec: Any) -> Pod:
        template: JsonObject = {"spec": {"containers": [{"name": "main", "image": "x"}], "restartPolicy": "Never"}}
        template["metadata"] = {"annotations": spec.pop("annotations", {})}
        if scheduler := spec.pop("scheduler", ""):
            template["spec"]["schedulerName"] = scheduler
        meta = {"name": "job", "namespace": self.namespace}
        await self.api.create(Job, {"metadata": meta, "spec": {"template": template, **spec}})
        return await self.active()

    async def active(self, but: str = "") -> Pod:
        async def found() -> bool:
            return any(is_active_pod(p) and p.uid != but for p in await self.pods())

        await until("a pod", found)
        return next(p for p in await self.pods() if is_active_pod(p) and p.uid != but)

    async def pods(self) -> list[Pod]:
        return (await self.api.list(Pod, self.namespace)).items

    async def start(self, pod: Pod) -> None:
        """Bound with a device, and running."""
        mark = ObjectMeta(uid=pod.uid, annotations={ANNOTATION_DEVICES: "gpu-0"})
        await self.api.bind(pod.name, self.namespace, Binding(self.node, mark))
        at = to_time(int(time.time()))
        ready = {"type": "Ready", "status": "True", "lastTransitionTime": at}
        status = {"phase": "Running", "conditions": [ready]}
        await self.api.patch(Pod, pod.name, {"status": status}, self.namespace, subresource="status")

    async def break_device(self, pod: Pod) -> None:
        """What the agent would report."""
        signal = Signal("kmsg", "xid-79", "GPU has fallen off the bus", to_time(int(time.time())))
        held = Holding(f"{self.namespace}/{pod.name}", "main", RESOURCE_GPU, ["gpu-0"], pod.uid)
        rows = [ObservedDevice("gpu-0", "H100", signals=[signal]), ObservedDevice("gpu-1", "H100", index=1)]
        seen = Observed(devices=rows, holdings=[held])
        await self.api.create(NodeDevices, NodeDevices(metadata=ObjectMeta(name=self.node)))
        await self.api.patch(NodeDevices, self.node, {"status": to_wire(seen)}, subresource="status")

    async def end_when_deleted(self, pod: Pod) -> Pod:
        """As a kubelet does: Failed with the conditions that are there. Returns the pod as it was when it was told to go."""
        found: list[Pod] = []

        async def told() -> bool:
            found[:] = [await self.api.get(Pod, pod.name, self.namespace)]
            return found[0].is_deleting

        await until("the pod to be told to go", told)
        status = {"phase": "Failed"}
        await self.api.patch(Pod, pod.name, {"status": status}, self.namespace, subresource="status")
        return found[0]

    async def job(self) -> Job:
        return await self.api.get(Job, "job", self.namespace)


@pytest_asyncio.fixture
async def manager(api: HttpCluster) -> AsyncIterator[None]:
    control = Manager(
        api,
        ProgressBoard(),
        time.time,
        chance=random.Random(0),
        schedulers=frozenset({"remuda"}),
        form=KubeletGangPodForm(("remuda-launch",)),
    )
    task = asyncio.create_task(control.run())
    yield
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


def policy(action: str) -> JsonObject:
    return {"rules": [{"action": action, "onPodConditions": [{"type": DEVICE_FAILED, "status": "True"}]}]}


@pytest.mark.usefixtures("manager")
async def test_a_stock_job_ignores_a_failed_device(api: HttpCluster, plane: ControlPlane) -> None:
    stage = Stage(api, plane, "ignores")
    await stage.open()
    pod = await stage.run_job(backoffLimit=0, podFailurePolicy=policy("Ignore"))
    await stage.start(pod)
    await stage.break_device(pod)
    told = find_condition((await stage.end_when_deleted(pod)).status.conditions, DEVICE_FAILED)
    assert told is not None
    assert (told.status, told.reason) == ("True", "Xid79")
    assert stage.node in told.message
    assert "gpu-0" in told.message
    after = await stage.active(but=pod.uid)
    assert after.uid != pod.uid
    job = await stage.job()
    assert (job.status.failed, is_condition_true(job.status.conditions, "Failed")) == (0, False)


@pytest.mark.usefixtures("manager")
async def test_a_stock_job_fails_by_a_failed_device(api: HttpCluster, plane: ControlPlane) -> None:
    stage = Stage(api, plane, "fails")
    await stage.open()
    pod = await stage.run_job(podFailurePolicy=policy("FailJob"))
    await stage.start(pod)
    await stage.break_device(pod)
    await stage.end_when_deleted(pod)

    async def failed() -> bool:
        return is_condition_true((await stage.job()).status.conditions, "Failed")

    await until("the Job to fail", failed)
    said = find_condition((await stage.job()).status.conditions, "Failed")
    assert said is not None
    assert said.reason == "PodFailurePolicy"
    assert DEVICE_FAILED in said.message


@pytest.mark.usefixtures("manager")
async def test_a_stock_job_gets_the_tries_back_that_refused_pods_cost(api: HttpCluster, plane: ControlPlane) -> None:
    """Two pods refused with one try allowed. The real Job controller counts both and waits ten seconds between them."""
    stage = Stage(api, plane, "refused")
    await stage.open()
    pod = await stage.run_job(backoffLimit=1)
    for number in (1, 2):
        await api.bind(pod.name, stage.namespace, Binding(stage.node, ObjectMeta(uid=pod.uid)))
        no = {"phase": "Failed", "reason": "UnexpectedAdmissionError", "message": "no devices"}
        await api.patch(Pod, pod.name, {"status": no}, stage.namespace, subresource="status")

        async def forgiven(number: int = number) -> bool:
            return (await stage.job()).spec.backoff_limit == 1 + number

        await until("the try to be given back", forgiven)
        if number == 1:
            pod = await stage.active(but=pod.uid)

    async def counted() -> bool:
        return (await stage.job()).status.failed == 2

    await until("both to be counted", counted)
    job = await stage.job()
    assert not is_condition_true(job.status.conditions, "FailureTarget")
    assert not is_condition_true(job.status.conditions, "Failed")

    async def told() -> bool:
        return sum(is_condition_true(p.status.conditions, ADMISSION_REJECTED) for p in await stage.pods()) == 2

    await until("both to be told", told)


@pytest.mark.usefixtures("manager")
async def test_a_stock_job_without_a_try_to_lose_outlives_refused_pods_and_not_its_own_failures(
    api: HttpCluster, plane: ControlPlane
) -> None:
    """The recipe of docs/other-workloads.md. Our scheduler places the pods; the test refuses them as a kubelet does."""
    stage = Stage(api, plane, "recipe")
    await stage.open()
    up = {"type": "Ready", "status": "True", "lastTransitionTime": to_time(int(time.time()))}
    status = {"conditions": [up], "allocatable": {"pods": "10"}, "capacity": {"pods": "10"}}
    await api.patch(Node, stage.node, {"status": status}, subresource="status")
    await api.patch(Node, stage.node, {"spec": {"taints": []}})
    rules = [
        {"action": "Count", "onExitCodes": {"operator": "NotIn", "values": [0]}},
        {"action": "Ignore", "onPodConditions": [{"type": PLACED, "status": "True"}]},
    ]
    pod = await stage.run_job(
        backoffLimit=0,
        podFailurePolicy={"rules": rules},
        scheduler="remuda",
        annotations={ANNOTATION_RETRY_ADMISSION: "true"},
    )
    no = {"phase": "Failed", "reason": "UnexpectedAdmissionError", "message": "no devices"}
    ended = {"name": "main", "image": "x", "imageID": "", "ready": False, "restartCount": 0}
    ended["state"] = {"terminated": {"exitCode": 1, "reason": "Error"}}
    for outcome in (no, {"phase": "Failed", "containerStatuses": [ended]}):

        async def placed(pod: Pod = pod) -> bool:
            return bool((await api.get(Pod, pod.name, stage.namespace)).spec.node_name)

        await until("the pod to be placed", placed)
        assert is_condition_true((await api.get(Pod, pod.name, stage.namespace)).status.conditions, PLACED)
        await api.patch(Pod, pod.name, {"status": outcome}, stage.namespace, subresource="status")
        if outcome is no:
            pod = await stage.active(but=pod.uid)
            assert (await stage.job()).status.failed == 0

    async def failed() -> bool:
        return is_condition_true((await stage.job()).status.conditions, "Failed")

    await until("the Job to fail of its own program", failed)
    job = await stage.job()
    assert (job.status.failed, job.spec.backoff_limit) == (1, 0)


async def test_an_eviction_is_refused_at_once_by_a_budget(api: HttpCluster, plane: ControlPlane) -> None:
    stage = Stage(api, plane, "budget")
    await stage.open()
    meta: JsonObject = {"name": "web", "namespace": stage.namespace}
    await api.create(PodDisruptionBudget, {"metadata": meta, "spec": {"minAvailable": 1, "selector": {}}})
    spec = {"containers": [{"name": "main", "image": "x"}]}
    pod = await api.create(Pod, {"metadata": meta, "spec": spec})
    await stage.start(pod)

    async def watched() -> bool:
        return (await api.get(PodDisruptionBudget, "web", stage.namespace)).status.expected_pods == 1

    await until("the budget to count its pod", watched)
    with pytest.raises(TooManyRequests, match="disruption budget"):
        await api.evict(pod.name, stage.namespace, when=Preconditions(uid=pod.uid))
    await api.delete(PodDisruptionBudget, "web", stage.namespace)
    await api.evict(pod.name, stage.namespace, when=Preconditions(uid=pod.uid))
    assert (await api.get(Pod, pod.name, stage.namespace)).is_deleting
