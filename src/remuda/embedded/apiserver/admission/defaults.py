"""What the server fills in when a client left it out: the values other clients rely on finding.

`with_kind_defaults(resource, body, old)` returns a new body and shares unchanged parts. Values of a wrong type are passed over;
the validators refuse them. Defaults depend on the body alone (addresses of Services, which need to know who has which, are
given out by `service_addresses`). The facts were read off a real kube-apiserver; tests/kube compares them again.
"""

from __future__ import annotations

import base64
from collections.abc import Callable
from typing import Any

from remuda.api.kubernetes.quantity import canonical_quantities
from remuda.api.meta import JsonObject, Resource
from remuda.embedded.apiserver.admission.pod_defaults import (
    pod_defaults,
    template_defaults,
    without_nulls_before_kind_defaults,
)

MAX_INT32 = 2**31 - 1
JOB_LABELS = ("batch.kubernetes.io/controller-uid", "controller-uid")
JOB_NAME_LABELS = ("batch.kubernetes.io/job-name", "job-name")

Default = Callable[[JsonObject, JsonObject | None], JsonObject]


def with_kind_defaults(resource: Resource, body: JsonObject, old: JsonObject | None) -> JsonObject:
    fill = _DEFAULTS.get((resource.group, resource.plural))
    return body if fill is None else fill(body, old)


def _with_default_spec(body: JsonObject, fill: Callable[[JsonObject], JsonObject]) -> JsonObject:
    spec = body.get("spec")
    return {**body, "spec": fill(spec)} if isinstance(spec, dict) else body


def _with_default_status(body: JsonObject, old: JsonObject | None, status: JsonObject) -> JsonObject:
    """The status a new object begins with."""
    return body if old is not None or body.get("status") else {**body, "status": status}


def _default_deployment(body: JsonObject, old: JsonObject | None) -> JsonObject:
    def fill(spec: JsonObject) -> JsonObject:
        strategy = spec.get("strategy")
        if strategy is None or isinstance(strategy, dict):
            strategy = {"type": "RollingUpdate", **(strategy or {})}
            if strategy["type"] == "RollingUpdate" and isinstance(strategy.get("rollingUpdate", {}), dict):
                rolling = {"maxUnavailable": "25%", "maxSurge": "25%", **(strategy.get("rollingUpdate") or {})}
                strategy = {**strategy, "rollingUpdate": rolling}
        defaults = {"replicas": 1, "revisionHistoryLimit": 10, "progressDeadlineSeconds": 600}
        return template_defaults({**defaults, **without_nulls_before_kind_defaults(spec), "strategy": strategy})

    return _with_default_status(_with_default_spec(body, fill), old, {})


def _default_replica_set(body: JsonObject, old: JsonObject | None) -> JsonObject:
    filled = _with_default_spec(
        body, lambda spec: template_defaults({"replicas": 1, **without_nulls_before_kind_defaults(spec)})
    )
    return _with_default_status(filled, old, {"replicas": 0})


def _default_job(body: JsonObject, old: JsonObject | None) -> JsonObject:
    def fill(spec: JsonObject) -> JsonObject:
        spec = without_nulls_before_kind_defaults(spec)
        if "completions" not in spec and "parallelism" not in spec:
            spec["completions"] = 1
        policy = spec.get("podFailurePolicy")
        defaults: JsonObject = {
            "parallelism": 1,
            "backoffLimit": MAX_INT32 if "backoffLimitPerIndex" in spec else 6,
            "completionMode": "NonIndexed",
            "suspend": False,
            "manualSelector": False,
            "podReplacementPolicy": "Failed" if policy is not None else "TerminatingOrFailed",
        }
        spec = {**defaults, **spec}
        if isinstance(policy, dict) and isinstance(policy.get("rules"), list):
            spec["podFailurePolicy"] = {**policy, "rules": [_default_failure_rule(rule) for rule in policy["rules"]]}
        return template_defaults(spec)

    filled = _with_default_spec(body, fill)
    return _with_default_status(_with_job_selector(filled) if old is None else filled, old, {})


def _default_failure_rule(rule: Any) -> Any:
    if not isinstance(rule, dict) or not isinstance(rule.get("onPodConditions"), list):
        return rule
    conditions = [{"status": "True", **c} if isinstance(c, dict) else c for c in rule["onPodConditions"]]
    return {**rule, "onPodConditions": conditions}


