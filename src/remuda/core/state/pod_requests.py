"""What a pod asks of a node, as whole numbers per resource: cpu in milli-units, everything else in its own unit.

The pod's request is Kubernetes' effective one: containers (and sidecars) add up, an init container runs before them and alone,
so only what it needs beyond that counts. Limits stand in for requests a pod does not state, as the API server fills them in.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from math import ceil

from remuda.api.kubernetes.core_v1 import Container, Pod
from remuda.api.kubernetes.quantity import parse_quantity

CPU, PODS = "cpu", "pods"

Amounts = Mapping[str, int]


def resource_amount(resource: str, quantity: int | str) -> int:
    value = parse_quantity(quantity)
    return ceil(value * 1000 if resource == CPU else value)


def is_extended_resource(resource: str) -> bool:
    """vendor.example/thing: served by a plugin, so a node that does not name it has none. (Native ones have no slash.)"""
    return "/" in resource


def requests_of_pod(pod: Pod) -> dict[str, int]:
    """Per resource, without zeros."""
    total = _sum_container_requests(pod.spec.containers)
    for init in pod.spec.init_containers:
        if init.restart_policy == "Always":  # a sidecar: runs beside everything after it
            total = _added_amounts(total, _container_requests(init))
    for init in pod.spec.init_containers:
        if init.restart_policy != "Always":
            total.update({r: max(total.get(r, 0), n) for r, n in _container_requests(init).items()})
    return {resource: count for resource, count in total.items() if count}


def resource_amounts(quantities: Mapping[str, int | str]) -> dict[str, int]:
    """A node's capacity or allocatable in the same units."""
    return {resource: resource_amount(resource, quantity) for resource, quantity in quantities.items()}


def pod_request_quantities(amounts: Amounts) -> dict[str, str]:
    """The other way round: as the API writes them."""
    return {resource: f"{count}m" if resource == CPU else str(count) for resource, count in amounts.items()}


def _container_requests(container: Container) -> dict[str, int]:
    stated = {**container.resources.limits, **container.resources.requests}
    return {resource: resource_amount(resource, quantity) for resource, quantity in stated.items()}


def _sum_container_requests(containers: Iterable[Container]) -> dict[str, int]:
    total: dict[str, int] = {}
    for container in containers:
        total = _added_amounts(total, _container_requests(container))
    return total


def _added_amounts(a: Amounts, b: Amounts) -> dict[str, int]:
    return {resource: a.get(resource, 0) + b.get(resource, 0) for resource in {**a, **b}}
