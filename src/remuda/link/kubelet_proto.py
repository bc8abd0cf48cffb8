"""The kubelet's gRPC services on the wire: device plugin v1beta1, podresources v1 and plugin registration v1.

The messages come from `link.kubelet_facts`. Nobody else sees a protobuf message: each `Method` has its path and two codecs
between bytes and the plain values of `link.device_plugin_port`, which fit gRPC's serializer arguments as they are. A client of
grpc.aio decodes by itself, because that library turns an answer its deserializer refuses into None:

    call = channel.unary_unary(m.path, request_serializer=m.request.encode)
    answer = m.response.decode(await call(value, timeout=...))

Invariants: decoding never believes what it reads further than its type. Bytes that are no message of the kind raise DecodeError
(a gRPC server answers Internal); unknown fields are skipped, as protobuf asks. Numbers that do not fit are not encoded.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Generic, TypeVar

import msgspec

from remuda.link.device_plugin_port import (
    ContainerAllocation,
    ContainerDevices,
    DeviceNode,
    Mount,
    PluginDevice,
    PluginInfo,
    PluginOptions,
    PreferredRequest,
    RegisterRequest,
    RegistrationStatus,
)
from remuda.link.kubelet_facts import MESSAGES

# --- codecs -------------------------------------------------------------------------------------------------------------

Value = TypeVar("Value")
Reply = TypeVar("Reply")


class Codec(Generic[Value]):
    """Between bytes and values of one message type."""

    def __init__(
        self, package: str, name: str, to: Callable[[Value], Mapping[str, Any]], of: Callable[[Any], Value]
    ) -> None:
        self.message = MESSAGES[package][name]
        self._to = to
        self._of = of

    def encode(self, value: Value) -> bytes:
        return self.message(**self._to(value)).SerializeToString()

    def decode(self, data: bytes) -> Value:
        return self._of(self.message.FromString(data))


class Method(msgspec.Struct, Generic[Value, Reply], frozen=True):
    path: str  # "/package.Service/Method"
    request: Codec[Value]
    response: Codec[Reply]

    @property
    def service(self) -> str:
        return self.path.split("/")[1]

    @property
    def name(self) -> str:
        return self.path.split("/")[2]


def _nothing(value: None) -> dict[str, Any]:
    return {}


def _none(message: Any) -> None:
    return None


def _empty(package: str, name: str) -> Codec[None]:
    return Codec(package, name, _nothing, _none)


def _options(value: PluginOptions) -> dict[str, Any]:
    return {
        "pre_start_required": value.pre_start_required,
        "get_preferred_allocation_available": value.preferred_allocation_available,
    }


def _of_options(message: Any) -> PluginOptions:
    return PluginOptions(message.pre_start_required, message.get_preferred_allocation_available)


def _of_register(m: Any) -> RegisterRequest:
    return RegisterRequest(m.endpoint, m.resource_name, m.version, _of_options(m.options))


def _device(value: PluginDevice) -> dict[str, Any]:
    fields: dict[str, Any] = {"ID": value.id, "health": value.health}
    if value.numa:
        fields["topology"] = {"nodes": [{"ID": node} for node in value.numa]}
    return fields


def _of_devices(message: Any) -> tuple[PluginDevice, ...]:
    return tuple(PluginDevice(d.ID, d.health, tuple(node.ID for node in d.topology.nodes)) for d in message.devices)


def _of_preferred(message: Any) -> tuple[PreferredRequest, ...]:
    return tuple(
        PreferredRequest(tuple(r.available_deviceIDs), tuple(r.must_include_deviceIDs), r.allocation_size)
        for r in message.container_requests
    )


def _preferred(value: Iterable[PreferredRequest]) -> dict[str, Any]:
    names = ("available_deviceIDs", "must_include_deviceIDs", "allocation_size")
    return {"container_requests": [dict(zip(names, (r.available, r.must_include, r.size), strict=True)) for r in value]}


def _allocation(value: ContainerAllocation) -> dict[str, Any]:
    return {
        "envs": value.envs,
        "mounts": [msgspec.structs.asdict(mount) for mount in value.mounts],
        "devices": [msgspec.structs.asdict(node) for node in value.devices],
        "annotations": value.annotations,
        "cdi_devices": [{"name": name} for name in value.cdi_devices],
    }


def _of_allocation(m: Any) -> ContainerAllocation:
    return ContainerAllocation(
        dict(m.envs),
        tuple(Mount(x.container_path, x.host_path, x.read_only) for x in m.mounts),
        tuple(DeviceNode(x.container_path, x.host_path, x.permissions) for x in m.devices),
        dict(m.annotations),
        tuple(x.name for x in m.cdi_devices),
    )


def _pods(value: Iterable[ContainerDevices]) -> dict[str, Any]:
    """Grouped by pod and container, in the order in which they first appear."""
    pods: dict[tuple[str, str], dict[str, list[dict[str, Any]]]] = {}
    for row in value:
        containers = pods.setdefault((row.namespace, row.pod), {})
        devices = {"resource_name": row.resource_name, "device_ids": row.device_ids}
        containers.setdefault(row.container, []).append(devices)
    return {
        "pod_resources": [
            {
                "name": pod,
                "namespace": namespace,
                "containers": [{"name": name, "devices": devices} for name, devices in containers.items()],
            }
            for (namespace, pod), containers in pods.items()
        ]
    }


def _of_pods(messages: Iterable[Any]) -> tuple[ContainerDevices, ...]:
    """The kubelet has one entry per NUMA node; here a container has one row per resource."""
    rows: dict[tuple[str, str, str, str], tuple[str, ...]] = {}
    for pod in messages:
        for container in pod.containers:
            for devices in container.devices:
                key = (pod.namespace, pod.name, container.name, devices.resource_name)
                rows[key] = (*rows.get(key, ()), *devices.device_ids)
    return tuple(ContainerDevices(*key, device_ids=ids) for key, ids in rows.items())


def _of_allocatable(message: Any) -> dict[str, tuple[str, ...]]:
    found: dict[str, tuple[str, ...]] = {}
    for row in message.devices:
        found[row.resource_name] = (*found.get(row.resource_name, ()), *row.device_ids)
    return found


# --- the services -------------------------------------------------------------------------------------------------------

_EMPTY = _empty("v1beta1", "Empty")

REGISTER: Method[RegisterRequest, None] = Method(
    "/v1beta1.Registration/Register",
    Codec(
        "v1beta1",
        "RegisterRequest",
        lambda v: {**msgspec.structs.asdict(v), "options": _options(v.options)},
        _of_register,
    ),
    _EMPTY,
)
OPTIONS: Method[None, PluginOptions] = Method(
    "/v1beta1.DevicePlugin/GetDevicePluginOptions",
    _EMPTY,
    Codec("v1beta1", "DevicePluginOptions", _options, _of_options),
)
LIST_AND_WATCH: Method[None, tuple[PluginDevice, ...]] = Method(  # a stream of responses
    "/v1beta1.DevicePlugin/ListAndWatch",
    _EMPTY,
    Codec("v1beta1", "ListAndWatchResponse", lambda v: {"devices": [_device(d) for d in v]}, _of_devices),
)
PREFERRED: Method[tuple[PreferredRequest, ...], tuple[tuple[str, ...], ...]] = Method(
    "/v1beta1.DevicePlugin/GetPreferredAllocation",
    Codec("v1beta1", "PreferredAllocationRequest", _preferred, _of_preferred),
    Codec(
        "v1beta1",
        "PreferredAllocationResponse",
        lambda v: {"container_responses": [{"deviceIDs": ids} for ids in v]},
        lambda m: tuple(tuple(r.deviceIDs) for r in m.container_responses),
    ),
)
ALLOCATE: Method[tuple[tuple[str, ...], ...], tuple[ContainerAllocation, ...]] = Method(
    "/v1beta1.DevicePlugin/Allocate",
    Codec(
        "v1beta1",
        "AllocateRequest",
        lambda v: {"container_requests": [{"devices_ids": ids} for ids in v]},
        lambda m: tuple(tuple(r.devices_ids) for r in m.container_requests),
    ),
    Codec(
        "v1beta1",
        "AllocateResponse",
        lambda v: {"container_responses": [_allocation(a) for a in v]},
        lambda m: tuple(_of_allocation(r) for r in m.container_responses),
    ),
)
PRE_START: Method[tuple[str, ...], None] = Method(
    "/v1beta1.DevicePlugin/PreStartContainer",
    Codec("v1beta1", "PreStartContainerRequest", lambda v: {"devices_ids": v}, lambda m: tuple(m.devices_ids)),
    _empty("v1beta1", "PreStartContainerResponse"),
)
POD_RESOURCES_LIST: Method[None, tuple[ContainerDevices, ...]] = Method(
    "/v1.PodResourcesLister/List",
    _empty("v1", "ListPodResourcesRequest"),
    Codec("v1", "ListPodResourcesResponse", _pods, lambda m: _of_pods(m.pod_resources)),
)
POD_RESOURCES_ALLOCATABLE: Method[None, dict[str, tuple[str, ...]]] = Method(  # resource -> healthy device ids
    "/v1.PodResourcesLister/GetAllocatableResources",
    _empty("v1", "AllocatableResourcesRequest"),
    Codec(
        "v1",
        "AllocatableResourcesResponse",
        lambda v: {"devices": [{"resource_name": name, "device_ids": ids} for name, ids in v.items()]},
        _of_allocatable,
    ),
)
POD_RESOURCES_GET: Method[tuple[str, str], tuple[ContainerDevices, ...]] = Method(  # (namespace, pod)
    "/v1.PodResourcesLister/Get",
    Codec(
        "v1",
        "GetPodResourcesRequest",
        lambda v: {"pod_namespace": v[0], "pod_name": v[1]},
        lambda m: (m.pod_namespace, m.pod_name),
    ),
    Codec(
        "v1",
        "GetPodResourcesResponse",
        lambda v: {"pod_resources": next(iter(_pods(v)["pod_resources"]), None)},
        lambda m: _of_pods([m.pod_resources]),
    ),
)
GET_INFO: Method[None, PluginInfo] = Method(
    "/pluginregistration.Registration/GetInfo",
    _empty("pluginregistration", "InfoRequest"),
    Codec(
        "pluginregistration",
        "PluginInfo",
        msgspec.structs.asdict,
        lambda m: PluginInfo(m.type, m.name, m.endpoint, tuple(m.supported_versions)),
    ),
)
NOTIFY: Method[RegistrationStatus, None] = Method(
    "/pluginregistration.Registration/NotifyRegistrationStatus",
    Codec(
        "pluginregistration",
        "RegistrationStatus",
        lambda v: {"plugin_registered": v.registered, "error": v.error},
        lambda m: RegistrationStatus(m.plugin_registered, m.error),
    ),
    _empty("pluginregistration", "RegistrationStatusResponse"),
)
