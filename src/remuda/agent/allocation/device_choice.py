"""What each container of a pod wants of each resource, and which devices the scheduler chose for it. Pure.

The scheduler writes one list of device ids per pod (`remuda.dev/devices`). The kubelet asks container by container, init
containers first, and lets app containers reuse what those had. So the list is dealt out the same way: every init container
takes from its beginning, app containers share it in order. An id belongs to the resource its row counts for.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence

import msgspec

from remuda.agent.inventory import inventory_device_of_plugin_id
from remuda.api.errors import Refusal
from remuda.api.kubernetes.core_v1 import Container, Pod
from remuda.api.kubernetes.quantity import parse_whole_quantity
from remuda.api.names import ANNOTATION_DEVICES, LABEL_GANG

ResourceOf = Callable[[str], str]  # device id -> the resource it counts for; "" when there is no such device

_NUMBER = re.compile(r"(\d+)")


class DeviceWant(msgspec.Struct, frozen=True):
    """`device_choice` is empty when nobody chose, or chose another number."""

    container: str
    resource: str
    size: int
    chosen: tuple[str, ...] = ()


def wanted_allocations(pod: Pod, resource_of: ResourceOf) -> list[DeviceWant]:
    """One entry per container and resource that names devices of this node, in the kubelet's order."""
    listed = [d.strip() for d in pod.annotations.get(ANNOTATION_DEVICES, "").split(",") if d.strip()]
    by_resource: dict[str, list[str]] = {}
    for device in listed:
        by_resource.setdefault(resource_of(inventory_device_of_plugin_id(device)), []).append(device)
    found: list[DeviceWant] = []
    for container in pod.spec.init_containers:
        for resource, size in _amounts_to_allocate(container):
            found.append(_wanted_allocation(container, resource, size, by_resource.get(resource, [])[:size]))
    for container in pod.spec.containers:
        for resource, size in _amounts_to_allocate(container):
            left = by_resource.get(resource, [])
            found.append(_wanted_allocation(container, resource, size, left[:size]))
            by_resource[resource] = left[size:]
    return found


def other_devices_chosen(
    pod: Pod, container: str, resource: str, got: Sequence[str], beside: Iterable[Pod], resource_of: ResourceOf
) -> tuple[str, ...]:
    """What was chosen for the container, when it got something else (KubeletChoseOtherDevices). Not when it was chosen for
    another pod of its gang on this node, of `beside`: they were mixed up, and the gang has what it was to have."""
    chosen = _devices_chosen_for(pod, container, resource, resource_of)
    has = {*got, *map(inventory_device_of_plugin_id, got)}
    gang = (pod.namespace, pod.labels.get(LABEL_GANG))
    peers = (p for p in beside if LABEL_GANG in p.labels and (p.namespace, p.labels[LABEL_GANG]) == gang)
    sets = [chosen, *(_devices_chosen_for(peer, container, resource, resource_of) for peer in peers)]
    return () if not chosen or any(one and set(one) <= has for one in sets) else chosen


def _devices_chosen_for(pod: Pod, container: str, resource: str, resource_of: ResourceOf) -> tuple[str, ...]:
    wants = wanted_allocations(pod, resource_of)
    return next((w.chosen for w in wants if (w.container, w.resource) == (container, resource)), ())


def _wanted_allocation(container: Container, resource: str, size: int, chosen: list[str]) -> DeviceWant:
    return DeviceWant(container.name, resource, size, tuple(chosen) if len(chosen) == size else ())


def _amounts_to_allocate(container: Container) -> Iterable[tuple[str, int]]:
    """Extended resources only: their names have a slash, their amounts are whole and requests equal limits."""
    for resource, amount in {**container.resources.requests, **container.resources.limits}.items():
        if "/" not in resource:
            continue
        try:
            size = parse_whole_quantity(amount)
        except Refusal:
            continue  # the API server lets no such amount through; a pod of another make is none of our business
        if size > 0:
            yield resource, size


def devices_in_order(ids: Iterable[str]) -> list[str]:
    """Device ids by their numbers: gpu-2 before gpu-10. The kubelet hands sets over in any order."""
    return sorted(ids, key=_device_number_key)


def _device_number_key(name: str) -> list[tuple[int, str]]:
    return [(int(part), "") if part.isdecimal() else (-1, part) for part in _NUMBER.split(name)]
