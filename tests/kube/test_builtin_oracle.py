"""Our small controllers and the real kube-controller-manager bring the same stories to the same ends.

There are no nodes in either cluster: the story itself says what becomes of the pods. What is compared is what users read:
counts, indexes, conditions with their reasons, revisions.
"""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import pytest

from remuda.api.conditions import is_condition_true
from remuda.api.errors import NotFound
from remuda.api.kubernetes.apps_v1 import REVISION, Deployment, ReplicaSet
from remuda.api.kubernetes.batch_v1 import COMPLETION_INDEX, Job
from remuda.api.kubernetes.core_v1 import Namespace, Pod
from remuda.api.kubernetes.policy_v1 import PodDisruptionBudget, ResourceQuota
from remuda.api.meta import JsonObject, to_time
from remuda.embedded.apiserver.admission import AdmissionChain
from remuda.embedded.apiserver.local_cluster import LocalCluster
from remuda.embedded.apiserver.store import ObjectStore
from remuda.embedded.apiserver.store.journal import MemoryJournal
from remuda.embedded.builtin import run_builtin_controllers
from remuda.embedded.builtin.garbage_collection import GarbageCollector
from remuda.embedded.builtin.planners.pod_state import is_active_pod
from remuda.kube.client.http_cluster import HttpCluster
from remuda.kube.client.kubeconfig import access_of_context, merge_kubeconfigs
from remuda.kube.cluster import Cluster
from remuda.kube.runtime.informer import Informer
from tests.builders.waiting import PATIENCE_S
from tests.kube.control_plane import ControlPlane
from tests.kube.planes import running_controllers

CONTROLLERS = (
    "job-controller,deployment-controller,replicaset-controller,disruption-controller,resourcequota-controller"
)


class Stage:
    """One cluster, one namespace, and the hand that moves the pods."""

    def __init__(self, cluster: Cluster, namespace: str) -> None:
        self.cluster, self.namespace = cluster, namespace
        self.changed = asyncio.Event()
        self.pods = Informer(cluster, Pod, namespace)
        self.jobs = Informer(cluster, Job, namespace)
        self.deployments = Informer(cluster, Deployment, namespace)
        self.sets = Informer(cluster, ReplicaSet, namespace)
        self.budgets = Informer(cluster, PodDisruptionBudget, namespace)
        self.quotas = Informer(cluster, ResourceQuota, namespace)
        self.informers: tuple[Informer[Any], ...] = (
            self.pods,
            self.jobs,
            self.deployments,
            self.sets,
            self.budgets,
            self.quotas,
        )
        for informer in self.informers:
            informer.subscribe(lambda old, new: self.changed.set())

    async def until(self, condition: Callable[[], object], what: str) -> None:
        try:
            async with asyncio.timeout(PATIENCE_S):
                while not condition():
                    self.changed.clear()
                    await self.changed.wait()
        except TimeoutError:
            seen = [(type(o).__name__, o.name, o.status) for i in self.informers for o in i.items()]
            raise AssertionError(f"{self.namespace}: not within {PATIENCE_S} s: {what}\n{seen}") from None

    @property
    def job(self) -> Job:
        found = self.jobs.get("job", self.namespace)
        assert found is not None
        return found

    def active(self) -> list[Pod]:
        return [p for p in self.pods.items() if is_active_pod(p)]

    async def run_job(self, pods: int, **spec: Any) -> None:
        template = {"spec": {"containers": [{"name": "main", "image": "x"}], "restartPolicy": "Never"}}
        meta = {"name": "job", "namespace": self.namespace}
        await self.cluster.create(Job, {"metadata": meta, "spec": {"template": template, **spec}})
        await self.until(lambda: len(self.active()) == pods, f"{pods} pods")

    async def finish(self, pod: Pod, code: int = 0) -> None:
        end = {"exitCode": code, "finishedAt": to_time(int(time.time())), "startedAt": to_time(int(time.time()) - 1)}
        status = {
            "phase": "Failed" if code else "Succeeded",
            "containerStatuses": [_status("main", {"terminated": end}, False)],
        }
        await self.set_status(pod, status)

    async def start(self, pod: Pod) -> None:
        at = to_time(int(time.time()))
        status = {
            "phase": "Running",
            "conditions": [{"type": "Ready", "status": "True", "lastTransitionTime": at}],
            "containerStatuses": [_status("main", {"running": {"startedAt": at}}, True)],
        }
        await self.set_status(pod, status)

    async def set_status(self, pod: Pod, status: JsonObject) -> None:
        try:
            await self.cluster.patch(Pod, pod.name, {"status": status}, self.namespace, subresource="status")
        except NotFound:
            pass  # no longer wanted

    async def finished(self, condition: str) -> JsonObject:
        await self.until(lambda: is_condition_true(self.job.status.conditions, condition), condition)
        return self.outcome()

    def outcome(self) -> JsonObject:
        status = self.job.status
        conditions = sorted((c.type, c.status, c.reason) for c in status.conditions)
        return {
            "counts": (status.active, status.succeeded, status.failed),
            "indexes": (status.completed_indexes, status.failed_indexes),
            "uncounted": (status.uncounted_terminated_pods.succeeded, status.uncounted_terminated_pods.failed),
            "completed": status.completion_time is not None,
            "conditions": conditions,
        }


