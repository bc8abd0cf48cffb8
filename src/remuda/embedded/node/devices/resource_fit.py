"""Whether a pod fits into what its node's object says of a resource. Pure.

The kubelet's last check of a pod. A resource the object does not name is taken out of the request and the pod starts without
it; one it names must be there in the number asked for. Of a resource that no plugin serves (any more), what the node's other
pods ask for is counted: one whose plugin went long ago, and which the object therefore says 0 of, lets no pod in. Of one that
a plugin serves, the devices handed out are counted, and what the pods ask for that started before the plugin came.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping

from remuda.api.errors import Refusal
from remuda.api.kubernetes.core_v1 import Container, Pod
from remuda.api.kubernetes.quantity import parse_whole_quantity
from remuda.embedded.node.container_record import is_sidecar_container

OUT_OF = "OutOf"  # and the name of the resource: the reason a kubelet gives


def check_pod_fits(
    pod: Pod,
    others: Iterable[Pod],
    allocatable: Mapping[str, int | str],
    handed_out: Callable[[str], int | None],
    without_devices: Collection[tuple[str, str]] = (),
) -> None:
    """Raises Refusal. `handed_out`: devices of a resource, this pod's among them; None when no plugin serves it.
    `without_devices`: (uid, resource) of the pods that started while no plugin served it."""
    others = [other for other in others if other.uid != pod.uid]
    for resource in sorted(device_manager_resources_of_pod(pod)):
        if resource not in allocatable:
            continue
        wanted = device_manager_amount_for_pod(pod, resource)
        there = parse_whole_quantity(allocatable[resource])
        devices = handed_out(resource)
        if devices is None:
            used = sum(device_manager_amount_for_pod(other, resource) for other in others)
        else:
            blind = [other for other in others if (other.uid, resource) in without_devices]
            used = devices - wanted + sum(device_manager_amount_for_pod(other, resource) for other in blind)
            there = max(there, devices)  # a device that falls ill in a pod's hands is still that pod's
        if wanted and used + wanted > there:
            raise Refusal(
                f"{OUT_OF}{resource}",
                f"Node didn't have enough resource: {resource}, requested: {wanted}, used: {used}, capacity: {there}",
            )


def device_manager_resources_of_pod(pod: Pod) -> set[str]:
    """The extended resources that any of its containers asks for."""
    return {name for c in _all_containers(pod) for name in _container_resources_asked(c) if "/" in name}


def device_manager_amount_for_pod(pod: Pod, resource: str) -> int:
    """What a pod asks for in all: its containers together, or its hungriest init container beside the sidecars before it."""
    beside = most = 0
    for init in pod.spec.init_containers:
        asked = parse_whole_quantity(_container_resources_asked(init).get(resource, 0))
        if is_sidecar_container(init):
            beside += asked
            most = max(most, beside)
        else:
            most = max(most, beside + asked)
    return max(
        most,
        beside + sum(parse_whole_quantity(_container_resources_asked(c).get(resource, 0)) for c in pod.spec.containers),
    )


def _all_containers(pod: Pod) -> tuple[Container, ...]:
    return (*pod.spec.init_containers, *pod.spec.containers)


def _container_resources_asked(container: Container) -> Mapping[str, int | str]:
    return {**container.resources.requests, **container.resources.limits}
