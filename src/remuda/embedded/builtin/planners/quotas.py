"""What objects use of a ResourceQuota. Shared by admission (may this one come in?) and by the controller (status.used).

A quota names limits (`spec.hard`): `pods`, `cpu` = `requests.cpu`, `limits.memory`, `requests.<extended resource>`,
`persistentvolumeclaims`, `requests.storage`, `services.nodeports`, `count/<plural>[.<group>]`. Its scopes narrow the pods it
counts. Finished pods use nothing.

A namespace may have many quotas and many objects, so each object is looked at once and not once per quota (`NamespaceUse`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from fractions import Fraction
from typing import Any, NamedTuple

from remuda.api.meta import JsonObject, json_objects_in_api_list, wire_list_or_empty, wire_map_or_empty
from remuda.embedded.builtin.planners.pod_resources import (
    Amounts,
    pod_resources_counted_by_quota,
    qos_class,
    quota_quantity_or_zero,
    resource_amounts,
)

_BARE = frozenset({"cpu", "memory", "ephemeral-storage"})
_COUNTED_BARE = frozenset({"configmaps", "secrets", "services", "persistentvolumeclaims", "resourcequotas", "pods"})
# The limits on what every container has to state, by where it states it.
_STATED = {
    f"{prefix}{bare}": (which, bare)
    for prefix, which in (("", "requests"), ("requests.", "requests"), ("limits.", "limits"))
    for bare in sorted(_BARE)
}

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
    requests, limits = pod_resources_counted_by_quota(spec, "requests"), pod_resources_counted_by_quota(spec, "limits")
    used = {f"requests.{name}": value for name, value in requests.items()}
    used |= {f"limits.{name}": value for name, value in limits.items()}
    used |= {name: value for name, value in requests.items() if name in _BARE}
    return used


def unstated_resources_counted_by_quota(spec: JsonObject) -> list[str]:
    """Compute limits that the pod cannot be counted by, because some container does not state what it needs."""
    containers = [
        *json_objects_in_api_list(spec.get("containers")),
        *json_objects_in_api_list(spec.get("initContainers")),
    ]
    stated = {which: [resource_amounts(c, which) for c in containers] for which in ("requests", "limits")}
    return sorted(name for name, (which, bare) in _STATED.items() if any(bare not in one for one in stated[which]))


class PodClass(NamedTuple):
    """All that scopes can ask of a pod: pods of one class are in the same scopes."""

    has_deadline: bool
    is_best_effort: bool
    priority_class: str


def quota_class_of_pod(pod: JsonObject) -> PodClass:
    spec = wire_map_or_empty(pod.get("spec"))
    has_deadline = spec.get("activeDeadlineSeconds") is not None
    return PodClass(has_deadline, qos_class(spec) == "BestEffort", str(spec.get("priorityClassName") or ""))


def quota_counts_pod_class(quota: JsonObject, pods: PodClass) -> bool:
    spec = quota.get("spec") or {}
    terms = [{"scopeName": scope, "operator": "Exists"} for scope in spec.get("scopes") or ()]
    terms += (spec.get("scopeSelector") or {}).get("matchExpressions") or []
    return all(_matches_quota_scope(term, pods) for term in terms)


def _matches_quota_scope(term: Mapping[str, Any], pods: PodClass) -> bool:
    scope = term.get("scopeName")
    if scope == "Terminating":
        return pods.has_deadline
    if scope == "NotTerminating":
        return not pods.has_deadline
    if scope == "BestEffort":
        return pods.is_best_effort
    if scope == "NotBestEffort":
        return not pods.is_best_effort
    if scope == "PriorityClass":
        name, values = pods.priority_class, term.get("values") or ()
        operator = term.get("operator")
        if operator == "In":
            return name in values
        if operator == "NotIn":
            return name not in values
        return bool(name) == (operator == "Exists")
    return False


class NamespaceUse:
    """What the objects of a namespace use. `objects`: those of a kind; asked once for each kind that some quota counts."""

    def __init__(self, objects: Callable[[GroupPlural], Iterable[JsonObject]]) -> None:
        self._objects = objects
        self._sums: dict[GroupPlural, dict[PodClass | None, Amounts]] = {}

    def used(self, quota: JsonObject, limits: Iterable[str]) -> Amounts:
        """What is used of these limits of the quota; each of them is there, with 0 when unused."""
        used = {name: Fraction(0) for name in limits}
        for kind in kinds_counted_by_quota(used):
            for pods, amounts in self._sums_of(kind).items():
                if pods is None or quota_counts_pod_class(quota, pods):
                    for name in used.keys() & amounts.keys():
                        used[name] += amounts[name]
        return used

    def _sums_of(self, kind: GroupPlural) -> dict[PodClass | None, Amounts]:
        """By what they use; pods by their class, too."""
        found = self._sums.get(kind)
        if found is None:
            found = self._sums[kind] = {}
            for body in self._objects(kind):
                group = found.setdefault(quota_class_of_pod(body) if kind == ("", "pods") else None, {})
                for name, value in quota_usage(*kind, body).items():
                    group[name] = group.get(name, Fraction(0)) + value
        return found


def quota_limit(hard: Mapping[str, Any], name: str) -> Fraction:
    return quota_quantity_or_zero(hard[name])
