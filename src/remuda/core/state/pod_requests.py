"""What a pod asks of a node, as whole numbers per resource: cpu in milli-units, everything else in its own unit.

The pod's request is Kubernetes' effective one: containers (and sidecars) add up, an init container runs before them and alone,
so only what it needs beyond that counts. Limits stand in for requests a pod does not state, as the API server fills them in.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from math import ceil

from remuda.api.kubernetes.core_v1 import Container, Pod
from remuda.api.quantity import parse_quantity

CPU, PODS = "cpu", "pods"

Amounts = Mapping[str, int]


def amount(resource: str, quantity: int | str) -> int:
    value = parse_quantity(quantity)
    return ceil(value * 1000 if resource == CPU else value)


def is_extended(resource: str) -> bool:
    """vendor.example/thing: served by a plugin, so a node that does not name it has none. (Native ones have no slash.)"""
    return "/" in resource


def requests_of(pod: Pod) -> dict[str, int]:
    """Per resource, without zeros."""
    total = _sum(pod.spec.containers)
    for init in pod.spec.init_containers:
        if init.restart_policy == "Always":  # a sidecar: runs beside everything after it
            total = _added(total, _of(init))
    for init in pod.spec.init_containers:
        if init.restart_policy != "Always":
            total.update({r: max(total.get(r, 0), n) for r, n in _of(init).items()})
    return {resource: count for resource, count in total.items() if count}


def amounts_of(quantities: Mapping[str, int | str]) -> dict[str, int]:
    """A node's capacity or allocatable in the same units."""
    return {resource: amount(resource, quantity) for resource, quantity in quantities.items()}


def quantities_of(amounts: Amounts) -> dict[str, str]:
    """The other way round: as the API writes them."""
    return {resource: f"{count}m" if resource == CPU else str(count) for resource, count in amounts.items()}


def _of(container: Container) -> dict[str, int]:
    stated = {**container.resources.limits, **container.resources.requests}
    return {resource: amount(resource, quantity) for resource, quantity in stated.items()}


def _sum(containers: Iterable[Container]) -> dict[str, int]:
    total: dict[str, int] = {}
    for container in containers:
        total = _added(total, _of(container))
    return total


def _added(a: Amounts, b: Amounts) -> dict[str, int]:
    return {resource: a.get(resource, 0) + b.get(resource, 0) for resource in {**a, **b}}
