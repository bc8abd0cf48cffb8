"""What objects use of a ResourceQuota. Shared by admission (may this one come in?) and by the controller (status.used).

A quota names limits (`spec.hard`): `pods`, `cpu` = `requests.cpu`, `limits.memory`, `requests.<extended resource>`,
`persistentvolumeclaims`, `requests.storage`, `services.nodeports`, `count/<plural>[.<group>]`. Its scopes narrow the pods it
counts. Finished pods use nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from fractions import Fraction
from typing import Any

from remuda.api.meta import JsonObject, wire_list_or_empty, wire_map_or_empty, wire_maps_in
from remuda.embedded.builtin.planners.pod_resources import (
    Amounts,
    pod_resource_total,
    qos_class,
    resource_amounts,
    resource_quantity_or_zero,
)

_BARE = frozenset({"cpu", "memory", "ephemeral-storage"})
_COUNTED_BARE = frozenset({"configmaps", "secrets", "services", "persistentvolumeclaims", "resourcequotas", "pods"})
_COMPUTE_PREFIXES = ("requests.", "limits.")

GroupPlural = tuple[str, str]


def kinds_counted_by_quota(hard: Iterable[str]) -> set[GroupPlural]:
    """The (group, plural) whose objects matter to these limits."""
    found: set[GroupPlural] = set()
    for name in hard:
        if name.startswith("count/"):
            plural, _, group = name.removeprefix("count/").partition(".")
            found.add((group, plural))
        elif "storage" in name and "ephemeral" not in name:
            found.add(("", "persistentvolumeclaims"))
        elif name.startswith("services."):
            found.add(("", "services"))
        elif name in _COUNTED_BARE:
            found.add(("", name))
        else:
            found.add(("", "pods"))
    return found


def quota_usage(group: str, plural: str, body: JsonObject) -> Amounts:
    """Everything one object uses, by every name a quota may give it."""
    used: Amounts = {f"count/{plural}.{group}" if group else f"count/{plural}": Fraction(1)}
    if group:
        return used
    spec = wire_map_or_empty(body.get("spec"))
    if plural == "pods":
        if wire_map_or_empty(body.get("status")).get("phase") in ("Succeeded", "Failed"):
            return {"count/pods": Fraction(1)}
        used |= {"pods": Fraction(1)} | _compute_usage(spec)
    elif plural == "persistentvolumeclaims":
        storage = resource_amounts(spec, "requests").get("storage", Fraction(0))
        used |= {"persistentvolumeclaims": Fraction(1), "requests.storage": storage}
        if name := spec.get("storageClassName"):
            used[f"{name}.storageclass.storage.k8s.io/requests.storage"] = storage
            used[f"{name}.storageclass.storage.k8s.io/persistentvolumeclaims"] = Fraction(1)
    elif plural == "services":
        used["services"] = Fraction(1)
        ports = Fraction(len(wire_list_or_empty(spec.get("ports"))))
        if spec.get("type") in ("NodePort", "LoadBalancer"):
            used["services.nodeports"] = ports
        if spec.get("type") == "LoadBalancer":
            used["services.loadbalancers"] = Fraction(1)
    elif plural in _COUNTED_BARE:
        used[plural] = Fraction(1)
    return used


def _compute_usage(spec: JsonObject) -> Amounts:
    requests, limits = pod_resource_total(spec, "requests"), pod_resource_total(spec, "limits")
    used = {f"requests.{name}": value for name, value in requests.items()}
    used |= {f"limits.{name}": value for name, value in limits.items()}
    used |= {name: value for name, value in requests.items() if name in _BARE}
    return used


def unstated_quota_resources(hard: Iterable[str], spec: JsonObject) -> list[str]:
    """Compute resources the quota limits that some container of the pod does not state: such a pod cannot be counted."""
    containers = [*wire_maps_in(spec.get("containers")), *wire_maps_in(spec.get("initContainers"))]
    missing = []
    for name in sorted(hard):
        which, bare = "requests", name
        for prefix in _COMPUTE_PREFIXES:
            if name.startswith(prefix):
                which, bare = prefix.rstrip("."), name.removeprefix(prefix)
        if bare in _BARE and any(bare not in resource_amounts(container, which) for container in containers):
            missing.append(name)
    return missing


def in_quota_scope(quota: JsonObject, pod: JsonObject) -> bool:
    spec = quota.get("spec") or {}
    terms = [{"scopeName": scope, "operator": "Exists"} for scope in spec.get("scopes") or ()]
    terms += (spec.get("scopeSelector") or {}).get("matchExpressions") or []
    return all(_matches_quota_scope(term, wire_map_or_empty(pod.get("spec"))) for term in terms)


def _matches_quota_scope(term: Mapping[str, Any], spec: JsonObject) -> bool:
    scope = term.get("scopeName")
    if scope == "Terminating":
        return spec.get("activeDeadlineSeconds") is not None
    if scope == "NotTerminating":
        return spec.get("activeDeadlineSeconds") is None
    if scope == "BestEffort":
        return qos_class(spec) == "BestEffort"
    if scope == "NotBestEffort":
        return qos_class(spec) != "BestEffort"
    if scope == "PriorityClass":
        name, values = spec.get("priorityClassName") or "", term.get("values") or ()
        operator = term.get("operator")
        if operator == "In":
            return name in values
        if operator == "NotIn":
            return name not in values
        return bool(name) == (operator == "Exists")
    return False


def total_quota_used(quota: JsonObject, objects: Iterable[tuple[str, str, JsonObject]]) -> Amounts:
    """What these (group, plural, body) use of the quota; every name it limits is there, with 0 when unused."""
    hard = (quota.get("spec") or {}).get("hard") or {}
    used = {name: Fraction(0) for name in hard}
    for group, plural, body in objects:
        if (group, plural) == ("", "pods") and not in_quota_scope(quota, body):
            continue
        for name, value in quota_usage(group, plural, body).items():
            if name in used:
                used[name] += value
    return used


def quota_limit(hard: Mapping[str, Any], name: str) -> Fraction:
    return resource_quantity_or_zero(hard[name])
