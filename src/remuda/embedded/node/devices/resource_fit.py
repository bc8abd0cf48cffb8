"""Whether a pod fits into what its node's object says of resources that no plugin serves (any more). Pure.

The kubelet's last check of a pod. A resource the object does not name is taken out of the request and the pod starts without
it; one it names must be there in the number asked for, and is counted by what the node's other pods ask for. So a resource
whose plugin went long ago, and which the object therefore says 0 of, lets no pod in.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from remuda.api.errors import Refusal
from remuda.api.kubernetes.core_v1 import Container, Pod
from remuda.api.kubernetes.quantity import parse_whole_quantity
from remuda.embedded.node.container_record import is_sidecar

OUT_OF = "OutOf"  # and the name of the resource: the reason a kubelet gives


def check_pod_fits(
    pod: Pod, others: Iterable[Pod], allocatable: Mapping[str, int | str], is_served: Callable[[str], bool]
) -> None:
    """Raises Refusal. `is_served`: by a plugin, so that the device manager has seen to it."""
    for resource in sorted({name for c in _all_containers(pod) for name in _resources_asked(c) if "/" in name}):
        if is_served(resource) or resource not in allocatable:
            continue
        wanted = pod_resource_amount(pod, resource)
        used = sum(pod_resource_amount(other, resource) for other in others if other.uid != pod.uid)
        there = parse_whole_quantity(allocatable[resource])
        if wanted and used + wanted > there:
            raise Refusal(
                f"{OUT_OF}{resource}",
                f"Node didn't have enough resource: {resource}, requested: {wanted}, used: {used}, capacity: {there}",
            )


def pod_resource_amount(pod: Pod, resource: str) -> int:
    """What a pod asks for in all: its containers together, or its hungriest init container beside the sidecars before it."""
    beside = most = 0
    for init in pod.spec.init_containers:
        asked = parse_whole_quantity(_resources_asked(init).get(resource, 0))
        if is_sidecar(init):
            beside += asked
            most = max(most, beside)
        else:
            most = max(most, beside + asked)
    return max(
        most, beside + sum(parse_whole_quantity(_resources_asked(c).get(resource, 0)) for c in pod.spec.containers)
    )


def _all_containers(pod: Pod) -> tuple[Container, ...]:
    return (*pod.spec.init_containers, *pod.spec.containers)


def _resources_asked(container: Container) -> Mapping[str, int | str]:
    return {**container.resources.requests, **container.resources.limits}
