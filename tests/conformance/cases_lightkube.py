"""Cases of lightkube: another reading of the same API, with models of its own."""

from __future__ import annotations

from typing import Any

import httpx2
import lightkube
from lightkube import operators
from lightkube.core.exceptions import ApiError
from lightkube.generic_resource import create_namespaced_resource
from lightkube.models.autoscaling_v1 import ScaleSpec
from lightkube.models.meta_v1 import ObjectMeta
from lightkube.resources import (
    apps_v1,
    autoscaling_v2,
    batch_v1,
    coordination_v1,
    core_v1,
    discovery_v1,
    policy_v1,
    scheduling_v1,
)
from lightkube.types import CascadeType, OnErrorAction, OnErrorResult, PatchType

from tests.conformance.bodies import KINDS, config, deployment, event, pod, training
from tests.conformance.catalogue import case
from tests.conformance.run import Run
from tests.conformance.transcript import normal

MODELS: dict[str, Any] = {
    "ConfigMap": core_v1.ConfigMap,
    "Secret": core_v1.Secret,
    "ServiceAccount": core_v1.ServiceAccount,
    "Service": core_v1.Service,
    "Event": core_v1.Event,
    "PersistentVolumeClaim": core_v1.PersistentVolumeClaim,
    "ResourceQuota": core_v1.ResourceQuota,
    "LimitRange": core_v1.LimitRange,
    "Pod": core_v1.Pod,
    "Node": core_v1.Node,
    "Namespace": core_v1.Namespace,
    "Deployment": apps_v1.Deployment,
    "ReplicaSet": apps_v1.ReplicaSet,
    "Job": batch_v1.Job,
    "Lease": coordination_v1.Lease,
    "PriorityClass": scheduling_v1.PriorityClass,
    "PodDisruptionBudget": policy_v1.PodDisruptionBudget,
    "HorizontalPodAutoscaler": autoscaling_v2.HorizontalPodAutoscaler,
    "EndpointSlice": discovery_v1.EndpointSlice,
}
TrainingJob = create_namespaced_resource("remuda.dev", "v1alpha1", "TrainingJob", "trainingjobs")


def _crud(kind: str, model: Any) -> Any:
    _, _, namespaced, body = KINDS[kind]

    def play(run: Run) -> None:
        wanted = dict(body or event(ns=run.ns))
        wanted["metadata"] = {**wanted["metadata"], "labels": {"by": "lightkube"}}
        if not namespaced:
            wanted["metadata"]["name"] = f"lk-{kind.lower()}"
        name = wanted["metadata"]["name"]
        run.lk(run.light.create, model.from_dict(wanted))
        found = run.lk(run.light.get, model, name)
        run.lk(list, run.light.list(model, labels={"by": "lightkube"}))
        run.lk(run.light.patch, model, name, {"metadata": {"annotations": {"a": "b"}}})
        if found is not None:
            run.lk(run.light.replace, found)  # stale by now
        run.lk(run.light.delete, model, name)
        run.lk(run.light.delete, model, name)

    return play


for _kind, _model in MODELS.items():
    case("lk", f"crud-{_kind.lower()}")(_crud(_kind, _model))


def _config(name: str = "one", **data: str) -> Any:
    return core_v1.ConfigMap.from_dict(config(name, **data))


@case("lk", "crud-trainingjob")
def trainingjob(run: Run) -> None:
    run.lk(
        run.light.create,
        TrainingJob(**{k: v for k, v in training().items() if k == "spec"}, metadata=ObjectMeta(name="one")),
    )
    run.lk(run.light.get, TrainingJob, "one")
    run.lk(list, run.light.list(TrainingJob))
    run.lk(run.light.patch, TrainingJob, "one", {"spec": {"spares": 1}}, patch_type=PatchType.MERGE)
    run.lk(run.light.delete, TrainingJob, "one")


@case("lk", "pages")
def pages(run: Run) -> None:
    for number in range(5):
        run.light.create(_config(f"c-{number}"))
    names = [each.metadata.name for each in run.light.list(core_v1.ConfigMap, chunk_size=2)]
    run.note("names", names)


