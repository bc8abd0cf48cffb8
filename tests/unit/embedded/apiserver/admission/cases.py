"""Writes, and what a real kube-apiserver answers to them.

`CASES` are the writes: an object to create and, for some, a merge patch that an update makes of it. The answers of the real
server are in answers.json (code, reason, the fields it complained about, or the object as it stored it); tests/kube asks it
again, the unit tests hold our admission against the same answers.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from remuda.api.codec import merge_patch
from remuda.api.meta import JsonObject, Resource

ANSWERS = Path(__file__).with_name("answers.json")
NAMESPACE = "cases"

RESOURCES = {
    r.plural: r
    for r in (
        Resource("", "v1", "Pod", "pods"),
        Resource("", "v1", "Service", "services"),
        Resource("", "v1", "ConfigMap", "configmaps"),
        Resource("", "v1", "Secret", "secrets"),
        Resource("", "v1", "PersistentVolumeClaim", "persistentvolumeclaims"),
        Resource("", "v1", "ResourceQuota", "resourcequotas"),
        Resource("", "v1", "LimitRange", "limitranges"),
        Resource("", "v1", "Namespace", "namespaces", namespaced=False),
        Resource("apps", "v1", "Deployment", "deployments"),
        Resource("apps", "v1", "ReplicaSet", "replicasets"),
        Resource("batch", "v1", "Job", "jobs"),
        Resource("policy", "v1", "PodDisruptionBudget", "poddisruptionbudgets"),
        Resource("autoscaling", "v2", "HorizontalPodAutoscaler", "horizontalpodautoscalers"),
        Resource("scheduling.k8s.io", "v1", "PriorityClass", "priorityclasses", namespaced=False),
        Resource("coordination.k8s.io", "v1", "Lease", "leases"),
        Resource("discovery.k8s.io", "v1", "EndpointSlice", "endpointslices"),
    )
}

CASES: dict[str, tuple[str, JsonObject, JsonObject | None]] = {}


def case(name: str, plural: str, body: JsonObject, update: JsonObject | None = None) -> None:
    assert name not in CASES, name
    meta = {"name": name, **body.get("metadata", {})}
    if RESOURCES[plural].namespaced:
        meta["namespace"] = NAMESPACE
    CASES[name] = (plural, {**body, "metadata": meta}, update)


def collection(resource: Resource) -> str:
    root = f"/apis/{resource.api_version}" if resource.group else "/api/v1"
    return f"{root}/namespaces/{NAMESPACE}/{resource.plural}" if resource.namespaced else f"{root}/{resource.plural}"


def updated(stored: JsonObject, update: JsonObject) -> JsonObject:
    body: JsonObject = merge_patch(stored, update)
    return body


def told(code: int, body: Any) -> JsonObject:
    """An answer without what differs from run to run."""
    if code >= 400:
        details = body.get("details") or {}
        causes = sorted({(c.get("field", ""), c.get("reason", "")) for c in details.get("causes") or ()})
        return {"code": code, "reason": body.get("reason"), "causes": [list(cause) for cause in causes]}
    uid = body["metadata"]["uid"]
    shown = json.loads(json.dumps(body).replace(uid, "UID"))
    spec = shown.get("spec") or {}
    for field in ("uid", "resourceVersion", "creationTimestamp", "managedFields", "generation", "finalizers"):
        shown["metadata"].pop(field, None)
    for field in ("clusterIP", "clusterIPs"):
        if spec.get(field) not in (None, "None", ["None"]):
            spec[field] = "given"
    for port in spec.get("ports") or ():
        if "nodePort" in port:
            port["nodePort"] = "given"
    # The service account's part of a pod, which the embedded server does not add.
    for field in ("serviceAccountName", "serviceAccount"):
        spec.pop(field, None)
    if "volumes" in spec:
        spec["volumes"] = [v for v in spec["volumes"] if not v["name"].startswith("kube-api-access")]
    for container in [*(spec.get("containers") or ()), *(spec.get("initContainers") or ())]:
        mounts = [m for m in container.pop("volumeMounts", ()) if not m["name"].startswith("kube-api-access")]
        container |= {"volumeMounts": mounts} if mounts else {}
    return {"code": 200, "body": _without_empty(shown)}


def _without_empty(value: Any) -> Any:
    if isinstance(value, dict):
        return {k: kept for k, v in value.items() if (kept := _without_empty(v)) not in ({}, [], None, "")}
    if isinstance(value, list):
        return [_without_empty(v) for v in value]
    return value


def container(**more: Any) -> JsonObject:
    return {"name": "a", "image": "x:1", **more}


def pod_spec(**more: Any) -> JsonObject:
    return {"containers": [container()], **more}


def pod(name: str, update: JsonObject | None = None, /, *, metadata: JsonObject | None = None, **spec: Any) -> None:
    case(name, "pods", {"metadata": metadata or {}, "spec": pod_spec(**spec)}, update)


def one(name: str, update: JsonObject | None = None, /, **more: Any) -> None:
    """A pod with one container like this."""
    pod(name, update, containers=[container(**more)])


# Pods.
pod("pod-plain")
pod("pod-no-spec", containers=[])
case("pod-spec-missing", "pods", {})
one("pod-no-image", image="")
one("pod-no-name", name="")
one("pod-bad-container-name", name="A_b")
pod("pod-two-same", containers=[container(), container()])
pod("pod-restart", restartPolicy="Sometimes")
pod("pod-dns", dnsPolicy="Nope")
one("pod-pull", imagePullPolicy="Now")
one("pod-latest", image="registry.test/x:latest")
one("pod-digest", image="registry.test:5000/x@sha256:" + "0" * 64)
one("pod-port", ports=[{"containerPort": 70000}])
one("pod-port-missing", ports=[{"name": "http"}])
one("pod-port-name", ports=[{"containerPort": 80, "name": "TOO-long-a-name-it-is"}])
one("pod-port-protocol", ports=[{"containerPort": 80, "protocol": "ICMP"}])
one("pod-port-twice", ports=[{"containerPort": 80, "name": "a"}, {"containerPort": 81, "name": "a"}])
one("pod-quantity", resources={"requests": {"cpu": "0.5", "memory": "1.5Gi"}, "limits": {"cpu": 1}})
FRACTIONS = {"memory": "0.1Gi", "cpu": "0.1", "ephemeral-storage": "1e3"}
one("pod-quantity-fraction", resources={"requests": FRACTIONS, "limits": {"memory": "1000", "cpu": "1000m"}})
one("pod-quantity-small", resources={"limits": {"memory": "512Ki", "cpu": "100u", "ephemeral-storage": "1023Mi"}})
one("pod-guaranteed", resources={"limits": {"cpu": 1, "memory": "1Gi"}})
one("pod-quantity-negative", resources={"requests": {"cpu": "-1"}})
one("pod-request-over-limit", resources={"requests": {"cpu": "2"}, "limits": {"cpu": "1"}})
one("pod-resource-name", resources={"requests": {"gpu": "1"}})
one("pod-extended-no-limit", resources={"requests": {"nvidia.com/gpu": "1"}})
one("pod-extended", resources={"limits": {"nvidia.com/gpu": 1}})
one("pod-extended-half", resources={"limits": {"nvidia.com/gpu": "500m"}})
one("pod-extended-differs", resources={"limits": {"nvidia.com/gpu": "2"}, "requests": {"nvidia.com/gpu": "1"}})
one(
    "pod-env",
    env=[{"name": "A", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}}, {"name": "B", "value": "b"}],
)
one("pod-env-name", env=[{"name": ""}])
one("pod-env-bad-name", env=[{"name": "a=b"}])
one("pod-env-both", env=[{"name": "A", "value": "x", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}}])
one("pod-env-empty-source", env=[{"name": "A", "valueFrom": {}}])
one("pod-mount-missing", volumeMounts=[{"name": "v", "mountPath": "/v"}])
one("pod-probe", livenessProbe={"httpGet": {"port": 80}}, readinessProbe={"exec": {"command": ["x"]}})
one("pod-probe-empty", livenessProbe={})
one("pod-probe-two", livenessProbe={"httpGet": {"port": 80}, "exec": {"command": ["x"]}})
one("pod-probe-threshold", livenessProbe={"httpGet": {"port": 80}, "successThreshold": 2})
one("pod-probe-port", livenessProbe={"tcpSocket": {"port": 0}})
pod(
    "pod-volumes",
    volumes=[{"name": "c", "configMap": {"name": "c"}}, {"name": "e"}, {"name": "h", "hostPath": {"path": "/x"}}],
)
pod("pod-volume-twice", volumes=[{"name": "e"}, {"name": "e"}])
pod("pod-volume-name", volumes=[{"name": "E!"}])
pod("pod-volume-two-types", volumes=[{"name": "e", "emptyDir": {}, "hostPath": {"path": "/x"}}])
pod("pod-volume-hostpath", volumes=[{"name": "e", "hostPath": {"path": ""}}])
pod("pod-deadline", activeDeadlineSeconds=0)
pod("pod-grace-negative", terminationGracePeriodSeconds=-5)
pod("pod-node-selector", nodeSelector={"bad key!": "x"})
pod("pod-hostname", hostname="Not_A_Name")
pod("pod-toleration", tolerations=[{"key": "a", "operator": "Exists", "value": "x"}])
pod("pod-toleration-operator", tolerations=[{"operator": "Equal", "value": "x"}])
pod("pod-toleration-effect", tolerations=[{"key": "a", "operator": "Exists", "effect": "Never"}])
pod(
    "pod-toleration-seconds",
    tolerations=[{"key": "a", "operator": "Exists", "effect": "NoSchedule", "tolerationSeconds": 3}],
)
pod(
    "pod-toleration-own",
    tolerations=[{"key": "node.kubernetes.io/not-ready", "operator": "Exists", "effect": "NoExecute"}],
)
pod("pod-toleration-all", tolerations=[{"operator": "Exists"}])
pod("pod-init", initContainers=[{"name": "i", "image": "y"}])
pod("pod-init-same-name", initContainers=[container()])
pod("pod-priority-class", priorityClassName="nowhere")
pod("pod-priority-given", priority=7)
pod("pod-critical", priorityClassName="system-node-critical")
pod("pod-label", metadata={"labels": {"bad key": "x"}})
pod("pod-label-value", metadata={"labels": {"a": "b c"}})
pod("pod-annotation", metadata={"annotations": {"bad key": "x"}})
pod("pod-owner", metadata={"ownerReferences": [{"kind": "Pod", "name": "x"}]})
pod(
    "pod-two-controllers",
    metadata={
        "ownerReferences": [
            {"apiVersion": "v1", "kind": "Pod", "name": "x", "uid": "1", "controller": True},
            {"apiVersion": "v1", "kind": "Pod", "name": "y", "uid": "2", "controller": True},
        ]
    },
)
pod("pod-finalizer", metadata={"finalizers": ["no domain!"]})
pod("pod-update-image", {"spec": {"containers": [{"name": "a", "image": "x:2"}]}}, automountServiceAccountToken=False)
pod("pod-update-label", {"metadata": {"labels": {"a": "b"}}})
pod("pod-update-bad-label", {"metadata": {"labels": {"a": "b c"}}})
pod("pod-update-command", {"spec": {"containers": [{"name": "a", "image": "x:1", "command": ["y"]}]}})
pod("pod-update-add", {"spec": {"containers": [container(), container(name="b")]}})
pod("pod-update-restart", {"spec": {"restartPolicy": "Never"}})
pod("pod-update-node", {"spec": {"nodeSelector": {"a": "b"}}})
pod("pod-update-deadline", {"spec": {"activeDeadlineSeconds": 5}})
pod("pod-update-deadline-more", {"spec": {"activeDeadlineSeconds": 50}}, activeDeadlineSeconds=5)
pod("pod-update-tolerations", {"spec": {"tolerations": [{"key": "b", "operator": "Exists"}]}})

# Workloads.
LABELS = {"matchLabels": {"a": "b"}}


def template(**spec: Any) -> JsonObject:
    return {"metadata": {"labels": {"a": "b"}}, "spec": pod_spec(**spec)}


def deployment(name: str, update: JsonObject | None = None, **spec: Any) -> None:
    case(name, "deployments", {"spec": {"selector": LABELS, "template": template(), **spec}}, update)


deployment("deployment-plain")
deployment("deployment-no-selector", selector=None)
deployment("deployment-empty-selector", selector={})
deployment("deployment-other-selector", selector={"matchLabels": {"a": "c"}})
deployment("deployment-expression", selector={"matchExpressions": [{"key": "a", "operator": "Nope"}]})
deployment("deployment-replicas", replicas=-1)
deployment("deployment-restart", template=template(restartPolicy="Never"))
deployment("deployment-strategy", strategy={"type": "Slowly"})
deployment("deployment-recreate", strategy={"type": "Recreate"})
deployment("deployment-recreate-rolling", strategy={"type": "Recreate", "rollingUpdate": {"maxSurge": 1}})
deployment("deployment-no-way", strategy={"rollingUpdate": {"maxSurge": 0, "maxUnavailable": 0}})
deployment("deployment-percent", strategy={"rollingUpdate": {"maxSurge": "10", "maxUnavailable": "150%"}})
deployment("deployment-deadline", progressDeadlineSeconds=5, minReadySeconds=10)
deployment("deployment-no-image", template=template(containers=[{"name": "a"}]))
deployment(
    "deployment-update-selector",
    {"spec": {"selector": {"matchLabels": {"c": "d"}}, "template": {"metadata": {"labels": {"c": "d"}}}}},
)
deployment("deployment-update-image", {"spec": {"template": {"spec": {"containers": [{"name": "a", "image": "x:2"}]}}}})
deployment("deployment-update-scale", {"spec": {"replicas": 5}})
case("replicaset-plain", "replicasets", {"spec": {"selector": LABELS, "template": template()}})
case("replicaset-other", "replicasets", {"spec": {"selector": {"matchLabels": {"x": "y"}}, "template": template()}})
case("replicaset-none", "replicasets", {"spec": {"template": template()}})


def job(name: str, update: JsonObject | None = None, **spec: Any) -> None:
    case(name, "jobs", {"spec": {"template": {"spec": pod_spec(restartPolicy="Never")}, **spec}}, update)


RULE = {"action": "FailJob", "onExitCodes": {"operator": "In", "values": [42]}}

job("job-plain")
job("job-indexed", completionMode="Indexed", completions=3, parallelism=2)
job("job-indexed-open", completionMode="Indexed")
job("job-parallel", parallelism=3)
job("job-mode", completionMode="Odd")
job("job-restart", template={"spec": pod_spec()})
job(
    "job-negative",
    parallelism=-1,
    completions=-1,
    backoffLimit=-1,
    activeDeadlineSeconds=-1,
    ttlSecondsAfterFinished=-1,
)
job("job-per-index", backoffLimitPerIndex=1)
job("job-per-index-ok", backoffLimitPerIndex=1, completionMode="Indexed", completions=2, maxFailedIndexes=1)
job("job-max-failed", maxFailedIndexes=1, completionMode="Indexed", completions=2)
job("job-max-failed-many", maxFailedIndexes=5, backoffLimitPerIndex=1, completionMode="Indexed", completions=2)
job(
    "job-policy",
    podFailurePolicy={"rules": [RULE, {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget"}]}]},
)
job("job-policy-action", podFailurePolicy={"rules": [{**RULE, "action": "Explode"}]})
job("job-policy-index", podFailurePolicy={"rules": [{**RULE, "action": "FailIndex"}]})
job("job-policy-none", podFailurePolicy={"rules": [{"action": "FailJob"}]})
job(
    "job-policy-zero",
    podFailurePolicy={"rules": [{"action": "FailJob", "onExitCodes": {"operator": "In", "values": [0]}}]},
)
job(
    "job-policy-empty",
    podFailurePolicy={"rules": [{"action": "FailJob", "onExitCodes": {"operator": "In", "values": []}}]},
)
job(
    "job-policy-order",
    podFailurePolicy={"rules": [{"action": "FailJob", "onExitCodes": {"operator": "In", "values": [3, 2]}}]},
)
job(
    "job-policy-container",
    podFailurePolicy={
        "rules": [{"action": "FailJob", "onExitCodes": {"operator": "In", "values": [3], "containerName": "z"}}]
    },
)
job("job-policy-restart", podFailurePolicy={"rules": [RULE]}, template={"spec": pod_spec(restartPolicy="OnFailure")})
job("job-policy-replacement", podFailurePolicy={"rules": [RULE]}, podReplacementPolicy="TerminatingOrFailed")
job("job-replacement", podReplacementPolicy="Whenever")
job("job-success", successPolicy={"rules": [{"succeededCount": 1}]})
job("job-success-ok", successPolicy={"rules": [{"succeededIndexes": "0"}]}, completionMode="Indexed", completions=2)
job("job-success-empty", successPolicy={"rules": []}, completionMode="Indexed", completions=2)
job("job-success-rule", successPolicy={"rules": [{}]}, completionMode="Indexed", completions=2)
job("job-success-count", successPolicy={"rules": [{"succeededCount": 9}]}, completionMode="Indexed", completions=2)
job("job-selector", selector={"matchLabels": {"a": "b"}})
job("job-update-template", {"spec": {"template": {"spec": {"containers": [container(image="x:2")]}}}})
job("job-update-completions", {"spec": {"completions": 5}})
job("job-update-parallelism", {"spec": {"parallelism": 5}})
job("job-update-suspend", {"spec": {"suspend": True}})
job("job-update-selector", {"spec": {"selector": {"matchLabels": {"a": "b"}}}})


def budget(name: str, **spec: Any) -> None:
    case(name, "poddisruptionbudgets", {"spec": {"selector": LABELS, **spec}})


budget("budget-plain", minAvailable=1)
budget("budget-both", minAvailable=1, maxUnavailable=1)
budget("budget-percent", maxUnavailable="101%")
budget("budget-word", maxUnavailable="many")
budget("budget-negative", minAvailable=-1)
budget("budget-policy", minAvailable=1, unhealthyPodEvictionPolicy="Nope")
TARGET = {"apiVersion": "apps/v1", "kind": "Deployment", "name": "d"}
case("hpa-plain", "horizontalpodautoscalers", {"spec": {"scaleTargetRef": TARGET, "maxReplicas": 3}})
case("hpa-max", "horizontalpodautoscalers", {"spec": {"scaleTargetRef": TARGET, "maxReplicas": 0}})
case("hpa-min", "horizontalpodautoscalers", {"spec": {"scaleTargetRef": TARGET, "maxReplicas": 1, "minReplicas": 4}})
case("hpa-target", "horizontalpodautoscalers", {"spec": {"scaleTargetRef": {}, "maxReplicas": 1}})


# Other objects.
def service(name: str, update: JsonObject | None = None, **spec: Any) -> None:
    case(name, "services", {"spec": {"selector": {"a": "b"}, "ports": [{"port": 80}], **spec}}, update)


service("service-plain")
service("service-headless", clusterIP="None")
service("service-headless-portless", clusterIP="None", ports=None)
service("service-node-port", type="NodePort")
service("service-balancer", type="LoadBalancer")
service("service-affinity", sessionAffinity="ClientIP")
service("service-no-ports", ports=[])
service("service-type", type="Odd")
service("service-external", type="ExternalName", externalName="x.y", ports=None)
service("service-external-empty", type="ExternalName", ports=None)
service("service-port", ports=[{"port": 0}])
service("service-port-protocol", ports=[{"port": 80, "protocol": "HTTP"}])
service("service-port-names", ports=[{"port": 80}, {"port": 81}])
service("service-port-same", ports=[{"port": 80, "name": "a"}, {"port": 81, "name": "a"}])
service("service-port-twice", ports=[{"port": 80, "name": "a"}, {"port": 80, "name": "b"}])
service("service-target", ports=[{"port": 80, "targetPort": 99999}])
service("service-affinity-bad", sessionAffinity="Maybe")
service("service-cluster-ip", clusterIP="not-an-ip")
service("service-selector", selector={"bad key": "x"})
service("service-node-port-cluster-ip", ports=[{"port": 80, "nodePort": 30123}])
# An address the server never draws for itself: it keeps the first sixteen for those who ask.
service("service-update-ip", {"spec": {"clusterIP": "10.0.0.5", "clusterIPs": ["10.0.0.5"]}})
service("service-update-port", {"spec": {"ports": [{"port": 90, "targetPort": 90}]}})
case("configmap-plain", "configmaps", {"data": {"a": "b"}})
case("configmap-key", "configmaps", {"data": {"a b": "b"}})
case("configmap-both", "configmaps", {"data": {"a": "b"}, "binaryData": {"a": "Yg=="}})
case("configmap-immutable", "configmaps", {"data": {"a": "b"}, "immutable": True}, {"data": {"a": "c"}})
case("configmap-mutable-again", "configmaps", {"data": {"a": "b"}, "immutable": True}, {"immutable": False})
case("configmap-big", "configmaps", {"data": {"a": "b" * (1024 * 1024 + 1)}})
case("secret-plain", "secrets", {"stringData": {"a": "b"}})
case("secret-key", "secrets", {"data": {"a b": "Yg=="}})
case("secret-tls", "secrets", {"type": "kubernetes.io/tls", "data": {"tls.crt": "Yg=="}})
case("secret-base64", "secrets", {"data": {"a": "%%%"}})
case("secret-type", "secrets", {"data": {"a": "Yg=="}}, {"type": "other"})
case("secret-immutable", "secrets", {"data": {"a": "Yg=="}, "immutable": True}, {"data": {"a": "YQ=="}})
STORAGE = {"requests": {"storage": "1Gi"}}
case("claim-plain", "persistentvolumeclaims", {"spec": {"accessModes": ["ReadWriteOnce"], "resources": STORAGE}})
case("claim-mode", "persistentvolumeclaims", {"spec": {"accessModes": ["Write"], "resources": STORAGE}})
case("claim-empty", "persistentvolumeclaims", {"spec": {}})
case(
    "claim-zero",
    "persistentvolumeclaims",
    {"spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "0"}}}},
)
case(
    "quota-plain",
    "resourcequotas",
    {"spec": {"hard": {"count/widgets.example.com": "1000", "requests.nvidia.com/gpu": "1000"}}},
)
case("quota-name", "resourcequotas", {"spec": {"hard": {"gpus": "1"}}})
case("quota-negative", "resourcequotas", {"spec": {"hard": {"secrets": "-1"}}})
case("limits-type", "limitranges", {"spec": {"limits": [{"type": "Planet", "max": {"cpu": "1"}}]}})
case(
    "limits-order",
    "limitranges",
    {"spec": {"limits": [{"type": "PersistentVolumeClaim", "max": {"storage": "1"}, "min": {"storage": "2"}}]}},
)
case("limits-pod-default", "limitranges", {"spec": {"limits": [{"type": "Pod", "default": {"cpu": "1"}}]}})
case("namespace-plain", "namespaces", {})
case("namespace-label", "namespaces", {"metadata": {"labels": {"a": "b c"}}})
case("class-plain", "priorityclasses", {"value": 10})
case("class-high", "priorityclasses", {"value": 2_000_000_000})
case("class-policy", "priorityclasses", {"value": 10, "preemptionPolicy": "Perhaps"})
case("class-update", "priorityclasses", {"value": 10}, {"value": 11})
case("system-own-class", "priorityclasses", {"value": 10})
case("lease-plain", "leases", {"spec": {"holderIdentity": "x", "leaseDurationSeconds": 10}})
case("lease-zero", "leases", {"spec": {"leaseDurationSeconds": 0}})
case(
    "slice-plain",
    "endpointslices",
    {"addressType": "IPv4", "endpoints": [{"addresses": ["10.0.0.1"]}], "ports": [{"port": 80}]},
)
case("slice-type", "endpointslices", {"addressType": "Pigeon", "endpoints": []})
case("slice-empty", "endpointslices", {"addressType": "IPv4", "endpoints": [{"addresses": []}]})
# Values of a wrong type.
case("typed-containers", "pods", {"spec": {"containers": "none"}})
case("typed-name", "pods", {"spec": {"containers": [{"name": 5, "image": "x"}]}})
case("typed-replicas", "deployments", {"spec": {"replicas": "three", "selector": LABELS, "template": template()}})
case("typed-labels", "configmaps", {"metadata": {"labels": {"a": 5}}})
case("typed-data", "configmaps", {"data": {"a": 5}})