def _status(name: str, state: JsonObject, ready: bool) -> JsonObject:
    return {"name": name, "image": "x", "imageID": "", "restartCount": 0, "ready": ready, "state": state}


Story = Callable[[Stage], Awaitable[JsonObject]]


def by_index(pod: Pod) -> int:
    return int(pod.annotations[COMPLETION_INDEX])


async def indexed(stage: Stage) -> JsonObject:
    await stage.run_job(2, completionMode="Indexed", completions=3, parallelism=2)
    first = {by_index(p): p for p in stage.active()}
    await stage.finish(first[0])
    await stage.until(lambda: {by_index(p) for p in stage.active()} == {1, 2}, "index 2")
    for pod in stage.active():
        await stage.finish(pod)
    return {"first": sorted(first), **await stage.finished("Complete")}


async def plain(stage: Stage) -> JsonObject:
    await stage.run_job(2, completions=2, parallelism=5)
    for pod in stage.active():
        await stage.finish(pod)
    return await stage.finished("Complete")


async def work_queue(stage: Stage) -> JsonObject:
    await stage.run_job(2, parallelism=2)
    for pod in stage.active():
        await stage.finish(pod)
    return await stage.finished("Complete")


async def gives_up(stage: Stage) -> JsonObject:
    await stage.run_job(2, completions=2, parallelism=2, backoffLimit=0)
    await stage.finish(stage.active()[0], 3)
    return await stage.finished("Failed")


async def declared_code(stage: Stage) -> JsonObject:
    rule = {"action": "FailJob", "onExitCodes": {"operator": "In", "values": [42]}}
    await stage.run_job(1, completions=1, podFailurePolicy={"rules": [rule]})
    await stage.finish(stage.active()[0], 42)
    outcome = await stage.finished("Failed")
    message = next(c.message for c in stage.job.status.conditions if c.type == "Failed")
    return {"says": "exit code 42 matching FailJob rule at index 0" in message, **outcome}


async def failed_index(stage: Stage) -> JsonObject:
    await stage.run_job(3, completionMode="Indexed", completions=3, parallelism=3, backoffLimitPerIndex=0)
    pods = {by_index(p): p for p in stage.active()}
    await stage.finish(pods[1], 1)
    await stage.until(lambda: stage.job.status.failed_indexes == "1", "the index is given up")
    await stage.finish(pods[0])
    await stage.finish(pods[2])
    return await stage.finished("Failed")


async def leader_succeeds(stage: Stage) -> JsonObject:
    policy = {"rules": [{"succeededIndexes": "0"}]}
    await stage.run_job(3, completionMode="Indexed", completions=3, parallelism=3, successPolicy=policy)
    await stage.finish(next(p for p in stage.active() if by_index(p) == 0))
    outcome = await stage.finished("Complete")
    outcome.pop("counts")  # whether the pods that were told to go count as failed is a race in the real one
    return outcome


async def suspended(stage: Stage) -> JsonObject:
    await stage.run_job(2, completions=2, parallelism=2)
    await stage.cluster.patch(Job, "job", {"spec": {"suspend": True}}, stage.namespace)
    await stage.until(lambda: not stage.active(), "its pods go")
    await stage.until(lambda: is_condition_true(stage.job.status.conditions, "Suspended"), "it says so")
    await stage.until(lambda: not stage.job.status.active, "it counts none")
    paused = stage.outcome()
    await stage.cluster.patch(Job, "job", {"spec": {"suspend": False}}, stage.namespace)
    await stage.until(lambda: len(stage.active()) == 2, "they come back")
    for pod in stage.active():
        await stage.finish(pod)
    return {"paused": paused, **await stage.finished("Complete")}