@case("lk", "label-selectors")
def selectors(run: Run) -> None:
    for name, app in (("a", "x"), ("b", "y"), ("c", "z")):
        body = config(name)
        body["metadata"]["labels"] = {"app": app, f"is-{app}": "yes"}
        run.light.create(core_v1.ConfigMap.from_dict(body))
    for labels in (
        {"app": "x"},
        {"app": ("x", "y")},
        {"app": operators.not_in(["x"])},
        {"is-x": operators.exists()},
        {"is-x": operators.not_exists()},
        {"app": operators.not_equal("x")},
    ):
        run.lk(list, run.light.list(core_v1.ConfigMap, labels=labels))


@case("lk", "field-selectors")
def fields(run: Run) -> None:
    for name in ("a", "b"):
        run.light.create(core_v1.Pod.from_dict(pod(name)))
    run.lk(list, run.light.list(core_v1.Pod, fields={"metadata.name": "a"}))
    run.lk(list, run.light.list(core_v1.Pod, fields={"status.phase": operators.not_equal("Running")}))
    run.lk(list, run.light.list(core_v1.Pod, fields={"spec.nosuch": "a"}))


def _watch(run: Run, step: str, **options: Any) -> None:
    seen = []
    try:
        for type_, found in run.light.watch(core_v1.ConfigMap, server_timeout=1, on_error=_stop, **options):
            seen.append([type_, found.to_dict()])
            if len(seen) == 3:
                break
    except ApiError as refusal:
        seen.append(["refused", str(refusal.status.reason)])
    except httpx2.HTTPStatusError as refusal:
        seen.append(["refused", refusal.response.status_code])
    run.note(step, normal(seen))


def _stop(*_: Any) -> OnErrorResult:
    return OnErrorResult(OnErrorAction.RAISE)


@case("lk", "watch")
def watch(run: Run) -> None:
    made = run.light.create(_config())
    run.light.patch(core_v1.ConfigMap, "one", {"data": {"a": "2"}})
    run.light.patch(core_v1.ConfigMap, "one", {"data": {"a": "3"}})
    run.light.delete(core_v1.ConfigMap, "one")
    _watch(run, "since the creation", resource_version=made.metadata.resourceVersion)


@case("lk", "watch-refused")
def watch_refused(run: Run) -> None:
    _watch(run, "no such version", resource_version="abc")


@case("lk", "wait-for-a-condition")
def wait(run: Run) -> None:
    run.light.create(apps_v1.Deployment.from_dict(deployment()))
    status = {"status": {"conditions": [{"type": "Available", "status": "True"}]}}
    run.light.patch(apps_v1.Deployment.Status, "one", status)
    found = run.lk(run.light.wait, apps_v1.Deployment, "one", for_conditions=["Available"])
    run.note("found", found is not None)


@case("lk", "patch-types")
def patches(run: Run) -> None:
    run.light.create(apps_v1.Deployment.from_dict(deployment()))
    side = {"spec": {"template": {"spec": {"containers": [{"name": "side", "image": "s"}]}}}}
    run.lk(run.light.patch, apps_v1.Deployment, "one", side, patch_type=PatchType.STRATEGIC)
    run.lk(run.light.patch, apps_v1.Deployment, "one", {"spec": {"replicas": 7}}, patch_type=PatchType.MERGE)
    steps = [{"op": "replace", "path": "/spec/replicas", "value": 8}]
    run.lk(run.light.patch, apps_v1.Deployment, "one", steps, patch_type=PatchType.JSON)
    run.lk(run.light.patch, apps_v1.Deployment, "one", side, patch_type=PatchType.MERGE)


@case("lk", "apply")
def apply(run: Run) -> None:
    run.lk(run.light.apply, _config())
    run.lk(run.light.apply, _config(a="2"), field_manager="other")
    run.lk(run.light.apply, _config(a="2"), field_manager="other", force=True)
    run.lk(run.light.apply, _config(b="5"))


