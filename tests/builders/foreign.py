"""Workloads that are not ours, in a `World`: Deployments, Jobs and bare pods that ask for GPUs."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from remuda.api.conditions import find_condition
from remuda.api.drills import DrillKind
from remuda.api.kubernetes.apps_v1 import Deployment
from remuda.api.kubernetes.batch_v1 import Job
from remuda.api.kubernetes.core_v1 import Node, Pod
from remuda.api.meta import Condition, JsonObject, KObject
from remuda.api.names import RESOURCE_GPU
from remuda.core.foreign.refused_pods import is_pod_refused_by_node
from remuda.embedded.apiserver.admission import AdmissionChain
from remuda.embedded.apiserver.decisions import NewestStoredObjects
from remuda.embedded.builtin.planners.pod_state import is_active_pod
from remuda.embedded.node.training_model import SimulatedBehaviour
from tests.builders.world import NAMESPACE, World, play

K = TypeVar("K", bound=KObject)
FOREVER = SimulatedBehaviour()


def tell(
    story: Callable[[World], Coroutine[Any, Any, None]],
    *,
    behaviour: SimulatedBehaviour = FOREVER,
    nodes: int = 4,
    hook_kinds: tuple[str, ...] = (),
) -> None:
    """Runs the story in a world whose API has admission, as that of `remuda up` has."""

    async def main(world: World) -> None:
        world.cluster.api._admission = AdmissionChain(NewestStoredObjects(world.cluster.store))
        await story(world)

    play(main, nodes=nodes, racks=2, behaviour=behaviour, hook_kinds=hook_kinds)


def template(
    gpus: int = 1, restart: str = "Always", annotations: dict[str, str] | None = None, **labels: str
) -> JsonObject:
    container = {"name": "main", "image": "x:1", "resources": {"limits": {RESOURCE_GPU: gpus}}}
    return {
        "metadata": {"labels": labels, "annotations": annotations or {}},
        "spec": {"containers": [container], "restartPolicy": restart},
    }


async def deploy(
    world: World, name: str = "web", replicas: int = 1, *, namespace: str = NAMESPACE, **options: Any
) -> None:
    spec: JsonObject = {
        "replicas": replicas,
        "selector": {"matchLabels": {"app": name}},
        "template": template(app=name, **options),
    }
    await world.cluster.api.create(Deployment, {"metadata": {"name": name, "namespace": namespace}, "spec": spec})


async def submit_job(
    world: World, name: str = "batch", *, restart: str = "Never", namespace: str = NAMESPACE, **spec: Any
) -> None:
    """`gpus` and `annotations` go to the template, the rest to the Job's spec."""
    options = {key: spec.pop(key) for key in ("gpus", "annotations") if key in spec}
    body: JsonObject = {"template": template(restart=restart, app=name, **options), **spec}
    await world.cluster.api.create(Job, {"metadata": {"name": name, "namespace": namespace}, "spec": body})


async def bare(world: World, name: str = "solo", *, namespace: str = NAMESPACE, **options: Any) -> None:
    body = template(app=name, **options)
    meta = {**body["metadata"], "name": name, "namespace": namespace}
    await world.cluster.api.create(Pod, {"metadata": meta, "spec": body["spec"]})


def read(world: World, kind: type[K], name: str) -> K:
    api = world.cluster.api
    return api.read(api.registry.of(kind), name, NAMESPACE if kind.resource.namespaced else "").decode(kind)


def pods_of(world: World, app: str) -> list[Pod]:
    return [p for p in world.all_pods() if p.labels.get("app") == app]


def running(world: World, app: str) -> list[Pod]:
    return [p for p in pods_of(world, app) if is_active_pod(p) and p.status.phase == "Running"]


async def one_running(world: World, app: str, within: float = 60.0) -> Pod:
    await world.until(lambda: len(running(world, app)) == 1, within, f"one pod of {app} runs")
    return running(world, app)[0]


def condition(pod: Pod | None, type_: str) -> Condition | None:
    return find_condition(pod.status.conditions, type_) if pod is not None else None


def seen_with(world: World, uid: str, type_: str) -> list[JsonObject]:
    """Every version of the pod that was committed with that condition True. `journal` keeps none, so it is asked as it goes."""
    found: list[JsonObject] = []
    inner = world.journal._see

    def look(event: object) -> None:
        body = event.record.body if hasattr(event, "record") else {}
        if body.get("metadata", {}).get("uid") == uid:
            conditions = body.get("status", {}).get("conditions", ())
            if any(c["type"] == type_ and c["status"] == "True" for c in conditions):
                found.append(body)
        inner(event)  # type: ignore[arg-type]

    world.journal._see = look
    return found


# -- nodes that refuse ------------------------------------------------------------------------------------------------


def refused(world: World) -> list[Pod]:
    """Pods that their node did not admit."""
    return [p for p in world.all_pods() if is_pod_refused_by_node(p)]


async def break_plugin(world: World, node: str, **options: Any) -> None:
    """Its plugin refuses every Allocate."""
    await world.drill(DrillKind.ALLOCATE_FAIL, node=node, resource=RESOURCE_GPU, **options)


async def only(world: World, *nodes: str) -> None:
    """Cordons the others."""
    for node in world.rack_of:
        if node not in nodes:
            await world.cluster.api.patch(Node, node, {"spec": {"unschedulable": True}})


async def reopen(world: World) -> None:
    for node in world.rack_of:
        await world.cluster.api.patch(Node, node, {"spec": {"unschedulable": None}})