def _with_job_selector(body: JsonObject) -> JsonObject:
    """A Job's selector is made from its uid, so that no two Jobs can ever claim one pod."""
    spec, meta = body.get("spec"), body["metadata"]
    if not isinstance(spec, dict) or spec.get("manualSelector") is True:
        return body
    template = spec.get("template")
    labels = {**dict.fromkeys(JOB_LABELS, meta.get("uid", "")), **dict.fromkeys(JOB_NAME_LABELS, meta.get("name", ""))}
    if isinstance(template, dict) and isinstance(template.get("metadata", {}), dict):
        template_meta = template.get("metadata") or {}
        own = template_meta.get("labels") or {}
        if isinstance(own, dict):
            template = {**template, "metadata": {**template_meta, "labels": {**own, **labels}}}
    selector = spec.get("selector") or {"matchLabels": {JOB_LABELS[0]: meta.get("uid", "")}}
    # A Job that brings no labels gets those of its template.
    if not meta.get("labels") and isinstance(template, dict):
        body = {**body, "metadata": {**meta, "labels": dict((template.get("metadata") or {}).get("labels") or {})}}
    return {**body, "spec": {**spec, "selector": selector, "template": template}}


def without_selector_assigned_at_admission(resource: Resource, body: JsonObject) -> JsonObject:
    """A new Job without what the server makes for it out of its uid: that belongs to nobody."""
    if (resource.group, resource.plural) != ("batch", "jobs"):
        return body
    spec: JsonObject = body.get("spec") or {}
    if spec.get("manualSelector") is True:
        return body
    template: JsonObject = spec.get("template") or {}
    spec = {**spec, "template": {**template, "metadata": _without_job_labels(template.get("metadata") or {})}}
    spec.pop("selector", None)
    return {**body, "metadata": _without_job_labels(body["metadata"]), "spec": spec}


def _without_job_labels(meta: JsonObject) -> JsonObject:
    rest = {name: value for name, value in meta.items() if name != "labels"}
    labels = {k: v for k, v in (meta.get("labels") or {}).items() if k not in (*JOB_LABELS, *JOB_NAME_LABELS)}
    return {**rest, "labels": labels} if labels else rest


def _default_service(body: JsonObject, old: JsonObject | None) -> JsonObject:
    def port(value: Any) -> Any:
        if not isinstance(value, dict):
            return value
        value = {"protocol": "TCP", **without_nulls_before_kind_defaults(value)}
        if value.get("targetPort") in (None, 0, "") and "port" in value:
            value["targetPort"] = value["port"]
        return value

    def fill(spec: JsonObject) -> JsonObject:
        spec = {"sessionAffinity": "None", "type": "ClusterIP", **without_nulls_before_kind_defaults(spec)}
        if isinstance(spec.get("ports"), list):
            spec["ports"] = [port(value) for value in spec["ports"]]
        if spec["sessionAffinity"] == "ClientIP":
            spec.setdefault("sessionAffinityConfig", {"clientIP": {"timeoutSeconds": 10800}})
        if spec["type"] in ("NodePort", "LoadBalancer"):
            spec.setdefault("externalTrafficPolicy", "Cluster")
        if spec["type"] == "LoadBalancer":
            spec.setdefault("allocateLoadBalancerNodePorts", True)
        if spec["type"] != "ExternalName":
            spec.setdefault("internalTrafficPolicy", "Cluster")
        return spec

    return _with_default_status(_with_default_spec(body, fill), old, {"loadBalancer": {}})


def _default_secret(body: JsonObject, old: JsonObject | None) -> JsonObject:
    body = body if body.get("type") else {**body, "type": "Opaque"}
    given = body.get("stringData")
    if not isinstance(given, dict) or not all(isinstance(value, str) for value in given.values()):
        return body
    data = {key: base64.b64encode(value.encode()).decode() for key, value in given.items()}
    rest = {field: value for field, value in body.items() if field != "stringData"}
    return {**rest, "data": {**(body.get("data") or {}), **data}}


def _default_namespace(body: JsonObject, old: JsonObject | None) -> JsonObject:
    meta = body["metadata"]
    labels = meta.get("labels") or {}
    if isinstance(labels, dict) and labels.get("kubernetes.io/metadata.name") != meta.get("name"):
        labels = {**labels, "kubernetes.io/metadata.name": meta.get("name")}
        body = {**body, "metadata": {**meta, "labels": labels}}
    if old is not None:
        return body
    spec = body.get("spec") if isinstance(body.get("spec"), dict) else {}
    return {**body, "spec": {"finalizers": ["kubernetes"], **(spec or {})}, "status": {"phase": "Active"}}


