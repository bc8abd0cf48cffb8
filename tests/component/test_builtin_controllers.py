"""The small controllers on a whole embedded cluster with simulated nodes, in virtual time."""

from __future__ import annotations

from typing import Any

from remuda.api.conditions import find_condition, is_condition_true
from remuda.api.errors import NotFound
from remuda.api.kubernetes.apps_v1 import REVISION, Deployment, ReplicaSet
from remuda.api.kubernetes.batch_v1 import COMPLETION_INDEX, TRACKING, Job
from remuda.api.kubernetes.core_v1 import Namespace, Node, Pod
from remuda.api.kubernetes.policy_v1 import EndpointSlice, PodDisruptionBudget, ResourceQuota, Service
from remuda.api.meta import JsonObject, KObject
from remuda.api.names import RESOURCE_GPU
from remuda.api.selectors import EVERYTHING
from remuda.embedded.builtin.planners.node_lifecycle import UNREACHABLE
from remuda.embedded.builtin.planners.pod_state import is_active_pod, is_ready_pod
from remuda.embedded.node.runtime_port import ContainerKey
from remuda.embedded.node.training_model import SimulatedBehaviour
from remuda.kube.cluster import NO_FIELDS
from tests.builders.foreign import read, tell
from tests.builders.world import NAMESPACE, World


def pods(world: World, **labels: str) -> list[Pod]:
    found = [r.decode(Pod) for r in world.cluster.api.select(Pod, NAMESPACE, EVERYTHING, NO_FIELDS)]
    return [p for p in found if labels.items() <= p.labels.items()]


def is_gone(world: World, kind: type[KObject], name: str) -> bool:
    try:
        read(world, kind, name)
    except NotFound:
        return True
    return False


def template(image: str = "x:1", restart: str = "Always", **labels: str) -> JsonObject:
    return {
        "metadata": {"labels": labels},
        "spec": {"containers": [{"name": "main", "image": image}], "restartPolicy": restart},
    }


async def deploy(world: World, replicas: int = 4, **spec: Any) -> None:
    body = {
        "metadata": {"name": "web", "namespace": NAMESPACE},
        "spec": {
            "replicas": replicas,
            "selector": {"matchLabels": {"app": "web"}},
            "template": template(app="web"),
            **spec,
        },
    }
    await world.cluster.api.create(Deployment, body)


def is_rolled_out(world: World, image: str, replicas: int = 4) -> bool:
    own = read(world, Deployment, "web")
    status = own.status
    live = [p for p in pods(world, app="web") if is_active_pod(p)]
    return (
        status.observed_generation == own.metadata.generation
        and (status.replicas, status.updated_replicas, status.available_replicas) == (replicas,) * 3
        and len(live) == replicas
        and all(p.spec.containers[0].image == image for p in live)
    )


async def set_image(world: World, image: str) -> None:
    patch: JsonObject = {"spec": {"template": {"spec": {"containers": [{"name": "main", "image": image}]}}}}
    await world.cluster.api.patch(Deployment, "web", patch, NAMESPACE)


def test_a_deployment_rolls_within_its_bounds_and_back() -> None:
    async def story(world: World) -> None:
        bounds = {"maxSurge": 1, "maxUnavailable": 1}
        await deploy(world, strategy={"rollingUpdate": bounds})
        await world.until(lambda: is_rolled_out(world, "x:1"), what="the first roll-out")
        counts: list[tuple[int, int]] = []

        def look() -> bool:
            mine = pods(world, app="web")
            counts.append(
                (
                    len([p for p in mine if is_active_pod(p)]),
                    len([p for p in mine if is_ready_pod(p) and is_active_pod(p)]),
                )
            )
            return is_rolled_out(world, "x:2")

        await set_image(world, "x:2")
        await world.until(look, what="the second roll-out")
        assert max(total for total, _ in counts) <= 5
        assert min(ready for _, ready in counts) >= 3

        own = read(world, Deployment, "web")
        assert own.annotations[REVISION] == "2"
        assert is_condition_true(own.status.conditions, "Available")
        progressing = find_condition(own.status.conditions, "Progressing")
        assert progressing is not None
        assert progressing.reason == "NewReplicaSetAvailable"

        await set_image(world, "x:1")
        await world.until(lambda: is_rolled_out(world, "x:1"), what="the roll-back")
        sets = [r.decode(ReplicaSet) for r in world.cluster.api.select(ReplicaSet, NAMESPACE, EVERYTHING, NO_FIELDS)]
        assert sorted((s.spec.replicas, s.annotations[REVISION]) for s in sets) == [(0, "2"), (4, "3")]

    tell(story)


