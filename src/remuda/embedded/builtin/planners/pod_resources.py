"""What a pod asks for, from its wire form: sums over its containers, and its quality-of-service class."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

from remuda.api.errors import Refusal
from remuda.api.kubernetes.quantity import parse_quantity
from remuda.api.meta import JsonObject, json_objects_in_api_list, wire_map_or_empty

Amounts = dict[str, Fraction]


def resource_amounts(holder: JsonObject, which: str) -> Amounts:
    """`resources.requests` or `resources.limits` of a container or a claim."""
    found = wire_map_or_empty(wire_map_or_empty(holder.get("resources")).get(which))
    return {name: quota_quantity_or_zero(value) for name, value in found.items()}


def quota_quantity_or_zero(value: Any) -> Fraction:
    try:
        return parse_quantity(value)
    except (Refusal, AttributeError, TypeError):
        return Fraction(0)  # the validators refuse it; here it counts as nothing


def pod_resources_counted_by_quota(spec: JsonObject, which: str) -> Amounts:
    """What the pod needs at its busiest: all containers together, or the greediest init container."""
    total: Amounts = {}
    for container in json_objects_in_api_list(spec.get("containers")):
        for name, value in resource_amounts(container, which).items():
            total[name] = total.get(name, Fraction(0)) + value
    for container in json_objects_in_api_list(spec.get("initContainers")):
        for name, value in resource_amounts(container, which).items():
            total[name] = max(total.get(name, Fraction(0)), value)
    return total


def qos_class(spec: JsonObject) -> str:
    """Guaranteed: every container limits cpu and memory and asks for exactly that; BestEffort: nobody asks for anything."""
    containers = [
        *json_objects_in_api_list(spec.get("initContainers")),
        *json_objects_in_api_list(spec.get("containers")),
    ]
    asked, guaranteed = False, bool(containers)
    for container in containers:
        resources = wire_map_or_empty(container.get("resources"))
        limits, requests = (
            {name: amount for name, amount in wire_map_or_empty(resources.get(field)).items() if amount not in (0, "0")}
            for field in ("limits", "requests")
        )
        for name in ("cpu", "memory"):
            asked = asked or name in limits or name in requests
            if name not in limits or requests.get(name, limits[name]) != limits[name]:
                guaranteed = False
    if not asked:
        return "BestEffort"
    return "Guaranteed" if guaranteed else "Burstable"