def _default_claim(body: JsonObject, old: JsonObject | None) -> JsonObject:
    def fill(spec: JsonObject) -> JsonObject:
        return with_canonical_resources({"volumeMode": "Filesystem", **without_nulls_before_kind_defaults(spec)})

    return _with_default_status(_with_default_spec(body, fill), old, {"phase": "Pending"})


def _default_limit_range(body: JsonObject, old: JsonObject | None) -> JsonObject:
    def item(value: Any) -> Any:
        if not isinstance(value, dict):
            return value
        amounts = ("max", "min", "default", "defaultRequest", "maxLimitRequestRatio")
        value = {**value, **{name: canonical_quantities(value[name]) for name in amounts if name in value}}
        if value.get("type") != "Container":
            return value
        top, least = value.get("max") or {}, value.get("min") or {}
        limits = {**top, **(value.get("default") or {})}
        requests = {**least, **limits, **(value.get("defaultRequest") or {})}
        return {
            **value,
            **({"default": limits} if limits else {}),
            **({"defaultRequest": requests} if requests else {}),
        }

    def fill(spec: JsonObject) -> JsonObject:
        limits = spec.get("limits")
        return {**spec, "limits": [item(value) for value in limits]} if isinstance(limits, list) else spec

    return _with_default_spec(body, fill)


def _default_resource_quota(body: JsonObject, old: JsonObject | None) -> JsonObject:
    filled = _with_default_spec(
        body, lambda spec: {**spec, "hard": canonical_quantities(spec["hard"])} if "hard" in spec else spec
    )
    return _with_default_status(filled, old, {})


def _default_priority_class(body: JsonObject, old: JsonObject | None) -> JsonObject:
    return {"preemptionPolicy": "PreemptLowerPriority", **without_nulls_before_kind_defaults(body)}


def _default_disruption_budget(body: JsonObject, old: JsonObject | None) -> JsonObject:
    counts = dict.fromkeys(("disruptionsAllowed", "currentHealthy", "desiredHealthy", "expectedPods"), 0)
    return _with_default_status(body, old, counts)


def _default_autoscaler(body: JsonObject, old: JsonObject | None) -> JsonObject:
    cpu = {"name": "cpu", "target": {"type": "Utilization", "averageUtilization": 80}}

    def fill(spec: JsonObject) -> JsonObject:
        spec = {"minReplicas": 1, **without_nulls_before_kind_defaults(spec)}
        if not spec.get("metrics"):
            spec["metrics"] = [{"type": "Resource", "resource": cpu}]
        return spec

    return _with_default_status(_with_default_spec(body, fill), old, {"desiredReplicas": 0, "currentMetrics": None})


def _default_endpoint_slice(body: JsonObject, old: JsonObject | None) -> JsonObject:
    def each(field: str, defaults: JsonObject) -> list[Any]:
        return [
            {**defaults, **without_nulls_before_kind_defaults(i)} if isinstance(i, dict) else i for i in body[field]
        ]

    filled = dict(body)
    if isinstance(body.get("endpoints"), list):
        filled["endpoints"] = each("endpoints", {"conditions": {}})
    if isinstance(body.get("ports"), list):
        filled["ports"] = each("ports", {"name": "", "protocol": "TCP"})
    return filled


def with_canonical_resources(spec: JsonObject) -> JsonObject:
    """The quantities of `resources` in their canonical spelling."""
    resources = spec.get("resources")
    if not isinstance(resources, dict):
        return spec
    amounts = {name: canonical_quantities(resources[name]) for name in ("requests", "limits") if name in resources}
    return {**spec, "resources": {**resources, **amounts}}


_DEFAULTS: dict[tuple[str, str], Default] = {
    ("", "pods"): pod_defaults,
    ("apps", "deployments"): _default_deployment,
    ("apps", "replicasets"): _default_replica_set,
    ("batch", "jobs"): _default_job,
    ("", "services"): _default_service,
    ("", "secrets"): _default_secret,
    ("", "namespaces"): _default_namespace,
    ("", "persistentvolumeclaims"): _default_claim,
    ("", "limitranges"): _default_limit_range,
    ("", "resourcequotas"): _default_resource_quota,
    ("scheduling.k8s.io", "priorityclasses"): _default_priority_class,
    ("policy", "poddisruptionbudgets"): _default_disruption_budget,
    ("autoscaling", "horizontalpodautoscalers"): _default_autoscaler,
    ("discovery.k8s.io", "endpointslices"): _default_endpoint_slice,
}