def test_a_deployment_is_scaled_and_heals() -> None:
    async def story(world: World) -> None:
        await deploy(world, 2)
        await world.until(lambda: is_rolled_out(world, "x:1", 2))
        await world.cluster.api.patch(Deployment, "web", {"spec": {"replicas": 5}}, NAMESPACE)
        await world.until(lambda: is_rolled_out(world, "x:1", 5))
        victim = pods(world, app="web")[0]
        await world.cluster.api.delete(Pod, victim.name, NAMESPACE)
        await world.until(lambda: is_gone(world, Pod, victim.name) and is_rolled_out(world, "x:1", 5))
        await world.cluster.api.patch(Deployment, "web", {"spec": {"replicas": 0}}, NAMESPACE)
        await world.until(lambda: not pods(world, app="web"))

    tell(story)


def test_a_deployment_says_that_its_pods_are_refused() -> None:
    async def story(world: World) -> None:
        api = world.cluster.api
        meta: JsonObject = {"namespace": NAMESPACE, "name": "few"}
        await api.create(ResourceQuota, {"metadata": meta, "spec": {"hard": {"pods": "1"}}})
        await deploy(world, 2)

        def refusal() -> str:
            found = find_condition(read(world, Deployment, "web").status.conditions, "ReplicaFailure")
            return found.message if found is not None else ""

        await world.until(lambda: "exceeded quota: few" in refusal())
        await api.patch(ResourceQuota, "few", {"spec": {"hard": {"pods": "5"}}}, NAMESPACE)
        await world.until(lambda: is_rolled_out(world, "x:1", 2) and not refusal())

    tell(story)


def test_a_recreated_deployment_never_runs_two_templates_at_once() -> None:
    async def story(world: World) -> None:
        await deploy(world, 3, strategy={"type": "Recreate"})
        await world.until(lambda: is_rolled_out(world, "x:1", 3))

        def look() -> bool:
            images = {p.spec.containers[0].image for p in pods(world, app="web") if not p.is_terminal}
            assert len(images) <= 1
            return is_rolled_out(world, "x:2", 3)

        await set_image(world, "x:2")
        await world.until(look)

    tell(story)


async def run_job(world: World, **spec: Any) -> None:
    body = {
        "metadata": {"name": "job", "namespace": NAMESPACE},
        "spec": {"template": template(restart="Never"), **spec},
    }
    await world.cluster.api.create(Job, body)


def job_pods(world: World) -> list[Pod]:
    return pods(world, **{"job-name": "job"})


def has(world: World, condition: str) -> bool:
    return is_condition_true(read(world, Job, "job").status.conditions, condition)


def kill(world: World, pod: Pod) -> None:
    """Its container ends with code 137."""
    for name, node in world.cluster.machines.nodes.items():
        if name == pod.spec.node_name:
            node.runtime.kill(ContainerKey(pod.uid, "main"))


def test_an_indexed_job_completes() -> None:
    async def story(world: World) -> None:
        await run_job(world, completionMode="Indexed", completions=5, parallelism=2)
        most = 0

        def look() -> bool:
            nonlocal most
            most = max(most, len([p for p in job_pods(world) if is_active_pod(p)]))
            return has(world, "Complete")

        await world.until(look)
        status = read(world, Job, "job").status
        assert (status.succeeded, status.failed, status.active, status.completed_indexes) == (5, 0, 0, "0-4")
        assert status.completion_time is not None
        assert most == 2
        found = job_pods(world)
        assert sorted(p.annotations[COMPLETION_INDEX] for p in found) == ["0", "1", "2", "3", "4"]
        assert all(TRACKING not in p.metadata.finalizers for p in found)
        env = {p.annotations[COMPLETION_INDEX]: {e.name: e.value for e in p.spec.containers[0].env} for p in found}
        assert all(values["JOB_COMPLETION_INDEX"] == index for index, values in env.items())

    tell(story, behaviour=SimulatedBehaviour(run_s=3.0))


