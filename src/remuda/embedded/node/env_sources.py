"""Variables of a container that come from elsewhere: ConfigMaps, Secrets, the pod's own fields, its resources. Pure, but for
`read_env_objects`.

As the kubelet does it: `envFrom` first, in order, then `env`, and later wins. What is missing and not optional keeps the
container from starting (`EnvProblem`, in the kubelet's words), and it is looked at again later. Values from elsewhere are taken
as they are: `$(NAME)` in them is not replaced, but they may be named in values that are written out.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Iterator, Mapping
from math import ceil

import msgspec

from remuda.api.errors import NotFound, Refusal
from remuda.api.injected_fields import is_injected_variable
from remuda.api.kubernetes.core_v1 import (
    ConfigMap,
    Container,
    EnvFromSource,
    EnvVar,
    KeyReference,
    ObjectFieldReference,
    Pod,
    ResourceFieldReference,
    Secret,
)
from remuda.api.kubernetes.quantity import parse_quantity
from remuda.kube.cluster import Cluster

_MAP_KEY = re.compile(r"metadata\.(labels|annotations)\['([^']*)'\]")

# (kind, name) -> its data; None: there is no such object.
EnvObjects = Mapping[tuple[str, str], Mapping[str, str] | None]


class EnvProblem(Exception):
    """Why the container cannot start yet."""


class EnvPlace(msgspec.Struct, frozen=True):
    """Where the pod runs. `host`: cpu and memory of the node, which stand in for limits that are not set."""

    node: str
    address: str
    host_address: str = ""
    host: Mapping[str, int | str] = {}


def has_env_sources(container: Container) -> bool:
    return bool(container.env_from) or any(variable.value_from is not None for variable in container.env)


def env_objects_named(container: Container) -> list[tuple[str, str]]:
    """(kind, name) of the ConfigMaps and Secrets that the container's variables come from, each once."""
    found: dict[tuple[str, str], None] = {}
    for source in container.env_from:
        for kind, ref in (("ConfigMap", source.config_map_ref), ("Secret", source.secret_ref)):
            if ref is not None:
                found[kind, ref.name] = None
    for variable in container.env:
        if variable.value_from is not None:
            for kind, key in _key_references(variable):
                found[kind, key.name] = None
    return list(found)


async def read_env_objects(cluster: Cluster, namespace: str, container: Container) -> EnvObjects:
    """Those objects, as they are now."""
    found: dict[tuple[str, str], Mapping[str, str] | None] = {}
    for kind, name in env_objects_named(container):
        try:
            if kind == "ConfigMap":
                found[kind, name] = (await cluster.get(ConfigMap, name, namespace)).data
            else:
                found[kind, name] = (await cluster.get(Secret, name, namespace)).data
        except NotFound:
            found[kind, name] = None
    return found


def with_env_values(pod: Pod, container: Container, objects: EnvObjects, place: EnvPlace) -> Container:
    """The container with every variable written out."""
    env = [*_taken_variables(container, objects)]
    for variable in container.env:
        if variable.value_from is None:
            env.append(variable)
        elif (value := _value_from(pod, container, variable, objects, place)) is not None:
            env.append(_literal(variable.name, value))
    return msgspec.structs.replace(container, env=env, env_from=[])


def _literal(name: str, value: str) -> EnvVar:
    if "\0" in value:
        raise EnvProblem(f"the value of {name} holds a zero byte, which no variable can")
    return EnvVar(name, value.replace("$", "$$"))  # nothing in it is replaced later on


# -- envFrom ---------------------------------------------------------------------------------------------------------------


def _taken_variables(container: Container, objects: EnvObjects) -> Iterator[EnvVar]:
    for source in container.env_from:
        for key, value in _taken_data(source, objects):
            name = f"{source.prefix}{key}"
            if is_injected_variable(name):
                raise EnvProblem(f"{name} is Remuda's own variable and cannot come from envFrom; rename the key")
            yield _literal(name, value)


