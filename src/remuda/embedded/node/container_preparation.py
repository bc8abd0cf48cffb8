"""What a container needs before each start: variables from elsewhere, and its devices, where a device manager hands them out.

Both may take their time, and fail for a while: a ConfigMap that is not there yet, a plugin that does not answer. Whatever is
raised keeps the container from starting this time; the caller tries again.
"""

from __future__ import annotations

from remuda.api.kubernetes.core_v1 import Container, Pod
from remuda.embedded.node import device_allocation
from remuda.embedded.node.devices.device_manager import KubeletDeviceManager
from remuda.embedded.node.env_sources import EnvPlace, has_env_sources, read_env_objects, with_env_values
from remuda.embedded.node.node_site import NodeSite
from remuda.link.allocation_port import Allocation


async def prepare_container(
    site: NodeSite,
    pod: Pod,
    address: str,
    spec: Container,
    manager: KubeletDeviceManager | None,
    allocation: Allocation,
) -> tuple[Container, Allocation]:
    """The container with every variable written out, and what it gets. `address`: the pod's. `manager`: None for a container
    without devices. `allocation`: as the pod was admitted."""
    if has_env_sources(spec):
        objects = await read_env_objects(site.cluster, pod.namespace, spec)
        place = EnvPlace(site.node, address, site.host_address, site.host)
        spec = with_env_values(pod, spec, objects, place)
    grants = await manager.prepare(pod, spec) if manager is not None else ()
    if not grants:
        return spec, allocation
    simulated = site.runtime.is_simulated(pod)
    attached = [
        await device_allocation.attach_kubelet_grant_to_container(site.agent, pod, grant, simulated=simulated)
        for grant in grants
    ]
    directory = next((a.directory for a in attached if a.directory), allocation.directory)
    return spec, device_allocation.container_process_allocation(directory, grants)