def test_a_job_of_plain_pods_completes_and_expires() -> None:
    async def story(world: World) -> None:
        await run_job(world, completions=3, parallelism=3, ttlSecondsAfterFinished=20)
        await world.until(lambda: has(world, "Complete"))
        assert read(world, Job, "job").status.succeeded == 3
        await world.until(lambda: is_gone(world, Job, "job"), 30.0)

    tell(story, behaviour=SimulatedBehaviour(run_s=3.0))


def test_a_declared_exit_code_fails_the_job_at_once() -> None:
    async def story(world: World) -> None:
        rule = {"action": "FailJob", "onExitCodes": {"operator": "In", "values": [137]}}
        await run_job(world, completions=3, parallelism=3, podFailurePolicy={"rules": [rule]})
        await world.until(lambda: sum(map(is_ready_pod, job_pods(world))) == 3)
        kill(world, job_pods(world)[0])
        await world.until(lambda: has(world, "Failed"))
        failed = find_condition(read(world, Job, "job").status.conditions, "Failed")
        assert failed is not None
        assert failed.reason == "PodFailurePolicy"
        assert "exit code 137 matching FailJob rule at index 0" in failed.message
        assert has(world, "FailureTarget")
        assert not [p for p in job_pods(world) if is_active_pod(p)]

    tell(story)


def test_a_failing_job_backs_off_and_gives_up() -> None:
    async def story(world: World) -> None:
        await run_job(world, backoffLimit=2)
        for failures, wait in ((1, 10.0), (2, 20.0)):
            await world.until(lambda: any(map(is_ready_pod, job_pods(world))), 60.0)
            at = world.now
            kill(world, next(p for p in job_pods(world) if is_active_pod(p)))
            await world.until(lambda n=failures: len(job_pods(world)) == n + 1, 60.0)  # type: ignore[misc]
            assert wait - 1.5 <= world.now - at <= wait + 1.5
        await world.until(lambda: any(map(is_ready_pod, job_pods(world))))
        kill(world, next(p for p in job_pods(world) if is_active_pod(p)))
        await world.until(lambda: has(world, "Failed"))
        status = read(world, Job, "job").status
        assert status.failed == 3
        assert find_condition(status.conditions, "Failed").reason == "BackoffLimitExceeded"  # type: ignore[union-attr]

    tell(story)


def test_a_suspended_job_gives_its_pods_back_and_counts_nothing() -> None:
    async def story(world: World) -> None:
        await run_job(world, completions=2, parallelism=2)
        await world.until(lambda: sum(map(is_ready_pod, job_pods(world))) == 2)
        await world.cluster.api.patch(Job, "job", {"spec": {"suspend": True}}, NAMESPACE)
        await world.until(lambda: not job_pods(world) and has(world, "Suspended"))
        await world.cluster.api.patch(Job, "job", {"spec": {"suspend": False}}, NAMESPACE)
        await world.until(lambda: sum(map(is_ready_pod, job_pods(world))) == 2)
        assert read(world, Job, "job").status.failed == 0
        assert not has(world, "Suspended")

    tell(story)


def test_a_deleted_job_takes_its_pods_along() -> None:
    async def story(world: World) -> None:
        await run_job(world, completions=2, parallelism=2)
        await world.until(lambda: sum(map(is_ready_pod, job_pods(world))) == 2)
        await world.cluster.api.delete(Job, "job", NAMESPACE)
        await world.until(lambda: is_gone(world, Job, "job") and not job_pods(world))

    tell(story)


def test_a_lost_node_is_tainted_and_its_pods_move_after_their_toleration() -> None:
    async def story(world: World) -> None:
        seconds = 40
        tolerations = [
            {"key": key, "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": seconds}
            for key in (UNREACHABLE, "node.kubernetes.io/not-ready")
        ]
        spec = template(app="web")
        spec["spec"]["tolerations"] = tolerations
        await deploy(world, 1, template=spec)
        await world.until(lambda: is_rolled_out(world, "x:1", 1))
        (pod,) = pods(world, app="web")
        await world.lose_node(pod.spec.node_name)

        def is_tainted() -> bool:
            return any(t.key == UNREACHABLE for t in read(world, Node, pod.spec.node_name).spec.taints)

        await world.until(is_tainted)
        tainted_at = world.now
        ready = find_condition(read(world, Node, pod.spec.node_name).status.conditions, "Ready")
        assert ready is not None
        assert ready.status == "Unknown"
        await world.until(lambda: read(world, Pod, pod.name).is_deleting, 60.0)
        assert seconds - 2 <= world.now - tainted_at <= seconds + 2
        await world.until(lambda: any(is_ready_pod(p) for p in pods(world, app="web") if is_active_pod(p)))
        replacement = next(p for p in pods(world, app="web") if is_active_pod(p))
        assert replacement.spec.node_name != pod.spec.node_name

    tell(story)


