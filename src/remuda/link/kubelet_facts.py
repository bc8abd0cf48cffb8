"""Which messages the kubelet's services exchange: a table of facts, and the protobuf classes built from it at import.

The facts are those of k8s.io/kubelet's api.proto files (deviceplugin/v1beta1, podresources/v1, pluginregistration/v1): message,
field, number, type. There is no .proto file here and no generated code; a test compares the table with the Go module's source.
"""

from __future__ import annotations

from collections.abc import Mapping

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.message import Message

# package -> message -> "field:type=number ..."; a type in [] is repeated, {} is map<string, ...>, ? is optional with presence.
FACTS: Mapping[str, Mapping[str, str]] = {
    "v1beta1": {
        "Empty": "",
        "DevicePluginOptions": "pre_start_required:bool=1 get_preferred_allocation_available:bool=2",
        "RegisterRequest": "version:string=1 endpoint:string=2 resource_name:string=3 options:DevicePluginOptions=4",
        "ListAndWatchResponse": "devices:[Device]=1",
        "TopologyInfo": "nodes:[NUMANode]=1",
        "NUMANode": "ID:int64=1",
        "Device": "ID:string=1 health:string=2 topology:TopologyInfo=3",
        "PreStartContainerRequest": "devices_ids:[string]=1",
        "PreStartContainerResponse": "",
        "PreferredAllocationRequest": "container_requests:[ContainerPreferredAllocationRequest]=1",
        "ContainerPreferredAllocationRequest": (
            "available_deviceIDs:[string]=1 must_include_deviceIDs:[string]=2 allocation_size:int32=3"
        ),
        "PreferredAllocationResponse": "container_responses:[ContainerPreferredAllocationResponse]=1",
        "ContainerPreferredAllocationResponse": "deviceIDs:[string]=1",
        "AllocateRequest": "container_requests:[ContainerAllocateRequest]=1",
        "ContainerAllocateRequest": "devices_ids:[string]=1",
        "CDIDevice": "name:string=1",
        "AllocateResponse": "container_responses:[ContainerAllocateResponse]=1",
        "ContainerAllocateResponse": (
            "envs:{string}=1 mounts:[Mount]=2 devices:[DeviceSpec]=3 annotations:{string}=4 cdi_devices:[CDIDevice]=5"
        ),
        "Mount": "container_path:string=1 host_path:string=2 read_only:bool=3",
        "DeviceSpec": "container_path:string=1 host_path:string=2 permissions:string=3",
    },
    "v1": {
        "AllocatableResourcesRequest": "",
        "AllocatableResourcesResponse": "devices:[ContainerDevices]=1 cpu_ids:[int64]=2 memory:[ContainerMemory]=3",
        "ListPodResourcesRequest": "",
        "ListPodResourcesResponse": "pod_resources:[PodResources]=1",
        "PodResources": (
            "name:string=1 namespace:string=2 containers:[ContainerResources]=3 cpu_ids:[int64]=4 memory:[ContainerMemory]=5"
        ),
        "ContainerResources": (
            "name:string=1 devices:[ContainerDevices]=2 cpu_ids:[int64]=3 memory:[ContainerMemory]=4 "
            "dynamic_resources:[DynamicResource]=5"
        ),
        "ContainerMemory": "memory_type:string=1 size:uint64=2 topology:TopologyInfo=3",
        "ContainerDevices": "resource_name:string=1 device_ids:[string]=2 topology:TopologyInfo=3",
        "TopologyInfo": "nodes:[NUMANode]=1",
        "NUMANode": "ID:int64=1",
        "DynamicResource": "claim_name:string=2 claim_namespace:string=3 claim_resources:[ClaimResource]=4",
        "ClaimResource": (
            "cdi_devices:[CDIDevice]=1 driver_name:string=2 pool_name:string=3 device_name:string=4 share_id:?string=5"
        ),
        "CDIDevice": "name:string=1",
        "GetPodResourcesRequest": "pod_name:string=1 pod_namespace:string=2",
        "GetPodResourcesResponse": "pod_resources:PodResources=1",
    },
    "pluginregistration": {
        "PluginInfo": "type:string=1 name:string=2 endpoint:string=3 supported_versions:[string]=4",
        "RegistrationStatus": "plugin_registered:bool=1 error:string=2",
        "RegistrationStatusResponse": "",
        "InfoRequest": "",
    },
}

_FIELD = descriptor_pb2.FieldDescriptorProto
_SCALARS = {
    "string": _FIELD.TYPE_STRING,
    "bool": _FIELD.TYPE_BOOL,
    "int32": _FIELD.TYPE_INT32,
    "int64": _FIELD.TYPE_INT64,
    "uint64": _FIELD.TYPE_UINT64,
}


def _set_proto_field_type(field: descriptor_pb2.FieldDescriptorProto, package: str, kind: str) -> None:
    if kind in _SCALARS:
        field.type = _SCALARS[kind]
    else:
        field.type, field.type_name = _FIELD.TYPE_MESSAGE, f".{package}.{kind}"


def _add_proto_field(message: descriptor_pb2.DescriptorProto, package: str, fact: str) -> None:
    name, _, rest = fact.partition(":")
    kind, _, number = rest.partition("=")
    field = message.field.add(name=name, number=int(number), label=_FIELD.LABEL_OPTIONAL)
    if kind[0] == "[":
        field.label = _FIELD.LABEL_REPEATED
        _set_proto_field_type(field, package, kind[1:-1])
    elif kind[0] == "{":
        entry = message.nested_type.add(name=f"{name.capitalize()}Entry")
        entry.options.map_entry = True
        entry.field.add(name="key", number=1, label=_FIELD.LABEL_OPTIONAL, type=_FIELD.TYPE_STRING)
        _set_proto_field_type(entry.field.add(name="value", number=2, label=_FIELD.LABEL_OPTIONAL), package, kind[1:-1])
        field.label, field.type = _FIELD.LABEL_REPEATED, _FIELD.TYPE_MESSAGE
        field.type_name = f".{package}.{message.name}.{entry.name}"
    elif kind[0] == "?":  # proto3 keeps presence of a scalar by a oneof of one
        field.proto3_optional, field.oneof_index = True, len(message.oneof_decl)
        message.oneof_decl.add(name=f"_{name}")
        _set_proto_field_type(field, package, kind[1:])
    else:
        _set_proto_field_type(field, package, kind)


def _build_kubelet_messages() -> dict[str, dict[str, type[Message]]]:
    # A pool of our own: "v1" is a package name that others in the process may use as well.
    pool = descriptor_pool.DescriptorPool()
    for package, messages in FACTS.items():
        file = descriptor_pb2.FileDescriptorProto(name=f"{package}.proto", package=package, syntax="proto3")
        for name, facts in messages.items():
            message = file.message_type.add(name=name)
            for fact in facts.split():
                _add_proto_field(message, package, fact)
        pool.Add(file)
    return {
        package: {
            name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{package}.{name}")) for name in messages
        }
        for package, messages in FACTS.items()
    }


MESSAGES = _build_kubelet_messages()
"""Package -> name -> message class, for tests and for whoever must write bytes that no value of ours can say."""
