"""How a pod gets its devices on a node, as its worker asks for them.

With a device manager, each container gets what the plugins gave for it, and the agent is told whose that is. Without one (an
agent that serves no plugin), the devices the scheduler chose go to the pod as a whole. A pod without devices gets the agent's
directory for its launcher and nothing else.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from remuda.api.errors import Refusal
from remuda.api.kubernetes.core_v1 import Container, Pod
from remuda.api.kubernetes.quantity import parse_whole_quantity
from remuda.api.names import ANNOTATION_DEVICES, RESOURCE_GPU
from remuda.embedded.node.container_environment import container_environment_from_plugin
from remuda.embedded.node.devices.device_ledger import KubeletDeviceGrant
from remuda.embedded.node.devices.device_manager import KubeletDeviceManager
from remuda.embedded.node.devices.device_service import kubelet_grants_in_status
from remuda.embedded.node.devices.resource_fit import OUT_OF
from remuda.embedded.node.pod_lifecycle import ADMISSION_ERROR
from remuda.link.allocation_port import Allocation, NodeAgentLink

Allocations = Mapping[str, Allocation]  # by container

# A pod removed by force may still be dying with the devices in its hands: worth waiting for.
PASSING = frozenset({"DeviceHeld", "DevicesUnavailable", "AllocateFailed"})


async def allocate_devices_for_pod_worker(
    agent: NodeAgentLink, manager: KubeletDeviceManager | None, pod: Pod, running: Collection[str], *, simulated: bool
) -> Allocations:
    """Raises Refusal. `running`: containers found alive when the node started."""
    everyone = (*pod.spec.init_containers, *pod.spec.containers)
    if manager is None:
        allocation = await agent.allocate(pod, devices_chosen_for_kubelet_pod(pod), simulated=simulated)
        return {c.name: allocation for c in everyone}
    await manager.admit(pod, running)
    # Of containers that run although the device manager lost its checkpoint, the pod's status has the devices. The manager, as
    # a kubelet's, will offer those to others; the agent is told and will not have it.
    grants = manager.grants(pod.uid) or tuple(g for g in kubelet_grants_in_status(pod) if g.container in running)
    if not grants:
        allocation = await agent.allocate(pod, [], simulated=simulated)
        return {c.name: allocation for c in everyone}
    attached = [await attach_kubelet_grant_to_container(agent, pod, grant, simulated=simulated) for grant in grants]
    directory = next((a.directory for a in attached if a.directory), "")
    return {
        c.name: container_process_allocation(directory, (g for g in grants if g.container == c.name)) for c in everyone
    }


async def attach_kubelet_grant_to_container(
    agent: NodeAgentLink, pod: Pod, grant: KubeletDeviceGrant, *, simulated: bool
) -> Allocation:
    return await agent.attach(pod, grant.container, grant.resource, grant.devices, simulated=simulated)


def container_process_allocation(directory: str, grants: Iterable[KubeletDeviceGrant]) -> Allocation:
    """What one container gets. Paths inside a container are the machine's own here: there is no mount namespace."""
    devices: list[str] = []
    env = {"REMUDA_VISIBLE_DEVICES": "", "CUDA_VISIBLE_DEVICES": ""}  # hides every device from a container with none
    for grant in grants:
        devices += grant.devices
        env |= container_environment_from_plugin(grant.allocation.envs, grant.allocation.mounts)
    return Allocation(tuple(devices), directory, env)


def container_start_needs_devices(container: Container) -> bool:
    """For anything a plugin might serve: names of extended resources have a domain."""
    return any("/" in name for name in (*container.resources.limits, *container.resources.requests))


def pod_worker_rejection_words(refusal: Refusal) -> tuple[str, str]:
    """Reason and message of a rejected pod: the kubelet's words around ours. The device manager's are the kubelet's already."""
    if refusal.reason.startswith(OUT_OF):
        return refusal.reason, f"Pod was rejected: {refusal.message}"
    why = f"{refusal.reason}: {refusal.message} {refusal.fix}" if refusal.fix else refusal.message
    return ADMISSION_ERROR, f"Pod was rejected: Allocate failed due to {why}, which is unexpected"


def devices_chosen_for_kubelet_pod(pod: Pod) -> list[str]:
    """The devices the scheduler chose for the pod. Raises Refusal when it asks for some and nobody chose."""
    wanted = (
        c.resources.limits.get(RESOURCE_GPU) or c.resources.requests.get(RESOURCE_GPU, 0) for c in pod.spec.containers
    )
    asked = sum(map(parse_whole_quantity, wanted))
    devices = [d.strip() for d in pod.annotations.get(ANNOTATION_DEVICES, "").split(",") if d.strip()]
    if len(devices) != asked:
        named = ", ".join(devices) or "none"
        raise Refusal(
            "DevicesNotChosen",
            f"The pod asks for {asked} {RESOURCE_GPU} and its annotation {ANNOTATION_DEVICES} names {named}.",
            "Let the scheduler `remuda` place it (spec.schedulerName).",
        )
    return devices