def test_budgets_quotas_and_endpoints_follow_the_pods() -> None:
    async def story(world: World) -> None:
        api = world.cluster.api
        meta: JsonObject = {"namespace": NAMESPACE, "name": "web"}
        budget: JsonObject = {"minAvailable": 2, "selector": {"matchLabels": {"app": "web"}}}
        await api.create(PodDisruptionBudget, {"metadata": meta, "spec": budget})
        await api.create(ResourceQuota, {"metadata": meta, "spec": {"hard": {"pods": "10", "count/jobs.batch": "3"}}})
        service: JsonObject = {"selector": {"app": "web"}, "ports": [{"port": 80}]}
        await api.create(Service, {"metadata": meta, "spec": service})
        await deploy(world, 3)
        await world.until(lambda: read(world, PodDisruptionBudget, "web").status.disruptions_allowed == 1)
        await world.until(lambda: read(world, ResourceQuota, "web").status.get("used", {}).get("pods") == "3")
        assert read(world, ResourceQuota, "web").status["used"]["count/jobs.batch"] == "0"

        def addresses() -> list[str]:
            found = [r.decode(EndpointSlice) for r in api.select(EndpointSlice, NAMESPACE, EVERYTHING, NO_FIELDS)]
            return [a for s in found for e in s.endpoints if e["conditions"]["ready"] for a in e["addresses"]]

        await world.until(lambda: sorted(addresses()) == sorted(p.status.pod_ip for p in pods(world, app="web")))
        assert len(addresses()) == 3

    tell(story)


def test_a_deleted_namespace_is_emptied_first() -> None:
    async def story(world: World) -> None:
        api = world.cluster.api
        await api.create(Namespace, {"metadata": {"name": "team"}})
        meta: JsonObject = {"namespace": "team", "name": "web"}
        spec: JsonObject = {"replicas": 2, "selector": {"matchLabels": {"app": "web"}}, "template": template(app="web")}
        await api.create(Deployment, {"metadata": meta, "spec": spec})

        def there() -> list[Pod]:
            return [r.decode(Pod) for r in api.select(Pod, "team", EVERYTHING, NO_FIELDS)]

        await world.until(lambda: sum(map(is_ready_pod, there())) == 2)
        await api.delete(Namespace, "team")
        await world.until(lambda: is_gone(world, Namespace, "team"))
        assert not there()
        assert not api.select(Deployment, "team", EVERYTHING, NO_FIELDS)

    tell(story)


# --- one object, and everybody else -----------------------------------------------------------------------------------


def test_a_job_of_a_million_pods_does_not_keep_anybody_else_waiting() -> None:
    async def story(world: World) -> None:
        api = world.cluster.api
        hungry = template(restart="Never", app="crowd")
        hungry["spec"]["containers"][0]["resources"] = {"limits": {RESOURCE_GPU: "8"}}
        spec = {"parallelism": 1_000_000, "completions": 1_000_000, "template": hungry}
        await api.create(Namespace, {"metadata": {"name": "crowd"}})
        await api.create(Job, {"metadata": {"name": "crowd", "namespace": "crowd"}, "spec": spec})
        await deploy(world, replicas=4)
        await world.until(lambda: is_rolled_out(world, "x:1"), what="another tenant's roll-out")
        await world.sleep(20.0)
        crowd = [r.decode(Pod) for r in api.select(Pod, "crowd", EVERYTHING, NO_FIELDS)]
        assert 900 <= sum(not p.spec.node_name for p in crowd) <= 1000
        assert len(crowd) <= 1000 + world.config.nodes

    tell(story)
