"""Small valid objects of every kind, as a user would write them."""

from __future__ import annotations

from typing import Any

Json = dict[str, Any]


def meta(name: str, **more: Any) -> Json:
    return {"name": name, **more}


def pod(name: str = "one", **spec: Any) -> Json:
    """Without the token volume that kube-apiserver adds for a service account: one case looks at that alone."""
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": meta(name, labels={"app": name}),
        "spec": {
            "automountServiceAccountToken": False,
            "containers": [{"name": "main", "image": "none:1", "command": ["sleep", "1"]}],
            **spec,
        },
    }


def template() -> Json:
    made = pod()
    return {"metadata": {"labels": {"app": "one"}}, "spec": made["spec"]}


def config(name: str = "one", **data: str) -> Json:
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": meta(name), "data": data or {"a": "1", "b": "2"}}


def deployment(name: str = "one", replicas: int = 2) -> Json:
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": meta(name, labels={"app": "one"}),
        "spec": {"replicas": replicas, "selector": {"matchLabels": {"app": "one"}}, "template": template()},
    }


def training(name: str = "one", replicas: int = 2) -> Json:
    return {
        "apiVersion": "remuda.dev/v1alpha1",
        "kind": "TrainingJob",
        "metadata": meta(name),
        "spec": {
            "roles": [
                {
                    "name": "worker",
                    "replicas": replicas,
                    "gpus": 1,
                    "template": {"spec": {"containers": [{"name": "main", "command": ["python", "train.py"]}]}},
                }
            ]
        },
    }


def event(name: str = "one", about: str = "one", ns: str = "default") -> Json:
    return {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": meta(name),
        "involvedObject": {"kind": "Pod", "name": about, "namespace": ns, "apiVersion": "v1"},
        "reason": "Tested",
        "message": "a test",
        "type": "Normal",
        "firstTimestamp": "2026-01-01T00:00:00Z",
        "lastTimestamp": "2026-01-01T00:00:00Z",
        "count": 1,
        "source": {"component": "suite"},
    }


def definition(plural: str, kind: str, schema: Json | None = None, **version: Any) -> Json:
    """`plural`.suite.example, with a schema that has something of everything."""
    spec: Json = {
        "type": "object",
        "properties": {
            "size": {"type": "integer", "minimum": 1, "maximum": 9},
            "colour": {"type": "string", "enum": ["red", "green"], "default": "red"},
            "name": {"type": "string", "pattern": "^[a-z]+$", "maxLength": 8},
            "parts": {"type": "array", "items": {"type": "string"}, "maxItems": 3},
            "free": {"type": "object", "x-kubernetes-preserve-unknown-fields": True},
            "port": {"x-kubernetes-int-or-string": True},
            "replicas": {"type": "integer"},
        },
        "required": ["size"],
    }
    root = schema or {
        "type": "object",
        "properties": {
            "spec": spec,
            "status": {"type": "object", "properties": {"phase": {"type": "string"}, "replicas": {"type": "integer"}}},
        },
    }
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": meta(f"{plural}.suite.example"),
        "spec": {
            "group": "suite.example",
            "scope": "Namespaced",
            "names": {"plural": plural, "singular": kind.lower(), "kind": kind, "listKind": f"{kind}List"},
            "versions": [
                {
                    "name": "v1",
                    "served": True,
                    "storage": True,
                    "schema": {"openAPIV3Schema": root},
                    "subresources": {
                        "status": {},
                        "scale": {"specReplicasPath": ".spec.replicas", "statusReplicasPath": ".status.replicas"},
                    },
                    "additionalPrinterColumns": [
                        {"name": "Size", "type": "integer", "jsonPath": ".spec.size"},
                        {"name": "Colour", "type": "string", "jsonPath": ".spec.colour"},
                        {"name": "Age", "type": "date", "jsonPath": ".metadata.creationTimestamp"},
                    ],
                    **version,
                }
            ],
        },
    }


def custom(kind: str, name: str = "one", /, **spec: Any) -> Json:
    return {"apiVersion": "suite.example/v1", "kind": kind, "metadata": meta(name), "spec": spec or {"size": 1}}