@case("lk", "apply-a-deployment")
def apply_deployment(run: Run) -> None:
    body = apps_v1.Deployment.from_dict(deployment())
    run.lk(run.light.apply, body)
    run.lk(run.light.patch, apps_v1.Deployment, "one", {"spec": {"replicas": 5}})
    run.lk(run.light.apply, body)
    run.lk(run.light.apply, body, force=True)


@case("lk", "scale")
def scale(run: Run) -> None:
    run.light.create(apps_v1.Deployment.from_dict(deployment()))
    run.lk(run.light.get, apps_v1.Deployment.Scale, "one")
    found = apps_v1.Deployment.Scale(metadata=ObjectMeta(name="one", namespace=run.ns), spec=ScaleSpec(replicas=4))
    run.lk(run.light.replace, found, "one")
    run.lk(run.light.patch, apps_v1.Deployment.Scale, "one", {"spec": {"replicas": 6}})


@case("lk", "status")
def status(run: Run) -> None:
    run.light.create(core_v1.Pod.from_dict(pod()))
    run.lk(run.light.patch, core_v1.Pod.Status, "one", {"status": {"phase": "Running", "podIP": "192.0.2.7"}})
    found = run.lk(run.light.get, core_v1.Pod.Status, "one")
    if found is not None:
        found.status.phase = "Succeeded"
        run.lk(run.light.replace, found)


@case("lk", "cascades")
def cascades(run: Run) -> None:
    for how in (CascadeType.FOREGROUND, CascadeType.ORPHAN, CascadeType.BACKGROUND):
        name = how.value.lower()
        run.light.create(apps_v1.Deployment.from_dict(deployment(name)))
        run.lk(run.light.delete, apps_v1.Deployment, name, cascade=how)
        run.lk(run.light.get, apps_v1.Deployment, name)


@case("lk", "grace")
def grace(run: Run) -> None:
    run.light.create(core_v1.Pod.from_dict(pod(nodeName="ghost")))
    run.lk(run.light.delete, core_v1.Pod, "one", grace_period=7)
    run.lk(run.light.get, core_v1.Pod, "one")
    run.lk(run.light.delete, core_v1.Pod, "one", grace_period=0)
    run.lk(run.light.get, core_v1.Pod, "one")


@case("lk", "delete-collection")
def collection(run: Run) -> None:
    for number in range(3):
        run.light.create(_config(f"c-{number}"))
    run.lk(run.light.deletecollection, core_v1.ConfigMap)
    run.lk(list, run.light.list(core_v1.ConfigMap))


@case("lk", "dry-run")
def dry_run(run: Run) -> None:
    run.lk(run.light.create, _config(), dry_run=True)
    run.lk(run.light.get, core_v1.ConfigMap, "one")


@case("lk", "conflict")
def conflict(run: Run) -> None:
    made = run.light.create(_config())
    run.light.patch(core_v1.ConfigMap, "one", {"data": {"a": "2"}})
    run.lk(run.light.replace, made)
    run.lk(run.light.create, _config())


@case("lk", "all-namespaces")
def everywhere(run: Run) -> None:
    body = config()
    body["metadata"]["labels"] = {"only": "in-lk-all-namespaces"}
    run.light.create(core_v1.ConfigMap.from_dict(body))
    run.lk(list, run.light.list(core_v1.ConfigMap, namespace=lightkube.ALL_NS, labels={"only": "in-lk-all-namespaces"}))


@case("lk", "bad-bodies")
def bad(run: Run) -> None:
    run.lk(run.light.create, core_v1.ConfigMap(metadata=ObjectMeta(name="Upper")))
    run.lk(run.light.create, core_v1.ConfigMap(metadata=ObjectMeta()))
    run.lk(run.light.create, core_v1.ConfigMap(metadata=ObjectMeta(name="one"), data={"a b": "c"}))
    run.lk(run.light.create, core_v1.Pod.from_dict(pod(containers=[])))
    run.lk(run.light.get, core_v1.Pod, "nosuch")
    run.lk(
        run.light.create,
        core_v1.ConfigMap(metadata=ObjectMeta(name="one", namespace="nowhere-at-all")),
        namespace="nowhere-at-all",
    )
