"""The kubelet's gRPC services on the wire: device plugin v1beta1, podresources v1 and plugin registration v1.

The messages come from `link.kubelet_facts`. Nobody else sees a protobuf message: each `KubeletMethod` has its path and two codecs
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


class KubeletCodec(Generic[Value]):
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


class KubeletMethod(msgspec.Struct, Generic[Value, Reply], frozen=True):
    path: str  # "/package.Service/Method"
    request: KubeletCodec[Value]
    response: KubeletCodec[Reply]

    @property
    def service(self) -> str:
        return self.path.split("/")[1]

    @property
    def name(self) -> str:
        return self.path.split("/")[2]


def _no_kubelet_fields(value: None) -> dict[str, Any]:
    return {}


def _no_kubelet_value(message: Any) -> None:
    return None


def _empty_kubelet_codec(package: str, name: str) -> KubeletCodec[None]:
    return KubeletCodec(package, name, _no_kubelet_fields, _no_kubelet_value)


def _encode_plugin_options(value: PluginOptions) -> dict[str, Any]:
    return {
        "pre_start_required": value.pre_start_required,
        "get_preferred_allocation_available": value.preferred_allocation_available,
    }


def _decode_plugin_options(message: Any) -> PluginOptions:
    return PluginOptions(message.pre_start_required, message.get_preferred_allocation_available)


def _decode_plugin_registration(m: Any) -> RegisterRequest:
    return RegisterRequest(m.endpoint, m.resource_name, m.version, _decode_plugin_options(m.options))


def _encode_plugin_device(value: PluginDevice) -> dict[str, Any]:
    fields: dict[str, Any] = {"ID": value.id, "health": value.health}
    if value.numa:
        fields["topology"] = {"nodes": [{"ID": node} for node in value.numa]}
    return fields


def _decode_plugin_devices(message: Any) -> tuple[PluginDevice, ...]:
    return tuple(PluginDevice(d.ID, d.health, tuple(node.ID for node in d.topology.nodes)) for d in message.devices)


def _decode_preferred_allocation(message: Any) -> tuple[PreferredRequest, ...]:
    return tuple(
        PreferredRequest(tuple(r.available_deviceIDs), tuple(r.must_include_deviceIDs), r.allocation_size)
        for r in message.container_requests
    )


def _encode_preferred_allocation(value: Iterable[PreferredRequest]) -> dict[str, Any]:
    names = ("available_deviceIDs", "must_include_deviceIDs", "allocation_size")
    return {"container_requests": [dict(zip(names, (r.available, r.must_include, r.size), strict=True)) for r in value]}


def _encode_plugin_allocation(value: ContainerAllocation) -> dict[str, Any]:
    return {
        "envs": value.envs,
        "mounts": [msgspec.structs.asdict(mount) for mount in value.mounts],
        "devices": [msgspec.structs.asdict(node) for node in value.devices],
        "annotations": value.annotations,
        "cdi_devices": [{"name": name} for name in value.cdi_devices],
    }


def _decode_plugin_allocation(m: Any) -> ContainerAllocation:
    return ContainerAllocation(
        dict(m.envs),
        tuple(Mount(x.container_path, x.host_path, x.read_only) for x in m.mounts),
        tuple(DeviceNode(x.container_path, x.host_path, x.permissions) for x in m.devices),
        dict(m.annotations),
        tuple(x.name for x in m.cdi_devices),
    )


def _encode_pod_resources(value: Iterable[ContainerDevices]) -> dict[str, Any]:
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


def _decode_pod_resources(messages: Iterable[Any]) -> tuple[ContainerDevices, ...]:
    """The kubelet has one entry per NUMA node; here a container has one row per resource."""
    rows: dict[tuple[str, str, str, str], tuple[str, ...]] = {}
    for pod in messages:
        for container in pod.containers:
            for devices in container.devices:
                key = (pod.namespace, pod.name, container.name, devices.resource_name)
                rows[key] = (*rows.get(key, ()), *devices.device_ids)
    return tuple(ContainerDevices(*key, device_ids=ids) for key, ids in rows.items())


def _decode_allocatable_resources(message: Any) -> dict[str, tuple[str, ...]]:
    found: dict[str, tuple[str, ...]] = {}
    for row in message.devices:
        found[row.resource_name] = (*found.get(row.resource_name, ()), *row.device_ids)
    return found


# --- the services -------------------------------------------------------------------------------------------------------

_EMPTY = _empty_kubelet_codec("v1beta1", "Empty")

REGISTER: KubeletMethod[RegisterRequest, None] = KubeletMethod(
    "/v1beta1.Registration/Register",
    KubeletCodec(
        "v1beta1",
        "RegisterRequest",
        lambda v: {**msgspec.structs.asdict(v), "options": _encode_plugin_options(v.options)},
        _decode_plugin_registration,
    ),
    _EMPTY,
)
OPTIONS: KubeletMethod[None, PluginOptions] = KubeletMethod(
    "/v1beta1.DevicePlugin/GetDevicePluginOptions",
    _EMPTY,
    KubeletCodec("v1beta1", "DevicePluginOptions", _encode_plugin_options, _decode_plugin_options),
)
LIST_AND_WATCH: KubeletMethod[None, tuple[PluginDevice, ...]] = KubeletMethod(  # a stream of responses
    "/v1beta1.DevicePlugin/ListAndWatch",
    _EMPTY,
    KubeletCodec(
        "v1beta1",
        "ListAndWatchResponse",
        lambda v: {"devices": [_encode_plugin_device(d) for d in v]},
        _decode_plugin_devices,
    ),
)
PREFERRED: KubeletMethod[tuple[PreferredRequest, ...], tuple[tuple[str, ...], ...]] = KubeletMethod(
    "/v1beta1.DevicePlugin/GetPreferredAllocation",
    KubeletCodec("v1beta1", "PreferredAllocationRequest", _encode_preferred_allocation, _decode_preferred_allocation),
    KubeletCodec(
        "v1beta1",
        "PreferredAllocationResponse",
        lambda v: {"container_responses": [{"deviceIDs": ids} for ids in v]},
        lambda m: tuple(tuple(r.deviceIDs) for r in m.container_responses),
    ),
)
ALLOCATE: KubeletMethod[tuple[tuple[str, ...], ...], tuple[ContainerAllocation, ...]] = KubeletMethod(
    "/v1beta1.DevicePlugin/Allocate",
    KubeletCodec(
        "v1beta1",
        "AllocateRequest",
        lambda v: {"container_requests": [{"devices_ids": ids} for ids in v]},
        lambda m: tuple(tuple(r.devices_ids) for r in m.container_requests),
    ),
    KubeletCodec(
        "v1beta1",
        "AllocateResponse",
        lambda v: {"container_responses": [_encode_plugin_allocation(a) for a in v]},
        lambda m: tuple(_decode_plugin_allocation(r) for r in m.container_responses),
    ),
)
PRE_START: KubeletMethod[tuple[str, ...], None] = KubeletMethod(
    "/v1beta1.DevicePlugin/PreStartContainer",
    KubeletCodec("v1beta1", "PreStartContainerRequest", lambda v: {"devices_ids": v}, lambda m: tuple(m.devices_ids)),
    _empty_kubelet_codec("v1beta1", "PreStartContainerResponse"),
)
POD_RESOURCES_LIST: KubeletMethod[None, tuple[ContainerDevices, ...]] = KubeletMethod(
    "/v1.PodResourcesLister/List",
    _empty_kubelet_codec("v1", "ListPodResourcesRequest"),
    KubeletCodec(
        "v1", "ListPodResourcesResponse", _encode_pod_resources, lambda m: _decode_pod_resources(m.pod_resources)
    ),
)
POD_RESOURCES_ALLOCATABLE: KubeletMethod[None, dict[str, tuple[str, ...]]] = (
    KubeletMethod(  # resource -> healthy device ids
        "/v1.PodResourcesLister/GetAllocatableResources",
        _empty_kubelet_codec("v1", "AllocatableResourcesRequest"),
        KubeletCodec(
            "v1",
            "AllocatableResourcesResponse",
            lambda v: {"devices": [{"resource_name": name, "device_ids": ids} for name, ids in v.items()]},
            _decode_allocatable_resources,
        ),
    )
)
POD_RESOURCES_GET: KubeletMethod[tuple[str, str], tuple[ContainerDevices, ...]] = KubeletMethod(  # (namespace, pod)
    "/v1.PodResourcesLister/Get",
    KubeletCodec(
        "v1",
        "GetPodResourcesRequest",
        lambda v: {"pod_namespace": v[0], "pod_name": v[1]},
        lambda m: (m.pod_namespace, m.pod_name),
    ),
    KubeletCodec(
        "v1",
        "GetPodResourcesResponse",
        lambda v: {"pod_resources": next(iter(_encode_pod_resources(v)["pod_resources"]), None)},
        lambda m: _decode_pod_resources([m.pod_resources]),
    ),
)
GET_INFO: KubeletMethod[None, PluginInfo] = KubeletMethod(
    "/pluginregistration.Registration/GetInfo",
    _empty_kubelet_codec("pluginregistration", "InfoRequest"),
    KubeletCodec(
        "pluginregistration",
        "PluginInfo",
        msgspec.structs.asdict,
        lambda m: PluginInfo(m.type, m.name, m.endpoint, tuple(m.supported_versions)),
    ),
)
NOTIFY: KubeletMethod[RegistrationStatus, None] = KubeletMethod(
    "/pluginregistration.Registration/NotifyRegistrationStatus",
    KubeletCodec(
        "pluginregistration",
        "RegistrationStatus",
        lambda v: {"plugin_registered": v.registered, "error": v.error},
        lambda m: RegistrationStatus(m.plugin_registered, m.error),
    ),
    _empty_kubelet_codec("pluginregistration", "RegistrationStatusResponse"),
)
