"""The client libraries people write their programs with read everything a cluster at work holds.

Their models refuse an object that lacks what Kubernetes calls required, so every served kind is listed with both of them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any

import kubernetes
import lightkube
import pytest
import yaml
from lightkube.config.kubeconfig import KubeConfig
from lightkube.core.resource_registry import resource_registry
from lightkube.generic_resource import create_global_resource, create_namespaced_resource
from lightkube.resources import core_v1

from remuda.api.kubernetes.core_v1 import Pod
from remuda.api.kubernetes.event_v1 import Event
from remuda.api.kubernetes.policy_v1 import PodDisruptionBudget
from remuda.api.meta import Resource
from remuda.embedded.apiserver.kinds_served import BUILTIN, KindRegistry
from tests.builders.waiting import until
from tests.e2e.clusters import Up
from tests.e2e.rig import NAMESPACE, RANKS

STOP_AT = 3
PACKAGE: Any = kubernetes  # parts of it have no types
# An event written in the older form has no `eventTime` in the newer API, on Kubernetes neither, though its models require it:
# there as here such events are read as core/v1.
UNREADABLE = "events.k8s.io"
LISTED = [s.resource for s in KindRegistry() if "list" in s.resource.verbs and s.resource.group != UNREADABLE]
# What the cluster below surely has; the other kinds are listed as well, empty or not.
HELD = set(
    "Pod Node Namespace Event Lease Deployment ReplicaSet Job PodDisruptionBudget Service EndpointSlice ResourceQuota "
    "HorizontalPodAutoscaler CustomResourceDefinition PriorityClass TrainingJob NodeDevices".split()
)
OBJECTS = """
{kind: Pod, apiVersion: v1, metadata: {name: done},
 spec: {restartPolicy: Never, containers: [{name: main, image: none, command: ["true"]}]}}
---
{kind: Pod, apiVersion: v1, metadata: {name: looping}, spec: {containers: [{name: main, image: none, command: ["false"]}]}}
---
{kind: Pod, apiVersion: v1, metadata: {name: nowhere},
 spec: {nodeSelector: {rack: none}, containers: [{name: main, image: none}]}}
---
{kind: Deployment, apiVersion: apps/v1, metadata: {name: web},
 spec: {replicas: 2, selector: {matchLabels: {app: web}},
        template: {metadata: {labels: {app: web}}, spec: {containers: [{name: main, image: none}]}}}}
---
{kind: PodDisruptionBudget, apiVersion: policy/v1, metadata: {name: web},
 spec: {minAvailable: 1, selector: {matchLabels: {app: web}}}}
---
{kind: PodDisruptionBudget, apiVersion: policy/v1, metadata: {name: nobody},
 spec: {minAvailable: 1, selector: {matchLabels: {app: nobody}}}}
---
{kind: Service, apiVersion: v1, metadata: {name: web}, spec: {selector: {app: web}, ports: [{port: 80}]}}
---
{kind: HorizontalPodAutoscaler, apiVersion: autoscaling/v2, metadata: {name: web},
 spec: {maxReplicas: 3, scaleTargetRef: {apiVersion: apps/v1, kind: Deployment, name: web}}}
---
{kind: ResourceQuota, apiVersion: v1, metadata: {name: web}, spec: {hard: {pods: "99"}}}
---
{kind: CustomResourceDefinition, apiVersion: apiextensions.k8s.io/v1, metadata: {name: things.example.com},
 spec: {group: example.com, scope: Namespaced, names: {plural: things, kind: Thing},
        versions: [{name: v1, served: true, storage: true, schema: {openAPIV3Schema: {type: object}}}]}}
---
{kind: PriorityClass, apiVersion: scheduling.k8s.io/v1, metadata: {name: web}, value: 7}
---
{kind: Job, apiVersion: batch/v1, metadata: {name: once},
 spec: {template: {spec: {restartPolicy: Never, containers: [{name: main, image: none, command: ["true"]}]}}}}