# Kind -> (group of the official package, the name it gives the kind, namespaced, body)
KINDS: dict[str, tuple[str, str, bool, Json]] = {
    "ConfigMap": ("CoreV1Api", "config_map", True, config()),
    "Secret": (
        "CoreV1Api",
        "secret",
        True,
        {"kind": "Secret", "metadata": meta("one"), "stringData": {"word": "hush"}, "type": "Opaque"},
    ),
    "ServiceAccount": ("CoreV1Api", "service_account", True, {"kind": "ServiceAccount", "metadata": meta("one")}),
    "Service": (
        "CoreV1Api",
        "service",
        True,
        {
            "kind": "Service",
            "metadata": meta("one"),
            "spec": {"selector": {"app": "one"}, "ports": [{"port": 80, "targetPort": 8080}]},
        },
    ),
    "HeadlessService": (
        "CoreV1Api",
        "service",
        True,
        {
            "kind": "Service",
            "metadata": meta("none"),
            "spec": {"clusterIP": "None", "ports": [{"port": 80, "name": "w"}]},
        },
    ),
    "Event": ("CoreV1Api", "event", True, {}),
    "PersistentVolumeClaim": (
        "CoreV1Api",
        "persistent_volume_claim",
        True,
        {
            "kind": "PersistentVolumeClaim",
            "metadata": meta("one"),
            "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}},
        },
    ),
    "ResourceQuota": (
        "CoreV1Api",
        "resource_quota",
        True,
        {"kind": "ResourceQuota", "metadata": meta("one"), "spec": {"hard": {"pods": "4", "requests.cpu": "2"}}},
    ),
    "LimitRange": (
        "CoreV1Api",
        "limit_range",
        True,
        {
            "kind": "LimitRange",
            "metadata": meta("one"),
            "spec": {"limits": [{"type": "Container", "default": {"cpu": "500m"}, "defaultRequest": {"cpu": "100m"}}]},
        },
    ),
    "Pod": ("CoreV1Api", "pod", True, pod()),
    "Node": (
        "CoreV1Api",
        "node",
        False,
        {"kind": "Node", "metadata": meta("py-node"), "spec": {"taints": [{"key": "a", "effect": "NoSchedule"}]}},
    ),
    "Namespace": ("CoreV1Api", "namespace", False, {"kind": "Namespace", "metadata": meta("py-other")}),
    "Deployment": ("AppsV1Api", "deployment", True, deployment()),
    "ReplicaSet": (
        "AppsV1Api",
        "replica_set",
        True,
        {
            "kind": "ReplicaSet",
            "metadata": meta("one"),
            "spec": {"replicas": 1, "selector": {"matchLabels": {"app": "one"}}, "template": template()},
        },
    ),
    "Job": (
        "BatchV1Api",
        "job",
        True,
        {
            "kind": "Job",
            "metadata": meta("one"),
            "spec": {
                "completions": 2,
                "parallelism": 1,
                "completionMode": "Indexed",
                "backoffLimit": 3,
                "template": {**template(), "spec": {**template()["spec"], "restartPolicy": "Never"}},
            },
        },
    ),
    "Lease": (
        "CoordinationV1Api",
        "lease",
        True,
        {
            "kind": "Lease",
            "metadata": meta("one"),
            "spec": {"holderIdentity": "me", "leaseDurationSeconds": 15, "renewTime": "2026-01-01T00:00:00.123456Z"},
        },
    ),
    "PriorityClass": (
        "SchedulingV1Api",
        "priority_class",
        False,
        {"kind": "PriorityClass", "metadata": meta("py-high"), "value": 1000, "description": "high"},
    ),
    "PodDisruptionBudget": (
        "PolicyV1Api",
        "pod_disruption_budget",
        True,
        {
            "kind": "PodDisruptionBudget",
            "metadata": meta("one"),
            "spec": {"minAvailable": 1, "selector": {"matchLabels": {"app": "one"}}},
        },
    ),
    "HorizontalPodAutoscaler": (
        "AutoscalingV2Api",
        "horizontal_pod_autoscaler",
        True,
        {
            "kind": "HorizontalPodAutoscaler",
            "metadata": meta("one"),
            "spec": {
                "scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": "one"},
                "minReplicas": 1,
                "maxReplicas": 3,
            },
        },
    ),
    "EndpointSlice": (
        "DiscoveryV1Api",
        "endpoint_slice",
        True,
        {
            "kind": "EndpointSlice",
            "metadata": meta("one", labels={"kubernetes.io/service-name": "one"}),
            "addressType": "IPv4",
            "endpoints": [{"addresses": ["192.0.2.1"], "conditions": {"ready": True}}],
            "ports": [{"name": "web", "port": 80, "protocol": "TCP"}],
        },
    ),
}