async def rolled(stage: Stage) -> JsonObject:
    template = {
        "metadata": {"labels": {"app": "web"}},
        "spec": {"containers": [{"name": "main", "image": "x:1"}], "terminationGracePeriodSeconds": 0},
    }
    rolling = {"rollingUpdate": {"maxSurge": 1, "maxUnavailable": 1}}
    spec = {"replicas": 4, "selector": {"matchLabels": {"app": "web"}}, "template": template, "strategy": rolling}
    meta: JsonObject = {"name": "web", "namespace": stage.namespace}
    labels = {"matchLabels": {"app": "web"}}
    await stage.cluster.create(
        PodDisruptionBudget, {"metadata": meta, "spec": {"maxUnavailable": 1, "selector": labels}}
    )
    await stage.cluster.create(
        ResourceQuota, {"metadata": meta, "spec": {"hard": {"pods": "9", "count/jobs.batch": "1"}}}
    )
    await stage.until(lambda: (q := stage.quotas.get("web", stage.namespace)) and q.status.get("hard"), "the quota")
    await stage.cluster.create(Deployment, {"metadata": meta, "spec": spec})
    most = [0]

    def deployment() -> Deployment:
        found = stage.deployments.get("web", stage.namespace)
        assert found is not None
        return found

    async def roll_out(image: str) -> JsonObject:
        seen: set[str] = set()

        def is_done() -> bool:
            own = deployment()
            most[0] = max(most[0], len(stage.active()))
            done = {c.type: c.reason for c in own.status.conditions}.get("Progressing") == "NewReplicaSetAvailable"
            fresh = own.status.observed_generation == own.metadata.generation and own.status.updated_replicas == 4
            return fresh and done and own.status.available_replicas == own.status.replicas == 4

        def waiting() -> list[Pod]:
            return [p for p in stage.active() if p.status.phase == "Pending" and p.uid not in seen]

        await stage.until(lambda: stage.deployments.get("web", stage.namespace) is not None, "it is there")
        while True:
            await stage.until(lambda: is_done() or waiting(), f"{image}: pods, or the end")
            if is_done():
                break
            for pod in waiting():
                seen.add(pod.uid)
                await stage.start(pod)
        status = deployment().status
        conditions = sorted((c.type, c.status, c.reason) for c in status.conditions)
        sets = sorted((s.annotations[REVISION], s.spec.replicas) for s in stage.sets.items())
        counts = (status.replicas, status.updated_replicas, status.ready_replicas, status.unavailable_replicas)
        return {
            "counts": counts,
            "sets": sets,
            "conditions": conditions,
            "revision": deployment().annotations[REVISION],
        }

    async def image(name: str) -> None:
        patch: JsonObject = {"spec": {"template": {"spec": {"containers": [{"name": "main", "image": name}]}}}}
        made = (await stage.cluster.patch(Deployment, "web", patch, stage.namespace)).metadata.generation
        await stage.until(lambda: deployment().metadata.generation >= made, "the new template is seen")

    told: JsonObject = {"first": await roll_out("x:1")}
    await stage.until(
        lambda: (b := stage.budgets.get("web", stage.namespace)) and b.status.disruptions_allowed == 1, "the budget"
    )
    await stage.until(
        lambda: (q := stage.quotas.get("web", stage.namespace)) and q.status["used"].get("pods") == "4", "pods used"
    )
    budget, quota = stage.budgets.get("web", stage.namespace), stage.quotas.get("web", stage.namespace)
    assert budget is not None
    assert quota is not None
    told["budget"] = (budget.status.current_healthy, budget.status.desired_healthy, budget.status.expected_pods)
    told["allowed"] = [(c.type, c.status, c.reason) for c in budget.status.conditions]
    told["quota"] = quota.status
    await image("x:2")
    told["second"] = await roll_out("x:2")
    await image("x:1")
    told["back"] = await roll_out("x:1")
    told["most"] = most[0]
    return told


STORIES = (indexed, plain, work_queue, gives_up, declared_code, failed_index, leader_succeeds, suspended, rolled)


async def play(cluster: Cluster, story: Story, namespace: str, *others: Awaitable[None]) -> JsonObject:
    await cluster.create(Namespace, {"metadata": {"name": namespace}})
    stage = Stage(cluster, namespace)
    tasks = [asyncio.ensure_future(work) for work in (*others, *(i.run() for i in stage.informers))]
    try:
        for informer in stage.informers:
            await informer.synced()
        return await story(stage)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def embedded(story: Story, namespace: str) -> JsonObject:
    numbers = itertools.count(1)
    store = ObjectStore(MemoryJournal())
    api = LocalCluster(store, clock=time.time, new_uid=lambda: f"uid-{next(numbers)}", admission=AdmissionChain)
    try:
        controllers = run_builtin_controllers(api, time.time, lambda: 0.5)
        return await play(api, story, namespace, controllers, GarbageCollector(api).run(time.time))
    finally:
        await store.close()


@pytest.fixture(scope="module")
def manager(control_plane: ControlPlane, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    """The control plane with a kube-controller-manager that runs the controllers we have, too."""
    place = tmp_path_factory.mktemp("manager")
    with running_controllers(control_plane, CONTROLLERS, place, "--resource-quota-sync-period=1s"):
        yield control_plane


@pytest.mark.parametrize("story", STORIES, ids=lambda story: story.__name__)
async def test_both_bring_the_story_to_the_same_end(manager: ControlPlane, story: Story) -> None:
    name = story.__name__.replace("_", "-")
    account = f"/api/v1/namespaces/{name}/serviceaccounts"

    async def with_account(stage: Stage) -> JsonObject:
        manager.request("POST", account, {"metadata": {"name": "default"}})
        return await story(stage)

    async with HttpCluster(access=access_of_context(merge_kubeconfigs([manager.kubeconfig]))) as real:
        theirs = await play(real, with_account, name)
    ours = await embedded(story, name)
    assert ours == theirs
