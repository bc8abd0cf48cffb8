"""Defaults of pods and pod templates."""

from __future__ import annotations

from typing import Any

from remuda.api.kubernetes.quantity import canonical_quantities
from remuda.api.meta import JsonObject
from remuda.embedded.builtin.planners.pod_resources import qos_class

_POD_SPEC: JsonObject = {
    "restartPolicy": "Always",
    "terminationGracePeriodSeconds": 30,
    "dnsPolicy": "ClusterFirst",
    "securityContext": {},
    "schedulerName": "default-scheduler",
}
_CONTAINER: JsonObject = {
    "resources": {},
    "terminationMessagePath": "/dev/termination-log",
    "terminationMessagePolicy": "File",
}
_GATED: JsonObject = {
    "type": "PodScheduled",
    "status": "False",
    "reason": "SchedulingGated",
    "message": "Scheduling is blocked due to non-empty scheduling gates",
}
_PROBE: JsonObject = {"timeoutSeconds": 1, "periodSeconds": 10, "successThreshold": 1, "failureThreshold": 3}
_PROBES = ("livenessProbe", "readinessProbe", "startupProbe")
_MODE_420 = ("configMap", "secret", "downwardAPI", "projected")


def pod_defaults(body: JsonObject, old: JsonObject | None) -> JsonObject:
    spec = body.get("spec") or {}
    if not isinstance(spec, dict):
        return body
    spec = _default_pod_spec(spec, is_pod=True)
    spec.setdefault("enableServiceLinks", True)
    body = {**body, "spec": spec}
    if old is None:
        body["status"] = _with_gated_condition(
            spec, {"phase": "Pending", "qosClass": qos_class(spec), **(body.get("status") or {})}
        )
    return body


def _with_gated_condition(spec: JsonObject, status: JsonObject) -> JsonObject:
    """A pod with gates is known to wait from its first moment."""
    conditions = status.get("conditions") or []
    if not spec.get("schedulingGates") or not isinstance(conditions, list):
        return status
    if any(isinstance(c, dict) and c.get("type") == "PodScheduled" for c in conditions):
        return status
    return {**status, "conditions": [*conditions, dict(_GATED)]}


def with_pod_ip_defaults(body: JsonObject) -> JsonObject:
    """`status.podIP` is the first of `status.podIPs`. Where they differ, or one is missing, the single one counts."""
    status = body.get("status")
    if not isinstance(status, dict):
        return body
    several = status.get("podIPs") or ()
    first = several[0].get("ip") if several and isinstance(several[0], dict) else None
    one = status.get("podIP") or first
    if not one:
        return body
    return {**body, "status": {**status, "podIP": one, "podIPs": several if one == first else [{"ip": one}]}}


def template_defaults(spec: JsonObject) -> JsonObject:
    """Of a workload's spec, the pod template in it."""
    template = spec.get("template")
    if not isinstance(template, dict) or not isinstance(template.get("spec"), dict):
        return spec
    return {**spec, "template": {**template, "spec": _default_pod_spec(template["spec"], is_pod=False)}}


def _default_pod_spec(spec: JsonObject, *, is_pod: bool) -> JsonObject:
    filled = {**_POD_SPEC, **without_nulls_before_kind_defaults(spec)}
    grace = filled["terminationGracePeriodSeconds"]
    if isinstance(grace, int) and grace < 0:
        filled["terminationGracePeriodSeconds"] = 1
    if filled.get("serviceAccountName") or filled.get("serviceAccount"):
        name = filled.get("serviceAccountName") or filled.get("serviceAccount")
        filled["serviceAccountName"] = filled["serviceAccount"] = name
    for field in ("containers", "initContainers"):
        if isinstance(filled.get(field), list):
            filled[field] = [_default_container(c, filled, is_pod=is_pod) for c in filled[field]]
    if isinstance(filled.get("volumes"), list):
        filled["volumes"] = [_default_volume(v) for v in filled["volumes"]]
    return filled


def _default_container(container: Any, spec: JsonObject, *, is_pod: bool) -> Any:
    if not isinstance(container, dict):
        return container
    filled = {**_CONTAINER, **without_nulls_before_kind_defaults(container)}
    if "imagePullPolicy" not in filled:
        filled["imagePullPolicy"] = "Always" if _is_latest_image(str(filled.get("image") or "")) else "IfNotPresent"
    if isinstance(filled["resources"], dict):
        filled["resources"] = _default_resources(filled["resources"], is_pod=is_pod)
    if isinstance(filled.get("ports"), list):
        filled["ports"] = [_default_container_port(p, spec) for p in filled["ports"]]
    if isinstance(filled.get("env"), list):
        filled["env"] = [_default_env_variable(e) for e in filled["env"]]
    for name in _PROBES:
        if isinstance(filled.get(name), dict):
            filled[name] = _default_probe(filled[name])
    return filled


def _default_resources(resources: JsonObject, *, is_pod: bool) -> JsonObject:
    filled = dict(resources)
    for name in ("limits", "requests"):
        if name in resources:
            filled[name] = canonical_quantities(resources[name])
    limits, requests = filled.get("limits"), filled.get("requests") or {}
    # A limit without a request is a request, too; in a template it becomes one with the pod.
    if is_pod and isinstance(limits, dict) and limits and isinstance(requests, dict):
        filled["requests"] = {**limits, **requests}
    return filled


def _default_container_port(port: Any, spec: JsonObject) -> Any:
    if not isinstance(port, dict):
        return port
    filled = {"protocol": "TCP", **without_nulls_before_kind_defaults(port)}
    if spec.get("hostNetwork") is True and not filled.get("hostPort") and "containerPort" in filled:
        filled["hostPort"] = filled["containerPort"]
    return filled


def _default_env_variable(variable: Any) -> Any:
    source = variable.get("valueFrom") if isinstance(variable, dict) else None
    if not isinstance(source, dict) or not isinstance(source.get("fieldRef"), dict):
        return variable
    return {**variable, "valueFrom": {**source, "fieldRef": {"apiVersion": "v1", **source["fieldRef"]}}}


def _default_probe(probe: JsonObject) -> JsonObject:
    filled = {**_PROBE, **without_nulls_before_kind_defaults(probe)}
    if isinstance(filled.get("httpGet"), dict):
        filled["httpGet"] = {"path": "/", "scheme": "HTTP", **without_nulls_before_kind_defaults(filled["httpGet"])}
    return filled


def _default_volume(volume: Any) -> Any:
    if not isinstance(volume, dict):
        return volume
    filled = without_nulls_before_kind_defaults(volume)
    if set(filled) <= {"name"}:
        return {**filled, "emptyDir": {}}
    for source in _MODE_420:
        if isinstance(filled.get(source), dict):
            filled[source] = {"defaultMode": 420, **without_nulls_before_kind_defaults(filled[source])}
    if isinstance(filled.get("hostPath"), dict):
        filled["hostPath"] = {"type": "", **filled["hostPath"]}
    return filled


def without_nulls_before_kind_defaults(value: JsonObject) -> JsonObject:
    """Null says "not set" in Kubernetes, and so does an empty string for every field defaulted here."""
    return {field: inner for field, inner in value.items() if inner is not None}


def _is_latest_image(image: str) -> bool:
    if "@" in image:
        return False
    tag = image.rpartition("/")[2].partition(":")[2]
    return tag in ("", "latest")