def _taken_data(source: EnvFromSource, objects: EnvObjects) -> Iterator[tuple[str, str]]:
    for kind, ref in (("ConfigMap", source.config_map_ref), ("Secret", source.secret_ref)):
        if ref is None:
            continue
        data = objects.get((kind, ref.name))
        if data is None:
            if not ref.optional:
                raise EnvProblem(f'{kind.lower()} "{ref.name}" not found')
            continue
        for key in sorted(data):
            yield key, _text_of(kind, ref.name, key, data[key])


# -- valueFrom -------------------------------------------------------------------------------------------------------------


def _key_references(variable: EnvVar) -> Iterator[tuple[str, KeyReference]]:
    source = variable.value_from
    if source is not None and source.config_map_key_ref is not None:
        yield "ConfigMap", source.config_map_key_ref
    if source is not None and source.secret_key_ref is not None:
        yield "Secret", source.secret_key_ref


def _value_from(pod: Pod, container: Container, variable: EnvVar, objects: EnvObjects, place: EnvPlace) -> str | None:
    """None: an optional one that is not there, so the variable is not set."""
    source = variable.value_from
    assert source is not None
    for kind, ref in _key_references(variable):
        return _value_of_key(pod, kind, ref, objects)
    if source.field_ref is not None:
        return _value_of_field(pod, source.field_ref, place)
    if source.resource_field_ref is not None:
        return _value_of_resource(pod, container, source.resource_field_ref, place)
    raise EnvProblem(f"the source of {variable.name} is not known here")


def _value_of_key(pod: Pod, kind: str, ref: KeyReference, objects: EnvObjects) -> str | None:
    data = objects.get((kind, ref.name))
    if data is not None and ref.key in data:
        return _text_of(kind, ref.name, ref.key, data[ref.key])
    if ref.optional:
        return None
    if data is None:
        raise EnvProblem(f'{kind.lower()} "{ref.name}" not found')
    raise EnvProblem(f"couldn't find key {ref.key} in {kind} {pod.namespace}/{ref.name}")


def _text_of(kind: str, name: str, key: str, value: str) -> str:
    if kind == "ConfigMap":
        return value
    try:
        return base64.b64decode(value, validate=True).decode()
    except (binascii.Error, UnicodeDecodeError):
        raise EnvProblem(f"key {key} of secret {name} is no text, which a variable must be") from None


def _value_of_field(pod: Pod, ref: ObjectFieldReference, place: EnvPlace) -> str:
    path = ref.field_path
    if (match := _MAP_KEY.fullmatch(path)) is not None:
        return (pod.labels if match[1] == "labels" else pod.annotations).get(match[2], "")
    values = {
        "metadata.name": pod.name,
        "metadata.namespace": pod.namespace,
        "metadata.uid": pod.uid,
        "spec.nodeName": place.node,
        "spec.serviceAccountName": pod.spec.service_account_name,
        "status.podIP": place.address,
        "status.podIPs": place.address,
        "status.hostIP": place.host_address,
        "status.hostIPs": place.host_address,
    }
    if path not in values:
        raise EnvProblem(f"fieldPath {path[:80]} is not known")
    return values[path]


def _value_of_resource(pod: Pod, own: Container, ref: ResourceFieldReference, place: EnvPlace) -> str:
    specs = (*pod.spec.containers, *pod.spec.init_containers)
    asked = next((c for c in specs if c.name == ref.container_name), None) if ref.container_name else own
    if asked is None:
        raise EnvProblem(f"container {ref.container_name} not found")
    which, _, resource = ref.resource.partition(".")
    limits, requests = asked.resources.limits, asked.resources.requests
    if which == "limits":
        amount = limits.get(resource, place.host.get(resource, 0))
    elif which == "requests":
        amount = requests.get(resource, limits.get(resource, 0))
    else:
        raise EnvProblem(f"resource {ref.resource[:80]} is not known")
    try:
        divisor = parse_quantity(ref.divisor or 1) or parse_quantity(1)
        return str(ceil(parse_quantity(amount) / divisor))
    except Refusal as refusal:
        raise EnvProblem(refusal.message) from None