"""


@pytest.fixture
def official(up: Up) -> Iterator[Any]:
    settings = PACKAGE.client.Configuration()
    settings.no_proxy = "*"
    PACKAGE.config.load_kube_config(str(up.state / "kubeconfig"), client_configuration=settings)
    client = PACKAGE.client.ApiClient(settings)
    yield client
    client.rest_client.pool_manager.clear()
    client.close()


@pytest.fixture
def light(up: Up) -> Iterator[Any]:
    config = KubeConfig.from_file(str(up.state / "kubeconfig"))
    client: Any = lightkube.Client(config=config, trust_env=False, lazy=False)  # decode all of it at once
    yield client
    client.close()


async def test_every_kind_of_a_cluster_at_work_is_read(up: Up, official: Any, light: Any) -> None:
    async with up.rig() as rig:
        rig.let_run_to(STOP_AT)
        await rig.submit(rig.job(gpus=1))
        for body in yaml.safe_load_all(OBJECTS):
            PACKAGE.utils.create_from_dict(official, body)
        await rig.trained_to(STOP_AT)

        async def at_work() -> bool:
            pods = {pod.name: pod.status for pod in (await rig.api.list(Pod, NAMESPACE)).items}
            budgets = (await rig.api.list(PodDisruptionBudget, NAMESPACE)).items
            looping = pods["looping"].container_statuses
            return (
                pods["done"].phase == "Succeeded"
                and bool(looping)
                and looping[0].restart_count > 0
                and sum(status.phase == "Running" for name, status in pods.items() if name.startswith("web-")) == 2
                and all(budget.status.conditions for budget in budgets)
                and bool((await rig.api.list(Event, NAMESPACE)).items)  # written beside the work, some time later
            )

        await until("the cluster to be at work", at_work)

    _read_all(lambda kind: _official(official, kind))
    _read_all(lambda kind: _light(light, kind))

    pods = {pod.metadata.name: pod.status for pod in light.list(core_v1.Pod, namespace=NAMESPACE)}
    (done,) = pods["done"].containerStatuses
    assert (done.ready, done.restartCount, done.image, done.imageID) == (False, 0, "none", "")
    assert re.fullmatch(r"remuda://[0-9a-f-]{36}/main/0", done.containerID)
    trained = [status for name, status in pods.items() if name.startswith("job-worker-")]
    assert len(trained) == RANKS
    assert all([address.ip for address in status.podIPs] == [status.podIP] for status in trained)


def _read_all(read: Callable[[Resource], list[Any]]) -> None:
    found, wrong = set(), {}
    for kind in LISTED:
        try:
            found |= {kind.kind} if read(kind) else set()
        except Exception as error:  # each library has errors of its own; all of them are shown together
            wrong[kind.api_version, kind.kind] = f"{type(error).__name__}: {error}"
    assert wrong == {}
    assert found >= HELD, f"none of these was listed: {HELD - found}"


def _official(client: Any, kind: Resource) -> list[Any]:
    if kind not in BUILTIN:
        custom = PACKAGE.client.CustomObjectsApi(client)
        found: list[Any] = custom.list_cluster_custom_object(kind.group, kind.version, kind.plural)["items"]
        return found
    group = kind.group.removesuffix(".k8s.io") or "core"
    api = getattr(PACKAGE.client, f"{group.capitalize()}{kind.version.capitalize()}Api")(client)
    name = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", kind.kind).lower()
    found = getattr(api, f"list_{name}" + ("_for_all_namespaces" if kind.namespaced else ""))().items
    return found


def _light(client: Any, kind: Resource) -> list[Any]:
    if kind in BUILTIN:
        model: Any = resource_registry.load(kind.api_version, kind.kind)
    else:
        make = create_namespaced_resource if kind.namespaced else create_global_resource
        model = make(kind.group, kind.version, kind.kind, kind.plural)
    return list(client.list(model, namespace="*") if kind.namespaced else client.list(model))
