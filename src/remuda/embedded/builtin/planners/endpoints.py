"""EndpointSlice: where a Service's pods are. One slice per Service; the embedded cluster has no need for more."""

from __future__ import annotations

from remuda.api.kubernetes.core_v1 import Pod
from remuda.api.kubernetes.policy_v1 import Service
from remuda.api.meta import JsonObject
from remuda.embedded.builtin.planners.pod_state import is_ready_pod, owner_reference_for_planned_object

SERVICE_NAME = "kubernetes.io/service-name"
MANAGED_BY = "endpointslice.kubernetes.io/managed-by"
CONTROLLER = "endpointslice-controller.k8s.io"


def endpoint_slice_name(service: Service) -> str:
    return f"{service.name[:50]}-embedded"


def plan_endpoint_slice(service: Service, pods: tuple[Pod, ...]) -> JsonObject:
    """The whole slice, as it should be stored. `pods`: those the selector matches."""
    live = sorted((p for p in pods if p.status.pod_ip and not p.is_terminal), key=lambda p: p.name)
    return {
        "apiVersion": "discovery.k8s.io/v1",
        "kind": "EndpointSlice",
        "metadata": {
            "name": endpoint_slice_name(service),
            "namespace": service.namespace,
            "labels": {SERVICE_NAME: service.name, MANAGED_BY: CONTROLLER},
            "ownerReferences": [owner_reference_for_planned_object(service)],
        },
        "addressType": "IPv4",
        "endpoints": [_service_endpoint(service, pod) for pod in live],
        "ports": [
            _endpoint_port(port.name, port.protocol, port.target_port or port.port, live) for port in service.spec.ports
        ],
    }


def _service_endpoint(service: Service, pod: Pod) -> JsonObject:
    serving = is_ready_pod(pod)
    ready = (serving or service.spec.publish_not_ready_addresses) and not pod.is_deleting
    return {
        "addresses": [pod.status.pod_ip],
        "conditions": {"ready": ready, "serving": serving, "terminating": pod.is_deleting},
        "nodeName": pod.spec.node_name,
        "targetRef": {"kind": "Pod", "namespace": pod.namespace, "name": pod.name, "uid": pod.uid},
    }


def _endpoint_port(name: str, protocol: str, target: int | str, pods: list[Pod]) -> JsonObject:
    # A port may be named by the container; pods are projections without ports, so only numbers can be told.
    return {"name": name, "protocol": protocol, **({"port": target} if isinstance(target, int) else {})}
